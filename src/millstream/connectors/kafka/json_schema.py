"""The JSON Schema of rows, for a schema registry: closed, so that a column can be added later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.records import Schema

DRAFT = "http://json-schema.org/draft-07/schema#"
_INTEGERS = {dtype: dtype.bit_width for dtype in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}


def json_schema_of(schema: Schema, title: str) -> dict[str, Any]:
    return {"$schema": DRAFT, "title": title, **_object(list(schema.arrow))}


def _object(columns: Sequence[pa.Field]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object",
        "properties": {column.name: _member(column) for column in columns},
        "additionalProperties": False,
    }
    if required := [column.name for column in columns if not column.nullable]:
        found["required"] = required
    return found


def _member(column: pa.Field) -> dict[str, Any]:
    return _nullable(_type(column.type)) if column.nullable else _type(column.type)


def _nullable(type: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, type]}


def _type(dtype: pa.DataType) -> dict[str, Any]:
    """As the codec writes values: what JSON has no type for is text."""
    kind = pa.types
    if kind.is_boolean(dtype):
        return {"type": "boolean"}
    if dtype in _INTEGERS:
        limit = 1 << (_INTEGERS[dtype] - 1)
        return {"type": "integer", "minimum": -limit, "maximum": limit - 1}
    if kind.is_floating(dtype):
        return {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
    if kind.is_decimal(dtype):
        return {"type": "number"}
    if kind.is_struct(dtype):
        return _object(list(dtype))
    if kind.is_list(dtype):
        return {"type": "array", "items": _nullable(_type(dtype.value_type))}
    if kind.is_map(dtype):
        return {"type": "object", "additionalProperties": _nullable(_type(dtype.item_type))}
    if kind.is_date(dtype):
        return {"type": "string", "format": "date"}
    if kind.is_timestamp(dtype) and dtype.tz:
        return {"type": "string", "format": "date-time"}
    return {"type": "string"}
