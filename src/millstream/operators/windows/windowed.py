"""Windowed aggregation on columns: one row of state per key and window, every rule of time an expression over it.

A step puts rows into their windows, folds them into the state, evaluates every window that was touched or is due once,
and emits the panes. It sees only the state of the keys in its rows and what is due.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from millstream.operators.aggregates import accumulators
from millstream.operators.aggregates.accumulators import ARRIVED, ELEMENTS, NUMBER, ROW, TIME
from millstream.operators.aggregates.on_columns import columns_of
from millstream.operators.clock import Clock, Frames
from millstream.operators.each_row.step import Turns
from millstream.operators.elementwise import types_of
from millstream.operators.lateness import expiry, is_expired, is_untimed, reason
from millstream.operators.windows.assignment import placed, split
from millstream.operators.windows.row_windows import RowWindows
from millstream.operators.windows.sessions import Sessions
from millstream.operators.windows.triggers import can_finish, compiled
from millstream.plan.bad_rows import sum_too_large
from millstream.plan.nodes import Mode, PaneTime, WindowedAggregate
from millstream.plan.time import triggers, windows
from millstream.plan.time.bundles import BEGINNING, END, moment
from millstream.plan.time.windows import microseconds

AFTER_RETRACTIONS, AFTER_PANE = 1 << 30, 1 << 31
"""The place of a pane among the rows that a window emits in a step, and of the retractions when it expires."""


class WindowedOperator:
    def __init__(self, node: WindowedAggregate, given: pl.Schema, *, changing: bool) -> None:
        self.node = node
        self.keys = [f"key.{name}" for name in node.keys]
        self.lateness = microseconds(node.lateness)
        self.trigger = compiled(node.trigger)
        self.arguments = [name for name, _ in node.arguments]
        self.folding, self.listing = columns_of(node.aggregates, given, changing=changing)
        self.by_rows = not node.window.has_end
        self.sessions = Sessions(self, node.window) if isinstance(node.window, windows.Sessions) else None
        self.merges = self.sessions is not None
        self.takes_rows_singly = any(isinstance(part, triggers.Each) for part in node.trigger.walk())
        self.turns = Turns(self) if self.takes_rows_singly else None
        # A session that merges with a closed one rejects its waiting rows as late: they must be available.
        self.keeps_rows = self.merges and can_finish(node.trigger)
        self.given = given
        self.row_windows = RowWindows(node.window, self.keys, given)
        self.identity = [*self.keys, NUMBER] if self.by_rows else [*self.keys, "start", "end"]
        self.sent_type = pl.Struct({})
        self._nothing_sent: pl.DataFrame | None = None
        self._new_window: pl.DataFrame | None = None
        self._learn_types()

    def _learn_types(self) -> None:
        """The types of the columns of state and of panes, found by a step without rows."""
        nothing = pl.DataFrame(schema=self.given)
        still = Clock(BEGINNING, BEGINNING, 0, 0)
        rows = nothing.with_columns(
            start=pl.lit(None, pl.Int64), end=pl.lit(None, pl.Int64), number=pl.lit(None, pl.Int64)
        )
        retracting, self._empty = self.node.mode is Mode.RETRACTING, pl.DataFrame()
        state = self.news(rows, still)
        if retracting:
            panes = self.as_they_are(state.with_columns(sent=pl.lit([], pl.List(pl.Null))))
            self.sent_type = pl.Struct({name: panes.schema[name] for name in self.sent_columns})
            state = self.news(rows, still)
        self._empty = state.drop(ARRIVED)

    def as_they_are(self, state: pl.DataFrame) -> pl.DataFrame:
        """The panes that windows would emit now."""
        false = pl.lit(False)
        return self.panes(state.with_columns(__at_end=false, __comes=false, __over=false, __finished=false))

    def no_windows(self) -> pl.DataFrame:
        return self._empty

    def no_counters(self) -> pl.DataFrame:
        return self.row_windows.no_counters

    def deadlines(self, clock: Clock) -> tuple[pl.Expr, pl.Expr]:
        """When a window must be evaluated next if no row arrives for it: in event time, and in processing time."""
        if self.by_rows:
            event = pl.lit(END, pl.Int64)
        else:
            end = pl.col("end").fill_null(END)
            event = pl.when(end > clock.watermark).then(end).otherwise(expiry(end, self.lateness))
        # What is due by now was evaluated in this step: only later times count.
        due = [pl.when(moment > clock.now).then(moment) for moment in self.trigger.due()]
        return event, pl.min_horizontal(due) if due else pl.lit(None, pl.Int64)

    def hold(self) -> pl.Expr:
        """Where waiting rows hold the output watermark."""
        return pl.when(pl.col("waiting") > 0).then(self._pane_time())

    # ------------------------------------------------------------ one step

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        """The new state that replaces what was held, and the output.

        Held are the windows of the keys in the rows and those that are due, and, for windows closed by rows, the
        counters of these keys. The output are panes, and late rows; `lost` counts late rows that were pre-aggregated.
        """
        windows_now, counters, rows = held["windows"], held["counters"], inputs["rows"]
        lost = 0
        if "partials" in inputs:
            windows_now, lost = self._put_partials(windows_now, inputs["partials"], clock)
        untimed, rows = split(rows, is_untimed())
        late = [untimed.select(ROW, *_nowhere(), reason=reason())]
        if self.turns is not None and not rows.is_empty():
            still = Clock(clock.watermark_before, clock.watermark_before, clock.now_before, clock.now)
            taken = self.turns.take(windows_now, counters, rows, still)
            late += taken.late
            counters = taken.counters
            windows_now, asked = self.fire_triggers(taken.windows, clock)
            panes = self.turns.sent(taken, asked)
        else:
            state, rows_late, counters = self._put(windows_now, counters, rows, clock)
            windows_now, panes = self.fire_triggers(state, clock)
            late.append(rows_late)
            panes = panes.sort([*self.keys, "__place", "__row_of_pane"], nulls_last=False, maintain_order=True)
        changes = {"windows": windows_now, "counters": counters}
        counts = pl.DataFrame({"rows": [lost]})
        return changes, {"panes": panes, "late": pl.concat(late, how="vertical_relaxed"), "lost": counts}

    # ------------------------------------------------------------ assigning rows to windows

    def _put(self, held: pl.DataFrame, counters: pl.DataFrame, rows: pl.DataFrame, clock: Clock) -> Any:
        if rows.is_empty():
            return held, self._no_late(), counters
        if self.by_rows:
            return self._put_by_rows(held, counters, rows, clock)
        if self.sessions is not None:
            return (*self.sessions.put(held, rows, clock), counters)
        in_windows = placed(rows, self.node.window)
        expired, in_windows = split(in_windows, self.is_expired(clock))
        late = [self.late(expired, "expired")]
        closed = held.filter("closed").select(*self.identity)
        if not closed.is_empty():
            late.append(self.late(in_windows.join(closed, on=self.identity, how="semi", nulls_equal=True), "closed"))
            in_windows = in_windows.join(closed, on=self.identity, how="anti", nulls_equal=True)
        return self.folded(held, self.news(in_windows, clock), clock), pl.concat(late), counters

    def _put_partials(self, held: pl.DataFrame, partials: pl.DataFrame, clock: Clock) -> tuple[pl.DataFrame, int]:
        """Pre-aggregated rows; and how many of them were late."""
        if self.sessions is not None:
            return self.sessions.put_partials(held, partials, clock)
        expired, partials = split(partials, self.is_expired(clock))
        nobody = pl.lit(None, pl.Int64)
        news = partials.with_columns(*self.begun(), in_time_min=nobody, in_time_max=nobody)
        state = self.folded(held, news.select(self.columns(arrived=True)), clock)
        return state, int(expired[ARRIVED].sum())

    def news(self, rows: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """The rows of each window folded, as the state of a new window."""
        made = [fold for accumulator in self.folding for fold in accumulator.from_rows(rows)]
        if self.listing:
            made.append(accumulators.elements_of(self.arguments))
        if self.keeps_rows:
            made.append(pl.col(ROW).alias("waiting_rows"))
        if self.by_rows:
            made += [pl.col(TIME).first().alias("start"), pl.col(TIME).last().alias("end")]
        in_time = pl.col(TIME).filter(pl.col(TIME) >= clock.watermark_before)
        if self.node.pane_time is PaneTime.END_OF_WINDOW:  # never used
            in_time = pl.lit(None, pl.Int64)
        made += [
            pl.len().cast(pl.Int64).alias(ARRIVED),
            in_time.min().alias("in_time_min"),
            in_time.max().alias("in_time_max"),
        ]
        by = self.identity
        if isinstance(self.node.window, windows.Fixed | windows.Sliding):  # the start determines the window
            by = [*self.keys, "start"]
            made.append(pl.col("end").first())
        news = rows.group_by(by, maintain_order=False).agg(made)
        return news.with_columns(self.begun()).select(self.columns(arrived=True))

    def new_windows(self, heads: pl.DataFrame) -> pl.DataFrame:
        """Windows without any rows yet, at the bounds that rows have."""
        if self._new_window is None:
            self._new_window = self._begun_window()
        bounds = heads.select(*self.identity, *(["start", "end"] if self.by_rows else []))
        columns = {each.name: each for each in (*bounds, *self._new_window[np.zeros(len(bounds), np.uint32)])}
        return self.fitted(pl.DataFrame(columns))

    def _begun_window(self) -> pl.DataFrame:
        """One window without rows, apart from its key and bounds."""
        folds = [column for accumulator in self.folding for column in accumulator.columns]
        lists = [name for name in self.lists() if name != "sent"]
        nothing = pl.DataFrame({"__window": [0]}).with_columns(
            *self.begun(),
            *(pl.lit(None).alias(name) for name in ["in_time_min", "in_time_max", *folds]),
            *(pl.lit([], dtype=self._empty.schema[name]).alias(name) for name in lists),
        )
        kept = pl.Schema({name: kind for name, kind in self._empty.schema.items() if name in nothing.columns})
        return self.emptied(nothing).select(kept.names()).cast(kept)

    def fitted(self, state: pl.DataFrame) -> pl.DataFrame:
        """State in its own columns and types."""
        return state.select(self._empty.columns).cast(self._empty.schema)

    def is_expired(self, clock: Clock) -> pl.Expr:
        """Whether a row is late for its window."""
        return is_expired(pl.col("end"), self.lateness, clock)

    def begun(self) -> list[pl.Expr]:
        """What a new window has besides its rows."""
        begun = {
            "closed": pl.lit(False),
            "index": pl.lit(0, pl.Int64),
            "on_time_index": pl.lit(0, pl.Int64),
            "waiting": pl.lit(0, pl.Int64),
            **self.trigger.begin(),
        }
        if self.node.mode is Mode.RETRACTING:
            begun["sent"] = pl.lit([], dtype=pl.List(self.sent_type))
        if self.by_rows:
            begun["complete"] = pl.lit(False)
        return [made.alias(name) for name, made in begun.items()]

    def columns(self, *, arrived: bool) -> list[str]:
        """The columns of state; including how many rows arrived, if that is not counted yet."""
        columns = [
            *self.keys,
            *([NUMBER] if self.by_rows else []),
            "start",
            "end",
            "closed",
            "index",
            "on_time_index",
            "waiting",
        ]
        columns += ["in_time_min", "in_time_max", *self.trigger.schema()]
        columns += [column for accumulator in self.folding for column in accumulator.columns]
        columns += [ELEMENTS] if self.listing else []
        columns += ["waiting_rows"] if self.keeps_rows else []
        columns += ["sent"] if self.node.mode is Mode.RETRACTING else []
        columns += ["complete"] if self.by_rows else []
        return columns + ([ARRIVED] if arrived else [])

    def folded(self, held: pl.DataFrame, news: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """Merges old and new state of each window; what is not a fold comes from the old window.

        New state may have several parts of a window: a task sends one for each part of its rows.
        """
        old = held.with_columns(pl.lit(0, pl.Int64).alias(ARRIVED)).select(news.columns)
        both = pl.concat([old, news], how="vertical_relaxed")
        merged = both.group_by(self.identity, maintain_order=True).agg(self._merged(both))
        return self.added(merged, clock)

    def _merged(self, parts: pl.DataFrame) -> list[pl.Expr]:
        made = [fold for accumulator in self.folding for fold in accumulator.merged(parts)]
        made += [pl.col(name).list.explode(keep_nulls=False, empty_as_null=False).alias(name) for name in self.lists()]
        made += [pl.col("in_time_min").min(), pl.col("in_time_max").max(), pl.col(ARRIVED).sum()]
        kept = [*self.trigger.schema(), "closed", "index", "on_time_index", "waiting"]
        if self.by_rows:
            made += [pl.col("start").first(), pl.col("end").last(), pl.col("complete").any()]
        return made + [pl.col(name).first() for name in kept]

    def lists(self) -> list[str]:
        """The columns of state that are lists of rows."""
        names = [ELEMENTS] if self.listing else []
        names += ["waiting_rows"] if self.keeps_rows else []
        return names + (["sent"] if self.node.mode is Mode.RETRACTING else [])

    def added(self, state: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """Windows after their triggers have seen the rows that arrived."""
        added = [made.alias(name) for name, made in self.trigger.add(pl.col(ARRIVED), clock.now).items()]
        added.append((pl.col("waiting") + pl.col(ARRIVED)).alias("waiting"))
        return state.with_columns(added).select(self.columns(arrived=False))

    # ------------------------------------------------------------ windows opened and closed by rows

    def _put_by_rows(self, held: pl.DataFrame, counters: pl.DataFrame, rows: pl.DataFrame, clock: Clock) -> Any:
        if clock.watermark_before >= END:
            return held, self.late(rows.with_columns(start=pl.col(TIME), end=pl.col(TIME)), "expired"), counters
        numbered, counters, finished = self.row_windows.numbered(rows, counters)
        late = [self._no_late()]
        shut = held.filter("closed").select(*self.identity, "start", "end")
        if not shut.is_empty():
            too_late = numbered.join(shut, on=self.identity, how="inner", nulls_equal=True, maintain_order="left")
            late.append(self.late(too_late, "closed"))
            numbered = numbered.join(shut, on=self.identity, how="anti", nulls_equal=True)
        state = self.folded(held, self.news(numbered, clock), clock)
        complete = (
            state.join(finished.with_columns(__done=pl.lit(True)), on=self.keys, how="left", nulls_equal=True)
            if self.keys
            else state.join(finished.with_columns(__done=pl.lit(True)), how="cross")
        )
        done = (pl.col("complete") | (pl.col(NUMBER) < pl.col("__before"))).fill_null(False)
        return complete.with_columns(complete=done).select(state.columns), pl.concat(late), counters

    # ------------------------------------------------------------ evaluating windows

    def fire_triggers(self, state: pl.DataFrame, clock: Clock) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Evaluates every window once: whether it fires, whether it closes, whether it has expired."""
        if self.by_rows:
            at_end = comes = over = pl.col("complete") | pl.lit(clock.watermark >= END)
        else:
            end = pl.col("end").fill_null(END)
            at_end = end <= clock.watermark
            comes = at_end & (end > clock.watermark_before)
            over = expiry(end, self.lateness) <= clock.watermark
        waits = pl.col("waiting") > 0
        state = state.with_columns(__at_end=at_end, __comes=comes, __over=over)
        at_end = pl.col("__at_end")
        by_end = pl.col("__comes") & self.trigger.ready_by_end(at_end, clock.now)
        ready = pl.when(waits).then(self.trigger.ready(at_end, clock.now)).otherwise(by_end)
        fired, finished = self.trigger.fire(at_end, clock.now)
        state = state.with_columns(__ready=ready & ~pl.col("closed")).with_columns(
            __sends=pl.col("__ready") | (pl.col("__over") & waits & ~pl.col("closed")),
            __finished=pl.col("__ready") & finished,
        )
        state = state.with_columns(
            [pl.when("__ready").then(made).otherwise(pl.col(name)).alias(name) for name, made in fired.items()]
        )
        sending = state.filter("__sends")
        if len(sending) or self._nothing_sent is None:
            panes = self.panes(sending)
            state = self._after(state, panes)
            sent = self._with_retractions(panes)
            self._nothing_sent = sent.clear()
        else:  # as for most small bundles; then no window changes either
            sent = self._nothing_sent
        if self.node.until_expiry:
            expired = state.filter("__over").with_columns(__place=self._place())
            sent = pl.concat([sent, self._retractions(expired, sent, after=AFTER_PANE)], how="vertical_relaxed")
        return state.filter(~pl.col("__over")).select(self.columns(arrived=False)), sent

    def panes(self, state: pl.DataFrame) -> pl.DataFrame:
        """The panes that windows emit, one row each."""
        self._check_size(state)
        state = state.with_columns(self.timing())
        if self.listing and not state.is_empty():
            state = state.with_columns(accumulators.from_elements(state, self.listing, self.arguments))
        elif self.listing:
            types = types_of(self.node.schema)
            state = state.with_columns([pl.lit(None, types[made.name]).alias(made.name) for made in self.listing])
        return self.described(state.with_columns(self.results()))

    def timing(self) -> list[pl.Expr]:
        """When a window emits: before, at or after its end; and the event time of its panes."""
        if self.by_rows:
            timing = pl.lit("unknown")
        else:
            timing = (
                pl.when("__comes")
                .then(pl.lit("on_time"))
                .when("__at_end")
                .then(pl.lit("late"))
                .otherwise(pl.lit("early"))
            )
        return [timing.alias("__timing"), self._pane_time().alias("event_time")]

    def results(self) -> list[pl.Expr]:
        """The results of aggregates that fold."""
        return [accumulator.result().alias(accumulator.name) for accumulator in self.folding]

    def described(self, state: pl.DataFrame, on_time_index: pl.Expr | None = None) -> pl.DataFrame:
        """Panes with all their columns, given their timing and results.

        `on_time_index` is given if it is known to be null for early ones.
        """
        if on_time_index is None:
            is_early = pl.lit(False) if self.by_rows else ~(pl.col("__at_end") | pl.col("__comes"))
            on_time_index = pl.when(~is_early).then(pl.col("on_time_index"))
        return state.with_columns(
            pl.col("__timing").alias("pane.timing"),
            pl.col("index").alias("pane.index"),
            on_time_index.alias("pane.on_time_index"),
            (pl.col("index") == 0).alias("pane.first"),
            (pl.col("__finished") | pl.col("__over")).alias("pane.last"),
            pl.lit(1, pl.Int32).alias("weight"),
            __place=self._place(),
        )

    def _place(self) -> pl.Expr:
        """The order in which windows of a key emit their panes."""
        return pl.col(NUMBER) if self.by_rows else pl.col("start").fill_null(0)

    def too_large(self, state: pl.DataFrame) -> bool:
        """Whether the result of any row of state overflows its type."""
        return any(accumulator.too_large(state) is not None for accumulator in self.folding)

    def _check_size(self, state: pl.DataFrame) -> None:
        for accumulator in self.folding:
            if (found := accumulator.too_large(state)) is not None:
                window, total = found
                span = (moment(window["start"]), moment(window["end"]))
                raise sum_too_large(self.node, accumulator.name, total, [window[key] for key in self.keys], span)

    def _pane_time(self) -> pl.Expr:
        end = pl.col("end") if self.by_rows else pl.col("end") - 1
        if self.node.pane_time is PaneTime.EARLIEST:
            return pl.coalesce("in_time_min", end)
        if self.node.pane_time is PaneTime.LATEST:
            return pl.coalesce("in_time_max", end)
        return end

    @property
    def sent_columns(self) -> list[str]:
        pane = [f"pane.{name}" for name in ("timing", "index", "on_time_index", "first", "last")]
        return ["start", "end", *pane, *(name for name, _ in self.node.aggregates), "event_time"]

    def _with_retractions(self, panes: pl.DataFrame) -> pl.DataFrame:
        columns = [*self.keys, *self.sent_columns, "weight", "__place"]
        rows = panes.select(columns).with_columns(__row_of_pane=pl.lit(AFTER_RETRACTIONS, pl.Int64))
        if self.node.mode is not Mode.RETRACTING or panes.is_empty():
            return rows
        return pl.concat([self._retractions(panes, rows), rows], how="vertical_relaxed")

    def _retractions(self, state: pl.DataFrame, like: pl.DataFrame, after: int = 0) -> pl.DataFrame:
        """What retracts the panes that windows have sent, in the columns of panes."""
        taken = state.select(*self.keys, "__place", "sent").explode("sent").drop_nulls("sent")
        taken = taken.with_columns(__row_of_pane=pl.int_range(pl.len(), dtype=pl.Int64) + after)
        return taken.unnest("sent").with_columns(weight=pl.lit(-1, pl.Int32)).select(like.columns)

    def _after(self, state: pl.DataFrame, panes: pl.DataFrame) -> pl.DataFrame:
        """The windows after their panes."""
        sends = pl.col("__sends")
        if self.node.mode is Mode.RETRACTING and not panes.is_empty():
            sent = panes.select(*self.identity, __sent=pl.concat_list([pl.struct(self.sent_columns)]))
            state = state.join(sent, on=self.identity, how="left", nulls_equal=True, maintain_order="left")
            state = state.with_columns(sent=pl.when(sends).then(pl.col("__sent")).otherwise(pl.col("sent")))
        index = pl.col("index")
        late = ~pl.col("__at_end") if not self.by_rows else pl.lit(False)
        state = state.with_columns(
            index=index + sends.cast(pl.Int64),
            on_time_index=pl.col("on_time_index") + (sends & ~late).cast(pl.Int64),
            waiting=pl.when(sends).then(0).otherwise(pl.col("waiting")),
            in_time_min=pl.when(~sends).then(pl.col("in_time_min")),
            in_time_max=pl.when(~sends).then(pl.col("in_time_max")),
            closed=pl.col("closed") | pl.col("__finished"),
        )
        if self.keeps_rows:
            state = state.with_columns(_cleared("waiting_rows", sends, state))
        if self.node.mode is Mode.DISCARDING:
            state = self.emptied(state, sends)
        return state

    def emptied(self, state: pl.DataFrame, where: pl.Expr | None = None) -> pl.DataFrame:
        """Windows without their rows."""
        where = pl.lit(True) if where is None else where
        kept = [column for accumulator in self.folding for column in accumulator.of_nothing().items()]
        cleared = [pl.when(where).then(value).otherwise(pl.col(name)).alias(name) for name, value in kept]
        cleared += [_cleared(name, where, state) for name in self.lists() if name != "sent"]
        return state.with_columns(cleared)

    # ------------------------------------------------------------ late rows

    def late(self, rows: pl.DataFrame, reason: str) -> pl.DataFrame:
        return rows.select(ROW, pl.struct("start", "end").alias("window"), pl.lit(reason).alias("reason"))

    def _no_late(self) -> pl.DataFrame:
        return pl.DataFrame(schema={ROW: self.given[ROW], "window": _SPAN, "reason": pl.String})


_SPAN = pl.Struct({"start": pl.Int64, "end": pl.Int64})


def _nowhere() -> list[pl.Expr]:
    return [pl.lit(None, _SPAN).alias("window")]


def _cleared(name: str, where: pl.Expr, state: pl.DataFrame) -> pl.Expr:
    return pl.when(where).then(pl.lit([], dtype=state.schema[name])).otherwise(pl.col(name)).alias(name)
