"""Joins a stream with a table as of each row's event time, or as of the row's arrival.

As of arrival, a bundle's changes of the table are applied first, then its rows are looked up and emitted; rows are
never buffered.

As of event time, a row is buffered until the watermark has passed it, because the table as of its time may still
change. The table is stored as changes, each with the time from which it is valid. No lookup can be before the
watermark, so changes up to it are merged into one sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.operators import elementwise, lateness
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import HIDDEN
from millstream.operators.joins.joining import singly
from millstream.operators.joins.table_join import JoinedSides
from millstream.operators.keyed_rows import NUMBER, numbered, summed
from millstream.operators.stateful import INPUTS, LATE, NO_MARKS, SENT, of_keys
from millstream.plan.table_nodes import LookupJoin
from millstream.plan.time.bundles import BEGINNING, END
from millstream.plan.time.late import late_columns
from millstream.records import Schema
from millstream.state.tables import Marks

TABLE, WAITING = "table", "waiting"
ASKED_AT, FOLDED_AT = "asked_at", "folded_at"
"""For a key: when its first buffered row is emitted, and when its changes are next merged."""
POINT, KEY, UNTIL, COPIES, PLACE = "__point", "__key", "__until", "__copies", "__place"
Numbers = npt.NDArray[np.int64]


class LookupJoinStep(JoinedSides):
    node: LookupJoin

    def __init__(self, node: LookupJoin) -> None:
        super().__init__(node)
        late = late_columns(node)
        self._late_types: Any = dict(elementwise.types_of(Schema.from_arrow(late))) if late else {}

    def tables(self) -> Frames:
        if not self.node.at_event_time:
            return {TABLE: self.table(1).drop(TIME)}
        return {TABLE: self.table(1, ASKED_AT, FOLDED_AT), WAITING: self.table(0, ASKED_AT)}

    def asked(self, inputs: Frames) -> Frames:
        keys = of_keys(self.keys, inputs).select(self.keys).unique()  # rows of a stream often have the same key
        known = keys.filter(self.has_keys(keys))
        return {TABLE: known, WAITING: keys} if self.node.at_event_time else {TABLE: known}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        came = inputs[INPUTS[1]]
        came = came.filter(self.has_keys(came))
        rows = inputs[INPUTS[0]].with_columns(pl.col(WEIGHT).cast(pl.Int64))
        met = self.met(inputs)
        if self.node.at_event_time:
            return self._at_event_time(held, rows, came, clock, met)
        table, columns = held[TABLE], [*self.keys, *self.rest[1]]
        if len(came):
            came = came.with_columns(pl.col(WEIGHT).cast(pl.Int64)).select(table.columns)
            table = summed(pl.concat([table, came]), columns, WEIGHT)
        found = table.filter(pl.col(WEIGHT) > 0).rename({WEIGHT: COPIES})
        return {TABLE: table} if len(came) else {}, {SENT: self._looked_up(rows, found, self.keys, met)}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        if not self.node.at_event_time:
            return {TABLE: NO_MARKS}
        # A buffered row is not behind the watermark, so it need not hold it.
        never = pl.lit(None, pl.Int64)
        due = pl.min_horizontal(ASKED_AT, FOLDED_AT)
        return {TABLE: Marks(due, never), WAITING: Marks(pl.col(ASKED_AT), never)}

    def _looked_up(
        self, rows: pl.DataFrame, found: pl.DataFrame, on: list[str], met: pl.DataFrame | None
    ) -> pl.DataFrame:
        """The output for rows, given the matches of each."""
        how = self.node.how
        parts = []
        if self.node.condition is not None:  # then a row has its own matches, not those of its key
            rows = rows.with_row_index(PLACE)
            pairs = self.meeting(rows.join(found, on=on, how="inner", maintain_order="left"), met)
            found, on = pairs.select(PLACE, *self.rest[1], COPIES), [PLACE]
        if how in ("inner", "left"):
            copies = pl.col(WEIGHT) * pl.col(COPIES)
            pairs = rows.join(found, on=on, how="inner", maintain_order="left")
            parts.append(pairs.select(*self.given(0), TIME, copies.alias(WEIGHT)))
        if how == "semi":
            parts.append(rows.join(found, on=on, how="semi").select(*self.given(0), TIME, WEIGHT))
        if how in ("left", "anti"):
            alone = rows.join(found, on=on, how="anti")
            parts.append(alone.select(*self.given(0, other=False), TIME, WEIGHT))
        return singly(*parts).with_columns(pl.col(WEIGHT).cast(pl.Int32))

    # ------------------------------------------------------------ as of event time

    def _at_event_time(
        self, held: Frames, rows: pl.DataFrame, came: pl.DataFrame, clock: Clock, met: pl.DataFrame | None
    ) -> tuple[Frames, Frames]:
        in_time = lateness.is_in_time(clock)
        late, rows = self._late(rows.filter(~in_time)), rows.filter(in_time)
        columns = held[WAITING].drop(ASKED_AT).columns
        waiting = pl.concat([held[WAITING].select(columns), rows.select(columns)])
        is_ready = waiting[TIME] < clock.watermark
        ready, waiting = waiting.filter(is_ready), waiting.filter(~is_ready)
        changes = self.changes(came, 1)
        table = pl.concat([held[TABLE].select(changes.columns), changes])
        sent = self._looked_up(*self._as_of_each(ready, table), [POINT], met)
        kept = {}
        firsts = waiting.group_by(self.keys).agg((pl.col(TIME).min() + 1).alias(ASKED_AT))
        if len(rows) or len(ready):
            kept[WAITING] = waiting.join(firsts, on=self.keys, how="left", nulls_equal=True)
        if kept or len(came) or (held[TABLE][FOLDED_AT] <= clock.watermark).any():
            kept[TABLE] = self._folded(held[TABLE], table, firsts, clock)
        return kept, {SENT: sent, LATE: late}

    def _late(self, rows: pl.DataFrame) -> pl.DataFrame:
        types = self._late_types
        columns = [*self.columns(0, types), *self.columns(1, types, there=False)]
        made = {column.meta.output_name(): column for column in columns}
        made |= {"side": pl.lit("left"), "reason": lateness.reason()}  # replace the user's columns of these names
        made |= {TIME: pl.col(TIME), WEIGHT: pl.col(WEIGHT).cast(pl.Int32)}
        return rows.select(made[name].alias(name) for name in (*types, *HIDDEN))

    def _as_of_each(self, rows: pl.DataFrame, table: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows, numbered by key and time, and the table's rows at each of these times."""
        rest = self.rest[1]
        if rows.is_empty():
            number = pl.Series(POINT, [], pl.UInt32)
            return rows.with_columns(number), table.clear().select(*rest, pl.col(WEIGHT).alias(COPIES)).with_columns(
                number
            )
        known = self.has_keys(rows)
        asking, table = numbered(self.keys, rows.filter(known), table)
        points, places = _lookups(asking)
        asking = asking.drop(NUMBER).with_columns(pl.Series(POINT, places, pl.UInt32))
        alone = rows.filter(~known).with_columns(pl.lit(None, pl.UInt32).alias(POINT))
        spans = _spans(table, rest)
        found, numbers = _within(points, spans)
        there = spans.select(*rest, COPIES)[found].with_columns(pl.Series(POINT, numbers, pl.UInt32))
        return pl.concat([asking, alone]), there

    def _folded(self, held: pl.DataFrame, table: pl.DataFrame, firsts: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """The stored changes of the table, those up to the watermark merged."""
        keys = self.keys
        passed = pl.col(TIME) <= clock.watermark
        folded = table.with_columns(pl.when(passed).then(pl.lit(BEGINNING, pl.Int64)).otherwise(TIME).alias(TIME))
        folded = summed(folded, [*keys, *self.rest[1], TIME], WEIGHT)
        # A retracted row can be dropped once the watermark has reached the retraction.
        goes = (pl.col(WEIGHT) < 0) & (pl.col(TIME) > BEGINNING)
        folding = folded.filter(goes).group_by(keys).agg(pl.col(TIME).min().alias(FOLDED_AT))
        # Buffered rows were emitted, unless their key was only read for merging: then nothing has changed for them.
        asked = held.filter(pl.col(ASKED_AT) > clock.watermark).select(*keys, ASKED_AT)
        asked = pl.concat([firsts, asked]).unique(keys, keep="first", maintain_order=True)
        return folded.join(asked, on=keys, how="left").join(folding, on=keys, how="left")


def _lookups(rows: pl.DataFrame) -> tuple[pl.DataFrame, Numbers]:
    """The distinct lookups by key number and time, in order; and which of them each row needs."""
    keys, times = rows[NUMBER].to_numpy(), rows[TIME].to_numpy()
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (keys[1:] != keys[:-1]) | (times[1:] != times[:-1])
    places = np.empty(len(rows), np.int64)
    places[order] = np.cumsum(is_first) - 1
    return pl.DataFrame({NUMBER: keys[is_first], TIME: times[is_first]}), places


def _spans(table: pl.DataFrame, rest: list[str]) -> pl.DataFrame:
    """For each row version, from when until when it was present, and how often, by key number."""
    rows = summed(table, [NUMBER, *rest, TIME], WEIGHT).rename({NUMBER: KEY})
    (rows,) = numbered([KEY, *rest], rows)
    rows = rows.sort(NUMBER, TIME)
    numbers, times = rows[NUMBER].to_numpy(), rows[TIME].to_numpy()
    is_next = numbers[1:] == numbers[:-1]  # a later change of the same row
    until = np.full(len(rows), END + 1, np.int64)
    until[:-1][is_next] = times[1:][is_next]
    sums = np.concatenate([[0], np.cumsum(rows[WEIGHT].to_numpy())])
    starts = np.arange(len(rows))
    starts[1:][is_next] = 0
    copies = sums[1:] - sums[np.maximum.accumulate(starts)]
    return rows.with_columns(pl.Series(UNTIL, until), pl.Series(COPIES, copies, pl.Int64)).filter(copies > 0)


def _within(points: pl.DataFrame, spans: pl.DataFrame) -> tuple[Numbers, Numbers]:
    """Matches spans and lookups of the same key: the position of the span and the number of the lookup."""
    times = np.concatenate([points[TIME].to_numpy(), spans[TIME].to_numpy(), spans[UNTIL].to_numpy()])
    ranks = np.unique(times, return_inverse=True)[1]
    at, start, end = np.split(ranks, [len(points), len(points) + len(spans)])
    width = len(times) + 1
    line = points[NUMBER].to_numpy().astype(np.int64) * width + at
    keys = spans[KEY].to_numpy().astype(np.int64) * width
    first = np.searchsorted(line, keys + start)
    counts = np.searchsorted(line, keys + end) - first
    places = np.repeat(np.arange(len(spans)), counts)
    shifts = np.repeat(first - np.cumsum(counts) + counts, counts)
    return places, shifts + np.arange(len(places))
