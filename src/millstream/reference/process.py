"""A user's function of each row and its key: in order of arrival, or in order of event time.

In order of arrival, the rows of a bundle come one by one, then the timers of each key. In order of event time, rows and
event-time timers come in one order, however rows were cut into bundles.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from millstream.plan import nodes
from millstream.plan.steps import process
from millstream.plan.steps.process import CLOCK, EVENT, FIRINGS_MAX, Key
from millstream.plan.time.bundles import BEGINNING, END, Bundle, Row, dead_letter_values, micros, moment
from millstream.records import batch_to_rows, rows_to_batch
from millstream.reference.event_order import EventOrder, time_of
from millstream.reference.windows import sort_key


class ProcessOperator:
    """Keeps a `Key` for every key that has state or timers."""

    def __init__(self, node: nodes.Process) -> None:
        self.node = node
        self.around = process.around(node)
        self.keys: dict[tuple[Any, ...], Key] = {}
        self.dead: list[Row] = []
        self.late: list[Row] = []

    def step(self, bundle: Bundle) -> Bundle:
        self.dead = []
        sent: list[Row] = []
        self.around.now = bundle.clock
        self.around.watermark = self.around.late_before = bundle.watermark_before
        for row in bundle.rows:
            sent += self._call_for_row(row, bundle.clock)
        self.around.watermark, self.around.late_before = bundle.watermark, BEGINNING
        for values in sorted(self.keys, key=sort_key):
            sent += self._fire(self.keys[values], bundle)
        self._forget_empty_keys()
        return replace(bundle, rows=sent)

    def _call_for_row(self, row: Row, clock: int) -> list[Row]:
        values = self._values_of(row)
        key = self.keys.setdefault(values, Key(self.around, values))
        key._time = row.time
        before = copy_of(key)
        try:
            rows = process.rows_given(self.node.function(dict(row.values), key), deepcopy)
        except Exception as error:  # whatever a user's function raises: the row becomes a dead letter
            restore(key, before)
            return self._send_dead_letter(row.values, row.time, f"{type(error).__name__}: {error}", clock)
        return self._made(rows, row.values, row.time, clock)

    def _values_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.values[name] for name in self.node.keys)

    def _fire(self, key: Key, bundle: Bundle) -> list[Row]:
        """Fires the first timer that is due until none is, including those set meanwhile."""
        sent: list[Row] = []
        fired = 0
        while (timer := first_due(key, bundle)) is not None:
            fired += 1
            if fired > FIRINGS_MAX:
                raise process.endless(key, self.node, timer[1])
            sent += self._fire_one(key, *timer, bundle)
        return sent

    def _fire_one(self, key: Key, kind: int, tag: str, bundle: Bundle) -> list[Row]:
        due = key._timers[kind].pop(tag)
        time = key._time = process.timer_time(kind, due, bundle.watermark)
        timer_row = process.timer_values(key, kind, tag, due)
        before = copy_of(key)
        assert self.node.on_timer is not None
        try:
            rows = process.rows_given(self.node.on_timer(tag, moment(due), key), deepcopy)
        except Exception as error:  # whatever a user's function raises: the timer becomes a dead letter
            restore(key, before)
            reason = f"timer '{tag}': {type(error).__name__}: {error}"
            return self._send_dead_letter(timer_row, time, reason, bundle.clock)
        return self._made(rows, timer_row, time, bundle.clock)

    def _made(self, rows: list[Any], source: dict[str, Any], time: int | None, clock: int) -> list[Row]:
        """The rows that a function returned; none of them if one does not fit the schema."""
        batch, failures = rows_to_batch(rows, self.node.schema)
        if failures:
            return self._send_dead_letter(source, time, f"ValueError: {failures[0].reason}", clock)
        made = batch_to_rows(batch)
        if self.node.event_time is None:
            return [Row(values, time) for values in made]
        times = [values[self.node.event_time] for values in made]
        return [Row(values, None if time is None else micros(time)) for values, time in zip(made, times, strict=True)]

    def _send_dead_letter(self, values: dict[str, Any], time: int | None, reason: str, clock: int) -> list[Row]:
        self.dead.append(Row(dead_letter_values(values, f"{self.node.name}: {reason}", clock), time))
        return []

    def _forget_empty_keys(self) -> None:
        for values, key in list(self.keys.items()):
            key._lists = {name: held for name, held in key._lists.items() if held}
            key._maps = {name: held for name, held in key._maps.items() if held}
            process.bytes_of(
                [key.state, key._lists, key._maps], key, self.node
            )  # raises for values that cannot be stored
            if not (key.state or key._lists or key._maps or any(key._timers)):
                del self.keys[values]


class OrderedProcessOperator(ProcessOperator):
    """Rows and event-time timers in one order: the earliest first, a timer before a row of the same time."""

    def __init__(self, node: nodes.Process) -> None:
        super().__init__(node)
        self.order = EventOrder()

    def step(self, bundle: Bundle) -> Bundle:
        self.dead = []
        self.late = self.order.take(bundle)
        self.around.now = bundle.clock
        self.around.watermark = BEGINNING
        sent: list[Row] = []
        rows = self.order.ready(bundle.watermark)
        fired: dict[tuple[Any, ...], int] = {}
        while (timer := self._first_timer(bundle.watermark)) is not None or rows:
            if rows and (timer is None or timer[0] > time_of(rows[0])):
                row = rows.pop(0)
                self.around.watermark = max(self.around.watermark, time_of(row))
                sent += self._call_for_row(row, bundle.clock)
                continue
            assert timer is not None
            time, values, tag = timer
            has_ended = bundle.watermark >= END and not any(values == self._values_of(row) for row in rows)
            is_further = time > self.around.watermark and not has_ended
            fired[values] = 1 if is_further else fired.get(values, 0) + 1
            if fired[values] > FIRINGS_MAX:
                raise process.endless(self.keys[values], self.node, tag)
            reached = max(self.around.watermark, time)
            self.around.watermark = END if has_ended else reached
            sent += self._fire_one(self.keys[values], EVENT, tag, bundle)
            self.around.watermark = reached
        self.around.watermark = bundle.watermark
        for values in sorted(self.keys, key=sort_key):
            sent += self._fire(self.keys[values], bundle)
        self._forget_empty_keys()
        return replace(bundle, rows=sent)

    def _first_timer(self, watermark: int) -> tuple[int, tuple[Any, ...], str] | None:
        """The first event-time timer that is due: by time, by key, then in the order they were set."""
        firsts = [
            (min(timers.values()), values)
            for values in sorted(self.keys, key=sort_key)
            if (timers := self.keys[values]._timers[EVENT])
        ]
        time, values = min(firsts, key=lambda first: first[0], default=(END + 1, ()))
        if time > watermark:
            return None
        timers = self.keys[values]._timers[EVENT]
        return time, values, min(timers, key=timers.__getitem__)


def first_due(key: Key, bundle: Bundle) -> tuple[int, str] | None:
    """Event-time timers before processing-time ones, by time, then in the order they were set."""
    for kind, reached in ((EVENT, bundle.watermark), (CLOCK, bundle.clock)):
        due = [(time, number, tag) for number, (tag, time) in enumerate(key._timers[kind].items()) if time <= reached]
        if due:
            return kind, min(due)[2]
    return None


def copy_of(key: Key) -> tuple[Any, ...]:
    lists = {name: list(held) for name, held in key._lists.items()}
    maps = {name: dict(held) for name, held in key._maps.items()}
    return dict(key.state), lists, maps, [dict(timers) for timers in key._timers]


def restore(key: Key, before: tuple[Any, ...]) -> None:
    key.state, key._lists, key._maps, key._timers = before
