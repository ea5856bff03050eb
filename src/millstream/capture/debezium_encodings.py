"""How Debezium writes values: dates as days since 1970, times as microseconds, decimals as the bytes of a whole number.

Reading accepts what its other settings write as well; columns keep the types that the table has.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.kafka.schema_registry import RegistryCodec
from millstream.records import Schema
from millstream.records.codecs.avro import AvroRules, avro_schema_of
from millstream.records.codecs.base import Codec, Indices
from millstream.records.codecs.json import JsonCodec, JsonRules
from millstream.records.columns import Faults, Leaf, Refused, Rules
from millstream.records.ddl import TIME_UNITS, time_unit
from millstream.records.ranges import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN, decimal_that_fits, timestamps_in_range
from millstream.records.texts import text_leaf, to_texts

UNAVAILABLE = "__debezium_unavailable_value"
"""In place of a large value that the database did not send."""
PRECISE, TEXT = "precise", "string"
DECIMALS = (PRECISE, TEXT)
"""Debezium's `decimal.handling.mode`."""
DAY = timedelta(days=1)
DAY_US = 86_400_000_000

# ---------------------------------------------------------------- reading


def _with_numbers(plain: Leaf, dtype: pa.DataType, unit_us: int) -> Leaf:
    """Times that are whole numbers of a unit since 1970, or text, or what the format has for them.

    A unit of 0: numbers are not accepted.
    """
    text = text_leaf(dtype)
    epoch = datetime(1970, 1, 1, tzinfo=UTC if getattr(dtype, "tz", None) else None)

    def whole(values: list[Any]) -> pa.Array:
        moments = pc.multiply_checked(pa.array(values, pa.int64()), unit_us).cast(pa.timestamp("us"))
        return timestamps_in_range(moments).cast(pa.date32() if pa.types.is_date(dtype) else dtype)

    def one(value: Any) -> Any:
        if type(value) is str:
            return text.one(value)
        if type(value) is not int or not unit_us:
            return plain.one(value)
        if not TIMESTAMP_US_MIN <= value * unit_us <= TIMESTAMP_US_MAX:
            raise Refused(f"{value}, which is out of its range")
        moment = epoch + timedelta(microseconds=value * unit_us)
        return moment.date() if pa.types.is_date(dtype) else moment

    return Leaf(plain.expected, frozenset({int} if unit_us else ()), whole, one)


def _decimals(plain: Leaf, dtype: pa.DataType, are_precise: bool) -> Leaf:
    """Bytes of the whole number without the point, as base64 in JSON; or a struct of these bytes and the scale."""

    def one(value: Any) -> Any:
        if type(value) is dict and type(value.get("scale")) is int:
            return _placed(_bytes(value.get("value")), value["scale"], dtype)
        if type(value) is str:
            return _placed(_bytes(value), dtype.scale, dtype) if are_precise else text_leaf(dtype).one(value)
        return plain.one(value)

    def whole(values: list[Any]) -> pa.Array:
        return pa.array([None if value is None else one(value) for value in values], dtype)

    return Leaf(plain.expected, frozenset(), whole, one)


def _bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise Refused("") from None


def _placed(number: bytes, scale: int, dtype: pa.DataType) -> Decimal:
    sign, digits, _ = Decimal(int.from_bytes(number, "big", signed=True)).as_tuple()
    return decimal_that_fits(Decimal((sign, digits, -scale)), dtype)


def _decoding(base: type[Rules], are_precise: bool) -> Rules:
    class Decoding(base):  # type: ignore[valid-type, misc]
        def leaf(self, dtype: pa.DataType) -> Leaf:
            plain: Leaf = super().leaf(dtype)
            if pa.types.is_date(dtype):
                return _with_numbers(plain, dtype, DAY_US)
            if pa.types.is_timestamp(dtype) and dtype.tz is None:
                return _with_numbers(plain, dtype, 1)
            if pa.types.is_timestamp(dtype) and base is AvroRules:
                return _with_numbers(plain, dtype, 0)
            return _decimals(plain, dtype, are_precise) if pa.types.is_decimal(dtype) else plain

        def leaf_of(self, column: pa.Field) -> Leaf:
            unit = time_unit(column)
            if unit is None:
                return self.leaf(column.type)
            return _with_numbers(super().leaf(column.type), column.type, TIME_UNITS[unit])

    return Decoding()


@dataclass(frozen=True)
class DebeziumJson(JsonCodec):
    decimals: str = PRECISE

    def _rules(self) -> Rules:
        return _decoding(JsonRules, self.decimals == PRECISE)

    def _decoded(self, chunk: list[bytes], size_bytes_max: int) -> tuple[pa.RecordBatch, Indices, Faults]:
        if any(map(_is_encoded, self.schema.arrow.types)):
            return Codec._decoded(self, chunk, size_bytes_max)
        return super()._decoded(chunk, size_bytes_max)


@dataclass(frozen=True)
class DebeziumAvro(RegistryCodec):
    def _rules(self) -> Rules:
        return _decoding(AvroRules, are_precise=False)


def _is_encoded(dtype: pa.DataType) -> bool:
    kind = pa.types
    if kind.is_nested(dtype):
        return any(_is_encoded(dtype.field(index).type) for index in range(dtype.num_fields))
    return bool(kind.is_date(dtype) or kind.is_decimal(dtype) or kind.is_timestamp(dtype))


def unavailable(column: pa.Array) -> pa.Array | None:
    """Where a value was not sent; None if a column of this type always is."""
    kind = column.type
    if pa.types.is_string(kind):
        return pc.equal(column, UNAVAILABLE).fill_null(False)
    if pa.types.is_binary(kind):
        return pc.equal(column, UNAVAILABLE.encode()).fill_null(False)
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        return pc.equal(pc.binary_join(column, "\0"), UNAVAILABLE).fill_null(False)
    return None


# ---------------------------------------------------------------- writing


def encoded(column: pa.Array, decimals: str, *, is_json: bool) -> pa.Array:
    """A column as Debezium writes it; arrays and structs with encoded values inside."""
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).view(pa.int32())
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return column.cast(pa.timestamp("us")).view(pa.int64())
        return pa.array(to_texts(column), pa.string())
    if pa.types.is_decimal(kind):
        if decimals == TEXT:
            return pa.array(to_texts(column), pa.string())
        return pa.array(map(_unscaled, column.to_pylist()), pa.binary()) if is_json else column
    if pa.types.is_struct(kind):
        parts = [encoded(part, decimals, is_json=is_json) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, names=[field.name for field in kind], mask=column.is_null())
    if pa.types.is_list(kind):
        inside = encoded(column.flatten(), decimals, is_json=is_json)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, inside, mask=column.is_null())
    return column


def _unscaled(value: Decimal | None) -> bytes | None:
    if value is None:
        return None
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def marked(column: pa.Array, are_unsent: pa.Array) -> pa.Array:
    """With Debezium's mark where a large value was not sent; types that cannot hold it stay null."""
    if pa.types.is_string(column.type):
        return pc.if_else(are_unsent, UNAVAILABLE, column)
    if pa.types.is_binary(column.type):
        return pc.if_else(are_unsent, pa.scalar(UNAVAILABLE.encode(), pa.binary()), column)
    return column


# ---------------------------------------------------------------- schemas in Avro


def avro_fields(columns: Schema, decimals: str) -> list[dict[str, Any]]:
    """The fields of a row, with the names that Kafka Connect gives to the encodings."""
    return [
        {"name": field.name, "type": ["null", _avro_type(field, decimals)], "default": None} for field in columns.arrow
    ]


def _avro_type(field: pa.Field, decimals: str) -> Any:
    kind = pa.types
    if kind.is_date(field.type):
        return _connect("int", "io.debezium.time.Date")
    if kind.is_timestamp(field.type):
        if field.type.tz is None:
            return _connect("long", "io.debezium.time.MicroTimestamp")
        return _connect("string", "io.debezium.time.ZonedTimestamp")
    empty = encoded(pa.array([], field.type), decimals, is_json=False).type
    made = avro_schema_of(Schema.of(pa.schema([pa.field(field.name, empty, nullable=False)])))["fields"][0]["type"]
    if kind.is_decimal(field.type) and decimals == PRECISE:
        return {**made, "connect.version": 1, "connect.name": "org.apache.kafka.connect.data.Decimal"}
    return made


def _connect(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name}
