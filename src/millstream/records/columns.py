"""Builds columns in which each value depends on its own input alone, never on its neighbours.

There are two paths with the same result. The fast one looks at the set of Python types in the column and lets Arrow
convert all of it; it may only accept values that the slow one accepts too. If it cannot, the slow one converts value by
value and has a reason for each rejection. Both are linear in the number of values, however many are bad.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Failure:
    """The value or row at `index` of the input could not be used, for this reason."""

    index: int
    reason: str


class Refused(Exception):
    """One value does not fit its column; the message says what was found."""


class NotAllFit(Exception):
    """The fast path cannot guarantee every value of a column; the slow one takes over."""


UNFIT = (NotAllFit, Refused, pa.ArrowException, ValueError, TypeError, OverflowError)
"""What the fast path raises."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """How values become one simple Arrow type.

    `types` are the Python types that the fast path accepts. `whole` turns a list of these (and None) into an array, or
    raises anything to fall back to `one`, which turns a single value into what `pa.array` accepts or raises Refused.
    """

    expected: str
    types: frozenset[type]
    whole: Callable[[list[Any]], pa.Array]
    one: Callable[[Any], Any]


class Rules(ABC):
    """What a kind of data (Python objects, parsed JSON, text) accepts for each Arrow type."""

    @abstractmethod
    def leaf(self, dtype: pa.DataType) -> Leaf: ...

    def leaf_of(self, column: pa.Field) -> Leaf:
        """For a column of a simple type, which may say more than its type does."""
        return self.leaf(column.type)

    @abstractmethod
    def show(self, value: Any) -> str:
        """The value, shortened, in the form its author would recognise."""

    def key(self, dtype: pa.DataType) -> Leaf | None:
        """For maps whose keys have another form than values; None if they do not."""
        return None

    list_types: tuple[type, ...] = (list,)
    struct_types: tuple[type, ...] = (dict,)
    map_types: tuple[type, ...] = (dict,)
    list_name, struct_name, map_name = "a list", "a dict", "a dict"
    refuses_unknown_fields = False


_NONE = type(None)

Faults = dict[int, str]  # position in the current column -> the first reason found


@dataclass(slots=True)
class _Place:
    """The path of a nested column, and which row each of its values belongs to."""

    path: str
    faults: Faults
    owners: Sequence[int] | None = None  # None: value i belongs to row i

    def refuse(self, index: int, reason: str) -> None:
        row = index if self.owners is None else self.owners[index]
        self.faults.setdefault(row, f"column '{self.path}': {reason}")

    def inside(self, step: str, owners: Sequence[int] | None) -> _Place:
        rows = owners if self.owners is None or owners is None else [self.owners[index] for index in owners]
        return _Place(self.path + step, self.faults, self.owners if owners is None else rows)


@dataclass(slots=True)
class Columns:
    """Builds the columns of `schema` from row objects, with one reason per row that does not fit."""

    schema: pa.Schema
    rules: Rules
    faults: Faults = field(default_factory=dict)

    def batch(self, column_values: Iterable[list[Any]], rows_count: int) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
        """The rows that fit, and their positions in the input; the others are in `faults`."""
        arrays = [self.column(values, column) for values, column in zip(column_values, self.schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        kept = np.arange(rows_count, dtype=np.int64)
        if self.faults:
            kept = np.delete(kept, list(self.faults))
            batch = batch.take(pa.array(kept))
        return batch, kept

    def column(self, values: list[Any], column: pa.Field) -> pa.Array:
        return self._build(values, column, _Place(column.name, self.faults))

    def _build(self, values: list[Any], column: pa.Field, place: _Place) -> pa.Array:
        if not column.nullable and _NONE in map(type, values):
            for index, value in enumerate(values):
                if value is None:
                    place.refuse(index, "is missing or null, but the column is NOT NULL")
        dtype = column.type
        if pa.types.is_struct(dtype):
            return self._struct(values, dtype, place)
        if pa.types.is_map(dtype):
            return self._map(values, dtype, place)
        if pa.types.is_list(dtype):
            return self._list(values, dtype, place)
        return self._leaf(values, self.rules.leaf_of(column), dtype, place)

    def _leaf(self, values: list[Any], leaf: Leaf, dtype: pa.DataType, place: _Place) -> pa.Array:
        if set(map(type, values)) - leaf.types <= {_NONE}:
            try:
                return leaf.whole(values)
            except UNFIT:
                pass
        fitting: list[Any] = []
        for index, value in enumerate(values):
            try:
                fitting.append(None if value is None else leaf.one(value))
            except Refused as refusal:
                place.refuse(index, f"expected {leaf.expected}, found {refusal.args[0] or self.rules.show(value)}")
                fitting.append(None)
        return pa.array(fitting, dtype)

    def _struct(self, values: list[Any], dtype: pa.DataType, place: _Place) -> pa.Array:
        values = self._only(values, self.rules.struct_types, self.rules.struct_name, place)
        names = [member.name for member in dtype]
        if self.rules.refuses_unknown_fields:
            self._refuse_unknown(values, set(names), place)
        missing = _NONE in map(type, values)
        present = [index for index, value in enumerate(values) if value is not None] if missing else None
        held = [value for value in values if value is not None] if missing else values
        members = []
        for member in dtype:
            name = member.name
            below = place.inside(f".{name}", present)
            members.append(self._build([value.get(name) for value in held], member, below))
        if present is None:
            return pa.StructArray.from_arrays(members, fields=list(dtype))
        slots = np.full(len(values), -1, dtype=np.int64)
        slots[present] = np.arange(len(present))
        absent = slots < 0
        where = pa.array(slots, mask=absent)
        return pa.StructArray.from_arrays(
            [member.take(where) for member in members], fields=list(dtype), mask=pa.array(absent)
        )

    def _list(self, values: list[Any], dtype: pa.DataType, place: _Place) -> pa.Array:
        values = self._only(values, self.rules.list_types, self.rules.list_name, place)
        offsets, owners = _layout(values)
        items = list(chain.from_iterable(value for value in values if value is not None))
        built = self._build(items, dtype.value_field, place.inside("[]", owners))
        return pa.ListArray.from_arrays(offsets, built, type=dtype)

    def _map(self, values: list[Any], dtype: pa.DataType, place: _Place) -> pa.Array:
        values = self._only(values, self.rules.map_types, self.rules.map_name, place)
        offsets, owners = _layout(values)
        keys = list(chain.from_iterable(value.keys() for value in values if value is not None))
        items = list(chain.from_iterable(value.values() for value in values if value is not None))
        below = place.inside("{key}", owners)
        key_leaf = self.rules.key(dtype.key_type)
        if key_leaf is None:
            built_keys = self._build(keys, dtype.key_field, below)
        else:
            built_keys = self._leaf(keys, key_leaf, dtype.key_type, below)
        if built_keys.null_count:  # these rows are already rejected, and Arrow never allows null keys
            refused = {owners[index] for index in np.flatnonzero(built_keys.is_null().to_numpy(zero_copy_only=False))}
            return self._map([None if at in refused else value for at, value in enumerate(values)], dtype, place)
        built_items = self._build(items, dtype.item_field, place.inside("{}", owners))
        return pa.MapArray.from_arrays(offsets, built_keys, built_items, type=dtype)

    def _only(self, values: list[Any], types: tuple[type, ...], name: str, place: _Place) -> list[Any]:
        """The values of these types; others become None and get a reason."""
        if set(map(type, values)) <= {*types, _NONE}:
            return values
        kept: list[Any] = []
        for index, value in enumerate(values):
            fits = value is None or isinstance(value, types)
            if not fits:
                place.refuse(index, f"expected {name}, found {self.rules.show(value)}")
            kept.append(value if fits else None)
        return kept

    def _refuse_unknown(self, values: list[Any], names: set[str], place: _Place) -> None:
        for index, value in enumerate(values):
            if value is not None and not value.keys() <= names:
                extra = next(key for key in value if key not in names)
                place.refuse(index, f"has no field {extra!r}; those that exist: {', '.join(sorted(names))}")


def _layout(values: list[Any]) -> tuple[pa.Array, list[int]]:
    """Arrow offsets of lists of these lengths (null if None), and the list that each element belongs to."""
    lengths = np.fromiter((0 if value is None else len(value) for value in values), dtype=np.int64, count=len(values))
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    absent = np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    mask = np.append(absent, False) if absent.any() else None
    owners: list[int] = np.repeat(np.arange(len(values)), lengths).tolist()
    return pa.array(offsets, pa.int32(), mask=mask), owners
