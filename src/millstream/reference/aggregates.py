"""Aggregates over weighted rows: a row of weight -1 takes an equal one back, whichever of the two is asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from millstream.plan.aggregates import Aggregate
from millstream.plan.bundles import ARGUMENTS, Row


def aggregated(name: str, aggregate: Aggregate, rows: Sequence[Row]) -> Any:
    """An aggregate over weighted rows. A row of weight -1 takes an equal one back."""
    if not rows:
        return {"count": 0, "collect": []}.get(aggregate.kind)
    if aggregate.kind == "count":
        return sum(row.weight for row in rows)
    weighted = [(row.values[ARGUMENTS][f"{name}.input"], row) for row in rows]
    if aggregate.kind == "sum":
        known = [(value, row.weight) for value, row in weighted if value is not None]
        return sum((value * weight for value, weight in known[1:]), known[0][0] * known[0][1]) if known else None
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
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _top(name: str, aggregate: Aggregate, rows: Sequence[Row]) -> list[Any]:
    by = f"{name}.by" if aggregate.by else f"{name}.input"
    known = [row for row in rows if row.values[ARGUMENTS][by] is not None]
    ordered = sorted(known, key=lambda row: row.values[ARGUMENTS][by], reverse=True)
    return _values(name, ordered[: aggregate.count])


FUNCTIONS: dict[str, Callable[[str, Aggregate, Sequence[Row]], Any]] = {
    "min": lambda name, made, rows: min(_values(name, rows), default=None),
    "max": lambda name, made, rows: max(_values(name, rows), default=None),
    "mean": lambda name, made, rows: math.fsum(map(float, _values(name, rows))) / len(rows) if rows else None,
    "stddev": _stddev,
    "first": lambda name, made, rows: next(iter(_values(name, sorted(rows, key=lambda row: row.time or 0))), None),
    "last": lambda name, made, rows: next(iter(_values(name, sorted(rows, key=lambda row: row.time or 0))[::-1]), None),
    "collect": lambda name, made, rows: _values(name, rows),
    "distinct_count": lambda name, made, rows: len({repr(value) for value in _values(name, rows)}),
    "top": _top,
}
