"""Two streams, joined where keys are equal and times near: rows wait for as long as one to come can meet them.

A pair is sent when its second row comes. What a row waits for is over when the watermark says so; then it goes, and is
sent if it met none and the join asks for such rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from millstream.operators.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.joining import LEFT, RIGHT, SIDES, Joining, Places, netted
from millstream.operators.runs import Marks
from millstream.operators.stateful import INPUTS, LATE, SENT, PlainStep, of_keys
from millstream.operators.windowed import Clock, Frames
from millstream.plan.table_nodes import IntervalJoin
from millstream.plan.windows import microseconds

MATCHES = "matches"
"""The weights of all rows that a row has met, added up."""
BEFORE = "__before"
"""The weight that a row had before the step: null for one that was not held."""
FOREVER = 1 << 60
"""More microseconds than there are between two timestamps."""
MIX = 0x9E3779B97F4A7C15


class IntervalJoinStep(PlainStep):
    def __init__(self, node: IntervalJoin) -> None:
        self.node = node
        self.joining = Joining(node)
        self.keys = self.joining.keys
        self.nothing = {name: self.joining.no_rows(side) for side, name in enumerate(INPUTS)}
        self.low, self.high, self.lateness = (
            max(-FOREVER, min(microseconds(span), FOREVER)) for span in (node.low, node.high, node.lateness)
        )
        changing = [given.is_changing for given in node.inputs]
        self.sides = [
            _Side(
                values=[] if side == RIGHT and self.joining.is_half else self.joining.values[side],
                changing=changing[side],
                counts=self.joining.is_kept_alone[side] or (side == LEFT and self.joining.is_half),
                may_unmatch=changing[1 - side],
                # A row that can be taken back waits at least for that.
                patience=max(*((0,) if changing[side] else ()), (-self.low, self.high)[side], -FOREVER),
            )
            for side in (LEFT, RIGHT)
        ]
        # Of a row that has met one nothing more is sent, if none of the two can be taken back.
        self.drops_matched = self.joining.is_half and not any(changing)

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        return self.joining.fed(rows, first, side)

    def tables(self) -> Frames:
        made = {}
        for name, fed, side in zip(SIDES, INPUTS, self.sides, strict=True):
            made[name] = self.nothing[fed].select(self._columns(side)).with_columns(
                [pl.lit(0, pl.Int64).alias(MATCHES)] if side.counts else []
            )
        return made

    def _columns(self, side: _Side) -> list[str]:
        return [*self.keys, *side.values, TIME, WEIGHT]

    def asked(self, inputs: Frames) -> Frames:
        return dict.fromkeys(SIDES, of_keys(self.keys, inputs))

    def marks(self, clock: Clock) -> dict[str, Marks]:
        never = pl.lit(None, pl.Int64)
        made = {}
        for name, side in zip(SIDES, self.sides, strict=True):
            unmatched = pl.lit(True) if side.may_unmatch else pl.col(MATCHES) == 0
            hold = pl.when(unmatched).then(pl.col(TIME)) if side.counts else never
            made[name] = Marks(pl.col(TIME) + side.patience + self.lateness + 1, never, hold)
        return made

    # ------------------------------------------------------------ one step

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        in_time, late = zip(*(self._judged(inputs[name], side, clock) for side, name in enumerate(INPUTS)), strict=True)
        left, right = (
            self._with_news(held[name], rows, side)
            for name, rows, side in zip(SIDES, in_time, self.sides, strict=True)
        )
        here, there = self._met(left, right)
        sent = []
        if not self.joining.is_half:
            sent.append(self._pairs(left, right, here, there))
        left, right = self._counted(left, right, here, there)
        if self.node.how == "semi":
            sent.append(self._first_matches(left))
        kept = {}
        for side, rows in enumerate((left, right)):
            goes = pl.col(TIME) + self.sides[side].patience < clock.watermark - self.lateness
            sent.append(self._unmatched(rows.filter(goes & (pl.col(WEIGHT) != 0)), side))
            kept[SIDES[side]] = self._kept(rows.filter(~goes & (pl.col(WEIGHT) != 0)), side)
        given = self.joining.sent(sent)
        return kept, {SENT: netted(given) if self.node.is_changing else given, LATE: pl.concat(late)}

    def _judged(self, rows: pl.DataFrame, side: int, clock: Clock) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows that come in time, and the others."""
        expired = pl.col(TIME) < clock.watermark_before - self.lateness
        is_late = rows.select((pl.col(TIME).is_null() | expired).alias("late"))["late"]
        reason = pl.when(pl.col(TIME).is_null()).then(pl.lit("no event time")).otherwise(pl.lit("expired"))
        late = self.joining.late(rows.filter(is_late), side, reason.alias("reason"))
        return rows.filter(~is_late) if len(late) else rows, late

    def _with_news(self, held: pl.DataFrame, rows: pl.DataFrame, side: _Side) -> pl.DataFrame:
        """What is held and what comes, each with its weight before and now; equal rows as one, if one can go."""
        if not side.counts:
            rows = rows.filter(~self.joining.has_null_key())
        columns = self._columns(side)
        zero = [pl.lit(0, pl.Int64).alias(MATCHES)] if side.counts else []
        unknown = pl.lit(None, pl.Int32).alias(BEFORE)
        news = rows.select(*columns, *zero, unknown)
        both = pl.concat([held.with_columns(pl.col(WEIGHT).alias(BEFORE)).select(news.columns), news], rechunk=True)
        if not side.changing or rows.is_empty():
            return both
        made = [pl.col(WEIGHT).sum(), pl.col(BEFORE).max()]  # at most one of them was held
        made += [pl.col(MATCHES).sum()] if side.counts else []
        return both.group_by([*self.keys, *side.values, TIME], maintain_order=True).agg(made).select(both.columns)

    # ------------------------------------------------------------ which rows meet

    def _met(self, left: pl.DataFrame, right: pl.DataFrame) -> tuple[Places, Places]:
        """The places of rows that meet, where one of the two has another weight than before."""
        moved = [rows[BEFORE].fill_null(0) != rows[WEIGHT] for rows in (left, right)]
        places = [np.flatnonzero(which.to_numpy()) for which in moved]
        still = np.flatnonzero(~moved[LEFT].to_numpy())
        found = [self._near(left, right, places[LEFT], np.arange(len(right)))]
        if len(still) and len(places[RIGHT]):
            found.append(self._near(left, right, still, places[RIGHT]))
        here, there = (np.concatenate(each) for each in zip(*found, strict=True))
        return here, there

    def _near(self, left: pl.DataFrame, right: pl.DataFrame, here: Places, there: Places) -> tuple[Places, Places]:
        """Of rows at some places those that are equal in the keys and near in time.

        Time is cut in buckets twice as long as the interval, so that of a key with many rows only those are compared
        that may be near: a row looks into the one or two buckets that its interval touches.
        """
        if not len(here) or not len(there) or self.low > self.high:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        times, others = left[TIME].to_numpy()[here], right[TIME].to_numpy()[there]
        length = 2 * (self.high - self.low + 1)
        buckets = others // length
        first, last = (times - self.high) // length, (times - self.low) // length
        hashes, other_hashes = self._hashes(left)[here], self._hashes(right)[there]
        crossing = np.flatnonzero(first != last)
        probe = pl.DataFrame(
            {
                "bucket": _mixed(np.concatenate([hashes, hashes[crossing]]), np.concatenate([first, last[crossing]])),
                "here": np.concatenate([here, here[crossing]]),
            }
        )
        build = pl.DataFrame({"bucket": _mixed(other_hashes, buckets), "there": there})
        near = probe.join(build, on="bucket", how="inner")
        here, there = near["here"].to_numpy(), near["there"].to_numpy()
        apart = left[TIME].to_numpy()[here] - right[TIME].to_numpy()[there]
        is_near = (apart >= self.low) & (apart <= self.high)
        here, there = here[is_near], there[is_near]
        # Different keys may have the same hash, if hardly ever; a null equals nothing.
        equal = np.ones(len(here), np.bool_)
        for key in self.keys:
            equal &= (left[key].gather(here) == right[key].gather(there)).fill_null(False).to_numpy()
        return (here, there) if equal.all() else (here[equal], there[equal])

    def _hashes(self, rows: pl.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        key = pl.col(self.keys[0]) if len(self.keys) == 1 else pl.struct(self.keys)
        return rows.select(key.hash(7).alias("hash"))["hash"].to_numpy()

    # ------------------------------------------------------------ what comes of it

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame, here: Places, there: Places) -> pl.DataFrame:
        times = [rows[TIME].to_numpy()[at] for rows, at in ((left, here), (right, there))]
        now, before = (
            left[column].fill_null(0).to_numpy()[here] * right[column].fill_null(0).to_numpy()[there]
            for column in (WEIGHT, BEFORE)
        )
        pairs = self.joining.pairs(left, right, here, there)
        return pairs.with_columns(pl.Series(TIME, np.maximum(*times)), pl.Series(WEIGHT, now - before, pl.Int32))

    def _counted(
        self, left: pl.DataFrame, right: pl.DataFrame, here: Places, there: Places
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Adds to each row's matches the weights it met in this step."""
        counted = []
        for side, rows, at, others, where in (
            (LEFT, left, here, right, there),
            (RIGHT, right, there, left, here),
        ):
            if not self.sides[side].counts:
                counted.append(rows)
                continue
            now, before = (others[column].fill_null(0).to_numpy()[where] for column in (WEIGHT, BEFORE))
            known = rows[BEFORE].is_not_null().to_numpy()[at]
            met = np.bincount(at, now - np.where(known, before, 0), minlength=len(rows)).astype(np.int64)
            counted.append(rows.with_columns((pl.col(MATCHES) + pl.Series(met)).alias("__now")))
        return counted[LEFT], counted[RIGHT]
