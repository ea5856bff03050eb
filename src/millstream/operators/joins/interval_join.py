"""Joins two streams where keys are equal and times are near: rows are buffered as long as a match can still arrive.

A pair is emitted when its second row arrives. Once the watermark rules out further matches, a row is dropped, and
emitted if it never matched and the join includes such rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.operators import lateness
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.joins.joining import LEFT, RIGHT, SIDES, Joining, Places, netted
from millstream.operators.stateful import INPUTS, LATE, SENT, PlainStep, of_keys
from millstream.plan.table_nodes import IntervalJoin
from millstream.plan.time.bundles import BEGINNING, END
from millstream.plan.time.windows import microseconds
from millstream.state.tables import Marks

MATCHES = "matches"
"""The sum of the weights of all matching rows."""
BEFORE, MATCHES_BEFORE = "__before", "__matches_before"
"""The weight of a row and its matches before the step; null if it was not held."""
FOREVER = 1 << 60
"""More microseconds than there are between two timestamps."""
MIX = 0x9E3779B97F4A7C15
Hashes = npt.NDArray[np.uint64]
NO_HASHES: Hashes = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Side:
    """How the rows of one input are buffered."""

    values: list[str]
    changing: bool
    """Whether rows can be retracted: then equal ones are stored as one."""
    counts: bool
    """Whether the number of matches matters: rows may be emitted when they have none, or the first."""
    can_lose: bool
    """Whether matches can be retracted."""
    patience: int
    """A row expires when the watermark is further past its time than this."""


class IntervalJoinStep(PlainStep):
    def __init__(self, node: IntervalJoin) -> None:
        self.node = node
        self.joining = Joining(node)
        self.keys = self.joining.keys
        self.nothing = self.joining.no_rows()
        self.none_late = self._late(self.nothing[INPUTS[LEFT]], LEFT)
        self.low, self.high, self.lateness = (
            max(-FOREVER, min(microseconds(span), FOREVER)) for span in (node.low, node.high, node.lateness)
        )
        changing = [given.is_changing for given in node.inputs]
        waits = (-self.low, self.high)
        self.sides = [
            Side(
                values=(self.joining.compared if side == RIGHT and self.joining.is_half else self.joining.values)[side],
                changing=changing[side],
                counts=self.joining.is_kept_alone[side] or (side == LEFT and self.joining.is_half),
                can_lose=changing[1 - side],
                # Rows can be retracted until the watermark has passed their time.
                patience=max(waits[side], 0) if changing[side] else waits[side],
            )
            for side in (LEFT, RIGHT)
        ]
        # A row with a match emits nothing more, if neither side can be retracted.
        self.drops_matched = self.joining.is_half and not any(changing)

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        return self.joining.fed(rows, first, side)

    def tables(self) -> Frames:
        made = {}
        for name, fed, side in zip(SIDES, INPUTS, self.sides, strict=True):
            made[name] = (
                self.nothing[fed]
                .select(self._columns(side))
                .with_columns([pl.lit(0, pl.Int64).alias(MATCHES)] if side.counts else [])
            )
        return made

    def _columns(self, side: Side) -> list[str]:
        return [*self.keys, *side.values, TIME, WEIGHT]

    def clock(self, clock: Clock) -> Clock:
        """Rows may be late by the allowed lateness: the effective watermark is behind by that much."""
        before, after = (
            reached if reached in (BEGINNING, END) else reached - self.lateness
            for reached in (clock.watermark_before, clock.watermark)
        )
        return replace(clock, watermark_before=before, watermark=after)

    def asked(self, inputs: Frames) -> Frames:
        return dict.fromkeys(SIDES, of_keys(self.keys, inputs))

    def marks(self, clock: Clock) -> dict[str, Marks]:
        never = pl.lit(None, pl.Int64)
        made = {}
        for name, side in zip(SIDES, self.sides, strict=True):
            unmatched = pl.lit(True) if side.can_lose else pl.col(MATCHES) <= 0
            hold = pl.when(unmatched).then(pl.col(TIME)) if side.counts else never
            made[name] = Marks(pl.col(TIME) + side.patience + 1, never, hold)
        return made

    # ------------------------------------------------------------ one step

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        in_time, late = zip(
            *(self._split_late(inputs[name], side, clock) for side, name in enumerate(INPUTS)), strict=True
        )
        left, right = (
            self._with_news(held[name], rows, side) for name, rows, side in zip(SIDES, in_time, self.sides, strict=True)
        )
        here, there = self._matching(left, right, self.joining.met(inputs))
        sent = [self._pairs(left, right, here, there)] if len(here) and not self.joining.is_half else []
        left, right = self._counted(left, right, LEFT, here, there), self._counted(right, left, RIGHT, there, here)
        if self.node.how == "semi":
            sent.append(self._first_matches(left))
        kept = {}
        for side, rows in enumerate((left, right)):
            rows = rows.filter(pl.col(WEIGHT) != 0) if self.sides[side].changing else rows
            goes = rows[TIME] + self.sides[side].patience < clock.watermark
            sent += self._unmatched(rows.filter(goes), side)
            # A side that was only read stays as it is: rewriting a key with many rows would be expensive.
            if len(in_time[side]) or goes.any() or self.sides[side].counts:
                kept[SIDES[side]] = self._kept(rows.filter(~goes), side)
        given = self.joining.sent(sent)
        # Equal pairs may be of rows with different times, which the join behind distinguishes.
        nets = self.node.is_changing and not self.node.for_condition
        return kept, {SENT: netted(given) if nets else given, LATE: pl.concat(late)}

    def _split_late(self, rows: pl.DataFrame, side: int, clock: Clock) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows that arrive in time, and the late ones."""
        limit = clock.watermark_before
        times = rows[TIME]
        if not times.null_count() and not (times < limit).any():
            return rows, self.none_late
        in_time = lateness.is_in_time(clock)
        return rows.filter(in_time), self._late(rows.filter(~in_time), side)

    def _late(self, rows: pl.DataFrame, side: int) -> pl.DataFrame:
        return self.joining.late(rows, side, lateness.reason().alias("reason"))

    def _with_news(self, held: pl.DataFrame, rows: pl.DataFrame, side: Side) -> pl.DataFrame:
        """Held and new rows, each with its weight before and now; equal rows merged, if they can be retracted."""
        if not side.counts:
            rows = rows.filter(~self.joining.has_null_key())
        before = [BEFORE, MATCHES_BEFORE] if side.counts else [BEFORE]
        now = [WEIGHT, MATCHES] if side.counts else [WEIGHT]
        zero = [pl.lit(0, pl.Int64).alias(MATCHES)] if side.counts else []
        news = rows.select(*self._columns(side), *zero)
        both = pl.concat(
            [
                held.with_columns(pl.col(now).name.map(dict(zip(now, before, strict=True)).__getitem__)),
                news.with_columns(
                    pl.lit(None, news.schema[name]).alias(old) for name, old in zip(now, before, strict=True)
                ),
            ],
            rechunk=True,
        )
        if not side.changing or rows.is_empty():
            return both
        made = [pl.col(now).sum(), pl.col(before).max()]  # of equal rows at most one was held
        summed = both.group_by([*self.keys, *side.values, TIME], maintain_order=True).agg(made).select(both.columns)
        return summed.filter((pl.col(WEIGHT) != 0) | pl.col(BEFORE).is_not_null())

    # ------------------------------------------------------------ matching

    def _matching(self, left: pl.DataFrame, right: pl.DataFrame, met: pl.DataFrame | None) -> tuple[Places, Places]:
        """The positions of matching rows, where at least one weight has changed."""
        moved = [rows[BEFORE].fill_null(0) != rows[WEIGHT] for rows in (left, right)]
        places = [np.flatnonzero(which.to_numpy()) for which in moved]
        still = np.flatnonzero(~moved[LEFT].to_numpy())
        hashes = [self._hashes(rows) if any(map(len, places)) else NO_HASHES for rows in (left, right)]
        found = [self._near(left, right, hashes, places[LEFT], np.arange(len(right)))]
        found.append(self._near(left, right, hashes, still, places[RIGHT]))
        here, there = (np.concatenate(each) for each in zip(*found, strict=True))
        return self.joining.meeting(left, right, here, there, met)

    def _near(
        self, left: pl.DataFrame, right: pl.DataFrame, hashes: list[Hashes], here: Places, there: Places
    ) -> tuple[Places, Places]:
        """Of candidate rows, those with equal keys and near times.

        Time is divided into buckets twice as long as the interval, so that for a key with many rows only near ones are
        compared: a row probes the one or two buckets that its interval touches.
        """
        if not len(here) or not len(there):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        times, others = left[TIME].to_numpy()[here], right[TIME].to_numpy()[there]
        length = 2 * (self.high - self.low + 1)
        buckets = others // length
        first, last = (times - self.high) // length, (times - self.low) // length
        own = hashes[LEFT][here]
        crossing = np.flatnonzero(first != last)
        probe = pl.DataFrame(
            {
                "bucket": _mixed(np.concatenate([own, own[crossing]]), np.concatenate([first, last[crossing]])),
                "here": np.concatenate([here, here[crossing]]),
            }
        )
        build = pl.DataFrame({"bucket": _mixed(hashes[RIGHT][there], buckets), "there": there})
        near = probe.join(build, on="bucket", how="inner")
        here, there = near["here"].to_numpy(), near["there"].to_numpy()
        apart = left[TIME].to_numpy()[here] - right[TIME].to_numpy()[there]
        is_near = (apart >= self.low) & (apart <= self.high)
        here, there = here[is_near], there[is_near]
        # Different keys may rarely have the same hash; a null equals nothing.
        equal = np.ones(len(here), np.bool_)
        for key in self.keys:
            equal &= (left[key].gather(here) == right[key].gather(there)).fill_null(False).to_numpy()
        return (here, there) if equal.all() else (here[equal], there[equal])

    def _hashes(self, rows: pl.DataFrame) -> Hashes:
        key = pl.col(self.keys[0]) if len(self.keys) == 1 else pl.struct(self.keys)
        return rows.select(key.hash(7).alias("hash"))["hash"].to_numpy()

    # ------------------------------------------------------------ emitting

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame, here: Places, there: Places) -> pl.DataFrame:
        times = [rows[TIME].to_numpy()[at] for rows, at in ((left, here), (right, there))]
        now, before = (
            left[column].fill_null(0).to_numpy()[here] * right[column].fill_null(0).to_numpy()[there]
            for column in (WEIGHT, BEFORE)
        )
        pairs = self.joining.pairs(left, right, here, there)
        return pairs.with_columns(pl.Series(TIME, np.maximum(*times)), pl.Series(WEIGHT, now - before, pl.Int32))

    def _counted(
        self, rows: pl.DataFrame, others: pl.DataFrame, side: int, here: Places, there: Places
    ) -> pl.DataFrame:
        """Adds the weights that matched in this step to each row."""
        if not self.sides[side].counts or not len(here):
            return rows
        now, before = (others[column].fill_null(0).to_numpy()[there] for column in (WEIGHT, BEFORE))
        was_held = rows[BEFORE].is_not_null().to_numpy()[here]
        met = np.bincount(here, now - np.where(was_held, before, 0), minlength=len(rows))
        return rows.with_columns(pl.col(MATCHES) + pl.Series(met.astype(np.int64)))

    def _first_matches(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Emits rows that now have a match and had none before, and retracts those that lost their last one."""
        now = pl.col(WEIGHT) * (pl.col(MATCHES) > 0)
        before = (pl.col(BEFORE) * (pl.col(MATCHES_BEFORE) > 0)).fill_null(0)
        made = rows.select(*self.joining.halves(), TIME, (now - before).alias(WEIGHT))
        return made.filter(pl.col(WEIGHT) != 0)

    def _unmatched(self, rows: pl.DataFrame, side: int) -> list[pl.DataFrame]:
        """Emits expiring rows without a match."""
        if not self.joining.is_kept_alone[side] and (side == RIGHT or self.node.how != "anti"):
            return []
        rows = rows.filter(pl.col(MATCHES) <= 0)
        columns = self.joining.halves() if self.joining.is_half else self.joining.alone(side)
        return [rows.select(*columns, TIME, WEIGHT)]

    def _kept(self, rows: pl.DataFrame, side: int) -> pl.DataFrame:
        if side == LEFT and self.drops_matched:
            rows = rows.filter(pl.col(MATCHES) <= 0)
        return rows.drop(BEFORE, MATCHES_BEFORE, strict=False)


def _mixed(hashes: Hashes, buckets: Places) -> Hashes:
    return hashes ^ (buckets.astype(np.uint64) * np.uint64(MIX))
