"""JSON objects whose values are the same in Python and in Arrow: parsed once, into dicts or into columns.

It accepts only what `TypedJson` accepts, and no fields that are not columns. For anything else, `parsed` returns None,
and the JSON codec decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from millstream.records.bounds import RECORD_BYTES_MAX
from millstream.records.codecs.typed_json import column_type
from millstream.records.ddl import time_unit
from millstream.records.schema import Schema
from millstream.records.values import is_plain_name

CHUNK_RECORDS = 2_000  # as in base.py
PAUSE = 16  # after a batch that was not accepted: parsing it twice costs more than it saves


class PlainJson:
    """Made once per schema, all of whose columns are booleans, integers, doubles or strings."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        fields: list[Any] = [
            (field.name, column_type(field) | None, None) if field.nullable else (field.name, column_type(field))
            for field in schema
        ]
        made = msgspec.defstruct("Row", fields, forbid_unknown_fields=True, gc=False, kw_only=True)
        self._decoder = msgspec.json.Decoder(made)
        self._paused = 0

    def parsed(self, values: Sequence[bytes]) -> PlainRows | None:
        if self._paused:
            self._paused -= 1
            return None
        found: list[msgspec.Struct] = []
        decode = self._decoder.decode
        try:
            for begin in range(0, len(values), CHUNK_RECORDS):
                found += map(decode, values[begin : begin + CHUNK_RECORDS])
        except (ValueError, RecursionError):  # so are all errors of msgspec
            self._paused = PAUSE
            return None
        return PlainRows(self._schema, found)


@dataclass(frozen=True, slots=True)
class PlainRows:
    schema: pa.Schema
    rows: list[msgspec.Struct]

    def dicts(self) -> list[dict[str, Any]]:
        return list(map(msgspec.structs.asdict, self.rows))

    def columns(self) -> list[pa.Array]:
        return [pa.array(list(map(attrgetter(field.name), self.rows)), field.type) for field in self.schema]

    def part(self, begin: int, end: int) -> PlainRows:
        return PlainRows(self.schema, self.rows[begin:end])


def plain_rows(schema: Schema, values: pa.Array) -> PlainRows | None:
    """The rows of binary values, if all are accepted."""
    parser = None if values.null_count else _parser(schema.ddl)
    if parser is None:
        return None
    listed = values.to_pylist()
    return parser.parsed(listed) if max(map(len, listed), default=0) <= RECORD_BYTES_MAX else None


@lru_cache(maxsize=64)
def _parser(ddl: str) -> PlainJson | None:
    schema = Schema.of(ddl).arrow
    try:
        return PlainJson(schema) if schema.names and all(map(_is_plain, schema)) else None
    except (ValueError, TypeError):  # a name that msgspec does not take
        return None


def _is_plain(field: pa.Field) -> bool:
    kind, dtype = pa.types, field.type
    is_same = kind.is_boolean(dtype) or kind.is_integer(dtype) or kind.is_float64(dtype) or kind.is_string(dtype)
    return is_same and time_unit(field) is None and is_plain_name(field.name)
