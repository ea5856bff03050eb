"""A stream as a table: per key, the versions that may still be put right, and the one before them.

The versions of a key follow one another by event time, then by arrival. Each takes the one before it back and puts
itself in its place, from its own time on; a deletion is a version that puts nothing there. A row that comes between
two versions changes what the later one takes back, and that is sent too.

Of the versions that the watermark has passed only the newest is kept, the base of what follows; a row older than it
is too late. A deletion stays as such a base, without its values, for as long as there is no newer version: an older
row that comes after all must not bring the key back. A key of which nothing is known has no base, and its first row is
taken in however old it is.
"""

from __future__ import annotations

import polars as pl

from millstream.operators.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.elementwise import computed
from millstream.operators.keyed_rows import NUMBER, KeyedRows, numbered, singly, summed
from millstream.operators.runs import Marks
from millstream.operators.stateful import INPUTS, LATE, NO_MARKS, SENT
from millstream.operators.windowed import Clock, Frames
from millstream.plan import table_nodes

VERSIONS = "versions"
DELETED, UNTIL = "deleted", "until"
"""Of a version: whether it is a deletion, and the time of the next."""
NEW, PREVIOUS, PREVIOUS_HELD = "__new", "__previous", "__previous_held"


class LatestStep(KeyedRows):
    def __init__(self, node: table_nodes.Latest) -> None:
        self.node = node
        super().__init__(node, node.keys)
        self.in_order = [TIME, ORDER] if node.by_time else [ORDER]

    def tables(self) -> Frames:
        kept = [*self.keys, *self.rest, DELETED, TIME, ORDER]
        return {VERSIONS: self.table(kept, **{UNTIL: pl.Int64})}

    def more(self, rows: pl.DataFrame) -> list[pl.Series]:
        if self.node.deleted is not None:
            holds = computed(rows, self.given.schema, [(DELETED, self.node.deleted)])[DELETED]
            return [holds.fill_null(False)]
        if not self.node.values:
            return [pl.repeat(False, len(rows), dtype=pl.Boolean, eager=True).alias(DELETED)]
        return [rows.select(pl.all_horizontal(pl.col(self.node.values).is_null()).alias(DELETED)).to_series()]

    def asked(self, inputs: Frames) -> Frames:
        return {VERSIONS: inputs[INPUTS[0]]}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        versions, rows = numbered(self.keys, held[VERSIONS], inputs[INPUTS[0]])
        touched = pl.col(NUMBER).is_in(rows[NUMBER].unique().implode())
        untouched = versions.filter(~touched & (pl.col(UNTIL) < clock.watermark).fill_null(False).not_())
        versions = versions.filter(touched)
        rows, late = self._in_time(versions, rows, clock)
        columns = [NUMBER, *self.keys, *self.rest, DELETED, TIME, ORDER]
        line = pl.concat(
            [
                versions.select(*columns, pl.lit(False).alias(NEW)),
                rows.select(*columns, pl.lit(True).alias(NEW)),
            ]
        )
        line = line.sort(NUMBER, *self.in_order)
        kept = pl.concat([untouched.drop(NUMBER), self._kept(line, clock)])
        return {VERSIONS: kept}, {SENT: self._changes(line), LATE: late}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        # A version is no longer the base of anything once the watermark has passed the next one.
        return {VERSIONS: Marks(pl.col(UNTIL) + 1, pl.lit(None, pl.Int64)) if self.node.by_time else NO_MARKS}

    def _in_time(self, versions: pl.DataFrame, rows: pl.DataFrame, clock: Clock) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows that find their place, and those that are too late."""
        if not self.node.by_time:
            return rows, self.late(rows.clear(), pl.lit("expired"))
        before = versions.filter(pl.col(TIME) < clock.watermark_before)
        bases = before.group_by(NUMBER).agg(pl.col(TIME).max().alias("__base"))
        rows = rows.join(bases, on=NUMBER, how="left", maintain_order="left")
        fits = (pl.col(TIME) >= pl.col("__base").fill_null(pl.col(TIME))).fill_null(False)
        reason = pl.when(pl.col(TIME).is_null()).then(pl.lit("no event time")).otherwise(pl.lit("expired"))
        return rows.filter(fits), self.late(rows.filter(~fits), reason)

    def _changes(self, line: pl.DataFrame) -> pl.DataFrame:
        """The changes that the versions stand for now, less those that the held ones stood for."""
        place = pl.int_range(pl.len(), dtype=pl.UInt32)
        line = line.with_columns(
            pl.when(pl.col(NUMBER) == pl.col(NUMBER).shift()).then(place.cast(pl.Int64) - 1).alias(PREVIOUS),
            pl.when(~pl.col(NEW)).then(place).forward_fill().shift().alias(PREVIOUS_HELD),
        )
        came, numbers = line[NEW], line[NUMBER]
        # Of a held version whose place in the line has changed: what it took back, and what it takes back now.
        moved = line.filter(~pl.col(NEW) & pl.col(NEW).shift().fill_null(False) & pl.col(PREVIOUS).is_not_null())
        before = moved.filter(numbers.gather(moved[PREVIOUS_HELD].fill_null(0)) == moved[NUMBER])
        before = before.filter(pl.col(PREVIOUS_HELD).is_not_null())
        new = line.filter(came)
        after = pl.concat([new, moved]).filter(pl.col(PREVIOUS).is_not_null())
        rows = [*self.row, DELETED]
        parts = [
            (new.select(rows), new[TIME], 1),
            (line.select(rows)[after[PREVIOUS]], after[TIME], -1),
            (line.select(rows)[before[PREVIOUS_HELD]], before[TIME], 1),
        ]
        changes = pl.concat(
            [
                part.with_columns(times.alias(TIME), pl.lit(weight, pl.Int32).alias(WEIGHT))
                for part, times, weight in parts
            ]
        )
        changes = summed(changes.filter(~pl.col(DELETED)), [*self.row, TIME], WEIGHT)
        return self.sent(singly(changes.sort(TIME)))

    def _kept(self, line: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        follows = pl.col(NUMBER) == pl.col(NUMBER).shift(-1)
        if self.node.by_time:
            until = pl.when(follows).then(pl.col(TIME).shift(-1)).alias(UNTIL)
            kept = line.with_columns(until).filter((pl.col(UNTIL) < clock.watermark).fill_null(False).not_())
        else:
            last = follows.fill_null(False).not_()
            kept = line.filter(last & ~pl.col(DELETED)).with_columns(pl.lit(None, pl.Int64).alias(UNTIL))
        values = [pl.when(~pl.col(DELETED)).then(pl.col(name)).alias(name) for name in self.rest]
        return kept.select(*self.keys, *values, DELETED, TIME, ORDER, UNTIL)
