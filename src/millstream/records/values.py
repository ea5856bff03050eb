"""Converts Arrow columns to Python values, nested the way Python and JSON nest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from keyword import iskeyword
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LeafValues = Callable[[pa.Array], list[Any]]


def column_to_values(array: pa.Array, leaf: LeafValues, key: LeafValues) -> list[Any]:
    """Structs and maps as dicts, lists as lists, simple values through `leaf` and map keys through `key`.

    A map whose keys are not hashable becomes a list of pairs.
    """
    dtype = array.type
    held: list[Any]
    if pa.types.is_struct(dtype):
        names = [member.name for member in dtype]
        members = [column_to_values(member, leaf, key) for member in array.flatten()]  # includes the struct's own nulls
        held = rows_of(tuple(names), members)
    elif pa.types.is_map(dtype):
        keys = column_to_values(array.keys, key, key)
        entries = list(zip(keys, column_to_values(array.items, leaf, key), strict=True))
        as_held: Callable[[Any], Any] = list if pa.types.is_nested(dtype.key_type) else dict
        held = [as_held(part) for part in _slices(entries, array)]
    elif pa.types.is_list(dtype):
        held = _slices(column_to_values(array.values, leaf, key), array)
    else:
        return leaf(array)
    if array.null_count:
        return [value if valid else None for value, valid in zip(held, array.is_valid().to_pylist(), strict=True)]
    return held


def python_values(array: pa.Array) -> list[Any]:
    """Simple values as Python objects; instants with `datetime.timezone.utc`, which Arrow itself does not guarantee."""
    if pa.types.is_timestamp(array.type) and array.type.tz:
        return _instants(array.cast(pa.timestamp("us", "UTC")).view(pa.int64()))
    plain: list[Any] = array.to_pylist()
    return plain


def _instants(numbers_us: pa.Array) -> list[Any]:
    """One object for each run of equal numbers: records sent together have the same time."""
    if numbers_us.null_count:
        return [None if us is None else _UNIX_EPOCH + timedelta(0, 0, us) for us in numbers_us.to_pylist()]
    numbers = numbers_us.to_numpy()
    begins = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]])) if len(numbers) else numbers
    runs = np.array([_UNIX_EPOCH + timedelta(0, 0, us) for us in numbers[begins].tolist()], object)
    found: list[Any] = np.repeat(runs, np.diff(begins, append=len(numbers))).tolist()
    return found


def values_or_raw(array: pa.Array) -> list[Any]:
    """Like `python_values`; a value out of the range of Python's type is returned as stored.

    A timestamp, date, time or interval out of range is a number of its unit; text that is not UTF-8 is bytes.
    """
    try:
        return python_values(array)
    except (OverflowError, ValueError, pa.ArrowException):  # rare, so the common case is not slowed down
        return [_value_or_raw(array.slice(index, 1)) for index in range(len(array))]


def _value_or_raw(single: pa.Array) -> Any:
    try:
        return python_values(single)[0]
    except (OverflowError, ValueError, pa.ArrowException):
        dtype = single.type
        if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
            return single.cast(pa.large_binary() if pa.types.is_large_string(dtype) else pa.binary())[0].as_py()
        return single.view(pa.int32() if dtype.bit_width == 32 else pa.int64())[0].as_py()


def rows_of(names: tuple[str, ...], members: Sequence[list[Any]]) -> list[dict[str, Any]]:
    """Each row by name. A struct of msgspec, made a dict again, is C code: a quarter of the time of `dict(zip(…))`."""
    row_type = _row_type(names)
    if row_type is not None:
        return list(map(msgspec.structs.asdict, map(row_type, *members)))
    return [dict(zip(names, row, strict=True)) for row in zip(*members, strict=True)]


def is_plain_name(name: str) -> bool:
    """Whether a struct of msgspec can have a field of this name."""
    return name.isidentifier() and not iskeyword(name) and name[0] != "_"


@lru_cache(maxsize=64)
def _row_type(names: tuple[str, ...]) -> Callable[..., msgspec.Struct] | None:
    """None for names that msgspec does not take."""
    if not names or not all(map(is_plain_name, names)) or len(set(names)) < len(names):
        return None
    try:
        return msgspec.defstruct("Row", names, gc=False)
    except (ValueError, TypeError):
        return None


def _slices(elements: list[Any], array: pa.Array) -> list[list[Any]]:
    return [elements[start:end] for start, end in pairwise(array.offsets.to_pylist())]
