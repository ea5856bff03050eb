"""A user's function of rows and event-time timers in one order of event time, whatever the bundles they came in.

Rows wait in a table of their own (`event_order.py`). The row of a key's state also has the time of its first waiting
row: so the state is at hand when one becomes ready.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
import polars as pl

from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.clock import Clock, Frames
from millstream.operators.event_order import WAITING, WAITING_MARKS, in_event_order, late_rows
from millstream.operators.process import KEYS, NEXT_CLOCK, NEXT_EVENT, STATE, ProcessBundle, ProcessStep
from millstream.operators.stateful import DEAD, INPUTS, LATE, SENT, Stateful
from millstream.plan import nodes
from millstream.plan.steps.process import EVENT, FIRINGS_MAX, Key, endless
from millstream.plan.time.bundles import BEGINNING, END
from millstream.state.tables import NEVER, Marks

NEXT_ROW = "next_row"
"""The event time of the first row of a key that waits."""
NOT_SCHEDULED = END + 1


def process_step(node: nodes.Process) -> Stateful:
    return OrderedProcessStep(node) if node.order is nodes.RowOrder.EVENT_TIME else ProcessStep(node)


class OrderedProcessStep(ProcessStep):
    def tables(self) -> Frames:
        keys = super().tables()[KEYS].with_columns(pl.lit(None, pl.Int64).alias(NEXT_ROW))
        return {KEYS: keys, WAITING: self.nothing[INPUTS[0]]}

    def asked(self, inputs: Frames) -> Frames:
        return dict.fromkeys((KEYS, WAITING), inputs[INPUTS[0]])

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        rows = in_event_order(held[WAITING], inputs[INPUTS[0]], clock)
        bundle = OrderedBundle(self, held[KEYS], rows.ready, clock, rows.waiting)
        bundle.call_for_rows()
        bundle.fire_timers()
        sent = bundle.sent_rows()
        changes = {KEYS: bundle.kept(), WAITING: rows.waiting}
        return changes, {SENT: sent, DEAD: bundle.dead_letters(), LATE: late_rows(rows.late)}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        due = Marks(pl.min_horizontal(NEXT_EVENT, NEXT_ROW), pl.col(NEXT_CLOCK))
        return {KEYS: due, WAITING: WAITING_MARKS}


class OrderedBundle(ProcessBundle):
    """One step: the rows that are ready, in order of event time, and the timers between them."""

    def call_for_rows(self) -> None:
        self.around.watermark = self.around.late_before = BEGINNING
        self._ends = self.clock.watermark >= END
        self._left = np.bincount(self.numbers, minlength=len(self.groups)).tolist() if self._ends else []
        """At the end of the input, how many rows of each key are still to come."""
        self._reached = BEGINNING
        self._last: int | None = None
        """The number of the key of the last row."""
        self._fired: dict[int, int] = {}
        self._due: list[tuple[int, int, int]] = []
        """A heap of times, ranks and numbers of keys: of each key with timers, a time that none of them is before."""
        self._scheduled: dict[int, int] = {}
        """Of each key, the time in the heap that counts."""
        self._ranks = self._ranks_of_keys()
        for number, key in self.keys.items():
            self._schedule(number, key)
        self._call_each(self._before_row())
        if self._last is not None:
            self._schedule(self._last, self.keys[self._last])
        self.place = len(self.rows)
        self._fire_until(self.clock.watermark)

    def _ranks_of_keys(self) -> list[int]:
        names = self.step.keys
        places = self.groups.select(names).with_row_index("__number").sort(names, nulls_last=False)["__number"]
        ranks = np.empty(len(places), np.int64)
        ranks[places.to_numpy()] = np.arange(len(places))
        found: list[int] = ranks.tolist()
        return found

    def _before_row(self) -> Callable[[int, int, int], None]:
        """What is done before each row: it fires the timers up to its time. A closure, since it is called so often."""
        keys, around, due, scheduled = self.keys, self.around, self._due, self._scheduled
        left, last, last_number = self._left, None, -1

        def before_row(time: int, place: int, number: int) -> None:
            nonlocal last, last_number
            if last is not None and EVENT in last._before and (timers := last._timers[EVENT]):
                first = min(timers.values())
                if first < scheduled.get(last_number, NOT_SCHEDULED):
                    self._schedule(last_number, last)
            if due and due[0][0] <= time:
                self.place = place
                self._fire_until(time)
            last, last_number = keys[number], number
            self._last = number
            self._reached = around.watermark = time
            if left:
                left[number] -= 1

        return before_row

    def _schedule(self, number: int, key: Key) -> None:
        """Puts the first timer of a key into the heap, unless one as early is there: a later one is found from it."""
        if timers := key._timers[EVENT]:
            first = min(timers.values())
            if first < self._scheduled.get(number, NOT_SCHEDULED):
                self._scheduled[number] = first
                heappush(self._due, (first, self._ranks[number], number))

    def _fire_until(self, time: int) -> None:
        """Fires the event-time timers up to a time, including those that are set meanwhile: by time, then by key."""
        while self._due and self._due[0][0] <= time:
            due, _, number = heappop(self._due)
            if self._scheduled.get(number) != due:
                continue
            del self._scheduled[number]
            key = self.keys[number]
            timers = key._timers[EVENT]
            tag = min(timers, key=timers.__getitem__, default=None)
            if tag is not None and timers[tag] == due:
                self._fire_at(due, number, key, tag)
            self._schedule(number, key)

    def _fire_at(self, due: int, number: int, key: Key, tag: str) -> None:
        has_ended = self._ends and not self._left[number]
        is_further = due > self._reached and not has_ended
        self._fired[number] = fired = 1 if is_further else self._fired.get(number, 0) + 1
        if fired > FIRINGS_MAX:
            raise endless(key, self.node, tag)
        self._reached = max(self._reached, due)
        self.around.watermark = END if has_ended else self._reached
        self._fire_one(key, EVENT, tag)

    # ------------------------------------------------------------ results

    def kept(self) -> pl.DataFrame:
        """The state of all keys that were held or called or have waiting rows, except empty ones."""
        called, state = self.called_state()
        asleep = np.flatnonzero(~self.is_called[: len(self.held)])
        numbers = np.concatenate([asleep, np.array(called, np.int64)])
        first_waiting = self._first_waiting()
        only_waiting = np.setdiff1d(np.flatnonzero(first_waiting != NEVER), numbers)
        columns = [*self.step.keys, STATE, NEXT_EVENT, NEXT_CLOCK]
        frames = [self.held[asleep].select(columns), state.select(columns)]
        if len(only_waiting):
            empty = [pl.lit(None, self.held.schema[name]).alias(name) for name in columns[-3:]]
            frames.append(self.groups[only_waiting].select(*self.step.keys, *empty))
        firsts = first_waiting[np.concatenate([numbers, only_waiting])]
        next_row = pl.Series(NEXT_ROW, firsts).replace(NEVER, None)
        made = pl.concat(frames, how="vertical_relaxed").with_columns(next_row)
        return made.filter(pl.col(STATE).is_not_null() | pl.col(NEXT_ROW).is_not_null())

    def _first_waiting(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """By key, the time of its first waiting row. Those of keys that were not asked for are not held: they stay."""
        found = np.full(len(self.groups), NEVER, np.int64)
        before = self.held[NEXT_ROW].fill_null(NEVER).to_numpy()
        found[: len(before)] = np.where(before > self.clock.watermark, before, NEVER)
        np.minimum.at(found, self.waiting_numbers, self.waiting[TIME].to_numpy())
        return found
