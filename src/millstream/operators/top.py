"""The first rows of each group in an order.

Of rows that are never taken back only the first are kept: what once stands behind them stays there. Of others all are,
each with the sum of its weights, for when those before it are taken back.
"""

from __future__ import annotations

import polars as pl

from millstream.operators.accumulators import WEIGHT
from millstream.operators.elementwise import computed
from millstream.operators.keyed_rows import (
    COUNTED,
    EMPTY,
    FORGOTTEN,
    NEWEST,
    KeyedRows,
    at_newest,
    newest,
    remembered,
    singly,
    summed,
)
from millstream.operators.runs import Marks
from millstream.operators.stateful import INPUTS, NO_MARKS, SENT
from millstream.operators.windowed import Clock, Frames
from millstream.plan import table_nodes

ROWS, GROUPS = "rows", "groups"
BEFORE, RANK = "__before", "__rank"
"""Of a row, how many of its group stand before it, and its place."""


class TopStep(KeyedRows):
    """The order is by the values that the node names, then by all columns; nulls stand last.

    The table changes at the newest event time that came for the group.
    """

    def __init__(self, node: table_nodes.Top) -> None:
        self.node = node
        self.by = [f"by.{number}" for number in range(len(node.order))]
        super().__init__(node, node.keys)
        self.identity = [*self.keys, *self.rest, *self.by]

    def tables(self) -> Frames:
        return {
            ROWS: self.table(self.identity, **{COUNTED: pl.Int64}),
            GROUPS: self.table(self.keys, **{NEWEST: pl.Int64, EMPTY: pl.Boolean}),
        }

    def more(self, rows: pl.DataFrame) -> list[pl.Series]:
        order = [(name, part.by) for name, part in zip(self.by, self.node.order, strict=True)]
        return computed(rows, self.given.schema, order).get_columns()

    def asked(self, inputs: Frames) -> Frames:
        return {ROWS: inputs[INPUTS[0]], GROUPS: inputs[INPUTS[0]]}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        rows, before = inputs[INPUTS[0]], held[ROWS]
        groups = newest(held[GROUPS], rows, self.keys)
        rows = rows if self.given.is_changing else self._possible(rows)
        new = rows.select(*self.identity, pl.col(WEIGHT).cast(pl.Int64).alias(COUNTED))
        after = summed(pl.concat([before, new]), self.identity, COUNTED)
        first_before, first = self._first(before), self._first(after)
        parts = [self._placed(first_before, -1), self._placed(first, 1)]
        columns = [*self.row, RANK] if self.node.rank else self.row
        changes = at_newest(summed(pl.concat(parts), columns, WEIGHT), groups, self.keys)
        ranked = [pl.col(RANK).alias(self.node.rank)] if self.node.rank else []
        kept = after if self.given.is_changing else first.select(after.columns)
        return (
            {ROWS: kept, GROUPS: remembered(groups, kept, self.keys, clock)},
            {SENT: self.sent(singly(changes), *ranked)},
        )

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return {ROWS: NO_MARKS, GROUPS: FORGOTTEN}

    def _possible(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that fewer than `count` others stand before by the first value alone: few are worth a sort."""
        value, count = pl.col(self.by[0]), self.node.count
        place, known = value.rank("min", descending=self.node.order[0].descending), value.count()
        if self.keys:
            place, known = place.over(self.keys), known.over(self.keys)
        return rows.filter(pl.when(value.is_null()).then(known < count).otherwise(place <= count))

    def _first(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The first rows of each group in order, each as often as it is among them."""
        by = [*self.keys, *self.by, *self.rest]
        downwards = dict(zip(self.by, (part.descending for part in self.node.order), strict=True))
        descending = [downwards.get(name, False) for name in by]
        there = rows.filter(pl.col(COUNTED) > 0).sort(by, descending=descending, nulls_last=True)
        before = pl.col(COUNTED).cum_sum() - pl.col(COUNTED)
        there = there.with_columns((before.over(self.keys) if self.keys else before).alias(BEFORE))
        left = self.node.count - pl.col(BEFORE)
        return there.filter(left > 0).with_columns(pl.min_horizontal(COUNTED, left).alias(COUNTED))

    def _placed(self, first: pl.DataFrame, weight: int) -> pl.DataFrame:
        """The rows as the table has them: with a place each is there once."""
        if not self.node.rank:
            return first.select(*self.row, (pl.col(COUNTED) * weight).cast(pl.Int32).alias(WEIGHT))
        places = pl.int_ranges(pl.col(BEFORE) + 1, pl.col(BEFORE) + 1 + pl.col(COUNTED)).alias(RANK)
        placed = first.with_columns(places).explode(RANK)
        return placed.select(*self.row, RANK, pl.lit(weight, pl.Int32).alias(WEIGHT))
