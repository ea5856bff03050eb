"""Joins two streams window by window: rows are buffered, and a complete window is joined and emitted once.

A row of state is a row in one window. Sessions consist of the rows of both inputs together; a row with a null key
matches nothing, so it is its own session.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.joins.joining import LEFT, RIGHT, SIDES, WINDOW, Joining, Places, chosen, singly, span
from millstream.operators.lateness import expiry, is_expired, is_untimed, reason
from millstream.operators.stateful import INPUTS, LATE, SENT, PlainStep, of_keys
from millstream.operators.windows.assignment import ends, placed, split
from millstream.plan.nodes import SPAN
from millstream.plan.table_nodes import WindowJoin
from millstream.plan.time.windows import Sessions, microseconds
from millstream.state.tables import Marks

START, STOP = SPAN.names
PLACE = "__place"


class WindowJoinStep(PlainStep):
    def __init__(self, node: WindowJoin) -> None:
        self.node = node
        self.joining = Joining(node)
        self.keys = self.joining.keys
        self.nothing = self.joining.no_rows()
        self.none_late = self._untimed(self.nothing[INPUTS[LEFT]], LEFT)
        self.lateness = microseconds(node.lateness)
        self.expiry = expiry(pl.col(STOP), self.lateness)
        self.changing = [given.is_changing for given in node.inputs]
        values = self.joining.values
        # A row that can be retracted must be identifiable.
        whole = self.changing[RIGHT] or not self.joining.is_half
        self.values = (values[LEFT], values[RIGHT] if whole else self.joining.compared[RIGHT])
        self.keeps_null_keys = (
            self.joining.is_kept_alone[LEFT] or node.how == "anti",
            self.joining.is_kept_alone[RIGHT],
        )

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        return self.joining.fed(rows, first, side)

    def tables(self) -> Frames:
        nowhere = [pl.lit(None, pl.Int64).alias(name) for name in (START, STOP)]
        return {
            name: self.nothing[fed].with_columns(nowhere).select(self._columns(side))
            for side, (name, fed) in enumerate(zip(SIDES, INPUTS, strict=True))
        }

    def _columns(self, side: int) -> list[str]:
        return [*self.keys, START, STOP, *self.values[side], TIME, WEIGHT]

    def asked(self, inputs: Frames) -> Frames:
        return dict.fromkeys(SIDES, of_keys(self.keys, inputs))

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return dict.fromkeys(SIDES, Marks(self.expiry, pl.lit(None, pl.Int64), pl.col(STOP) - 1))

    # ------------------------------------------------------------ one step

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        arrived, late = [], [self.none_late]
        for side, name in enumerate(INPUTS):
            rows = inputs[name]
            untimed, rows = split(rows, is_untimed())
            if len(untimed):
                late.append(self._untimed(untimed, side))
            arrived.append(rows)
        tables = [held[name] for name in SIDES]
        if isinstance(self.node.window, Sessions):
            arrived, tables = self._in_sessions(arrived, tables, microseconds(self.node.window.gap))
        else:
            arrived = [placed(rows, self.node.window) for rows in arrived]
        over, kept = [], {}
        for side, name in enumerate(SIDES):
            rows = arrived[side]
            expired = is_expired(pl.col(STOP), self.lateness, clock)
            if len(too_late := rows.filter(expired)):
                late.append(self._expired(too_late, side))
                rows = rows.filter(~expired)
            rows = self._with_news(tables[side], rows, side)
            is_over = self.expiry <= clock.watermark
            over.append(rows.filter(is_over))
            kept[name] = rows.filter(~is_over)
        return kept, {SENT: self._joined(over[LEFT], over[RIGHT], self.joining.met(inputs)), LATE: pl.concat(late)}

    def _untimed(self, rows: pl.DataFrame, side: int) -> pl.DataFrame:
        nowhere = pl.lit(None, pl.Struct({name: pl.Datetime("us", "UTC") for name in (START, STOP)})).alias(WINDOW)
        return self.joining.late(rows, side, nowhere, reason().alias("reason"))

    def _expired(self, rows: pl.DataFrame, side: int) -> pl.DataFrame:
        return self.joining.late(rows, side, span(), pl.lit("expired").alias("reason"))

    def _with_news(self, held: pl.DataFrame, rows: pl.DataFrame, side: int) -> pl.DataFrame:
        """Held and new rows; equal rows merged, if they can be retracted."""
        if rows.is_empty():
            return held
        if not self.keeps_null_keys[side]:
            rows = rows.filter(~self.joining.has_null_key())
        both = pl.concat([held, rows.select(held.columns)])
        if not self.changing[side]:
            return both
        same = [name for name in held.columns if name != WEIGHT]
        summed = both.group_by(same, maintain_order=True).agg(pl.col(WEIGHT).sum()).select(held.columns)
        # A session does not shrink when one of its rows is retracted.
        return summed if self.node.window.merges else summed.filter(pl.col(WEIGHT) != 0)

    # ------------------------------------------------------------ sessions

    def _in_sessions(
        self, rows: list[pl.DataFrame], held: list[pl.DataFrame], gap: int
    ) -> tuple[list[pl.DataFrame], list[pl.DataFrame]]:
        """New and held rows with their sessions: those that overlap or touch are merged."""
        rows = [frame.with_columns(pl.col(TIME).alias(START), ends(pl.col(TIME) + gap).alias(STOP)) for frame in rows]
        if not any(map(len, rows)):
            return rows, held
        frames = [*rows, *held]
        starts, stops = (np.concatenate([frame[name].to_numpy() for frame in frames]) for name in (START, STOP))
        # A number that sorts all times of a key before those of the next: then one pass over all keys finds the gaps.
        moments, places = np.unique(np.concatenate([starts, stops]), return_inverse=True)
        firsts = self._numbered(pl.concat([frame.select(self.keys) for frame in frames])) * len(moments)
        begin, end = firsts + places[: len(starts)], firsts + places[len(starts) :]
        order = np.argsort(begin)
        reach = np.maximum.accumulate(end[order])
        fresh = np.flatnonzero(np.append(True, begin[order][1:] > reach[:-1]))
        counts = np.diff(np.append(fresh, len(order)))
        starts[order], stops[order] = (
            np.repeat(made.reduceat(times[order], fresh), counts)
            for made, times in ((np.minimum, starts), (np.maximum, stops))
        )
        bounds = np.cumsum([0, *map(len, frames)])
        merged = [
            frame.with_columns(pl.Series(START, starts[first:last]), pl.Series(STOP, stops[first:last]))
            for frame, first, last in zip(frames, bounds[:-1], bounds[1:], strict=True)
        ]
        return merged[: len(rows)], merged[len(rows) :]

    def _numbered(self, keys: pl.DataFrame) -> Places:
        """A number for each key, from 0; every row with a null key has its own."""
        known = keys.unique().with_row_index(PLACE)
        numbers = keys.join(known, on=self.keys, how="left", maintain_order="left")[PLACE].cast(pl.Int64)
        own = pl.int_range(len(known), len(known) + len(keys), eager=True)
        return numbers.zip_with(numbers.is_not_null(), own).to_numpy()

    # ------------------------------------------------------------ output

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame, met: pl.DataFrame | None) -> pl.DataFrame:
        """The join of complete windows."""
        if left.is_empty() and right.is_empty():
            return self.joining.sent([])
        if any(self.changing):  # a row that was retracted before it arrived never existed
            left, right = (rows.filter(pl.col(WEIGHT) > 0) for rows in (left, right))
        same = [*self.keys, START]  # in one key, windows with the same start are the same
        if self.joining.is_half and self.node.condition is None:
            how: Literal["semi", "anti"] = "semi" if self.node.how == "semi" else "anti"
            return self._sent([self._with_window(left.join(right, on=same, how=how), self.joining.halves())])
        places = left.select(*same, pl.int_range(pl.len()).alias("here")).join(
            right.select(*same, pl.int_range(pl.len()).alias("there")), on=same, how="inner"
        )
        here, there = (places[name].to_numpy() for name in ("here", "there"))
        here, there = self.joining.meeting(left, right, here, there, met)
        if self.joining.is_half:
            is_met = np.isin(np.arange(len(left)), here)
            rows = left.filter(is_met if self.node.how == "semi" else ~is_met)
            return self._sent([self._with_window(rows, self.joining.halves())])
        made = [self._pairs(left, right, here, there)]
        for side, (rows, paired) in enumerate(((left, here), (right, there))):
            if self.joining.is_kept_alone[side]:
                is_alone = np.ones(len(rows), np.bool_)
                is_alone[paired] = False
                made.append(self._with_window(rows.filter(is_alone), self.joining.alone(side)))
        return self._sent(made)

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame, here: Places, there: Places) -> pl.DataFrame:
        weights = left[WEIGHT].to_numpy()[here] * right[WEIGHT].to_numpy()[there]
        windows = left.select(span(), (pl.col(STOP) - 1).alias(TIME))[here]
        made = self.joining.pairs(left, right, here, there)
        return made.with_columns(*windows.get_columns(), pl.Series(WEIGHT, weights, pl.Int32))

    def _with_window(self, rows: pl.DataFrame, columns: list[pl.Expr]) -> pl.DataFrame:
        return rows.select(chosen(*columns, span(), (pl.col(STOP) - 1).alias(TIME), pl.col(WEIGHT)))

    def _sent(self, made: list[pl.DataFrame]) -> pl.DataFrame:
        sent = self.joining.sent(made)
        return singly(sent) if any(self.changing) else sent
