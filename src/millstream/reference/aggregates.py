"""Aggregates over weighted rows: a row of weight -1 takes an equal one back, whichever of the two is asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Context, localcontext
from typing import Any

import pyarrow as pa

from millstream.plan.aggregates import Aggregate
from millstream.plan.bad_rows import sum_too_large
from millstream.plan.bundles import ARGUMENTS, Row
from millstream.plan.nodes import WindowedAggregate
from millstream.plan.table_nodes import Grouped

DIGITS = 100
"""More than a sum of decimals can have."""


def aggregated(name: str, aggregate: Aggregate, rows: Sequence[Row]) -> Any:
    """An aggregate over weighted rows. A row of weight -1 takes an equal one back."""
    if not rows:
        return {"count": 0, "collect": []}.get(aggregate.kind)
    if aggregate.kind == "count":
        return sum(row.weight for row in rows)
    weighted = [(row.values[ARGUMENTS][f"{name}.input"], row) for row in rows]
    if aggregate.kind == "sum":
        return _sum([(value, row.weight) for value, row in weighted if value is not None])
    left = remaining(rows)
    values = [row.values[ARGUMENTS][f"{name}.input"] for row in left]
    if aggregate.kind == "combine":
        assert aggregate.functions is not None
        state = aggregate.functions.zero()
        for value in values:
            state = aggregate.functions.add(state, value)
        return aggregate.functions.extract(state)
    known_rows = [row for row, value in zip(left, values, strict=True) if value is not None]
    return FUNCTIONS[aggregate.kind](name, aggregate, known_rows)


def results(
    step: WindowedAggregate | Grouped,
    rows: Sequence[Row],
    key: tuple[Any, ...],
    window: tuple[datetime | None, datetime | None] | None = None,
) -> dict[str, Any]:
    """All aggregates of a step over weighted rows. A sum that its type cannot hold is an error."""
    made = {name: aggregated(name, aggregate, rows) for name, aggregate in step.aggregates}
    for name, aggregate in step.aggregates:
        if aggregate.kind == "sum" and not _fits(made[name], step.schema.field(name).type):
            raise sum_too_large(step, name, made[name], key, window)
    return made


def _sum(known: Sequence[tuple[Any, int]]) -> Any:
    """Without rounding, but for floats; of those, equal ones that came and went are left out: a NaN would stay."""
    if not known:
        return None
    nothing = type(known[0][0])(0)
    if any(weight < 0 for _, weight in known):
        values = {repr(value): value for value, _ in known}
        counts = Counter[str]()
        for value, weight in known:
            counts[repr(value)] += weight
        known = [(values[text], count) for text, count in counts.items() if count]
    with localcontext(prec=DIGITS):
        return sum((value * weight for value, weight in known), nothing)


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None or pa.types.is_floating(kind):
        return True
    if pa.types.is_decimal(kind):
        return bool(value.copy_abs().scaleb(kind.scale, Context(prec=DIGITS)) < 10**kind.precision)
    return bool(-(2**63) <= value < 2**63)


def remaining(rows: Sequence[Row]) -> list[Row]:
    """The rows that were not taken back, in the order they came; of equal ones the earliest are taken back first."""
    taken_back = Counter(identity(row) for row in rows if row.weight < 0)
    left = []
    for row in rows:
        if row.weight < 0:
            continue
        if taken_back[identity(row)]:
            taken_back[identity(row)] -= 1
        else:
            left.append(row)
    return left


def identity(row: Row) -> str:
    """Equal for a row and the one that takes it back."""
    return repr((row.time, sorted(item for item in row.values[ARGUMENTS].items())))


def _values(name: str, rows: Sequence[Row]) -> list[Any]:
    return [row.values[ARGUMENTS][f"{name}.input"] for row in rows]


def _stddev(name: str, aggregate: Aggregate, rows: Sequence[Row]) -> float | None:
    values = [float(value) for value in _values(name, rows)]
    if len(values) < 2:
        return None
    mean = _total(values) / len(values)
    return math.sqrt(_total([(value - mean) * (value - mean) for value in values]) / (len(values) - 1))


def _mean(name: str, aggregate: Aggregate, rows: Sequence[Row]) -> float | None:
    return _total([float(value) for value in _values(name, rows)]) / len(rows) if rows else None


def _total(values: Sequence[float]) -> float:
    """Rounded once at the end; infinity or NaN where that is not possible."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def _top(name: str, aggregate: Aggregate, rows: Sequence[Row]) -> list[Any]:
    by = f"{name}.by" if aggregate.by else f"{name}.input"
    known = [row for row in rows if row.values[ARGUMENTS][by] is not None]
    ordered = sorted(known, key=lambda row: row.values[ARGUMENTS][by], reverse=True)
    return _values(name, ordered[: aggregate.count])


FUNCTIONS: dict[str, Callable[[str, Aggregate, Sequence[Row]], Any]] = {
    "min": lambda name, made, rows: min(_values(name, rows), default=None),
    "max": lambda name, made, rows: max(_values(name, rows), default=None),
    "mean": _mean,
    "stddev": _stddev,
    "first": lambda name, made, rows: next(iter(_values(name, sorted(rows, key=lambda row: row.time or 0))), None),
    "last": lambda name, made, rows: next(iter(_values(name, sorted(rows, key=lambda row: row.time or 0))[::-1]), None),
    "collect": lambda name, made, rows: _values(name, rows),
    "distinct_count": lambda name, made, rows: len({repr(value) for value in _values(name, rows)}),
    "top": _top,
}
