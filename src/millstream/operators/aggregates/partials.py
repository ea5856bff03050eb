"""Pre-aggregation before the shuffle: the rows of one task for one window travel as one row.

That is possible if a window's place depends on nothing but the row, every aggregate folds, and nothing needs the single
rows: neither the trigger, nor `.late` for a row that may be too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import gcd

import polars as pl

from millstream.operators.aggregates.accumulators import ARRIVED, TIME
from millstream.operators.windows.assignment import ends, placed
from millstream.operators.windows.triggers import can_finish
from millstream.operators.windows.windowed import WindowedOperator
from millstream.plan.nodes import PaneTime
from millstream.plan.time import triggers, windows

STRETCH = "__stretch"
SLICES_MAX = 4  # per step of a sliding window


def _slices(window: windows.Sliding) -> windows.Fixed | None:
    """Slices of time that each lie wholly inside or outside of every window; None if they would be too small."""
    size, every = windows.microseconds(window.size), windows.microseconds(window.every)
    slice_us = gcd(size, every)
    if size <= every or every > SLICES_MAX * slice_us:
        return None
    return windows.Fixed(timedelta(microseconds=slice_us), window.offset % timedelta(microseconds=slice_us))


def _are_stretches(operator: WindowedOperator) -> bool:
    """Whether rows of a session can be folded before they reach the others: no single rows are needed later."""
    window = operator.node.window
    return isinstance(window, windows.Sessions) and window.time == "event" and not operator.keeps_rows


class Partials:
    def __init__(self, operator: WindowedOperator) -> None:
        self._operator = operator
        self._window = operator.node.window
        self._by_clock = getattr(self._window, "time", "event") == "processing"
        self._identity = [*operator.keys, *(() if self._by_clock else ("start", "end"))]

    @staticmethod
    def possible(operator: WindowedOperator) -> bool:
        node = operator.node
        stays_open = not can_finish(node.trigger) or (
            isinstance(node.trigger, triggers.AfterWatermark) and not node.lateness
        )
        return (
            (isinstance(node.window, windows.Fixed | windows.Sliding | windows.Calendar) or _are_stretches(operator))
            and node.pane_time is PaneTime.END_OF_WINDOW
            and not operator.listing
            and not any(accumulator.needs_order for accumulator in operator.folding)
            and not operator.takes_rows_singly
            and stays_open
        )

    def folded(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with keys, arguments, weight and a non-null time, as one row per key and window.

        For windows in processing time only the step knows the place: `timed` sets it.
        """
        made = [fold for accumulator in self._operator.folding for fold in accumulator.from_rows(rows)]
        made.append(pl.len().cast(pl.Int64).alias(ARRIVED))
        keys = self._operator.keys
        if self._by_clock:
            return self._grouped(rows, made)
        if isinstance(self._window, windows.Sessions):
            return self._stretches(rows, made, windows.microseconds(self._window.gap))
        if isinstance(self._window, windows.Calendar):
            return placed(rows, self._window).group_by(self._identity).agg(made)
        assert isinstance(self._window, windows.Fixed | windows.Sliding)
        if isinstance(self._window, windows.Sliding) and (slices := _slices(self._window)) is not None:
            parts = self._of_slices(placed(rows, slices).drop("end").group_by([*keys, "start"]).agg(made))
        else:
            parts = placed(rows, self._window).drop("end").group_by([*keys, "start"]).agg(made)
        end = ends(pl.col("start") + windows.microseconds(self._window.size)).alias("end")
        return parts.select(*keys, "start", end, pl.exclude(*keys, "start"))

    def _of_slices(self, folded: pl.DataFrame) -> pl.DataFrame:
        """Expands slices into the windows they belong to: a few slices are multiplied instead of all rows."""
        in_windows = placed(folded.sort("start").rename({"start": TIME}), self._window).drop("end", TIME)
        made = [fold for accumulator in self._operator.folding for fold in accumulator.merged(in_windows)]
        return in_windows.group_by([*self._operator.keys, "start"]).agg(*made, pl.col(ARRIVED).sum())

    def _stretches(self, rows: pl.DataFrame, made: list[pl.Expr], gap: int) -> pl.DataFrame:
        """Merges rows that follow one another within the gap: they certainly belong to one session."""
        keys = self._operator.keys
        rows = rows.sort(*keys, TIME, maintain_order=True)
        parted = [pl.col(key).ne_missing(pl.col(key).shift()) for key in keys]
        parted.append((pl.col(TIME) > pl.col(TIME).shift() + gap).fill_null(True))
        spans = [pl.col(TIME).min().alias("start"), ends(pl.col(TIME).max() + gap).alias("end")]
        stretches = rows.group_by(pl.any_horizontal(parted).cum_sum().alias(STRETCH), maintain_order=True)
        return stretches.agg(*(pl.col(key).first() for key in keys), *spans, *made).drop(STRETCH)

    def timed(self, parts: pl.DataFrame, now: int) -> pl.DataFrame:
        """Assigns windows to parts, for a step at a processing time."""
        if not self._by_clock:
            return parts
        in_windows = placed(parts.with_columns(pl.lit(now, pl.Int64).alias(TIME)), self._window).drop(TIME)
        return in_windows.select(*self._operator.keys, "start", "end", pl.exclude(*self._operator.keys, "start", "end"))

    def _grouped(self, rows: pl.DataFrame, made: list[pl.Expr]) -> pl.DataFrame:
        if self._identity:
            return rows.group_by(self._identity).agg(made)
        return rows.select(made) if len(rows) else rows.select(made).clear()

    def joined(self, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Merges parts of several tasks into one row per key and window."""
        if len(parts) == 1:
            return parts[0]
        if isinstance(self._window, windows.Sessions):
            return pl.concat(parts)
        both = pl.concat(parts)
        made = [fold for accumulator in self._operator.folding for fold in accumulator.merged(both)]
        return self._grouped(both, [*made, pl.col(ARRIVED).sum()])
