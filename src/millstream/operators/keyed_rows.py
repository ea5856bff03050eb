"""Rows of one input by key, and sums of weighted rows: shared by the steps that produce tables.

A stored row has its key columns as `key.<name>` and all others as `row.<name>`, each once.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.clock import Frames
from millstream.operators.joins import joining
from millstream.operators.stateful import INPUTS, PlainStep
from millstream.plan.nodes import Node

NUMBER = "__number"
COUNTED = "counted"
"""The sum of a row's weights."""


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
        """The row, its time, its weight, and its position in order of arrival."""
        columns = [rows[name].alias(column) for name, column in zip(self.given.schema.names, self.row, strict=True)]
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        return pl.DataFrame([*columns, *self.more(rows), rows[TIME], rows[WEIGHT], order])

    def more(self, rows: pl.DataFrame) -> list[pl.Series]:
        """Columns besides those of the row."""
        return []

    def table(self, columns: list[str], **more: Any) -> pl.DataFrame:
        """An empty table of input columns and others."""
        fed = self.nothing[INPUTS[0]].schema
        return pl.DataFrame(schema={**{name: fed[name] for name in columns}, **more})

    def arrived(self, inputs: Frames) -> pl.DataFrame:
        """The rows in order of arrival."""
        rows = inputs[INPUTS[0]]
        return rows if rows[ORDER].is_sorted() else rows.sort(ORDER)

    def sent(self, rows: pl.DataFrame, *more: pl.Expr) -> pl.DataFrame:
        """Rows under their output names, with further columns."""
        names = zip(self.given.schema.names, self.row, strict=True)
        columns = [pl.col(column).cast(self._types[name]).alias(name) for name, column in names]
        return rows.select(*columns, *more, TIME, pl.col(WEIGHT).cast(pl.Int32))

    def late(self, rows: pl.DataFrame, reasons: pl.Expr) -> pl.DataFrame:
        """Late rows, and why."""
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
    """Merges rows that are equal in the columns, summing their weights; those that cancel out are dropped."""
    return rows.group_by(columns, maintain_order=True).agg(pl.col(weight).sum()).filter(pl.col(weight) != 0)


def singly(rows: pl.DataFrame) -> pl.DataFrame:
    """Changes of weight 1 or -1: one of weight n becomes n. Retractions come first."""
    return joining.singly(rows).sort(WEIGHT, maintain_order=True)
