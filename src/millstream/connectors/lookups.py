"""Tables that rows are looked up in by key: the port, a row as Python values or as JSON, and the key."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import orjson
import pyarrow as pa

from millstream.errors import InvalidInput, MillstreamError
from millstream.records import Schema, batch_to_rows, codec, rows_to_batch
from millstream.records.columns import Refused
from millstream.records.texts import text_leaf
from millstream.user_lines import what_exists


class TableUnavailable(MillstreamError):
    """A recorded table cannot be read: its database is down, or it no longer exists."""

    exit_code = 5


class InvalidKey(InvalidInput):
    """An invalid key: other columns, or another type."""


class Row(Protocol):
    def values(self) -> dict[str, Any]: ...

    def json(self) -> bytes: ...


class Lookup(Protocol):
    """A table that is open."""

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def held_bytes(self) -> int:
        """About how much memory its index takes."""

    def row(self, key: Any) -> Row | None: ...

    def text(self, key: Any) -> str:
        """A key as a message says it."""

    def some_keys(self, count: int) -> list[str]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class TypedRow:
    """A row of a schema, as a batch of one row."""

    batch: pa.RecordBatch

    def values(self) -> dict[str, Any]:
        return batch_to_rows(self.batch)[0]

    def json(self) -> bytes:
        encoded: bytes = codec("json", Schema(self.batch.schema)).encode(self.batch)[0].as_py()
        return encoded


@dataclass(frozen=True)
class PlainRow:
    """The value of a record in a topic without a schema: the fields of a JSON object, or else the plain value."""

    value: bytes

    def values(self) -> dict[str, Any]:
        try:
            found = orjson.loads(self.value)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        try:
            return {"value": self.value.decode()}
        except UnicodeDecodeError:
            return {"value": {"base64": base64.b64encode(self.value).decode()}}

    def json(self) -> bytes:
        return orjson.dumps(self.values())


# ---------------------------------------------------------------- keys


class Key:
    """The key columns of a table. A key is one value, a value for each column in order, or a mapping by column; text is
    parsed as the column's type."""

    def __init__(self, table: str, columns: pa.Schema) -> None:
        self._table = table
        self._schema = Schema(columns)
        self.names = self._schema.names

    def batch(self, given: Any) -> pa.RecordBatch:
        """The key as a batch of one row."""
        row = {name: self._value(name, value) for name, value in self._by_name(given).items()}
        batch, failures = rows_to_batch([row], self._schema)
        if failures:
            raise self._refusal(failures[0].reason)
        return batch

    def _by_name(self, given: Any) -> Mapping[str, Any]:
        if isinstance(given, Mapping):
            if unknown := next((name for name in given if name not in self.names), None):
                raise InvalidKey(
                    f"'{unknown}' is not in the key of the table '{self._table}'",
                    next_step=what_exists(unknown, self.names, kind="key columns"),
                )
            if missing := [name for name in self.names if name not in given]:
                raise self._refusal(f"{', '.join(missing)} is missing")
            return given
        if len(self.names) == 1:
            return {self.names[0]: given}
        if isinstance(given, Sequence) and not isinstance(given, str | bytes) and len(given) == len(self.names):
            return dict(zip(self.names, given, strict=True))
        raise self._refusal(f"{given!r} is not a complete key")

    def _value(self, name: str, value: Any) -> Any:
        kind = self._schema.field(name).type
        if isinstance(value, float) and pa.types.is_decimal(kind):
            return Decimal(repr(value))  # of a JSON document
        if not isinstance(value, str) or pa.types.is_string(kind):
            return value
        leaf = text_leaf(kind)
        try:
            return leaf.one(value)
        except Refused as refusal:
            found = refusal.args[0] or repr(value)
            raise self._refusal(f"column '{name}': expected {leaf.expected}, found {found}") from None

    def _refusal(self, why: str) -> InvalidKey:
        return InvalidKey(
            f"that is not a key of the table '{self._table}': {why}",
            next_step=f"its key is {self._schema.ddl}",
        )

    def text(self, key: pa.RecordBatch) -> str:
        """A key, for messages."""
        document = orjson.loads(TypedRow(key).json())
        return ", ".join(f"{name} = {orjson.dumps(value).decode()}" for name, value in document.items())
