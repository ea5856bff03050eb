"""Joins a stream with static rows, given the pairs that satisfy the condition. It holds no rows."""

from __future__ import annotations

import polars as pl

from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import HIDDEN
from millstream.operators.joins.conditions import met_pairs, wide
from millstream.operators.joins.side_join import side_join
from millstream.operators.stateful import INPUTS, SENT, PlainStep
from millstream.plan.table_nodes import MatchedSideJoin
from millstream.state.tables import Marks

ROW = "row."


class MatchedSideJoinStep(PlainStep):
    def __init__(self, node: MatchedSideJoin) -> None:
        assert node.condition is not None
        self.node = node
        self.keys = [f"key.{number}" for number in range(len(node.on))]
        self._columns = (node.inputs[0].schema.names, node.condition.columns.names)
        self.nothing: Frames = {
            name: self.fed(elementwise.frame_of([], given), 0, side)
            for side, (name, given) in enumerate(zip(INPUTS, node.inputs, strict=True))
        }

    def tables(self) -> Frames:
        return {}

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """Its keys, its columns, its time and its weight. The order of arrival does not matter."""
        columns = [rows[name].alias(f"{ROW}{name}") for name in self._columns[side]]
        if side:
            return met_pairs(rows, self.node, columns)
        keys = [wide(rows[one]).alias(key) for key, (one, _) in zip(self.keys, self.node.on, strict=True)]
        return pl.DataFrame([*keys, *columns, rows[TIME], rows[WEIGHT]])

    def asked(self, inputs: Frames) -> Frames:
        return {}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        rows, met = (
            inputs[name].select(*(pl.col(f"{ROW}{column}").alias(column) for column in columns), *HIDDEN)
            for name, columns in zip(INPUTS, self._columns, strict=True)
        )
        return {}, {SENT: side_join(rows, self.node, met)}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return {}
