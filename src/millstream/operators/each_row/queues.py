"""Rows queued for their windows, window by window, and what they emit if each row is its own bundle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from millstream.operators.aggregates import accumulators
from millstream.operators.aggregates.accumulators import ELEMENTS, ROW, TIME, Stretches
from millstream.operators.each_row.emission import Emission, indexes
from millstream.operators.each_row.firing import AT_END, Fired, ranges
from millstream.operators.ordering import Numbers, in_order, narrow
from millstream.plan.nodes import Mode, PaneTime

if TYPE_CHECKING:
    from millstream.operators.clock import Clock
    from millstream.operators.windows.windowed import WindowedOperator

PART = "__part"
"""The position of a row in its bundle."""
PANES = "__panes"
IN_TIME = ("in_time_min", "in_time_max")
INDEXES = ("index", "on_time_index")
ELEMENTS_MAX = 2_000_000
"""At most this many rows of panes are expanded at once, for aggregates that need them all."""
Truths = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Queues:
    """Open windows, in order of their keys, and rows, of which some are queued for these windows.

    `order` has the positions of the queued rows, window by window and in order of arrival; `counts` how many each
    window has; `keys` the number of each window's key. Rows have the bounds that their window has after them.
    """

    windows: pl.DataFrame
    rows: pl.DataFrame
    order: Numbers
    counts: Numbers
    keys: Numbers

    def of(self, chosen: Truths) -> Queues:
        """The queues of some of the windows."""
        if chosen.all():
            return self
        order = self.order[np.repeat(chosen, self.counts)]
        return Queues(self.windows.filter(chosen), self.rows, order, self.counts[chosen], self.keys[chosen])


class Drained:
    """The effect of queued rows: `panes`, `windows`, and rows that are `lost` because their window was closed."""

    def __init__(
        self,
        operator: WindowedOperator,
        queues: Queues,
        done: Fired,
        given: pl.DataFrame,
        clock: Clock,
        *,
        with_parts: bool,
    ) -> None:
        """`with_parts`: panes have the position of their row, because others may have to be put between them."""
        self._operator = operator
        self._with_parts = [PART] if with_parts else []
        self._base, self._queues, self._fired = queues.windows, queues, done
        self._given, self._clock = given, clock
        self._discards = operator.node.mode is Mode.DISCARDING
        self._counts = queues.counts
        self._all = order = queues.order
        sends = done.sends
        lost: Truths | None = None
        if (done.taken < self._counts).any():
            is_taken = ranges(self._counts) < np.repeat(done.taken, self._counts)
            lost = ~is_taken
            order, sends = order[is_taken], sends[is_taken]
        self._order, self._sends = order, sends
        self._firsts = np.cumsum(done.taken) - done.taken
        self._lasts = np.cumsum(done.taken) - 1
        self._held = ((self._base["waiting"] > 0) | (self._base["index"] > 0)).to_numpy()
        self._running = self._run()
        self._newest = pl.DataFrame()
        self.lost = None if lost is None else self._lost_rows(lost)
        self.panes = self._sent_panes()
        self.windows = self._windows()

    def _each(self, values: Any) -> Any:
        """The values of windows, for each of their rows."""
        return np.repeat(values, self._fired.taken)

    @cached_property
    def _places(self) -> pl.Series:
        return indexes(self._order)

    @cached_property
    def _rows(self) -> pl.DataFrame:
        """All columns of the rows, window by window. What only panes need is taken from where the rows are queued."""
        return self._queues.rows[self._places]

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
        return self._base["start"][self._each(np.arange(len(self._base)))], self._rows[TIME]

    def _row_spans(self) -> list[tuple[str, pl.Series]]:
        """The bounds of windows that rows open and close, which the rows themselves do not have."""
        return list(zip(("start", "end"), self._spans(), strict=True)) if self._operator.by_rows else []

    # ------------------------------------------------------------ window state after each row

    def _run(self) -> pl.DataFrame:
        operator = self._operator
        folding = operator.folding
        frames = []
        if folding:
            parts = self._parts()
            if self._held.any():
                parts = self._with_held(parts)
            over = self._stretches(by_pane=self._discards)
            frames.append(over.running(parts, [made for fold in folding for made in fold.running(over, parts)]))
        if operator.node.pane_time is not PaneTime.END_OF_WINDOW:
            over = self._stretches(by_pane=True)
            smallest, largest = pl.col("in_time_min").cum_min(), pl.col("in_time_max").cum_max()
            made = [over.each(smallest.forward_fill()), over.each(largest.forward_fill())]
            frames.append(over.running(self._in_time(), made))
        return pl.concat(frames, how="horizontal") if frames else pl.DataFrame()

    def _parts(self) -> pl.DataFrame:
        """The accumulated columns of each single row. What is the same for all rows does not have to be moved."""
        rows, folding = self._queues.rows, self._operator.folding
        made = [part for fold in folding for part in fold.of_rows(rows)]
        same = [part for part in made if part.meta.is_literal(allow_aliasing=True)]
        different = [part for part in made if not part.meta.is_literal(allow_aliasing=True)]
        parts = rows.select(different)[self._places] if different else self._places.to_frame()
        return parts.with_columns(same).select(column for fold in folding for column in fold.columns)

    def _stretches(self, *, by_pane: bool) -> Stretches:
        """Rows that are accumulated together: those of a window, or those of a pane."""
        if not by_pane:
            return Stretches(self._firsts, len(self._order))
        begins = np.zeros(len(self._order), np.bool_)
        begins[self._firsts] = True
        begins[1:] |= self._sends[:-1]
        return Stretches(np.flatnonzero(begins), len(self._order))

    def _with_held(self, parts: pl.DataFrame) -> pl.DataFrame:
        """The first row of a window also includes the held state."""
        here = np.flatnonzero(self._held)
        number = pl.int_range(pl.len()).alias("__window")
        before = self._base[here].select(parts.columns).with_columns(number)
        first = parts[self._firsts[here]].with_columns(number)
        both = pl.concat([before, first], how="vertical_relaxed")
        made = [merged for fold in self._operator.folding for merged in fold.merged(both)]
        joined = both.group_by("__window", maintain_order=True).agg(made).select(parts.columns)
        return pl.DataFrame([_replaced(old, self._firsts[here], new) for old, new in zip(parts, joined, strict=True)])

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
        count = int(self._fired.panes.sum())
        if not count:
            return pl.DataFrame()
        sending = None if count == len(self._order) else np.flatnonzero(self._sends)
        if self._operator.node.mode is Mode.RETRACTING:
            return self._with_retractions(self._panes(Emission(sending, None)))
        return self._sent(self._panes(Emission(sending, self._by_key(sending))))

    def _by_key(self, sending: Numbers | None) -> Numbers | None:
        """The order of panes by key, those of a key as their rows arrived. None if that is their order already.

        The rows of a window are in order, so only where one window follows another can there be another order.
        """
        arrived = self._order if sending is None else self._order[sending]
        panes, keys = self._fired.panes, narrow(self._queues.keys)
        if not panes.all():
            panes, keys = panes[panes > 0], keys[self._fired.panes > 0]
        follows = np.flatnonzero(keys[1:] == keys[:-1])
        heads = np.cumsum(panes)[follows]
        if (arrived[heads - 1] < arrived[heads]).all():
            return None
        turns: Any = np.full(len(self._queues.rows), -1, np.int32)
        turns[arrived] = np.arange(len(arrived), dtype=np.int32)
        if len(arrived) < len(turns):
            turns = turns[turns >= 0]
        ordered: Numbers = turns[in_order(np.repeat(keys, panes)[turns])]
        return ordered

    def blocks(self) -> pl.DataFrame:
        """The keys of the panes in order, and how many each has."""
        keys = self._queues.keys
        heads = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        counts = pl.Series(PANES, np.add.reduceat(self._fired.panes, heads))
        return self._base[heads].select(*self._operator.keys, counts)

    def _sent(self, panes: pl.DataFrame) -> pl.DataFrame:
        columns = [*self._operator.keys, *self._operator.sent_columns, "weight", "__place", *self._with_parts]
        return panes.select(*columns, __row_of_pane=pl.lit(1 << 30, pl.Int64))

    def _panes(self, emission: Emission) -> pl.DataFrame:
        operator, base = self._operator, self._base
        window = emission.of_panes(np.repeat(np.arange(len(base), dtype=np.uint32), self._fired.panes))
        # What depends on the window alone is computed once for each.
        of_window = [*operator.keys, *([] if operator.merges else operator.identity[len(operator.keys) :])]
        at_end = self._base[AT_END]
        is_uniform = at_end.n_unique() == 1
        of_window += [] if is_uniform else [AT_END]
        depends = operator.merges or operator.by_rows or operator.node.pane_time is not PaneTime.END_OF_WINDOW
        timing = None
        if not depends:
            base = base.with_columns(__comes=pl.lit(False)).with_columns(operator.timing())
            timing = base["__timing"][0] if is_uniform else None
            of_window += ["event_time"] if is_uniform else ["__timing", "event_time"]
        if not operator.merges:
            base, of_window = base.with_columns(self._first_indexes()), [*of_window, *INDEXES]
        made = [
            *(base.select(of_window)[pl.Series(window)].get_columns() if of_window else []),
            *self._of_rows(emission),
            pl.Series("__window", window),
        ]
        panes = pl.DataFrame(made).with_columns(
            *self._indexes(emission),
            self._finishes(emission, window).alias("__finished"),
            *([pl.lit(at_end[0]).alias(AT_END)] if is_uniform else []),
            *([pl.lit(timing).alias("__timing")] if timing is not None else []),
            waiting=pl.lit(1, pl.Int64),
            __comes=pl.lit(False),
            __over=pl.lit(False),
        )
        if depends:
            panes = panes.with_columns(operator.timing())
        if operator.listing or operator.too_large(self._running):
            panes = panes.with_columns(emission.of_frame(self._running).get_columns())
            return self._panes_of_elements(panes, emission) if operator.listing else operator.panes(panes)
        results = emission.of_frame(self._running.select(operator.results()))
        on_time = None if operator.merges else pl.col("on_time_index")
        return operator.described(panes.with_columns(results.get_columns()), on_time)

    def _of_rows(self, emission: Emission) -> list[pl.Series]:
        """What panes have from their rows: positions, and bounds and times that are not the same for a whole window."""
        columns = [*self._with_parts, *(["start", "end"] if self._operator.merges else [])]
        rows = self._queues.rows.select(columns)
        found = rows[indexes(emission.of_rows(self._order))].get_columns() if columns else []
        spans = [bound.alias(name) for name, bound in self._row_spans()]
        times = [column for column in self._running.get_columns() if column.name in IN_TIME]
        return found + emission.of_frame(pl.DataFrame([*spans, *times])).get_columns()

    def _finishes(self, emission: Emission, window: Numbers) -> pl.Expr:
        """Whether the trigger finishes with a pane."""
        closed = self._fired.closed
        if not closed.any():
            return pl.lit(False)
        places = emission.of_rows(np.arange(len(self._order)))
        return pl.lit(pl.Series(closed[window] & (places == self._lasts[window])))

    # ------------------------------------------------------------ how many panes a window has emitted

    def _first_indexes(self) -> list[pl.Expr]:
        """What has to be added to the number of a pane, and then to its index, for the indexes that it has."""
        panes = self._fired.panes
        index, on_time_index = (pl.col(name) for name in INDEXES)
        since = pl.when(pl.lit(pl.Series(self._on_time))).then(on_time_index - index)
        return [(index - pl.lit(pl.Series(np.cumsum(panes) - panes))).alias("index"), since.alias("on_time_index")]

    def _indexes(self, emission: Emission) -> list[pl.Expr | pl.Series]:
        """How many panes of its window were emitted before each pane, and how many of these were not early."""
        if self._operator.merges:
            return [pl.Series(name, emission.of_rows(self._before_rows[name])) for name in INDEXES]
        index = pl.col("index") + emission.numbers
        on_time = pl.col("on_time_index") + index if self._on_time.any() else pl.lit(None, pl.Int64)
        return [index.alias("index"), on_time.alias("on_time_index")]

    def _indexes_after(self) -> list[pl.Series]:
        """The same for the next pane of each window. Those of early panes are not used."""
        new = self._fired.panes
        before = {name: self._base[name].to_numpy() for name in INDEXES}
        if self._operator.merges:
            new = self._sends[self._lasts].astype(np.int64)
            before = {name: counted[self._lasts] for name, counted in self._before_rows.items()}
        index, on_time_index = (before[name] for name in INDEXES)
        return [pl.Series("index", index + new), pl.Series("on_time_index", on_time_index + new * self._on_time)]

    @cached_property
    def _on_time(self) -> Truths:
        """Whether the panes of a window are not early."""
        return np.ones(len(self._base), np.bool_) if self._operator.by_rows else self._base[AT_END].to_numpy()

    @cached_property
    def _before_rows(self) -> dict[str, Numbers]:
        """How many panes of a session were emitted before each row, all and not early. One that grows starts over."""
        before: Numbers = np.cumsum(self._sends) - self._sends
        grown = self._grows()
        last = np.maximum.accumulate(np.where(grown, np.arange(len(grown)), -1))
        begins = self._each(self._firsts)
        is_new = last >= begins
        since: Numbers = before - before[np.where(is_new, last, begins)]
        first = {name: np.where(is_new, 0, self._each(self._base[name].to_numpy())) for name in INDEXES}
        return {
            "index": first["index"] + since,
            "on_time_index": first["on_time_index"] + since * self._each(self._on_time),
        }

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

    def _panes_of_elements(self, made: pl.DataFrame, emission: Emission) -> pl.DataFrame:
        elements, begins, lengths = self._elements()
        places = emission.of_rows(np.arange(len(self._order)))
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
        sends_last = self._sends[self._lasts]
        has_sent = done.panes > 0
        state = base.drop(*operator.trigger.schema(), AT_END).with_columns(
            *done.trigger.get_columns(),
            start.alias("start"),
            end.alias("end"),
            *self._indexes_after(),
            pl.Series("closed", done.closed),
            pl.Series("waiting", np.where(has_sent, done.waiting, base["waiting"].to_numpy() + done.waiting)),
            pl.Series("__sends_last", sends_last),
            *(column[self._lasts] for column in self._running.get_columns()),
            *self._kept_lists(),
        )
        sends = pl.col("__sends_last")
        if IN_TIME[0] in self._running.columns:
            state = state.with_columns(pl.when(~sends).then(pl.col(name)).alias(name) for name in IN_TIME)
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


def _replaced(values: pl.Series, places: Numbers, others: pl.Series) -> pl.Series:
    """Values with others at some positions."""
    if values.dtype == others.dtype == pl.Int64 and not values.null_count() and not others.null_count():
        is_equal = bool((values.to_numpy()[places] == others.to_numpy()).all())
        return values if is_equal else values.clone().scatter(places, others)
    chosen = np.arange(len(values))
    chosen[places] = len(values) + np.arange(len(places))
    both = pl.concat([values.to_frame(), others.to_frame()], how="vertical_relaxed")
    return both.to_series()[chosen]


def _lists(values: pl.Series, sizes: Numbers) -> pl.Series:
    """Groups concatenated values into lists."""
    frame = pl.DataFrame({"list": np.repeat(np.arange(len(sizes)), sizes), "value": values})
    lists = frame.group_by("list", maintain_order=True).agg("value")
    every = pl.DataFrame({"list": np.arange(len(sizes))}).join(lists, on="list", how="left", maintain_order="left")
    nothing = pl.Series([[]], dtype=pl.List(values.dtype)).new_from_index(0, len(sizes))
    found = every["value"].cast(nothing.dtype)
    return found.zip_with(found.is_not_null(), nothing)
