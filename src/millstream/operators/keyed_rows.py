"""Rows of one input by key, and sums of weighted rows: what the steps that make tables have in common.

Of a row a step keeps its key columns as `key.<name>` and all others as `row.<name>`, each once.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from millstream.operators import elementwise, joining
from millstream.operators.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.stateful import INPUTS, PlainStep
from millstream.operators.windowed import Clock, Frames
from millstream.plan.nodes import Node
from millstream.state.tables import Marks

NUMBER = "__number"
NEWEST = "newest"
"""Of a group, the newest event time that came."""
EMPTY = "empty"
"""Whether it has no rows now."""
COUNTED = "counted"
"""Of a row, the sum of its weights."""


class KeyedRows(PlainStep):
    """A step over whole rows of one input."""

    def __init__(self, node: Node, keys: tuple[str, ...]) -> None:
        self.given = node.inputs[0]
        self.keys = [f"key.{name}" for name in keys]
        self.rest = [f"row.{name}" for name in self.given.schema.names if name not in keys]
        self.row = [f"key.{name}" if name in keys else f"row.{name}" for name in self.given.schema.names]
        """The columns of a row, in the order of the schema."""
        self._types: Any = dict(elementwise.types_of(node.schema))
        self.nothing: Frames = {INPUTS[0]: self.fed(elementwise.frame_of([], self.given), 0)}

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """The row, its time, its weight, and its place in the order of arrival."""
        columns = [rows[name].alias(column) for name, column in zip(self.given.schema.names, self.row, strict=True)]
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        return pl.DataFrame([*columns, *self.more(rows), rows[TIME], rows[WEIGHT], order])

    def more(self, rows: pl.DataFrame) -> list[pl.Series]:
        """Columns besides those of the row."""
        return []

    def table(self, columns: list[str], **more: Any) -> pl.DataFrame:
        """An empty table of columns that the step is fed with, and of others."""
        fed = self.nothing[INPUTS[0]].schema
        return pl.DataFrame(schema={**{name: fed[name] for name in columns}, **more})

    def arrived(self, inputs: Frames) -> pl.DataFrame:
        """The rows in order of arrival."""
        rows = inputs[INPUTS[0]]
        return rows if rows[ORDER].is_sorted() else rows.sort(ORDER)

    def sent(self, rows: pl.DataFrame, *more: pl.Expr) -> pl.DataFrame:
        """Rows as they are called outside, with further columns."""
        names = zip(self.given.schema.names, self.row, strict=True)
        columns = [pl.col(column).cast(self._types[name]).alias(name) for name, column in names]
        return rows.select(*columns, *more, TIME, pl.col(WEIGHT).cast(pl.Int32))

    def late(self, rows: pl.DataFrame, reasons: pl.Expr) -> pl.DataFrame:
        """Rows that came too late, and why."""
        names = zip(self.given.schema.names, self.row, strict=True)
        columns = [pl.col(column).alias(name) for name, column in names if name != "reason"]
        return rows.select(*columns, reasons.alias("reason"), TIME, WEIGHT)


def numbered(keys: list[str], *frames: pl.DataFrame) -> list[pl.DataFrame]:
    """The frames with a number for each key, the same in all of them: numbers are faster to sort and to join by."""
    if not keys:
        return [frame.with_columns(pl.lit(0, pl.UInt32).alias(NUMBER)) for frame in frames]
    both = pl.concat([frame.select(keys) for frame in frames], how="vertical_relaxed")
    found = both.with_row_index(NUMBER)
    numbers = found.select(pl.col(NUMBER).first().over(keys)).to_series()
    made, start = [], 0
    for frame in frames:
        made.append(frame.with_columns(numbers.slice(start, len(frame))))
        start += len(frame)
    return made


def summed(rows: pl.DataFrame, columns: list[str], weight: str) -> pl.DataFrame:
    """Rows that are equal in the columns as one with the sum of the weights, but for those that come to nothing."""
    return rows.group_by(columns, maintain_order=True).agg(pl.col(weight).sum()).filter(pl.col(weight) != 0)


def singly(rows: pl.DataFrame) -> pl.DataFrame:
    """Changes, each of weight 1 or -1: of weight n, n times. What is taken back stands first."""
    return joining.singly(rows).sort(WEIGHT, maintain_order=True)


# ---------------------------------------------------------------- when a table changes


def newest(groups: pl.DataFrame, rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Per group, the newest event time so far: of what was known and of the rows that came. It never goes back."""
    both = pl.concat([groups.select(*keys, NEWEST), rows.select(*keys, pl.col(TIME).alias(NEWEST))])
    return both.group_by(keys).agg(pl.col(NEWEST).max()) if keys else both.select(pl.col(NEWEST).max()).head(len(both))


def at_newest(changes: pl.DataFrame, groups: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Changes with the newest time of their group as theirs."""
    times = groups.rename({NEWEST: TIME})
    if not keys:
        return changes.join(times, how="cross")
    return changes.join(times, on=keys, how="left", nulls_equal=True, maintain_order="left")


def remembered(groups: pl.DataFrame, rows: pl.DataFrame, keys: list[str], clock: Clock) -> pl.DataFrame:
    """The groups that have rows, and those without of which the watermark has not yet passed the newest time."""
    if keys:
        filled = rows.select(keys).unique().with_columns(pl.lit(False).alias(EMPTY))
        groups = groups.join(filled, on=keys, how="left", nulls_equal=True).with_columns(pl.col(EMPTY).fill_null(True))
    else:
        groups = groups.with_columns(pl.lit(rows.is_empty()).alias(EMPTY))
    return groups.filter(~pl.col(EMPTY) | (pl.col(NEWEST) > clock.watermark).fill_null(False))


FORGOTTEN = Marks(pl.when(EMPTY).then(NEWEST), pl.lit(None, pl.Int64))
"""When a group is forgotten."""
