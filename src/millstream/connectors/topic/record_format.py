"""How rows are written as records: the format of their values, and the columns for headers and timestamps.

The columns of headers and timestamps are not part of the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors import arguments
from millstream.connectors.refusals import Test, is_time_without_text
from millstream.errors import InvalidPlan
from millstream.log.storage.layout import HEADERS, TIMESTAMP
from millstream.plan.endpoints import VALUE_FORMATS
from millstream.records import Codec, Schema, codec
from millstream.records.ddl import format_type
from millstream.records.texts import to_texts
from millstream.user_lines import AtUsersLine, users_line, what_exists

IN_RANGE: Mapping[str, Test] = {"a time outside the years 1 to 9999": is_time_without_text}
"""Values that no format can hold."""
TOMBSTONE = "its only column is null, and a record without a value is a tombstone"


@dataclass(frozen=True)
class Extras:
    """What records have besides key and value."""

    headers: pa.Array | None = None
    timestamps: pa.Array | None = None


@dataclass(frozen=True)
class RecordFormat:
    format: str | None = None
    """None: as the topic has them, in columns or as JSON."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Those of the codec, as plain values."""
    headers: str | tuple[tuple[str, str], ...] | None = None
    """A column with all of them, or the column of each."""
    timestamp: str | None = None

    @property
    def columns(self) -> frozenset[str]:
        """Those that are not part of the value."""
        named = [self.headers] if isinstance(self.headers, str) else [column for _, column in self.headers or ()]
        return frozenset(named if self.timestamp is None else [*named, self.timestamp])

    def value_schema(self, schema: Schema) -> Schema:
        """The columns of the value."""
        if not self.columns:
            return schema
        return Schema.of(pa.schema([column for column in schema.arrow if column.name not in self.columns]))

    def values(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select([name for name in rows.schema.names if name not in self.columns]) if self.columns else rows

    def codec(self, schema: Schema) -> Codec:
        """For values with these columns."""
        return codec(self.format or "json", schema, **self.options)

    def check(self, schema: Schema) -> None:
        """Raises, at the user's line, if rows of this schema cannot be written so."""
        for column in sorted(self.columns):
            if column not in schema:
                raise InvalidPlan(
                    f"there is no column '{column}' for {'the timestamp' if column == self.timestamp else 'a header'}",
                    where=users_line(),
                    next_step=what_exists(column, schema.names),
                )
        if self.timestamp is not None and schema.field(self.timestamp).type != TIMESTAMP:
            raise _wrong_type(schema, self.timestamp, "timestamp=", "a timestamp")
        if isinstance(self.headers, str) and schema.field(self.headers).type not in (HEADERS, _TEXT_HEADERS):
            raise _wrong_type(schema, self.headers, "headers=", "map<string,binary> or map<string,string>")
        for _, column in () if isinstance(self.headers, str) or self.headers is None else self.headers:
            if pa.types.is_nested(schema.field(column).type):
                raise _wrong_type(schema, column, "a header", "a simple type")
        if not len(schema) > len(self.columns):
            raise InvalidPlan(
                "no column is left for the value of the records",
                where=users_line(),
                next_step="the columns of headers and of the timestamp are not part of it; keep one more",
            )
        if self.format is not None:
            with AtUsersLine():
                self.codec(self.value_schema(schema)).check_encodes()

    def extras(self, rows: pa.RecordBatch) -> Extras:
        return Extras(self._headers(rows), None if self.timestamp is None else rows.column(self.timestamp))

    def _headers(self, rows: pa.RecordBatch) -> pa.Array | None:
        if self.headers is None:
            return None
        if isinstance(self.headers, str):
            found = rows.column(self.headers)
            return found if found.type == HEADERS else found.cast(HEADERS)
        contents = [_header_values(rows.column(column)) for _, column in self.headers]
        names = [name for name, _ in self.headers]
        made = [
            [(name, value) for name, value in zip(names, row, strict=True) if value is not None]
            for row in zip(*contents, strict=True)
        ]
        return pa.array(made, HEADERS)


_TEXT_HEADERS = pa.map_(pa.string(), pa.string())


def _header_values(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_binary(column.type):
        plain: list[bytes | None] = column.to_pylist()
        return plain
    return [None if text is None else text.encode() for text in to_texts(column)]


def _wrong_type(schema: Schema, column: str, what: str, wanted: str) -> InvalidPlan:
    found = format_type(schema.field(column).type)
    return InvalidPlan(
        f"column '{column}' for {what} is {found}, not {wanted}",
        where=users_line(),
        next_step=f"convert it: with_column('{column}', …)",
    )


def record_format(format: str | None, headers: object, timestamp: object, options: Mapping[str, Any]) -> RecordFormat:
    """Checks the arguments of a user."""
    if format is not None and format not in VALUE_FORMATS:
        raise arguments.refused(f"there is no format {format!r}", what_exists(format, VALUE_FORMATS, kind="formats"))
    if options and format is None:
        raise arguments.refused(f"{next(iter(options))} belongs to a format", "name the format: format='avro'")
    named: str | tuple[tuple[str, str], ...] | None = None
    if isinstance(headers, Mapping):
        if not headers or not all(isinstance(each, str) and each for pair in headers.items() for each in pair):
            raise arguments.refused("headers are names and columns", "headers={'trace': 'trace_id'}")
        named = tuple(headers.items())
    elif headers is not None:
        named = arguments.text(headers, "headers must be a column or a dict", "headers={'trace': 'trace_id'}")
    at = None if timestamp is None else arguments.text(timestamp, "timestamp must be a column", "timestamp='at'")
    with AtUsersLine():
        return RecordFormat(format, plain_options(format, options), named, at)


def plain_options(format: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as values that can be pickled: a message class as its descriptors, a schema as text."""
    found = dict(options)
    if format == "protobuf" and not set(found) - {"message", "descriptors"} and found:
        from millstream.records.codecs.proto_files import message_type

        made = message_type(found.get("message"), found.get("descriptors"))
        return {"message": made.name, "descriptors": made.files}
    if isinstance(found.get("avro_schema"), Mapping):
        found["avro_schema"] = json.dumps(
            {name: value for name, value in found["avro_schema"].items() if not name.startswith("__")}
        )
    return found


def without_values(values: pa.Array) -> dict[int, str]:
    """The rows whose record would be a tombstone."""
    if not values.null_count:
        return {}
    return dict.fromkeys(np.flatnonzero(pc.is_null(values).to_numpy(zero_copy_only=False)).tolist(), TOMBSTONE)
