"""A trigger with `each` treats every row as its own bundle; this does so for all rows at once.

A row's windows do not depend on how rows are bundled, and a trigger's decision about the rows of a window only depends
on how many there are (`each_row_firing`). So rows are grouped by window, in order of arrival; a pane is the running
result at a row that fires. Sessions that merge on the way are processed in rounds: first the parts, then what was
merged from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from millstream.operators.aggregates.accumulators import NUMBER, ROW, TIME
from millstream.operators.each_row.firing import AT_END, Fired, fired, ranges
from millstream.operators.each_row.queues import PANES, PART, Drained, Queues, Truths
from millstream.operators.each_row.session_merging import Held, Lives, lives
from millstream.operators.ordering import Numbers, by_key, in_order
from millstream.operators.windows.assignment import placed, starts_apart
from millstream.plan.nodes import Mode
from millstream.plan.time import windows
from millstream.plan.time.bundles import END
from millstream.plan.time.windows import microseconds

if TYPE_CHECKING:
    from millstream.operators.clock import Clock
    from millstream.operators.windows.windowed import WindowedOperator

LAST = 1 << 60
"""The part of panes that fire after all rows."""
PIECES_MAX = 64
"""So many pieces of a frame are moved faster than its rows."""


@dataclass(slots=True)
class Taken:
    """The effect of a bundle's rows: the windows after them, the panes, and late rows."""

    windows: pl.DataFrame
    counters: pl.DataFrame
    panes: list[pl.DataFrame] = field(default_factory=list)
    late: list[pl.DataFrame] = field(default_factory=list)
    blocks: pl.DataFrame | None = None
    """If all panes are in one frame, by key and in order of emission: the keys, and how many panes each has."""

    def add(self, windows: pl.DataFrame) -> None:
        self.windows = pl.concat([self.windows, windows.select(self.windows.columns)], how="vertical_relaxed")


class Turns:
    def __init__(self, operator: WindowedOperator) -> None:
        self._operator = operator
        self._window = operator.node.window
        self._keys = operator.keys
        self._steps = starts_apart(self._window)

    def take(self, held: pl.DataFrame, counters: pl.DataFrame, given: pl.DataFrame, clock: Clock) -> Taken:
        """`clock` does not move; the windows are those before the watermark moves."""
        rows = given.drop(ROW).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(PART))
        taken = Taken(held, counters)
        if self._operator.by_rows:
            self._take_by_rows(taken, rows, given, clock)
        elif self._operator.merges:
            self._take_sessions(taken, rows, given, clock)
        else:
            self._take_placed(taken, rows, given, clock)
        return taken

    def sent(self, taken: Taken, asked: pl.DataFrame) -> pl.DataFrame:
        """The panes of all rows, and those of windows that fire after them: by key, in order of emission."""
        last_panes = asked.sort([*self._keys, "__place", "__row_of_pane"], nulls_last=False, maintain_order=True)
        if not taken.panes:
            return last_panes
        if taken.blocks is not None:
            return taken.panes[0] if asked.is_empty() else self._woven(taken.panes[0], taken.blocks, last_panes)
        last = pl.lit(LAST, pl.Int64).alias(PART)
        frames = [*taken.panes, asked.with_columns(last)]
        panes = pl.concat([frame.select(*asked.columns, PART) for frame in frames], how="vertical_relaxed")
        by, counts = by_key(panes, self._keys)
        rank = np.empty(len(panes), np.int64)
        rank[by] = np.repeat(np.arange(len(counts)), counts)
        return panes[in_order(rank, *(panes[name].to_numpy() for name in (PART, "__place", "__row_of_pane")))]

    def _woven(self, panes: pl.DataFrame, blocks: pl.DataFrame, last: pl.DataFrame) -> pl.DataFrame:
        """Panes by key, each key's last ones after its block. Blocks are moved as a whole, unless there are many."""
        both = pl.concat([panes.select(last.columns), last], how="vertical_relaxed")
        singles = last.with_columns(pl.lit(1, pl.Int64).alias(PANES)).select(blocks.columns)
        pieces = pl.concat([blocks, singles], how="vertical_relaxed")
        pieces = pieces.with_columns((pl.col(PANES).cum_sum() - pl.col(PANES)).alias("__first"))
        if self._keys:
            pieces = pieces.sort(self._keys, nulls_last=False, maintain_order=True)
        firsts, sizes = pieces["__first"].to_numpy(), pieces[PANES].to_numpy()
        heads = np.flatnonzero(np.append(True, firsts[1:] != (firsts + sizes)[:-1]))
        firsts, sizes = firsts[heads], np.add.reduceat(sizes, heads)
        if len(heads) <= PIECES_MAX:
            return pl.concat([both.slice(first, size) for first, size in zip(firsts, sizes, strict=True)])
        return both[np.repeat(firsts, sizes) + ranges(sizes)]

    # ------------------------------------------------------------ windows with a fixed place in time

    def _take_placed(self, taken: Taken, rows: pl.DataFrame, given: pl.DataFrame, clock: Clock) -> None:
        in_windows = placed(rows, self._window)
        self._evaluate_others(taken, in_windows, rows, clock)
        late = in_windows.select(self._operator.is_expired(clock)).to_series()
        if late.any():
            taken.late.append(self._late(in_windows.filter(late), given, "expired"))
            in_windows = in_windows.filter(~late)
        self._put(taken, in_windows, given, clock)

    def _put(self, taken: Taken, rows: pl.DataFrame, given: pl.DataFrame, clock: Clock) -> None:
        """Puts rows into their windows. Rows of windows that emit nothing need not be kept apart."""
        if rows.is_empty():
            return
        operator = self._operator
        order, counts = by_key(rows, [*self._keys, NUMBER if operator.by_rows else "start"], self._steps)
        firsts = rows[order[np.cumsum(counts) - counts]]
        if operator.by_rows:
            firsts = firsts.with_columns(start=pl.col(TIME), end=pl.col(TIME))
        base, is_held = self._as_held(taken, firsts)
        closed = base["closed"].to_numpy()
        base = base.with_columns(self._at_end(clock))
        done = fired(operator.trigger, base, counts, clock.now)
        is_quiet = (done.panes == 0) & ~closed
        quiet = rows
        if not is_quiet.all():
            here = Queues(base, rows, order, counts, dense_keys(firsts, self._keys))
            if closed.any():
                self._refuse(taken, here.of(closed), given)
            is_loud = ~is_quiet & ~closed
            if is_loud.any():
                self._drain(taken, here.of(is_loud), done.of(is_loud, counts), given, clock)
            quiet = rows[here.of(is_quiet).order]
        if len(quiet):
            held = base.filter(is_quiet & is_held).drop(AT_END)
            news = operator.news(quiet.with_columns(self._whole(quiet, given)) if operator.keeps_rows else quiet, clock)
            taken.add(operator.folded(held, news, clock))

    def _at_end(self, clock: Clock) -> pl.Expr:
        by_rows = self._operator.by_rows
        return (pl.lit(False) if by_rows else pl.col("end").fill_null(END) <= clock.watermark).alias(AT_END)

    def _as_held(self, taken: Taken, found: pl.DataFrame) -> tuple[pl.DataFrame, Truths]:
        """The windows as held, or new, and which are held; those are removed from `taken`."""
        operator, held = self._operator, taken.windows
        is_held = np.zeros(len(found), np.bool_)
        if held.is_empty():
            return operator.new_windows(found), is_held
        identity = operator.identity
        numbered = held.select(*identity, pl.int_range(pl.len(), dtype=pl.Int64).alias("__held"))
        here = found.select(identity).join(numbered, on=identity, how="left", nulls_equal=True, maintain_order="left")[
            "__held"
        ]
        is_held = here.is_not_null().to_numpy()
        fresh = operator.new_windows(found.filter(~is_held))
        places = here.fill_null(0).to_numpy()
        taken.windows = held[np.setdiff1d(np.arange(len(held)), places[is_held])]
        both = pl.concat([held, fresh.select(held.columns)], how="vertical_relaxed")
        return both[np.where(is_held, places, len(held) + np.cumsum(~is_held) - 1)], is_held

    def _refuse(self, taken: Taken, closed: Queues, given: pl.DataFrame) -> None:
        """Rows of windows that were closed before are too late."""
        late, windows_now = closed.rows[closed.order], closed.windows
        if self._operator.by_rows:
            of_rows = np.repeat(np.arange(len(windows_now)), closed.counts)
            late = late.with_columns(windows_now.select("start", "end")[of_rows].get_columns())
        taken.late.append(self._late(late[in_order(closed.order)], given, "closed"))
        taken.add(windows_now.drop(AT_END))

    def _drain(self, taken: Taken, queues: Queues, done: Fired, given: pl.DataFrame, clock: Clock) -> None:
        operator = self._operator
        several = operator.merges or operator.by_rows or operator.node.mode is Mode.RETRACTING or bool(taken.panes)
        drained = Drained(operator, queues, done, given, clock, with_parts=several)
        if drained.lost is not None:
            taken.late.append(self._late(drained.lost, given, "closed"))
        if len(drained.panes):
            taken.panes.append(drained.panes)
            taken.blocks = None if several else drained.blocks()
        taken.add(drained.windows)

    def _evaluate_others(self, taken: Taken, touching: pl.DataFrame, rows: pl.DataFrame, clock: Clock) -> None:
        """With the first row of a key all its windows are evaluated, even those that only later rows belong to.

        The first row and the windows that it touches, or ends, are evaluated together.
        """
        operator = self._operator
        if not len(self._waiting_for_the_clock(taken, clock)):
            return
        firsts = self._firsts(rows)
        touched = touching.select(*operator.identity, PART).join(firsts.select(PART), on=PART, how="semi")
        others = taken.windows.with_row_index("__held").join(
            touched, on=operator.identity, how="anti", nulls_equal=True
        )
        self._evaluate_untouched(taken, others["__held"].to_numpy(), firsts, clock)

    def _waiting_for_the_clock(self, taken: Taken, clock: Clock) -> pl.DataFrame:
        moments = self._operator.trigger.due()
        if not moments or taken.windows.is_empty():
            return taken.windows.clear()
        is_due = pl.any_horizontal(moment <= clock.now for moment in moments).fill_null(False)
        return taken.windows.filter((pl.col("waiting") > 0) & is_due)

    def _firsts(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The first row of each key."""
        if not self._keys:
            return rows.select(pl.col(PART).min())
        return rows.group_by(self._keys).agg(pl.col(PART).min())

    def _evaluate_untouched(self, taken: Taken, others: Numbers, firsts: pl.DataFrame, clock: Clock) -> None:
        """Evaluates windows that no first row has touched, as parts of these first rows."""
        operator = self._operator
        held = taken.windows[others]
        if self._keys:
            asked = held.join(firsts, on=self._keys, how="inner", nulls_equal=True, maintain_order="left")
        else:
            asked = held.join(firsts, how="cross")
        if asked.is_empty():
            return
        parts = asked.select(*operator.identity, PART)
        state, panes = operator.fire_triggers(asked.drop(PART), clock)
        self._send(taken, panes, parts)
        left = taken.windows.join(parts, on=operator.identity, how="anti", nulls_equal=True, maintain_order="left")
        taken.windows = pl.concat([left, state], how="vertical_relaxed")

    def _send(self, taken: Taken, panes: pl.DataFrame, parts: pl.DataFrame) -> None:
        """Adds panes of evaluated windows, as parts of rows."""
        if len(panes):
            taken.panes.append(self._of_parts(panes, parts))
            taken.blocks = None

    def _of_parts(self, panes: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
        """Panes with the parts that emitted them."""
        by = [*self._keys, "__place"]
        place = pl.col(NUMBER) if self._operator.by_rows else pl.col("start").fill_null(0)
        of_parts = parts.select(*self._keys, place.alias("__place"), PART).unique(by)
        return panes.drop(PART, strict=False).join(of_parts, on=by, how="left", nulls_equal=True, maintain_order="left")

    # ------------------------------------------------------------ windows opened and closed by rows

    def _take_by_rows(self, taken: Taken, rows: pl.DataFrame, given: pl.DataFrame, clock: Clock) -> None:
        operator = self._operator
        if clock.watermark_before >= END:
            there = rows.with_columns(start=pl.col(TIME), end=pl.col(TIME))
            taken.late.append(self._late(there, given, "expired"))
            return
        numbered, taken.counters, finished = operator.row_windows.numbered(rows, taken.counters)
        finishing = self._finishing(taken, numbered, finished)
        touching = [frame.select(*operator.identity, PART) for frame in (numbered, finishing)]
        self._evaluate_others(taken, pl.concat(touching, how="vertical_relaxed"), rows, clock)
        last = numbered.clear()
        if not isinstance(self._window, windows.DeltaWindow) and len(finishing):
            # The row that completes its window is evaluated together with the window's end.
            by = [*operator.identity, PART]
            last = numbered.join(finishing, on=by, how="semi", nulls_equal=True, maintain_order="left")
            numbered = numbered.join(finishing, on=by, how="anti", nulls_equal=True, maintain_order="left")
        self._put(taken, numbered, given, clock)
        if len(finishing):
            self._finish(taken, finishing, last, given, clock)

    def _finishing(self, taken: Taken, numbered: pl.DataFrame, finished: pl.DataFrame) -> pl.DataFrame:
        """The windows that are complete, and the row that completes each."""
        identity = self._operator.identity
        if isinstance(self._window, windows.DeltaWindow):  # the first row of the next one
            firsts = numbered.group_by(identity, maintain_order=True).agg(pl.col(PART).first())
            before = firsts.with_columns(pl.col(NUMBER) - 1)
            known = pl.concat(
                [taken.windows.select(identity), numbered.select(identity)], how="vertical_relaxed"
            ).unique()
            return before.join(known, on=identity, how="semi", nulls_equal=True)
        lasts = numbered.group_by(identity, maintain_order=True).agg(pl.col(PART).last())
        if self._keys:
            lasts = lasts.join(finished, on=self._keys, how="left", nulls_equal=True)
        else:
            lasts = lasts.join(finished, how="cross")
        return lasts.filter(pl.col(NUMBER) < pl.col("__before")).select(*identity, PART)

    def _finish(
        self, taken: Taken, finishing: pl.DataFrame, rows: pl.DataFrame, given: pl.DataFrame, clock: Clock
    ) -> None:
        """Ends windows, each with its last row or after it."""
        operator = self._operator
        identity = operator.identity
        done = taken.windows.join(finishing, on=identity, how="semi", nulls_equal=True)
        taken.windows = taken.windows.join(finishing, on=identity, how="anti", nulls_equal=True)
        if len(rows):
            shut = done.filter("closed").select(*identity, "start", "end")
            if len(shut):
                too_late = rows.join(shut, on=identity, how="inner", nulls_equal=True, maintain_order="left")
                taken.late.append(self._late(too_late, given, "closed"))
                rows = rows.join(shut, on=identity, how="anti", nulls_equal=True)
            rows = rows.with_columns(self._whole(rows, given))
            done = operator.folded(done, operator.news(rows, clock), clock)
        _, panes = operator.fire_triggers(done.with_columns(complete=pl.lit(True)), clock)
        self._send(taken, panes, finishing)

    # ------------------------------------------------------------ sessions

    def _take_sessions(self, taken: Taken, rows: pl.DataFrame, given: pl.DataFrame, clock: Clock) -> None:
        assert isinstance(self._window, windows.Sessions)
        order, counts = by_key(rows, self._keys)
        rows = rows[order]
        held = taken.windows
        found = lives(
            rows[TIME].to_numpy(),
            counts,
            self._held_by_key(held, rows, counts),
            microseconds(self._window.gap),
            clock.watermark_before,
            clock.watermark_before - self._operator.lateness,
        )
        rows = rows.with_columns(pl.Series("start", found.starts), pl.Series("end", found.ends))
        if len(self._waiting_for_the_clock(taken, clock)):
            others = np.setdiff1d(np.arange(len(held)), np.array(found.touched_by_first_row, np.int64))
            self._evaluate_untouched(taken, others, self._firsts(rows), clock)
            places = held.select(self._operator.identity).join(
                taken.windows, on=self._operator.identity, how="left", nulls_equal=True, maintain_order="left"
            )
            taken.windows = places.select(held.columns)  # unchanged: lives refer to them by position
        if len(late := np.flatnonzero(found.of_rows < 0)):
            taken.late.append(self._late(rows[late], given, "expired"))
        self._live(taken, found, rows, given, clock)

    def _held_by_key(self, held: pl.DataFrame, rows: pl.DataFrame, counts: Numbers) -> list[Held | None]:
        found: list[Held | None] = [None] * len(counts)
        if held.is_empty():
            return found
        sessions = held.select(*self._keys, "start", "end").with_row_index("__held")
        if self._keys:
            heads = rows.select(self._keys)[np.cumsum(counts) - counts]
            heads = heads.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__key"))
            sessions = sessions.join(heads, on=self._keys, how="inner", nulls_equal=True)
        else:
            sessions = sessions.with_columns(__key=pl.lit(0, pl.Int64))
        grouped = sessions.sort("__key", "start").group_by("__key", maintain_order=True).agg("__held", "start", "end")
        for key, numbers, starts, ends in grouped.select("__key", "__held", "start", "end").iter_rows():
            found[key] = Held(numbers, starts, ends)
        return found

    def _live(self, taken: Taken, found: Lives, rows: pl.DataFrame, given: pl.DataFrame, clock: Clock) -> None:
        """Processes lives in rounds: those that began on their own, then those that were merged from them."""
        of_rows = found.of_rows
        places = np.flatnonzero(of_rows >= 0)
        if not len(places):
            return
        lived, window = np.unique(of_rows[places], return_inverse=True)
        levels, numbers = (np.array(values, np.int64)[lived] for values in (found.levels, found.held))
        of_lives, rows = levels[window], rows[places]
        held = taken.windows
        for level in range(int(levels.max()) + 1):
            is_here = levels == level
            renumbered = np.cumsum(is_here) - 1
            here = np.flatnonzero(of_lives == level)
            mine = renumbered[window[here]]
            heads = here[_first_of_each(mine, int(is_here.sum()))]
            if level == 0:
                is_new = numbers[is_here] < 0
                fresh = self._operator.new_windows(rows[heads[is_new]])
                both = pl.concat([held, fresh.select(held.columns)], how="vertical_relaxed")
                base = both[np.where(is_new, len(held) + np.cumsum(is_new) - 1, numbers[is_here])]
                taken.windows = held[np.setdiff1d(np.arange(len(held)), numbers[is_here])]
            else:
                base = self._merged(taken, rows[heads], given, clock)
                is_left = np.ones(len(rows), np.bool_)
                is_left[heads] = False
                mine, here = mine[is_left[here]], here[is_left[here]]
            self._live_on(taken, base, rows[here], mine, given, clock)

    def _merged(self, taken: Taken, heads: pl.DataFrame, given: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """The sessions that rows merge from others, one each; they are removed from the windows."""
        operator = self._operator
        firsts = heads.drop("start", "end").with_columns(self._whole(heads, given))
        assert operator.sessions is not None
        state, late = operator.sessions.put(taken.windows, firsts, clock)
        taken.late.append(late)
        identity = operator.identity
        spans = heads.select(*identity, PART)
        left = state.join(spans, on=identity, how="anti", nulls_equal=True, maintain_order="left")
        made = spans.select(identity).join(state, on=identity, how="inner", nulls_equal=True, maintain_order="left")
        made, panes = operator.fire_triggers(made.select(state.columns), clock)
        self._send(taken, panes, spans)
        taken.windows = left
        return made

    def _live_on(
        self, taken: Taken, base: pl.DataFrame, rows: pl.DataFrame, window: Numbers, given: pl.DataFrame, clock: Clock
    ) -> None:
        """Adds rows to their sessions. Closed ones accept none, but still grow."""
        counts = np.bincount(window, minlength=len(base))
        closed, alone = base["closed"].to_numpy(), counts == 0
        if alone.any():
            taken.add(base.filter(alone))
        if (shut := closed & ~alone).any():
            taken.late.append(self._late(rows.filter(closed[window]), given, "closed"))
            last = np.empty(len(base), np.int64)
            last[window] = np.arange(len(window))  # of several writes the last one wins
            grown = rows.select("start", "end")[last[shut]]
            taken.add(base.filter(shut).with_columns(grown.get_columns()))
        if (is_open := ~closed & ~alone).any():
            base = base.with_columns(self._at_end(clock))
            keys = np.zeros(len(base), np.int64)  # the rows are in order of their keys
            queues = Queues(base, rows, in_order(window), counts, keys).of(is_open)
            done = fired(self._operator.trigger, queues.windows, queues.counts, clock.now)
            self._drain(taken, queues, done, given, clock)

    # ------------------------------------------------------------ whole rows

    def _whole(self, rows: pl.DataFrame, given: pl.DataFrame) -> pl.Series:
        return given[ROW][rows[PART]]

    def _late(self, rows: pl.DataFrame, given: pl.DataFrame, reason: str) -> pl.DataFrame:
        return self._operator.late(rows.with_columns(self._whole(rows, given)), reason)


def dense_keys(rows: pl.DataFrame, keys: list[str]) -> Numbers:
    """A number for each key, for rows sorted by key."""
    if not keys or rows.is_empty():
        return np.zeros(len(rows), np.int64)
    changes = rows.select(pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift()) for key in keys).alias("new"))
    new = changes["new"].to_numpy().copy()
    new[0] = False
    return np.cumsum(new)


def _first_of_each(numbers: Numbers, count: int) -> Numbers:
    """The first position of each number."""
    found = np.empty(count, np.int64)
    found[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return found
