"""Python dicts become rows of a schema only if every value has its column's Python type; text is not parsed.

| column | accepts |
|---|---|
| boolean | bool |
| tinyint … bigint | int in range; neither bool nor float |
| float, double | float, int |
| decimal | Decimal or int that fits exactly |
| string, binary | str; bytes, bytearray, memoryview |
| date | date, not datetime |
| timestamp, timestamp_ntz | datetime with a time zone; datetime without one |
| interval day to second | timedelta |
| array, struct, map | list, tuple or numpy array; mapping with known fields; mapping |

numpy scalars count as their Python values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from millstream.records.columns import Columns, Failure, Leaf, NotAllFit, Refused, Rules
from millstream.records.ddl import format_type
from millstream.records.ranges import (
    decimal_that_fits,
    float32_whole,
    float_in_range,
    int_in_range,
    shortened,
    text_is_valid,
    timestamps_in_range,
)
from millstream.records.schema import Schema
from millstream.records.values import LeafValues, column_to_values, python_values

_US = timedelta(microseconds=1)


def rows_to_batch(rows: Sequence[Mapping[str, Any]], schema: Schema) -> tuple[pa.RecordBatch, list[Failure]]:
    """The rows that fit the schema, in order, and a failure for each that does not."""
    columns = Columns(schema.arrow, PythonRules())
    held = _only_mappings(rows, schema, columns)
    values = ([row.get(name) for row in held] for name in schema.names)
    batch, _ = columns.batch(values, len(held))
    return batch, [Failure(index, reason) for index, reason in sorted(columns.faults.items())]


def batch_to_rows(batch: pa.RecordBatch, leaf: LeafValues = python_values) -> list[dict[str, Any]]:
    """Rows as dicts: timestamps as UTC datetimes, maps as dicts (as lists of pairs if their keys are not hashable)."""
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    columns = [column_to_values(column, leaf, leaf) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _only_mappings(rows: Sequence[Any], schema: Schema, columns: Columns) -> list[Mapping[str, Any]]:
    """The rows as mappings; those that are not, or have unknown fields, become empty and get a failure."""
    names = set(schema.names)
    try:
        if all([row.keys() <= names for row in rows]):  # noqa: C419  a list is twice as fast as a generator here
            return list(rows)
    except AttributeError:
        pass
    held: list[Mapping[str, Any]] = []
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            columns.faults[index] = f"expected a dict, found {PythonRules().show(row)}"
            held.append({})
            continue
        if not row.keys() <= names:
            unknown = next(name for name in row if name not in names)
            columns.faults[index] = f"there is no column {unknown!r}; those that exist: {', '.join(schema.names)}"
        held.append(row)
    return held


class PythonRules(Rules):
    """What Python users may put into a column."""

    list_types = (list, tuple, np.ndarray)
    struct_types = (dict, Mapping)
    map_types = (dict, Mapping)
    refuses_unknown_fields = True

    def show(self, value: Any) -> str:
        if isinstance(value, int) and value.bit_length() > 200:  # Python refuses to print very long integers
            return f"an int of {value.bit_length()} bits"
        try:
            return f"{shortened(repr(value))} ({type(value).__name__})"
        except Exception:
            return f"a {type(value).__name__}"

    def leaf(self, dtype: pa.DataType) -> Leaf:
        kind = pa.types
        expected = format_type(dtype)
        if kind.is_boolean(dtype):
            return _plain(dtype, expected, bool)
        if kind.is_integer(dtype):
            return Leaf(expected, frozenset({int}), _array_of(dtype), lambda value: int_in_range(_int(value), dtype))
        if kind.is_floating(dtype):
            whole = float32_whole if kind.is_float32(dtype) else _array_of(dtype)
            return Leaf(expected, frozenset({float, int}), whole, lambda value: float_in_range(_float(value), dtype))
        if kind.is_decimal(dtype):
            return Leaf(expected, frozenset(), _array_of(dtype), lambda value: decimal_that_fits(_exact(value), dtype))
        if kind.is_string(dtype):
            return Leaf(expected, frozenset({str}), _array_of(dtype), lambda value: text_is_valid(_is(str, value)))
        if kind.is_binary(dtype):
            return Leaf(expected, frozenset({bytes}), _array_of(dtype), _bytes)
        if kind.is_date(dtype):
            return Leaf(expected, frozenset({date}), _array_of(dtype), _date)
        if kind.is_timestamp(dtype):
            return _instant_leaf(dtype) if dtype.tz else _wall_clock_leaf(dtype)
        return Leaf(expected, frozenset({timedelta}), _array_of(dtype), _interval)


def _array_of(dtype: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    return lambda values: pa.array(values, dtype)


def _plain(dtype: pa.DataType, expected: str, kind: type) -> Leaf:
    return Leaf(expected, frozenset({kind}), _array_of(dtype), lambda value: _is(kind, value))


def _is(kind: type, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, kind):
        raise Refused("")
    return value


def _int(value: Any) -> int:
    value = _is(int, value)
    if isinstance(value, bool):
        raise Refused("")
    return int(value)


def _float(value: Any) -> float:
    value = _is((float, int), value)  # type: ignore[arg-type]
    if isinstance(value, bool):
        raise Refused("")
    try:
        return float(value)
    except OverflowError:
        raise Refused("") from None


def _exact(value: Any) -> Decimal:
    value = value.item() if isinstance(value, np.integer) else value
    if isinstance(value, float):
        raise Refused(f"{value!r} (float), which is not exact; give a Decimal")
    if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
        raise Refused("")
    if isinstance(value, int) and value.bit_length() > 200:
        raise Refused("")
    return Decimal(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise Refused("")
    return bytes(value)


def _date(value: Any) -> date:
    value = _is(date, value)
    if isinstance(value, datetime):
        raise Refused("")
    return date(value.year, value.month, value.day)


def _interval(value: Any) -> timedelta:
    value = _is(timedelta, value)
    if not -(2**63) <= value // _US < 2**63:
        raise Refused("")
    return timedelta(microseconds=value // _US)


def _instant_leaf(dtype: pa.DataType) -> Leaf:
    def whole(values: list[Any]) -> pa.Array:
        zones = {value.tzinfo for value in values if value is not None}
        if not all(isinstance(zone, (timezone, ZoneInfo)) for zone in zones):
            raise NotAllFit
        return timestamps_in_range(pa.array(values, dtype))

    def one(value: Any) -> datetime:
        value = _is(datetime, value)
        if value.utcoffset() is None:
            raise Refused(f"{value.isoformat()} without a time zone; add one: value.replace(tzinfo=timezone.utc)")
        try:
            return datetime.fromisoformat(value.astimezone(UTC).isoformat())
        except OverflowError:
            raise Refused("") from None

    return Leaf("timestamp (a datetime with a time zone)", frozenset({datetime}), whole, one)


def _wall_clock_leaf(dtype: pa.DataType) -> Leaf:
    def whole(values: list[Any]) -> pa.Array:
        if any(value is not None and value.tzinfo is not None for value in values):
            raise NotAllFit
        return pa.array(values, dtype)

    def one(value: Any) -> datetime:
        value = _is(datetime, value)
        if value.tzinfo is not None:
            raise Refused(f"{value.isoformat()} with a time zone")
        return datetime.fromisoformat(value.isoformat())

    return Leaf("timestamp_ntz (a datetime without a time zone)", frozenset({datetime}), whole, one)
