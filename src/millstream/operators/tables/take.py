"""The first rows of a stream, or of each key: the state is how many were emitted."""

from __future__ import annotations

import polars as pl

from millstream.operators.clock import Clock, Frames
from millstream.operators.keyed_rows import KeyedRows
from millstream.operators.stateful import INPUTS, NO_MARKS, SENT
from millstream.plan import table_nodes
from millstream.state.tables import Marks

COUNTS, TAKEN = "counts", "taken"
PLACE = "__place"


class TakeStep(KeyedRows):
    def __init__(self, node: table_nodes.Take) -> None:
        self.node, self.count = node, node.count
        super().__init__(node, node.keys)

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """Only rows that might be emitted: of those that arrive together, at most the limit per key."""
        if not self.node.keys:
            return super().fed(rows.head(self.count), first, side)
        place = pl.int_range(pl.len()).over(self.node.keys)
        return super().fed(rows.filter(place < self.count), first, side)

    def tables(self) -> Frames:
        return {COUNTS: self.table(self.keys, **{TAKEN: pl.Int64})}

    def asked(self, inputs: Frames) -> Frames:
        return {COUNTS: inputs[INPUTS[0]]}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        counts, rows = held[COUNTS], self.arrived(inputs)
        if not self.keys:
            taken = int(counts[TAKEN].sum())
            first = rows.head(self.count - taken)
            total = pl.DataFrame({TAKEN: [taken + len(first)]}, schema=counts.schema)
            return {COUNTS: total if len(rows) or len(counts) else counts}, {SENT: self.sent(first)}
        rows = rows.join(counts, on=self.keys, how="left", nulls_equal=True, maintain_order="left")
        place = pl.col(TAKEN).fill_null(0) + pl.int_range(pl.len(), dtype=pl.Int64).over(self.keys)
        first = rows.with_columns(place.alias(PLACE)).filter(pl.col(PLACE) < self.count)
        new = first.group_by(self.keys).agg(pl.len().cast(pl.Int64).alias(TAKEN))
        counts = pl.concat([counts, new]).group_by(self.keys).agg(pl.col(TAKEN).sum())
        return {COUNTS: counts}, {SENT: self.sent(first)}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return {COUNTS: NO_MARKS}
