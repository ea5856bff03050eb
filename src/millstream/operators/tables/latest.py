"""A stream as a table: per key, the versions that can still change, and the one before them.

The versions of a key are ordered by event time, then by arrival. Each retracts the previous one and replaces it from
its own time on; a deletion is a version without a row. A row that arrives between two versions changes what the later
one retracts, and that is emitted too.

Of the versions that the watermark has passed only the newest is kept, as the base of what follows; a row older than it
is too late. A deletion stays as such a base, without its values, until there is a newer version: an older row that
still arrives must not bring the key back. It may be forgotten once the watermark is far enough past it. An unknown key
has no base, and its first row is accepted however old it is.

A deletion may have no event time, like a tombstone, which has no value. It deletes the newest version that arrived
before it and takes its time, so that it comes right after it. Without such a version it deletes nothing.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import polars as pl

from millstream.operators import lateness
from millstream.operators.aggregates.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import computed
from millstream.operators.keyed_rows import NUMBER, KeyedRows, numbered, singly, summed
from millstream.operators.stateful import INPUTS, LATE, NO_MARKS, SENT
from millstream.plan import table_nodes
from millstream.plan.time.windows import microseconds
from millstream.state.tables import Marks

VERSIONS = "versions"
DELETED, UNTIL = "deleted", "until"
"""Of a version: whether it is a deletion, and the time of the next one, or until when a deletion is kept."""
NEW, BASE, CAME, NEWEST = "__new", "__base", "__came", "__newest"


class LatestStep(KeyedRows):
    current_table: ClassVar[str] = VERSIONS

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
        rows = self._timed(versions, rows)
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
        # A version is no longer a base once the watermark has passed the next one.
        return {VERSIONS: Marks(pl.col(UNTIL) + 1, pl.lit(None, pl.Int64)) if self.node.by_time else NO_MARKS}

    def current(self, rows: pl.DataFrame) -> pl.DataFrame:
        newest = rows.sort(self.in_order).unique(self.keys, keep="last", maintain_order=True)
        found = newest.filter(~pl.col(DELETED)).with_columns(pl.lit(1, pl.Int32).alias(WEIGHT))
        return self.sent(found).drop(TIME, WEIGHT)

    def _timed(self, versions: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows; a deletion without event time gets that of the newest version before it, or is dropped."""
        untimed = pl.col(DELETED) & pl.col(TIME).is_null()
        if not self.node.by_time or not rows.select(untimed.any()).item():
            return rows
        newest = versions.group_by(NUMBER).agg(pl.col(TIME).max().alias(NEWEST))
        came = pl.col(TIME).cum_max().forward_fill().over(NUMBER)
        rows = rows.sort(ORDER).with_columns(came.alias(CAME))
        rows = rows.join(newest, on=NUMBER, how="left", maintain_order="left")
        time = pl.when(untimed).then(pl.max_horizontal(CAME, NEWEST)).otherwise(TIME)
        return rows.with_columns(time.alias(TIME)).filter(~untimed).drop(CAME, NEWEST)

    def _in_time(self, versions: pl.DataFrame, rows: pl.DataFrame, clock: Clock) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows that are in time, and the late ones."""
        if not self.node.by_time:
            return rows, self.late(rows.clear(), pl.lit("expired"))
        before = versions.filter(pl.col(TIME) < clock.watermark_before)
        bases = before.group_by(NUMBER).agg(pl.col(TIME).max().alias(BASE))
        rows = rows.join(bases, on=NUMBER, how="left", maintain_order="left")
        fits = (pl.col(TIME) >= pl.col(BASE).fill_null(pl.col(TIME))).fill_null(False) & ~lateness.is_untimed()
        return rows.filter(fits), self.late(rows.filter(~fits), lateness.reason())

    def _changes(self, line: pl.DataFrame) -> pl.DataFrame:
        """The changes of all versions now, minus those that the held ones have already emitted."""
        number, is_new = line[NUMBER].to_numpy(), line[NEW].to_numpy()
        place = np.arange(len(line))
        follows = number == np.roll(number, 1)
        follows[:1] = False
        new = np.flatnonzero(is_new)
        # A held version after a new one now retracts the new one instead of the held one before both.
        moved = np.flatnonzero(~is_new & follows & np.roll(is_new, 1))
        replacing = np.concatenate([new, moved])
        replacing = replacing[follows[replacing]]
        held_before = np.roll(np.maximum.accumulate(np.where(is_new, -1, place)), 1)[moved]
        same_key = (held_before >= 0) & (number[held_before] == number[moved])
        rows = np.concatenate([new, replacing - 1, held_before[same_key]])
        times = np.concatenate([new, replacing, moved[same_key]])
        weights = np.repeat(np.array([1, -1, 1], np.int32), [len(new), len(replacing), int(same_key.sum())])
        changes = line.select(*self.row, DELETED)[rows].with_columns(line[TIME][times], pl.Series(WEIGHT, weights))
        changes = summed(changes.filter(~pl.col(DELETED)), [*self.row, TIME], WEIGHT)
        return self.sent(singly(changes.sort(TIME)))

    def _remembered_until(self) -> pl.Expr:
        """Of the newest version: only a deletion may be forgotten."""
        if self.node.forget_after is None:
            return pl.lit(None, pl.Int64)
        return pl.when(DELETED).then(pl.col(TIME) + microseconds(self.node.forget_after))

    def _kept(self, line: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        follows = pl.col(NUMBER) == pl.col(NUMBER).shift(-1)
        if self.node.by_time:
            until = pl.when(follows).then(pl.col(TIME).shift(-1)).otherwise(self._remembered_until()).alias(UNTIL)
            kept = line.with_columns(until).filter((pl.col(UNTIL) < clock.watermark).fill_null(False).not_())
        else:
            last = follows.fill_null(False).not_()
            kept = line.filter(last & ~pl.col(DELETED)).with_columns(pl.lit(None, pl.Int64).alias(UNTIL))
        values = [pl.when(~pl.col(DELETED)).then(pl.col(name)).alias(name) for name in self.rest]
        return kept.select(*self.keys, *values, DELETED, TIME, ORDER, UNTIL)
