"""The `Key` that a `process` function receives with each row: its state, its timers, and the time."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from millstream.errors import InvalidInput
from millstream.plan.checks import without_event_time
from millstream.plan.nodes import Process
from millstream.plan.time.bundles import BEGINNING, END, EPOCH, MICROSECOND, moment
from millstream.records.python_values import PLAIN, NotPlain, encoded

EVENT, CLOCK = 0, 1
FIRINGS_MAX = 100_000
"""How often the timers of one key may fire in one step: a timer that immediately sets itself again would never end."""
Timers = list[dict[str, int]]
"""Due times by kind and tag, in the order the timers were set."""
NOTHING: dict[Any, Any] = {}
NO_TIMERS: Timers = [NOTHING, NOTHING]
"""The initial state of a key, never modified: most keys need no dicts of their own, and there are many keys."""


@dataclass(slots=True)
class Around:
    """What all keys of a step share: the names of the key columns, the watermark and the clock."""

    names: tuple[str, ...]
    has_on_timer: bool
    has_event_time: bool
    watermark: int = BEGINNING
    late_before: int = BEGINNING
    now: int = 0


class Key:
    """A key of `process`, with its state and timers.

    `state` is a dict for values under any name; `list(name)` and `map(name)` are a list and a dict of that name, empty
    at first. All of them are kept between rows. `key["column"]` is a value of the key itself.
    """

    __slots__ = ("_around", "_before", "_lists", "_maps", "_time", "_timers", "_values", "state")

    def __init__(self, around: Around, values: tuple[Any, ...]) -> None:
        self.state: dict[str, Any] = {}
        self._around = around
        self._values = values
        self._lists: dict[str, list[Any]] = NOTHING
        self._maps: dict[str, dict[Any, Any]] = NOTHING
        self._timers: Timers = NO_TIMERS
        self._time: int | None = None
        self._before: dict[Any, Any] = NOTHING
        """The lists, maps and timers that this row used, as they were before."""

    def __getitem__(self, column: str) -> Any:
        try:
            return self._values[self._around.names.index(column)]
        except ValueError:
            known = ", ".join(self._around.names)
            raise KeyError(f"'{column}' is not a key column; key columns: {known}") from None

    def __repr__(self) -> str:
        return f"Key({', '.join(f'{name}={self[name]!r}' for name in self._around.names)})"

    # ------------------------------------------------------------ state

    def list(self, name: str) -> builtins.list[Any]:
        """The list of this name."""
        held = self._lists.get(name)
        if held is None:
            if self._lists is NOTHING:
                self._lists = {}
            held = self._lists[name] = []
        if ("list", name) not in self._before:
            self._note(("list", name), held.copy())
        return held

    def map(self, name: str) -> dict[Any, Any]:
        """The dict of this name."""
        held = self._maps.get(name)
        if held is None:
            if self._maps is NOTHING:
                self._maps = {}
            held = self._maps[name] = {}
        if ("map", name) not in self._before:
            self._note(("map", name), held.copy())
        return held

    def clear(self) -> None:
        """Deletes all state of the key, and its timers."""
        self.state.clear()
        for name in self._lists:
            self.list(name)
        for name in self._maps:
            self.map(name)
        self._lists.clear()
        self._maps.clear()
        for kind in (EVENT, CLOCK):
            self._changing_timers(kind).clear()

    # ------------------------------------------------------------ timers

    def at_event_time(self, when: datetime, tag: str = "") -> None:
        """Calls `on_timer` when the watermark reaches a time. Replaces an earlier timer of the same tag."""
        if not self._around.has_event_time:
            raise ValueError("the rows have no event time, so a timer in event time would never fire")
        self._set_timer(EVENT, when, tag)

    def at_processing_time(self, when: datetime, tag: str = "") -> None:
        """Calls `on_timer` when the clock reaches a time. Replaces an earlier timer of the same tag."""
        self._set_timer(CLOCK, when, tag)

    def cancel(self, tag: str = "") -> None:
        """Cancels the timers of a tag, in event time and in processing time."""
        for kind in (EVENT, CLOCK):
            self._changing_timers(kind).pop(tag, None)

    def _set_timer(self, kind: int, when: datetime, tag: str) -> None:
        if not self._around.has_on_timer:
            raise ValueError("a timer needs a callback: process(…, on_timer=…)")
        if not isinstance(tag, str):
            raise TypeError(f"a timer's tag is a string, not {tag!r}")
        try:
            time = (when - EPOCH) // MICROSECOND
        except TypeError:
            raise TypeError(f"a timer needs a datetime with a time zone, not {when!r}") from None
        timers = self._changing_timers(kind)
        timers.pop(tag, None)  # keeps the order in which timers were set
        timers[tag] = time

    def _changing_timers(self, kind: int) -> dict[str, int]:
        if self._timers is NO_TIMERS:
            self._timers = [{}, {}]
        timers = self._timers[kind]
        if kind not in self._before:
            self._note(kind, timers.copy())
        return timers

    def _note(self, name: Any, before: Any) -> None:
        if self._before is NOTHING:
            self._before = {}
        self._before[name] = before

    # ------------------------------------------------------------ time

    @property
    def now(self) -> datetime:
        """The processing time."""
        return EPOCH + self._around.now * MICROSECOND

    @property
    def watermark(self) -> datetime | None:
        """For a row, the watermark before the row's bundle; for a timer, the one after it; None before the first."""
        reached = self._around.watermark
        if reached >= END:
            return datetime.max.replace(tzinfo=UTC)
        return None if reached <= BEGINNING else moment(reached)

    @property
    def event_time(self) -> datetime | None:
        """The event time of the row or the timer, which is also that of its results."""
        return moment(self._time)

    @property
    def is_late(self) -> bool:
        """Whether the row is behind the watermark."""
        return self._time is not None and self._time < self._around.late_before


def around(node: Process) -> Around:
    return Around(node.keys, node.on_timer is not None, without_event_time(node.inputs[0]) is None)


def bytes_of(parts: builtins.list[Any], key: Key, node: Process) -> bytes:
    """The state of a key as bytes; only plain values are accepted."""
    try:
        return encoded(parts)
    except NotPlain as found:
        raise InvalidInput(
            f"the state of {key} contains {found}, which cannot be stored",
            where=f"step '{node.name}', {node.user_line}",
            next_step=f"store plain values: {PLAIN}",
        ) from None


def rows_given(made: Any, copied: Callable[[Any], Any]) -> builtins.list[Any]:
    """The results of a function as a list: rows, one row, or none; each copied when it was returned."""
    if made is None:
        return []
    return [copied(made)] if isinstance(made, Mapping) else [copied(row) for row in made]


def timer_time(kind: int, time: int, watermark: int) -> int | None:
    """The event time of a timer's results: its own, or for a processing time timer the watermark, if there is one."""
    if kind == EVENT:
        return time
    return watermark if BEGINNING < watermark < END else None


def timer_values(key: Key, kind: int, tag: str, time: int) -> dict[str, Any]:
    """A timer, as the value of a dead letter."""
    values = {name: key[name] for name in key._around.names}
    return {**values, "timer": tag, "time": moment(time), "kind": "clock" if kind else "event"}


def endless(key: Key, node: Process, tag: str) -> InvalidInput:
    return InvalidInput(
        f"the timers of {key} fired more than {FIRINGS_MAX:,} times in one step, the last one '{tag}'",
        where=f"step '{node.name}', {node.user_line}",
        next_step="set the next timer later than key.watermark or key.now; when the input has ended, key.watermark "
        "is datetime.max: do not set a timer then",
    )
