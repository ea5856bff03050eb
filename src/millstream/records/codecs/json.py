"""A JSON value is one object whose fields are the columns; a value must be exactly of its column's type.

- A missing field is null; unknown fields are ignored; of duplicate fields the last one counts.
- `timestamp` is ISO 8601 text; without a zone it is taken as UTC. Numbers are rejected: their unit is ambiguous.
- `timestamp_seconds`, `timestamp_millis` and `timestamp_micros` are timestamps that also accept numbers, in that unit
  since 1970; fractions are rounded to microseconds. They are written as text, like every timestamp.
- `binary` is base64, `decimal` a number or text, read exactly; `map` an object with keys in their text form.
- NaN and the infinities are the strings "NaN", "Infinity", "-Infinity", as Spark writes them.

Values are parsed one by one: by `typed_json.py` if they are as the schema expects, otherwise by orjson. pyarrow.json
over the joined batch is no slower, but it breaks the guarantee of `base.py`: two objects in one value become two rows,
an empty value none, which shifts all later rows; invalid UTF-8 and byte order marks pass; one wrong type fails all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidSchema
from millstream.records.bounds import CONTAINERS_MAX, too_many_containers
from millstream.records.codecs.base import Codec, Indices
from millstream.records.codecs.typed_json import TypedJson, typed_json
from millstream.records.columns import Faults, Leaf, Refused, Rules
from millstream.records.ddl import TIME_UNITS, format_type, time_unit
from millstream.records.ranges import (
    TIMESTAMP_US_MAX,
    TIMESTAMP_US_MIN,
    decimal_that_fits,
    float32_whole,
    float_in_range,
    int_in_range,
    shortened,
    timestamps_in_range,
)
from millstream.records.schema import Schema
from millstream.records.texts import SPECIAL_FLOATS, read_decimal, text_leaf, to_texts
from millstream.records.values import column_to_values, rows_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = (int, float, Decimal)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class JsonCodec(Codec):
    name: ClassVar[str] = "json"

    def __post_init__(self) -> None:
        for column in self.schema.arrow:
            _refuse_nested_keys(column.type, column.name)

    def _encoded(self, rows: pa.RecordBatch) -> list[bytes]:
        columns = [column_to_values(column, _json_values, to_texts) for column in rows.columns]
        return list(map(orjson.dumps, rows_of(tuple(self.schema.names), columns)))

    def _rules(self) -> Rules:
        return JsonRules()

    def _decoded(self, chunk: list[bytes], size_bytes_max: int) -> tuple[pa.RecordBatch, Indices, Faults]:
        """Most values are parsed with their types; those that are refused there are parsed again, one by one."""
        typed = _typed(self.schema.ddl)
        fitting = typed.rows(chunk) if typed is not None and max(map(len, chunk)) <= size_bytes_max else None
        if fitting is None:
            return super()._decoded(chunk, size_bytes_max)
        rows, refused = fitting
        positions = np.delete(np.arange(len(chunk), dtype=np.int64), refused)
        if not refused:
            return rows, positions, {}
        others, places, faults = super()._decoded([chunk[place] for place in refused], size_bytes_max)
        places = np.array(refused, np.int64)[places]
        order = np.argsort(np.concatenate([positions, places]), kind="stable")
        merged = pa.concat_batches([rows, others]).take(pa.array(order))
        return merged, np.sort(np.concatenate([positions, places])), {refused[at]: why for at, why in faults.items()}

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        parse = _parse_exactly if _holds_decimals(self.schema.arrow) else orjson.loads
        has_large = sum(map(len, values)) > CONTAINERS_MAX
        parsed: list[dict[str, Any]] = []
        for index, value in enumerate(values):
            try:
                if has_large:
                    check_containers(value)
                found = parse(value)
            except Refused as refusal:
                faults[index] = str(refusal)
                parsed.append({})
                continue
            except (ValueError, RecursionError, InvalidOperation) as refusal:
                faults[index] = _why_unreadable(value, refusal)
                found = {}
            if type(found) is not dict:
                faults[index] = f"expected a JSON object, found {JsonRules().show(found)}"
                found = {}
            parsed.append(found)
        return ([record.get(name) for record in parsed] for name in self.schema.names)


@lru_cache(maxsize=64)
def _typed(ddl: str) -> TypedJson | None:
    """By the text of the schema: equal schemas may differ in the unit of a timestamp. None for exact decimals."""
    schema = Schema.of(ddl).arrow
    return None if _holds_decimals(schema) else typed_json(schema, JsonRules())


# ---------------------------------------------------------------- reading

_exact_numbers = json.JSONDecoder(parse_float=Decimal)


def _parse_exactly(value: bytes) -> Any:
    orjson.loads(value)  # so that the same text is valid JSON whether or not a column is a decimal
    return _exact_numbers.decode(value.decode())


def check_containers(value: bytes) -> None:
    """Rejects a value with too many containers; brackets inside strings count, because skipping them means parsing."""
    if len(value) > CONTAINERS_MAX and value.count(b"[") + value.count(b"{") > CONTAINERS_MAX:
        raise too_many_containers()


def _holds_decimals(of: Any) -> bool:
    return any(
        pa.types.is_decimal(member.type) or (pa.types.is_nested(member.type) and _holds_decimals(_members(member.type)))
        for member in of
    )


def _members(dtype: pa.DataType) -> list[pa.Field]:
    return [dtype.field(index) for index in range(dtype.num_fields)]


def _refuse_nested_keys(dtype: pa.DataType, path: str) -> None:
    if pa.types.is_map(dtype) and pa.types.is_nested(dtype.key_type):
        raise InvalidSchema(
            f"column '{path}' is a map with keys of type {format_type(dtype.key_type)}, which JSON cannot represent",
            next_step="use keys of a simple type, or an array of structs",
        )
    if pa.types.is_nested(dtype):
        for member in _members(dtype):
            _refuse_nested_keys(member.type, f"{path}.{member.name}")


def _why_unreadable(value: bytes, refusal: Exception) -> str:
    if not value:
        return "the value is empty; expected a JSON object"
    if value.startswith(_BYTE_ORDER_MARK):
        return "starts with a byte order mark, which JSON does not allow"
    try:
        value.decode()
    except UnicodeDecodeError as bad:
        return f"not valid UTF-8 at byte {bad.start}"
    if isinstance(refusal, json.JSONDecodeError):
        if "depth" in refusal.msg:
            return "JSON is nested too deeply"
        if "infinity" in refusal.msg:
            return f"a number out of range in JSON at character {refusal.pos}"
        return f"not valid JSON at character {refusal.pos}: {refusal.msg}"
    return "JSON is nested too deeply or has a number out of range"


class JsonRules(Rules):
    list_name, struct_name, map_name = "an array", "an object", "an object"

    def show(self, value: Any) -> str:
        if isinstance(value, (dict, list)):
            return "an object" if isinstance(value, dict) else "an array"
        if isinstance(value, Decimal) or (isinstance(value, int) and value.bit_length() > 63):
            return shortened(str(value))
        return shortened(orjson.dumps(value).decode())

    def key(self, dtype: pa.DataType) -> Leaf:
        return text_leaf(dtype)

    def leaf_of(self, column: pa.Field) -> Leaf:
        unit = time_unit(column)
        return self.leaf(column.type) if unit is None else _timestamps_in(unit, column.type)

    def leaf(self, dtype: pa.DataType) -> Leaf:
        kind = pa.types
        expected = format_type(dtype)
        if kind.is_boolean(dtype):
            return Leaf(expected, frozenset({bool}), lambda values: pa.array(values, dtype), _boolean)
        if kind.is_integer(dtype):
            return Leaf(
                expected, frozenset({int}), lambda values: pa.array(values, dtype), lambda value: _int(value, dtype)
            )
        if kind.is_floating(dtype):
            whole = float32_whole if kind.is_float32(dtype) else lambda values: pa.array(values, dtype)
            return Leaf(expected, frozenset({int, float}), whole, lambda value: _float(value, dtype))
        if kind.is_decimal(dtype):
            return Leaf(
                expected, frozenset(), lambda values: pa.nulls(len(values), dtype), lambda v: _decimal(v, dtype)
            )
        if kind.is_timestamp(dtype) and dtype.tz:
            return _timestamps_as_text(dtype)
        return text_leaf(dtype)


def _timestamps_as_text(dtype: pa.DataType) -> Leaf:
    text = text_leaf(dtype)

    def one(value: Any) -> Any:
        if type(value) in NUMBERS:
            units = ", ".join(TIME_UNITS)
            raise Refused(f"{value}, a number of an unknown unit: declare the column as one of {units}")
        return text.one(value)

    return replace(text, one=one)


def _timestamps_in(unit: str, dtype: pa.DataType) -> Leaf:
    """Numbers in a unit since 1970, or text."""
    text, unit_us = text_leaf(dtype), TIME_UNITS[unit]

    def whole(values: list[Any]) -> pa.Array:
        return timestamps_in_range(pc.multiply_checked(pa.array(values, pa.int64()), unit_us).cast(dtype))

    def one(value: Any) -> Any:
        if type(value) not in NUMBERS:
            return text.one(value)
        number = Decimal(value)
        if not TIMESTAMP_US_MIN <= number * unit_us <= TIMESTAMP_US_MAX:  # false for NaN, too
            raise Refused(f"{shortened(str(value))}, which is out of its range")
        return EPOCH + timedelta(microseconds=round(number * unit_us))

    return Leaf(f"{unit} (a number, or ISO 8601 text)", frozenset({int}), whole, one)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Refused("")
    return value


def _int(value: Any, dtype: pa.DataType) -> int:
    if type(value) is not int:
        raise Refused("")
    return int_in_range(value, dtype)


def _float(value: Any, dtype: pa.DataType) -> float:
    if type(value) is str and value in SPECIAL_FLOATS:
        return SPECIAL_FLOATS[value]
    if type(value) not in (int, float, Decimal):
        raise Refused("")
    return float_in_range(float(value), dtype)


def _decimal(value: Any, dtype: pa.DataType) -> Decimal:
    if type(value) is str:
        return read_decimal(value, dtype)
    if type(value) not in (int, Decimal):
        raise Refused("")
    return decimal_that_fits(Decimal(value), dtype)


# ---------------------------------------------------------------- writing


def _json_values(array: pa.Array) -> list[Any]:
    kind = pa.types
    dtype = array.type
    if kind.is_floating(dtype):
        special = ("NaN", "Infinity", "-Infinity")
        texts = to_texts(array)
        return [text if text in special else value for text, value in zip(texts, array.to_pylist(), strict=True)]
    if kind.is_decimal(dtype):
        return [None if text is None else orjson.Fragment(text) for text in to_texts(array)]
    if kind.is_boolean(dtype) or kind.is_integer(dtype) or kind.is_string(dtype):
        plain: list[Any] = array.to_pylist()
        return plain
    return to_texts(array)
