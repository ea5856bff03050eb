"""Aggregates over weighted rows: a row of weight -1 retracts an equal one, whichever arrived first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from millstream.plan.aggregates.basic import Aggregate, Fed
from millstream.plan.bad_rows import sum_too_large
from millstream.plan.nodes import WindowedAggregate
from millstream.plan.table_nodes import Grouped
from millstream.plan.time.bundles import ARGUMENTS, Row


def results(
    step: WindowedAggregate | Grouped,
    rows: Sequence[Row],
    key: tuple[Any, ...],
    window: tuple[datetime | None, datetime | None] | None = None,
) -> dict[str, Any]:
    """All aggregates of a step over weighted rows. A sum that overflows its type is an error."""
    made = {name: aggregated(name, aggregate, rows) for name, aggregate in step.aggregates}
    for name, aggregate in step.aggregates:
        if not aggregate.fits(made[name], step.schema.field(name).type):
            raise sum_too_large(step, name, made[name], key, window)
    return made


def aggregated(name: str, aggregate: Aggregate, rows: Sequence[Row]) -> Any:
    """The aggregate of a step with this name, over weighted rows."""
    if not rows and aggregate.null_without_rows:
        return None
    seen = rows if aggregate.adds_weights else remaining(rows)
    return aggregate.over([fed(name, aggregate, row) for row in seen])


def fed(name: str, aggregate: Aggregate, row: Row) -> Fed:
    values = {argument: row.values[ARGUMENTS][f"{name}.{argument}"] for argument in aggregate.arguments}
    return Fed(values, row.time, row.weight)


def remaining(rows: Sequence[Row]) -> list[Row]:
    """The rows that were not retracted, in order of arrival; of equal rows the earliest are retracted first."""
    retracted = Counter(identity(row) for row in rows if row.weight < 0)
    left = []
    for row in rows:
        if row.weight < 0:
            continue
        if retracted[identity(row)]:
            retracted[identity(row)] -= 1
        else:
            left.append(row)
    return left


def identity(row: Row) -> str:
    """Equal for a row and the one that retracts it."""
    return repr((row.time, sorted(item for item in row.values[ARGUMENTS].items())))
