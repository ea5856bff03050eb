"""Rows queued for their windows, window by window, and what they emit if each row is its own bundle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from millstream.operators import accumulators
from millstream.operators.accumulators import ELEMENTS, NUMBER, ROW, TIME, Stretches
from millstream.operators.each_row_firing import AT_END, Fired, ranges
from millstream.operators.ordering import Numbers, in_order
from millstream.plan.nodes import Mode, PaneTime

if TYPE_CHECKING:
    from millstream.operators.clock import Clock
    from millstream.operators.windowed import WindowedOperator

PART = "__part"
"""The position of a row in its bundle."""
ELEMENTS_MAX = 2_000_000
"""At most this many rows of panes are expanded at once, for aggregates that need them all."""
Truths = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Queues:
    """Open windows and their rows: `window` has the number of each row's window, `keys` that of its key.

    The rows of a key are in order of arrival, with the bounds that their window has after them.
    """

    windows: pl.DataFrame
    rows: pl.DataFrame
    window: Numbers
    keys: Numbers
    order: Numbers | None = None
    """The positions of the rows, window by window, if they are known."""

    @property
    def counts(self) -> Numbers:
        return np.bincount(self.window, minlength=len(self.windows))

    def of(self, chosen: Truths) -> Queues:
        """The queues of some of the windows."""
        if chosen.all():
            return self
        here = chosen[self.window]
        number = np.cumsum(chosen) - 1
        return Queues(self.windows.filter(chosen), self.rows.filter(here), number[self.window[here]], self.keys[chosen])


class Drained:
    """The effect of queued rows: `panes`, `windows`, and rows that are `lost` because their window was closed."""

    def __init__(
        self, operator: WindowedOperator, queues: Queues, done: Fired, given: pl.DataFrame, clock: Clock
    ) -> None:
        self._operator = operator
        self._base, self._queues, self._fired = queues.windows, queues, done
        self._given, self._clock = given, clock
        self._discards = operator.node.mode is Mode.DISCARDING
        self._counts = queues.counts
        self._all = order = in_order(queues.window) if queues.order is None else queues.order
        window = np.repeat(np.arange(len(self._counts)), self._counts)
        sends = done.sends
        lost: Truths | None = None
        if (done.taken < self._counts).any():
            is_taken = ranges(self._counts) < np.repeat(done.taken, self._counts)
            lost = ~is_taken
            order, window, sends = order[is_taken], window[is_taken], sends[is_taken]
        self._window, self._order, self._sends = window, order, sends
        self._firsts = np.cumsum(done.taken) - done.taken
        self._lasts = np.cumsum(done.taken) - 1
        self._held = ((self._base["waiting"] > 0) | (self._base["index"] > 0)).to_numpy()
        self._running = self._run()
        self._newest = pl.DataFrame()
        self.lost = None if lost is None else self._lost_rows(lost)
        self.panes = self._sent_panes()
        self.windows = self._windows()

    @cached_property
    def _rows(self) -> pl.DataFrame:
        """All columns of the rows, window by window. What only panes need is taken from where the rows are queued."""
        return self._queues.rows[self._order]

    def _lost_rows(self, lost: Truths) -> pl.DataFrame:
        rows = self._queues.rows[self._all[lost]]
        if not self._operator.by_rows:
            return rows
        last = self._lasts[np.repeat(np.arange(len(self._counts)), self._counts)[lost]]
        starts, ends = self._spans()
        return rows.with_columns(starts[last].alias("start"), ends[last].alias("end"))

    def _spans(self) -> tuple[pl.Series, pl.Series]:
        """The bounds of each row's window after it."""
        if not self._operator.by_rows:
            return self._rows["start"], self._rows["end"]
        return self._base["start"][self._window], self._rows[TIME]

    def _row_spans(self) -> list[tuple[str, pl.Series]]:
        """The bounds of windows that rows open and close, which the rows themselves do not have."""
        return list(zip(("start", "end"), self._spans(), strict=True)) if self._operator.by_rows else []

    # ------------------------------------------------------------ window state after each row

    def _run(self) -> pl.DataFrame:
        operator = self._operator
        folding = operator.folding
        frames = []
        if folding:
            rows = self._queues.rows
            parts = rows.select(made for fold in folding for made in fold.of_rows(rows))[self._order]
            if self._held.any():
                parts = self._with_held(parts)
            over = self._stretches(by_pane=self._discards)
            parts = parts.with_columns(over.numbers)
            frames.append(parts.select(made for fold in folding for made in fold.running(over, parts)))
        if operator.node.pane_time is not PaneTime.END_OF_WINDOW:
            over = self._stretches(by_pane=True)
            times = self._in_time().with_columns(over.numbers)
            smallest, largest = pl.col("in_time_min").cum_min(), pl.col("in_time_max").cum_max()
            frames.append(times.select(over.each(smallest.forward_fill()), over.each(largest.forward_fill())))
        return pl.concat(frames, how="horizontal") if frames else pl.DataFrame()

    def _stretches(self, *, by_pane: bool) -> Stretches:
        """Rows that are accumulated together: those of a window, or those of a pane."""
        number, firsts = self._window, self._firsts
        if by_pane:
            begins = np.zeros(len(self._order), np.bool_)
            begins[self._firsts] = True
            begins[1:] |= self._sends[:-1]
            number, firsts = np.cumsum(begins) - 1, np.flatnonzero(begins)
        return Stretches(number, firsts)

    def _with_held(self, parts: pl.DataFrame) -> pl.DataFrame:
        """The first row of a window also includes the held state."""
        here = np.flatnonzero(self._held)
        number = pl.int_range(pl.len()).alias("__window")
        before = self._base[here].select(parts.columns).with_columns(number)
        first = parts[self._firsts[here]].with_columns(number)
        both = pl.concat([before, first], how="vertical_relaxed")
        made = [merged for fold in self._operator.folding for merged in fold.merged(both)]
        joined = both.group_by("__window", maintain_order=True).agg(made).select(parts.columns)
        places = np.arange(len(parts))
        places[self._firsts[here]] = len(parts) + np.arange(len(here))
        return pl.concat([parts, joined], how="vertical_relaxed")[places]

    def _in_time(self) -> pl.DataFrame:
        """The event times of rows that are not behind the watermark."""
        time = pl.col(TIME)
        times = self._rows.select(pl.when(time >= self._clock.watermark_before).then(time).alias("time"))
        first = times[self._firsts].with_columns(self._base["in_time_min"], self._base["in_time_max"])
        low = first.select(pl.min_horizontal("time", "in_time_min"))
        high = first.select(pl.max_horizontal("time", "in_time_max"))
        return pl.DataFrame(
            {
                "in_time_min": times["time"].clone().scatter(self._firsts, low.to_series()),
                "in_time_max": times["time"].clone().scatter(self._firsts, high.to_series()),
            }
        )

    # ------------------------------------------------------------ panes

    def _sent_panes(self) -> pl.DataFrame:
        """The emitted panes: by key, in the order of their rows."""
        operator = self._operator
        if not self._sends.any():
            return pl.DataFrame()
        if operator.node.mode is Mode.RETRACTING:
            return self._with_retractions(self._panes(np.flatnonzero(self._sends)))
        by_key = in_order(self._queues.keys[self._queues.window])
        turns = np.full(len(self._queues.rows), -1, np.int64)
        turns[self._order[self._sends]] = np.flatnonzero(self._sends)
        turns = turns[by_key]
        return self._sent(self._panes(turns[turns >= 0]))

    def _sent(self, panes: pl.DataFrame) -> pl.DataFrame:
        columns = [*self._operator.keys, *self._operator.sent_columns, "weight", "__place", PART]
        return panes.select(*columns, __row_of_pane=pl.lit(1 << 30, pl.Int64))

    def _panes(self, places: Numbers) -> pl.DataFrame:
        operator = self._operator
        window = self._window[places]
        index, on_time_index = self._indexes(places, window)
        at_end = self._base[AT_END].to_numpy()
        columns = [*operator.keys, *([NUMBER] if operator.by_rows else ["start", "end"]), PART]
        made = [
            *self._queues.rows.select(columns)[self._order[places]].get_columns(),
            *(bound[places].alias(name) for name, bound in self._row_spans()),
            pl.Series("index", index),
            pl.Series("on_time_index", on_time_index),
            pl.Series("__window", window),
            *(column[places] for column in self._running.get_columns()),
        ]
        panes = pl.DataFrame(made).with_columns(
            pl.lit(bool(at_end[0])).alias(AT_END) if (at_end == at_end[0]).all() else pl.Series(AT_END, at_end[window]),
            self._finishes(places, window).alias("__finished"),
            waiting=pl.lit(1, pl.Int64),
            __comes=pl.lit(False),
            __over=pl.lit(False),
        )
        if operator.node.pane_time is PaneTime.END_OF_WINDOW:
            nobody = pl.lit(None, pl.Int64)
            panes = panes.with_columns(in_time_min=nobody, in_time_max=nobody)
        return self._panes_of_elements(panes, places) if operator.listing else operator.panes(panes)

    def _finishes(self, places: Numbers, window: Numbers) -> pl.Expr:
        """Whether the trigger finishes with a pane."""
        closed = self._fired.closed
        return pl.lit(pl.Series(closed[window] & (places == self._lasts[window]))) if closed.any() else pl.lit(False)

    def _indexes(self, places: Numbers, window: Numbers) -> tuple[Numbers, Numbers]:
        """How many panes of its window were emitted before each, and how many of these were not early."""
        since, index, on_time = self._counted(places, window)
        return index + since, on_time + since * _gathered(self._counts_on_time(), window)

    def _counted(self, places: Numbers, window: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """How many panes were emitted before a row since its window started counting, and from which numbers on."""
        begins = self._firsts[window]
        index, on_time = (_gathered(self._base[name].to_numpy(), window) for name in ("index", "on_time_index"))
        if self._operator.merges:  # a session that grows starts over
            grown = self._grows()
            last = np.maximum.accumulate(np.where(grown, np.arange(len(grown)), -1))[places]
            is_new = last >= begins
            begins = np.where(is_new, last, begins)
            index, on_time = np.where(is_new, 0, index), np.where(is_new, 0, on_time)
        if self._sends.all():
            return places - begins, index, on_time
        before: Numbers = np.cumsum(self._sends) - self._sends
        return before[places] - before[begins], index, on_time

    def _counts_on_time(self) -> Truths:
        """Whether the panes of a window are not early."""
        return np.ones(len(self._base), np.bool_) if self._operator.by_rows else self._base[AT_END].to_numpy()

    def _grows(self) -> Truths:
        """Whether a session has other bounds than before a row."""
        start, end = (self._rows[name].to_numpy() for name in ("start", "end"))
        grows = np.zeros(len(start), np.bool_)
        grows[1:] = (start[1:] != start[:-1]) | (end[1:] != end[:-1])
        first = self._firsts
        grows[first] = (start[first] != self._base["start"].to_numpy()) | (end[first] != self._base["end"].to_numpy())
        return grows

    def _with_retractions(self, panes: pl.DataFrame) -> pl.DataFrame:
        """Panes, in the order of their windows, with retractions of those they replace."""
        operator = self._operator
        self._newest = panes  # the last pane of each window is what its next one replaces
        rows = self._sent(panes)
        window = panes["__window"].to_numpy()
        is_first = np.append(True, window[1:] != window[:-1])
        follows = np.flatnonzero(~is_first)
        places = panes.select("__place", PART)
        before = pl.concat([rows.drop("__place", PART)[follows - 1], places[follows]], how="horizontal")
        held = panes.select(*operator.keys, "__place", PART).filter(is_first)
        held = held.with_columns(self._base["sent"][window[is_first]]).explode("sent").drop_nulls("sent")
        held = held.unnest("sent").with_columns(weight=pl.lit(-1, pl.Int32), __row_of_pane=pl.lit(0, pl.Int64))
        before = before.with_columns(weight=pl.lit(-1, pl.Int32))
        replaced = pl.concat([held.select(rows.columns), before.select(rows.columns)], how="vertical_relaxed")
        replaced = replaced.with_columns(__row_of_pane=pl.int_range(pl.len(), dtype=pl.Int64))
        return pl.concat([replaced, rows], how="vertical_relaxed")

    # ------------------------------------------------------------ aggregates that need all rows

    def _elements(self) -> tuple[pl.Series, Numbers, Numbers]:
        """The rows of windows including held ones; where those of each window start, and how many were held."""
        rows = self._rows.select(accumulators.elements_of(self._operator.arguments))[ELEMENTS]
        held = self._base[ELEMENTS]
        lengths = held.list.len().cast(pl.Int64).to_numpy()
        flat = held.explode(empty_as_null=False, keep_nulls=False)
        both = pl.concat([flat.cast(rows.dtype), rows])
        taken = self._fired.taken
        begins = np.cumsum(taken + lengths) - taken - lengths
        places = np.empty(len(both), np.int64)
        places[np.repeat(begins, lengths) + ranges(lengths)] = np.arange(len(flat))
        places[np.repeat(begins + lengths, taken) + ranges(taken)] = len(flat) + np.arange(len(rows))
        return both[places], begins, lengths

    def _panes_of_elements(self, made: pl.DataFrame, places: Numbers) -> pl.DataFrame:
        elements, begins, lengths = self._elements()
        window = made["__window"].to_numpy()
        start = begins[window]
        stop = start + lengths[window] + places - self._firsts[window] + 1
        if self._discards:
            last = np.maximum.accumulate(np.where(self._sends, np.arange(len(self._sends)), -1))
            last = np.append(-1, last[:-1])[places]  # the row that fired the previous pane
            follows = last >= self._firsts[window]
            start = np.where(follows, stop - (places - last), start)
        size = stop - start
        chunk = np.cumsum(size) // ELEMENTS_MAX
        found = []
        for here in np.split(np.arange(len(size)), np.flatnonzero(np.diff(chunk)) + 1):
            rows = elements[np.repeat(start[here], size[here]) + ranges(size[here])]
            lists = _lists(rows, size[here]).alias(ELEMENTS)
            found.append(self._operator.panes(made[here].with_columns(lists)).drop(ELEMENTS))
        return pl.concat(found, how="vertical_relaxed")

    # ------------------------------------------------------------ after the rows

    def _windows(self) -> pl.DataFrame:
        """The windows after their rows."""
        operator, done, base = self._operator, self._fired, self._base
        start, end = self._place()
        since, index, on_time = self._counted(self._lasts, np.arange(len(base)))
        sends_last = self._sends[self._lasts]
        since = since + sends_last
        has_sent = done.panes > 0
        state = base.drop(*operator.trigger.schema(), AT_END).with_columns(
            *done.trigger.get_columns(),
            start.alias("start"),
            end.alias("end"),
            pl.Series("index", index + since),
            pl.Series("on_time_index", on_time + np.where(self._counts_on_time(), since, 0)),
            pl.Series("closed", done.closed),
            pl.Series("waiting", np.where(has_sent, done.waiting, base["waiting"].to_numpy() + done.waiting)),
            pl.Series("__sends_last", sends_last),
            *(column[self._lasts] for column in self._running.get_columns()),
            *self._kept_lists(),
        )
        sends = pl.col("__sends_last")
        if "in_time_min" in self._running.columns:
            times = ("in_time_min", "in_time_max")
            state = state.with_columns(pl.when(~sends).then(pl.col(name)).alias(name) for name in times)
        if operator.node.mode is Mode.RETRACTING and has_sent.any():
            state = self._with_sent(state)
        return operator.fitted(operator.emptied(state, sends) if self._discards else state)

    def _place(self) -> tuple[pl.Series, pl.Series]:
        if self._operator.by_rows:
            starts, ends = self._spans()
            return starts[self._lasts], ends[self._lasts]
        last = self._order[self._lasts]
        if self._operator.merges:
            last = self._all[np.cumsum(self._counts) - 1]  # a closed session still grows
        return self._queues.rows["start"][last], self._queues.rows["end"][last]

    def _kept_lists(self) -> list[pl.Series]:
        """Rows that must be kept: all, or those waiting for a pane."""
        operator, kept = self._operator, []
        waiting = self._fired.waiting
        if operator.listing:
            elements, begins, lengths = self._elements()
            size = lengths + self._fired.taken
            stop = begins + size
            if self._discards:
                size = np.where(self._fired.panes > 0, waiting, size)
            kept.append(_lists(elements[np.repeat(stop - size, size) + ranges(size)], size).alias(ELEMENTS))
        if operator.keeps_rows:
            places = np.repeat(self._lasts - waiting + 1, waiting) + ranges(waiting)
            rows = _lists(self._given[ROW][self._rows[PART][places]], waiting)
            old = self._base["waiting_rows"]
            nothing = pl.Series([[]], dtype=old.dtype).new_from_index(0, len(old))
            old = nothing.zip_with(pl.Series(self._fired.panes > 0), old)
            both = pl.DataFrame({"old": old, "new": rows.cast(old.dtype)}).select(pl.concat_list("old", "new"))
            kept.append(both.to_series().alias("waiting_rows"))
        return kept

    def _with_sent(self, state: pl.DataFrame) -> pl.DataFrame:
        window = self._newest["__window"].to_numpy()
        last = np.flatnonzero(np.append(window[1:] != window[:-1], True))
        newest = self._newest[last].select(pl.concat_list([pl.struct(self._operator.sent_columns)])).to_series()
        both = pl.concat([state["sent"].cast(newest.dtype), newest])
        places = np.arange(len(state))
        places[window[last]] = len(state) + np.arange(len(last))
        return state.with_columns(both[places].alias("sent"))


def _gathered(values: Any, places: Numbers) -> Any:
    """Values at positions; a single value if all are the same."""
    return values[0] if len(values) and (values == values[0]).all() else values[places]


def _lists(values: pl.Series, sizes: Numbers) -> pl.Series:
    """Groups concatenated values into lists."""
    frame = pl.DataFrame({"list": np.repeat(np.arange(len(sizes)), sizes), "value": values})
    lists = frame.group_by("list", maintain_order=True).agg("value")
    every = pl.DataFrame({"list": np.arange(len(sizes))}).join(lists, on="list", how="left", maintain_order="left")
    nothing = pl.Series([[]], dtype=pl.List(values.dtype)).new_from_index(0, len(sizes))
    found = every["value"].cast(nothing.dtype)
    return found.zip_with(found.is_not_null(), nothing)
