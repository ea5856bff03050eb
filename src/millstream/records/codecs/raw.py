"""A raw value is the only column of its row: valid UTF-8 text, or any bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from millstream.errors import InvalidSchema
from millstream.records.codecs.base import Codec
from millstream.records.columns import Faults, Leaf, Rules
from millstream.records.ddl import format_type
from millstream.records.schema import Schema

_VALUE_BINARY = Schema.of("value binary")
_VALUE_STRING = Schema.of("value string")


@dataclass(frozen=True)
class _RawCodec(Codec):
    """One column of `column_type`; null is encoded as a null value, a tombstone, like in Kafka's serializers."""

    column_type: ClassVar[pa.DataType]
    bounded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        types = [column.type for column in self.schema.arrow]
        if types != [self.column_type]:
            wanted = format_type(self.column_type)
            raise InvalidSchema(
                f"the codec '{self.name}' needs exactly one column of type {wanted}, not: {self.schema.ddl}",
                next_step=f'leave the schema out, or give "value {wanted}"',
            )

    def _encoded(self, rows: pa.RecordBatch) -> list[bytes | None]:
        values: list[bytes | None] = rows.column(0).cast(pa.binary()).to_pylist()
        return values

    def _rules(self) -> Rules:
        return _RawRules()


@dataclass(frozen=True)
class BytesCodec(_RawCodec):
    schema: Schema = _VALUE_BINARY
    name: ClassVar[str] = "bytes"
    column_type: ClassVar[pa.DataType] = pa.binary()

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        return [values]


@dataclass(frozen=True)
class StringCodec(_RawCodec):
    schema: Schema = _VALUE_STRING
    name: ClassVar[str] = "string"
    column_type: ClassVar[pa.DataType] = pa.string()

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        texts: list[str | None] = []
        for index, value in enumerate(values):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError as bad:
                faults[index] = f"not valid UTF-8 at byte {bad.start}"
                texts.append(None)
        return [texts]


class _RawRules(Rules):
    def leaf(self, dtype: pa.DataType) -> Leaf:
        return Leaf(
            format_type(dtype), frozenset({bytes, str}), lambda values: pa.array(values, dtype), lambda value: value
        )

    def show(self, value: Any) -> str:
        return repr(value)
