"""A user's function of each row and its key, over state that is one row per key.

Rows become Python values by column, one slice of a bundle at a time; a key's state is read and written once per bundle.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from millstream.errors import DamagedState
from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import ORDER, ROW, TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.stateful import DEAD, INPUTS, SENT, PlainStep
from millstream.plan import nodes
from millstream.plan.steps.process import (
    CLOCK,
    EVENT,
    FIRINGS_MAX,
    Key,
    around,
    bytes_of,
    endless,
    rows_given,
    timer_time,
    timer_values,
)
from millstream.plan.time.bundles import BEGINNING, EPOCH, MICROSECOND, dead_letter_values
from millstream.records import Schema, rows_to_batch
from millstream.records.python_values import ATOMS, UnreadableValues, decoded
from millstream.records.values import column_to_values, python_values
from millstream.state.tables import Marks

KEYS = "keys"
ALL_ROWS = "key."
"""The key of a step without key columns: true for every row."""
STATE, NEXT_EVENT, NEXT_CLOCK = "state", "next_event", "next_clock"
"""For each key: its state, and when its first timers are due."""
SLICE_ROWS = 8_192
"""How many rows exist as Python objects at one time."""


class ProcessStep(PlainStep):
    """A step that calls a user's function."""

    def __init__(self, node: nodes.Process) -> None:
        self.node = node
        self.keys = [f"key.{name}" for name in node.keys] or [ALL_ROWS]
        self.nothing = {INPUTS[0]: self.fed(elementwise.frame_of([], node.inputs[0]), 0)}
        self.around = around(node)
        self.copied = (
            _deep_copy if any(pa.types.is_nested(field.type) for field in node.schema.arrow) else _shallow_copy
        )

    def tables(self) -> Frames:
        kinds = {key: self.nothing[INPUTS[0]].schema[key] for key in self.keys}
        return {
            KEYS: pl.DataFrame(schema={**kinds, STATE: pl.Binary(), NEXT_EVENT: pl.Int64(), NEXT_CLOCK: pl.Int64()})
        }

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """The whole row, its keys, its time, and its position in order of arrival."""
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        keys = [rows[name].alias(f"key.{name}") for name in self.node.keys] or [(order >= 0).alias(ALL_ROWS)]
        return pl.DataFrame([rows.select(self.node.inputs[0].schema.names).to_struct(ROW), *keys, rows[TIME], order])

    def asked(self, inputs: Frames) -> Frames:
        return {KEYS: inputs[INPUTS[0]]}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        rows = inputs[INPUTS[0]]
        if not rows[ORDER].is_sorted():
            rows = rows.sort(ORDER, maintain_order=True)
        bundle = ProcessBundle(self, held[KEYS], rows, clock)
        bundle.call_for_rows()
        bundle.fire_timers()
        sent = bundle.sent_rows()
        return {KEYS: bundle.kept()}, {SENT: sent, DEAD: bundle.dead_letters()}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        # A pending timer is ahead of the watermark, so its output needs no hold.
        return {KEYS: Marks(pl.col(NEXT_EVENT), pl.col(NEXT_CLOCK))}


class ProcessBundle:
    """One step of the operator."""

    def __init__(
        self,
        step: ProcessStep,
        held: pl.DataFrame,
        rows: pl.DataFrame,
        clock: Clock,
        waiting: pl.DataFrame | None = None,
    ) -> None:
        """`waiting` are rows whose keys are not called yet."""
        self.step, self.node, self.around = step, step.node, step.around
        self.held, self.rows, self.clock = held, rows, clock
        self.waiting = rows.clear() if waiting is None else waiting
        self.sent: list[Any] = []
        self.times: list[int | None] = []
        self.sources: list[int] = []
        """For each emitted row, the number of the row or timer that emitted it: rows first, then timers."""
        self.firings: dict[int, tuple[dict[str, Any], int | None]] = {}
        self.places: dict[int, int] = {}
        """For each timer that fired, the place of the row that came next."""
        self.dead: dict[int, dict[str, Any]] = {}
        self.place = len(rows)
        """The place of the row that comes next, when a timer fires."""
        self.around.now = clock.now
        self._group()

    def _group(self) -> None:
        """Numbers the keys, held ones first, and reads the state of those that are called."""
        names = self.step.keys
        frames = (self.held, self.rows, self.waiting)
        both = pl.concat([frame.select(names) for frame in frames], how="vertical_relaxed")
        self.groups = both.with_row_index("__place").group_by(names, maintain_order=True).agg("__place")
        places = self.groups["__place"]
        numbers = np.empty(len(both), np.int64)
        if len(both):
            numbers[places.explode().to_numpy()] = np.repeat(np.arange(len(places)), places.list.len().to_numpy())
        _, self.numbers, self.waiting_numbers = np.split(numbers, [len(self.held), len(self.held) + len(self.rows)])
        is_called = np.zeros(len(places), np.bool_)
        is_called[self.numbers] = True
        due = (pl.col(NEXT_EVENT) <= self.clock.watermark) | (pl.col(NEXT_CLOCK) <= self.clock.now)
        is_called[: len(self.held)] |= self.held.select(due.fill_null(False)).to_series().to_numpy()
        self.is_called = is_called
        self.keys = self._keys()

    def _keys(self) -> dict[int, Key]:
        called = np.flatnonzero(self.is_called)
        groups = self.groups[called]
        schema = self.node.inputs[0].schema
        columns = [values_of(groups[f"key.{name}"], schema.field(name).type) for name in self.node.keys]
        values = zip(*columns, strict=True) if columns else [()] * len(called)
        keys = {number: Key(self.around, each) for number, each in zip(called.tolist(), values, strict=True)}
        known = called[called < len(self.held)]
        for number, state in zip(known.tolist(), self.held[STATE][known].to_list(), strict=True):
            if state is not None:
                _fill(keys[number], self._decoded(state))
        return keys

    def _decoded(self, state: bytes) -> list[Any]:
        try:
            return decoded(state)
        except UnreadableValues as why:
            raise DamagedState(
                f"the state of a key cannot be read: {why}",
                where=f"step '{self.node.name}'",
                next_step="restart the job from an older checkpoint, or without one from the beginning of its topics",
            ) from why

    # ------------------------------------------------------------ calls

    def call_for_rows(self) -> None:
        self.around.watermark = self.around.late_before = self.clock.watermark_before
        self._call_each(None)

    def _call_each(self, before: Callable[[int, int, int], None] | None) -> None:
        """Calls the function with each row, after `before` with its time, its place, and the number of its key."""
        keys, given = self.keys, self.node.inputs[0].schema
        function, copied = self.node.function, self.step.copied
        for start in range(0, len(self.rows), SLICE_ROWS):
            part = self.rows[start : start + SLICE_ROWS]
            numbers = self.numbers[start : start + SLICE_ROWS].tolist()
            for place, row, number, time in zip(count(start), _dicts(part, given), numbers, part[TIME].to_list()):
                if before is not None:
                    before(time, place, number)
                key = keys[number]
                state = key.state.copy()
                if key._before:
                    key._before.clear()
                key._time = time
                try:
                    made = function(row, key)
                    if made is None:
                        continue
                    rows = rows_given(made, copied)
                except Exception as error:  # whatever a user's function raises: the row becomes a dead letter
                    _undo(key, state)
                    self._send_dead_row(place, f"{type(error).__name__}: {error}")
                    continue
                self._send(rows, place, time)

    def fire_timers(self) -> None:
        self.around.watermark, self.around.late_before = self.clock.watermark, BEGINNING
        due = [number for number, key in self.keys.items() if _due(key, self.clock)]
        if not due:
            return
        order = self.groups[due].select(self.step.keys).with_columns(pl.Series("__number", due))
        for number in order.sort(self.step.keys, nulls_last=False)["__number"].to_list():
            self._fire(self.keys[number])

    def _fire(self, key: Key) -> None:
        """Fires the timers of a key until none is due, including those set meanwhile."""
        fired = 0
        while due := _due(key, self.clock):
            for kind, tag in due:
                fired += 1
                if fired > FIRINGS_MAX:
                    raise endless(key, self.node, tag)
                self._fire_one(key, kind, tag)
                if EVENT in key._before or CLOCK in key._before:  # the due timers have changed
                    break

    def _fire_one(self, key: Key, kind: int, tag: str) -> None:
        due = key._timers[kind].pop(tag)
        time = timer_time(kind, due, self.clock.watermark)
        state = key.state.copy()
        key._before.clear()
        key._time = time
        if self.node.on_timer is None:
            return
        number = len(self.rows) + len(self.firings)
        self.firings[number] = timer_values(key, kind, tag, due), time
        self.places[number] = self.place
        try:
            rows = rows_given(self.node.on_timer(tag, EPOCH + due * MICROSECOND, key), self.step.copied)
        except Exception as error:  # whatever a user's function raises: the timer becomes a dead letter
            _undo(key, state)
            self._send_dead_letter(number, *self.firings[number], f"timer '{tag}': {type(error).__name__}: {error}")
            return
        self._send(rows, number, time)

    def _send(self, rows: list[Any], source: int, time: int | None) -> None:
        self.sent += rows
        self.times += [time] * len(rows)
        self.sources += [source] * len(rows)

    # ------------------------------------------------------------ failures

    def _send_dead_row(self, place: int, reason: str) -> None:
        row = self.rows[place : place + 1]
        self._send_dead_letter(place, _dicts(row, self.node.inputs[0].schema)[0], row[TIME][0], reason)

    def _send_dead_letter(self, source: int, values: dict[str, Any], time: int | None, reason: str) -> None:
        letter = dead_letter_values(values, f"{self.node.name}: {reason}", self.clock.now)
        self.dead[source] = {**letter, TIME: time, WEIGHT: 1}

    def dead_letters(self) -> pl.DataFrame:
        """In the order of the calls: a timer before the row that came next."""
        places = self.places
        calls = sorted((places.get(source, source), source not in places, source) for source in self.dead)
        return elementwise.frame_of([self.dead[source] for *_, source in calls], None)

    # ------------------------------------------------------------ results

    def sent_rows(self) -> pl.DataFrame:
        """The emitted rows; if any result of a row or timer does not fit, none of its results are emitted."""
        batch, failures = rows_to_batch(self.sent, self.node.schema)
        frame = pl.from_arrow(pa.Table.from_batches([batch]))
        assert isinstance(frame, pl.DataFrame)
        unfit = {failure.index for failure in failures}
        kept = [place for place in range(len(self.sent)) if place not in unfit] if unfit else range(len(self.sent))
        times = pl.Series(TIME, [self.times[place] for place in kept] if unfit else self.times, pl.Int64)
        if self.node.event_time is not None:
            times = frame[self.node.event_time].cast(pl.Int64).alias(TIME)
        frame = frame.with_columns(times, pl.lit(1, pl.Int32).alias(WEIGHT))
        if not failures:
            return frame
        for failure in reversed(failures):  # the first failure of each is reported
            source, reason = self.sources[failure.index], f"ValueError: {failure.reason}"
            if source in self.firings:
                self._send_dead_letter(source, *self.firings[source], reason)
            else:
                self._send_dead_row(source, reason)
        return frame.filter(pl.Series([self.sources[place] not in self.dead for place in kept], dtype=pl.Boolean))

    def kept(self) -> pl.DataFrame:
        """The state of all keys that were held or called, except empty ones."""
        _, called = self.called_state()
        asleep = self.held.filter(~self.is_called[: len(self.held)])
        return pl.concat([asleep, called.select(asleep.columns)], how="vertical_relaxed")

    def called_state(self) -> tuple[list[int], pl.DataFrame]:
        """The state of the keys that were called, except empty ones, and the numbers of these keys."""
        numbers, states, event, clock = [], [], [], []
        for number, key in self.keys.items():
            parts = _parts(key)
            if not parts:
                continue
            numbers.append(number)
            states.append(bytes_of(parts, key, self.node))
            event.append(min(key._timers[EVENT].values(), default=None))
            clock.append(min(key._timers[CLOCK].values(), default=None))
        columns = [
            pl.Series(STATE, states, pl.Binary),
            pl.Series(NEXT_EVENT, event, pl.Int64),
            pl.Series(NEXT_CLOCK, clock, pl.Int64),
        ]
        return numbers, self.groups[numbers].select(self.step.keys).with_columns(columns)


# ---------------------------------------------------------------- keys


def _due(key: Key, clock: Clock) -> list[tuple[int, str]]:
    """Timers that are due: event time before processing time, by time, then in the order they were set."""
    found = []
    for kind, reached in ((EVENT, clock.watermark), (CLOCK, clock.now)):
        if timers := key._timers[kind]:
            due = [tag for tag, time in timers.items() if time <= reached]
            found += [(kind, tag) for tag in sorted(due, key=timers.__getitem__)]
    return found


def _undo(key: Key, state: dict[str, Any]) -> None:
    """Restores a key to before the row: its state, and the lists, maps and timers that the row used."""
    key.state = state
    for place, before in key._before.items():
        if place in (EVENT, CLOCK):
            key._timers[place] = before
        else:
            kind, name = place
            (key._lists if kind == "list" else key._maps)[name] = before


def _parts(key: Key) -> list[dict[str, Any]]:
    """The stored values of a key, without empty ones at the end: an empty list if there is nothing to store."""
    lists = {name: held for name, held in key._lists.items() if held} if key._lists else {}
    maps = {name: held for name, held in key._maps.items() if held} if key._maps else {}
    parts = [key.state, lists, maps, *key._timers]
    while parts and not parts[-1]:
        parts.pop()
    return parts


def _fill(key: Key, parts: list[dict[str, Any]]) -> None:
    key.state, *rest = parts
    if rest:
        key._lists, key._maps, *key._timers = rest + [{} for _ in range(4 - len(rest))]


# ---------------------------------------------------------------- rows


def _dicts(rows: pl.DataFrame, schema: Schema) -> list[dict[str, Any]]:
    whole = rows[ROW].struct.unnest()
    names = schema.names
    columns = [values_of(whole[field.name], field.type) for field in schema.arrow]
    return [dict(zip(names, row)) for row in zip(*columns)]  # noqa: B905  all are as long as the frame


def values_of(column: pl.Series, kind: pa.DataType) -> list[Any]:
    """The values of a column as Python objects, as in `batch_to_rows`."""
    types = pa.types
    if types.is_timestamp(kind) and kind.tz:
        instants = column.cast(pl.Int64).to_list()
        return [None if us is None else EPOCH + timedelta(0, 0, us) for us in instants]
    if types.is_integer(kind) or types.is_string(kind) or types.is_boolean(kind) or types.is_float64(kind):
        return column.to_list()
    whole = column.to_arrow().cast(kind)
    return column_to_values(whole, python_values, python_values)


def _shallow_copy(row: Any) -> Any:
    """A copy of a row, unaffected by later changes of the function."""
    return row.copy() if row.__class__ is dict else row


def _deep_copy(value: Any) -> Any:
    """The same for a row with lists and dicts."""
    kind = value.__class__
    if kind is dict:
        return {name: _deep_copy(part) for name, part in value.items()}
    if kind is list or kind is tuple:
        return [_deep_copy(part) for part in value]
    return value if kind in ATOMS else copy.deepcopy(value)
