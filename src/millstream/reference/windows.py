"""Windowed aggregation by the rules of time: puts rows into windows, evaluates each once, and expires them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.expressions.expression import evaluate
from millstream.plan import nodes
from millstream.plan.nodes import Mode, PaneTime
from millstream.plan.time import triggers, windows
from millstream.plan.time.bundles import AHEAD, ARGUMENTS, BEGINNING, END, Bundle, Row, late_reason, moment, table_of
from millstream.records import batch_to_rows
from millstream.reference.aggregates import results
from millstream.reference.spans import span_values, spans_of, touching
from millstream.reference.triggers import TriggerState, begin


@dataclass(slots=True)
class Pane:
    """One window of one key: its rows, those waiting for a pane, and the last pane."""

    start: int | None
    end: int | None
    trigger: TriggerState
    rows: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    in_time: list[int] = field(default_factory=list)
    """Event times of the waiting rows that were not behind the watermark when they arrived."""
    sent: list[Row] = field(default_factory=list)
    """The rows that the next pane retracts."""
    index: int = 0
    on_time_index: int = 0
    is_closed: bool = False
    is_complete: bool = False
    """Whether a window that is closed by rows has received its last one."""

    @property
    def ends_at(self) -> int:
        return END if self.end is None else self.end


@dataclass(slots=True)
class KeyState:
    panes: dict[Any, Pane] = field(default_factory=dict)
    """By start and end, or by number for windows closed by rows."""
    seen: int = 0
    number: int = 0
    first_value: Any = None
    recent: list[Row] = field(default_factory=list)
    """The rows of a sliding window."""


class WindowOperator:
    """Windowed aggregation, by the rules of time."""

    def __init__(self, node: nodes.WindowedAggregate) -> None:
        self.node = node
        self.lateness = windows.microseconds(node.lateness)
        self.keys: dict[tuple[Any, ...], KeyState] = {}
        self.late: list[Row] = []
        self.takes_rows_singly = any(isinstance(part, triggers.Each) for part in node.trigger.walk())
        self.in_processing_time = getattr(node.window, "time", "event") == "processing"
        self.passed_on = BEGINNING

    def step(self, bundle: Bundle) -> Bundle:
        self.late = []
        if self.in_processing_time:  # the clock is the watermark, and a row's time is its time of arrival
            rows = [replace(row, time=bundle.clock) for row in bundle.rows]
            before = END if bundle.watermark_before >= END else bundle.clock_before
            after = END if bundle.watermark >= END else bundle.clock  # it ends with the end of time
            bundle = Bundle(rows, before, after, bundle.clock_before, bundle.clock)
        arrived = self._by_key(bundle.rows)
        sent: list[Row] = []
        for key in sorted(self.keys.keys() | arrived.keys(), key=sort_key):
            state = self.keys.setdefault(key, KeyState())
            for small in self._bundles(replace(bundle, rows=arrived.get(key, []))):
                self._put(state, small)
                sent += self._ask(key, state, small)
        before, self.passed_on = self.passed_on, max(self.passed_on, min(bundle.watermark, self._hold()))
        return Bundle(sent, before, self.passed_on, bundle.clock_before, bundle.clock)

    def _by_key(self, rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
        """The rows of each key, with the inputs of the aggregates and the window; those without a time are late."""
        arrived: dict[tuple[Any, ...], list[Row]] = {}
        for row, arguments in zip(rows, self._arguments(rows), strict=True):
            if row.time in (None, AHEAD):
                self._too_late(row, None, late_reason(row.time))
                continue
            key = tuple(row.values[name] for name in self.node.keys)
            arrived.setdefault(key, []).append(replace(row, values={**row.values, ARGUMENTS: arguments}))
        return arrived

    def _bundles(self, bundle: Bundle) -> Iterator[Bundle]:
        """A trigger with `each` takes every row as its own bundle, before the watermark moves."""
        if self.takes_rows_singly:
            for row in bundle.rows:
                yield replace(bundle, rows=[row], watermark=bundle.watermark_before)
            bundle = replace(bundle, rows=[])
        yield bundle

    def _arguments(self, rows: list[Row]) -> list[dict[str, Any]]:
        """The inputs of the aggregates and the window, computed from the rows."""
        if not self.node.arguments or not rows:
            return [{} for _ in rows]
        batch = table_of(rows, self.node.inputs[0])
        made = evaluate({name: made.lowered for name, made in self.node.arguments}, batch)
        return batch_to_rows(made.combine_chunks().to_batches()[0])

    # ------------------------------------------------------------ assigning rows to windows

    def _put(self, state: KeyState, bundle: Bundle) -> None:
        if isinstance(self.node.window, windows.Sessions):
            self._put_sessions(state, bundle.rows, bundle)
        elif isinstance(self.node.window, windows.Everything):
            self._put_all(state, bundle.rows, bundle)
        elif self.node.window.has_end:
            self._put_spans(state, bundle.rows, bundle)
        else:
            self._put_by_rows(state, bundle.rows, bundle)

    def _put_spans(self, state: KeyState, rows: list[Row], bundle: Bundle) -> None:
        for row in rows:
            assert row.time is not None
            for start, end in spans_of(self.node.window, row.time):
                if bundle.watermark_before >= self._expiry(end):
                    self._too_late(row, (start, end), "expired")
                    continue
                pane = state.panes.setdefault((start, end), Pane(start, end, begin(self.node.trigger)))
                if pane.is_closed:
                    self._too_late(row, (start, end), "closed")
                else:
                    self._add(pane, [row], bundle)

    def _put_all(self, state: KeyState, rows: list[Row], bundle: Bundle) -> None:
        for row in rows:
            if bundle.watermark_before >= END:
                self._too_late(row, (None, None), "expired")
                continue
            pane = state.panes.setdefault((None, None), Pane(None, None, begin(self.node.trigger)))
            if pane.is_closed:
                self._too_late(row, (None, None), "closed")
            else:
                self._add(pane, [row], bundle)

    def _put_sessions(self, state: KeyState, rows: list[Row], bundle: Bundle) -> None:
        """Adds all rows, then merges sessions that touch, and only then checks for late rows."""
        assert isinstance(self.node.window, windows.Sessions)
        gap = windows.microseconds(self.node.window.gap)
        parts: list[tuple[int, int, Pane | Row]] = [
            (pane.start or 0, pane.ends_at, pane) for pane in state.panes.values()
        ]
        parts += [(row.time, min(row.time + gap, windows.LAST), row) for row in rows if row.time is not None]
        for group in touching(parts):
            arrived = [part for _, _, part in group if isinstance(part, Row)]
            arrived.sort(key=lambda row: next(n for n, known in enumerate(rows) if known is row))
            if arrived:
                start, end = min(part[0] for part in group), max(part[1] for part in group)
                panes = [part for _, _, part in group if isinstance(part, Pane)]
                self._merge(state, panes, arrived, start, end, bundle)

    def _merge(self, state: KeyState, panes: list[Pane], rows: list[Row], start: int, end: int, bundle: Bundle) -> None:
        if bundle.watermark_before >= self._expiry(end):
            for row in rows:
                self._too_late(row, (start, end), "expired")
            return
        for pane in panes:
            del state.panes[pane.start, pane.end]
        if any(pane.is_closed for pane in panes):
            for row in [row for pane in panes for row in pane.waiting] + rows:
                self._too_late(row, (start, end), "closed")
            known = [row for pane in sorted(panes, key=lambda pane: pane.start or 0) for row in pane.sent]
            state.panes[start, end] = Pane(start, end, begin(self.node.trigger), is_closed=True, sent=known)
            return
        if len(panes) == 1 and (panes[0].start, panes[0].end) == (start, end):
            merged = panes[0]
        else:
            merged = self._merged(panes, start, end, bundle)
        state.panes[start, end] = merged
        self._add(merged, rows, bundle)

    def _merged(self, panes: list[Pane], start: int, end: int, bundle: Bundle) -> Pane:
        """A session that grew or merged is a new window, with the rows and the trigger states of its parts."""
        panes = sorted(panes, key=lambda pane: pane.start or 0)
        if not panes:
            return Pane(start, end, begin(self.node.trigger))
        trigger = panes[0].trigger
        trigger.merge([pane.trigger for pane in panes[1:]], at_end=bundle.watermark_before >= end)
        return Pane(
            start,
            end,
            trigger,
            rows=[row for pane in panes for row in pane.rows],
            waiting=[row for pane in panes for row in pane.waiting],
            in_time=[time for pane in panes for time in pane.in_time],
            sent=[row for pane in panes for row in pane.sent],
        )

    def _put_by_rows(self, state: KeyState, rows: list[Row], bundle: Bundle) -> None:
        """Windows opened and closed by rows; their bounds in event time are those of their rows."""
        for row in rows:
            if bundle.watermark_before >= END:
                self._too_late(row, (row.time, row.time), "expired")
                continue
            if self.node.window.slides:
                self._slide(state, row, bundle)
                continue
            for number in self._numbers(state, row):
                pane = state.panes.setdefault(number, Pane(row.time, row.time, begin(self.node.trigger)))
                if pane.is_closed:
                    self._too_late(row, (pane.start, pane.end), "closed")
                else:
                    pane.end = row.time
                    self._add(pane, [row], bundle)
            self._complete(state, row)

    def _slide(self, state: KeyState, row: Row, bundle: Bundle) -> None:
        """A window of the row and of those before it, back to the last one that differs too much."""
        assert isinstance(self.node.window, windows.DeltaWindow)
        value = row.values[ARGUMENTS]["window.delta"]
        kept: list[Row] = []
        for known in reversed(state.recent):
            other = known.values[ARGUMENTS]["window.delta"]
            if None not in (value, other) and abs(value - other) >= self.node.window.threshold:
                break
            kept.insert(0, known)
        state.recent = [*kept, row]
        pane = Pane(state.recent[0].time, row.time, begin(self.node.trigger), is_complete=True)
        state.panes[state.seen] = pane
        state.seen += 1
        self._add(pane, list(state.recent), bundle)

    def _numbers(self, state: KeyState, row: Row) -> list[int]:
        """The numbers of the windows that a row belongs to."""
        window = self.node.window
        if isinstance(window, windows.Rows):
            place, state.seen = state.seen, state.seen + 1
            last = place // window.every
            return [n for n in range(max(0, last - window.count // window.every - 1), last + 1)
                    if n * window.every <= place < n * window.every + window.count]  # fmt: skip
        if isinstance(window, windows.DeltaWindow):
            value = row.values[ARGUMENTS]["window.delta"]
            if value is not None:
                if state.first_value is None:
                    state.first_value = value
                elif abs(value - state.first_value) >= window.threshold:
                    self._finish(state, state.number)
                    state.number, state.first_value = state.number + 1, value
        return [state.number]

    def _complete(self, state: KeyState, row: Row) -> None:
        window = self.node.window
        if isinstance(window, windows.Rows):
            for number in list(state.panes):
                assert isinstance(number, int)
                if number * window.every + window.count <= state.seen:
                    self._finish(state, number)
        elif isinstance(window, windows.ClosedBy) and row.values[ARGUMENTS]["window.closes"]:
            self._finish(state, state.number)
            state.number += 1

    def _finish(self, state: KeyState, number: int) -> None:
        if number in state.panes:
            state.panes[number].is_complete = True

    def _add(self, pane: Pane, rows: list[Row], bundle: Bundle) -> None:
        pane.rows += rows
        pane.waiting += rows
        pane.in_time += [row.time for row in rows if row.time is not None and row.time >= bundle.watermark_before]
        pane.trigger.add(len(rows), bundle.clock)

    def _too_late(self, row: Row, span: tuple[int | None, int | None] | None, reason: str) -> None:
        values = {name: value for name, value in row.values.items() if name != ARGUMENTS}
        values |= {"window": span_values(span), "reason": reason}
        self.late.append(replace(row, values=values))

    def _expiry(self, end: int) -> int:
        return min(END, end + self.lateness)

    # ------------------------------------------------------------ evaluating windows

    def _ask(self, key: tuple[Any, ...], state: KeyState, bundle: Bundle) -> list[Row]:
        sent: list[Row] = []
        for number, pane in sorted(
            state.panes.items(), key=lambda item: item[0] if item[0] != (None, None) else (0, 0)
        ):
            at_end, comes_to_end, is_over = self._judge(pane, bundle)
            if not pane.is_closed:
                sent += self._ask_pane(key, pane, at_end, comes_to_end, is_over, bundle)
            if is_over:
                if self.node.until_expiry:
                    sent += _retractions(pane)
                del state.panes[number]
        return sent

    def _judge(self, pane: Pane, bundle: Bundle) -> tuple[bool, bool, bool]:
        """Whether a window has reached its end, whether in this bundle, and whether it has expired."""
        if not self.node.window.has_end:
            over = pane.is_complete or bundle.watermark >= END
            return over, over, over
        at_end = bundle.watermark >= pane.ends_at
        return at_end, at_end and bundle.watermark_before < pane.ends_at, bundle.watermark >= self._expiry(pane.ends_at)

    def _ask_pane(
        self, key: tuple[Any, ...], pane: Pane, at_end: bool, comes_to_end: bool, is_over: bool, bundle: Bundle
    ) -> list[Row]:
        ask = pane.trigger.is_ready if pane.waiting else pane.trigger.is_ready_by_end
        is_ready = (bool(pane.waiting) or comes_to_end) and ask(at_end, bundle.clock)
        if not is_ready and not (is_over and pane.waiting):
            return []
        self.firing(pane, at_end, bundle, is_ready=is_ready)
        if is_ready:
            pane.is_closed = pane.trigger.fire(at_end, bundle.clock)
        timing = "unknown"
        if self.node.window.has_end:
            timing = "on_time" if comes_to_end else "late" if at_end else "early"
        return self._send(key, pane, timing, is_last=pane.is_closed or is_over)

    def firing(self, pane: Pane, at_end: bool, bundle: Bundle, *, is_ready: bool) -> None:
        """Called before a pane is sent, while its rows still wait. If its trigger is not ready, its window expires."""

    def _send(self, key: tuple[Any, ...], pane: Pane, timing: str, *, is_last: bool) -> list[Row]:
        rows = pane.waiting if self.node.mode is Mode.DISCARDING else pane.rows
        time = self._pane_time(pane)
        values = dict(zip(self.node.keys, key, strict=True))
        values["window"] = span_values((pane.start, pane.end))
        values["pane"] = {
            "timing": timing,
            "index": pane.index,
            "on_time_index": None if timing == "early" else pane.on_time_index,
            "first": pane.index == 0,
            "last": is_last,
        }
        values["weight"] = 1
        values |= results(self.node, rows, key, (moment(pane.start), moment(pane.end)))
        values["event_time"] = moment(time)
        row = Row(values, time)
        retractions = _retractions(pane)
        pane.index += 1
        pane.on_time_index += timing != "early"
        pane.waiting, pane.in_time = [], []
        if self.node.mode is Mode.RETRACTING:
            pane.sent = [row]
        return [*retractions, row]

    def _pane_time(self, pane: Pane) -> int | None:
        if self.node.pane_time is PaneTime.EARLIEST and pane.in_time:
            return min(pane.in_time)
        if self.node.pane_time is PaneTime.LATEST and pane.in_time:
            return max(pane.in_time)
        if not self.node.window.has_end:
            return pane.end
        return None if pane.end is None else pane.end - 1

    def _hold(self) -> int:
        """Waiting rows hold back the output watermark at the event time of their pane."""
        times = [self._pane_time(pane) for state in self.keys.values() for pane in state.panes.values() if pane.waiting]
        return min((time for time in times if time is not None), default=END)


def _retractions(pane: Pane) -> list[Row]:
    """What retracts the rows that a window has sent."""
    return [replace(old, values={**old.values, "weight": -1}, weight=-1) for old in pane.sent]


def sort_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Nulls first, then by value."""
    return tuple((value is not None, value) for value in key)
