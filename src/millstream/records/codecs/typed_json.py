"""Parses JSON objects straight into values of the column types; whatever is unusual is left to the JSON codec.

A value accepted here becomes the row that `JsonCodec` would make of it; a refused one is no failure yet. So nothing is
skipped unparsed: an object with a field that is not a column is refused until that field is known by name, because
msgspec does not check what it skips as strictly as orjson does.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from millstream.records.columns import UNFIT, Columns, Faults, Rules
from millstream.records.ddl import time_unit

OPENINGS_MAX = DIGITS_MAX = 300  # more could be nested more deeply, or be a larger number, than orjson accepts
OTHER_FIELDS_MAX = 100  # objects with ever new names are not learned
PAUSE_CHUNKS = 16  # after a chunk of which most was refused: parsing all of it twice costs more than it saves
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_MANY_DIGITS = b"0" * DIGITS_MAX


class TypedJson:
    """Made once per schema; it learns the names of fields that are not columns as they occur."""

    def __init__(self, schema: pa.Schema, rules: Rules) -> None:
        self._schema = schema
        self._rules = rules
        self._others: tuple[str, ...] = ()
        self._decoder = _decoder(schema, ())
        self._get = [attrgetter(f"c{place}") for place in range(len(schema))]
        self._leaves = [None if pa.types.is_nested(each.type) else rules.leaf_of(each) for each in schema]
        self._is_nested = None in self._leaves
        self._paused = 0

    def rows(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, list[int]] | None:
        """The rows of the values that are accepted, and the positions of the others; None if it is not worth it."""
        if self._paused:
            self._paused -= 1
            return None
        parsed, refused = self._parsed(values)
        if refused and self._learn(values[refused[0]]):
            parsed, refused = self._parsed(values)
        if len(refused) > len(values) // 2:
            self._paused = PAUSE_CHUNKS
            return None
        faults: Faults = {}
        columns = Columns(self._schema, self._rules, faults)
        arrays = [self._array(columns, place, list(map(get, parsed))) for place, get in enumerate(self._get)]
        return None if faults else (pa.RecordBatch.from_arrays(arrays, schema=self._schema), refused)

    def _array(self, columns: Columns, place: int, values: list[Any]) -> pa.Array:
        """Their types have been checked already, except inside of nested columns."""
        leaf = self._leaves[place]
        if leaf is not None:
            try:
                return leaf.whole(values)
            except UNFIT:
                pass
        return columns.column(values, self._schema.field(place))

    def _parsed(self, values: Sequence[bytes]) -> tuple[list[Any], list[int]]:
        decode = self._decoder.decode
        is_checked = (self._is_nested or bool(self._others)) and max(map(len, values), default=0) > OPENINGS_MAX
        if not is_checked:
            try:
                return list(map(decode, values)), []
            except (ValueError, RecursionError):  # so are all errors of msgspec
                pass
        parsed, refused = [], []
        for place, value in enumerate(values):
            try:
                if is_checked and _is_extreme(value):
                    refused.append(place)
                else:
                    parsed.append(decode(value))
            except (ValueError, RecursionError):
                refused.append(place)
        return parsed, refused

    def _learn(self, value: bytes) -> bool:
        """Whether the value has fields that were not known."""
        try:
            found = orjson.loads(value)
        except (ValueError, RecursionError):
            return False
        known = {*self._schema.names, *self._others}
        names = tuple(name for name in found if name not in known) if type(found) is dict else ()
        if not names or len(self._others) + len(names) > OTHER_FIELDS_MAX:
            return False
        try:
            self._decoder = _decoder(self._schema, self._others + names)
        except ValueError:  # a name that msgspec does not take
            return False
        self._others += names
        return True


def _is_extreme(value: bytes) -> bool:
    """Whether an untyped part of it may be something that msgspec accepts and orjson does not."""
    if len(value) <= OPENINGS_MAX:
        return False
    return value.count(b"{") + value.count(b"[") > OPENINGS_MAX or _MANY_DIGITS in value.translate(_DIGITS_ALIKE)


def typed_json(schema: pa.Schema, rules: Rules) -> TypedJson | None:
    """None for column names that msgspec does not take."""
    try:
        return TypedJson(schema, rules)
    except ValueError:
        return None


def _decoder(schema: pa.Schema, others: Sequence[str]) -> msgspec.json.Decoder[Any]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    names = {}
    for place, column in enumerate(schema):
        kind = column_type(column)
        fields.append((f"c{place}", kind | None, None) if column.nullable else (f"c{place}", kind))
        names[f"c{place}"] = column.name
    for place, name in enumerate(others):
        fields.append((f"o{place}", Any, None))
        names[f"o{place}"] = name
    made = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True, gc=False, kw_only=True)
    return msgspec.json.Decoder(made)


def column_type(column: pa.Field) -> Any:
    """What msgspec accepts for a column."""
    kind = pa.types
    dtype = column.type
    if time_unit(column) is not None:
        return int
    if kind.is_boolean(dtype):
        return bool
    if kind.is_integer(dtype):
        limits = np.iinfo(dtype.to_pandas_dtype())
        return Annotated[int, msgspec.Meta(ge=int(limits.min), le=int(limits.max))]
    if kind.is_floating(dtype):
        return float
    return Any if kind.is_nested(dtype) else str
