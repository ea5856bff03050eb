"""The panes of one key, each with the rows in it and the reason why it was sent.

The rules of time are those of the reference, which runs only the rows of this key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from millstream.local import Flowing
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock
from millstream.operators.elementwise import OFFSET, table_of
from millstream.plan.nodes import Mode, WindowedAggregate
from millstream.plan.time.bundles import Bundle, Row
from millstream.provenance.replaying import Moment, Origin, Replay
from millstream.provenance.trigger_reasons import Instant, Reason, expiry_reason, reasons
from millstream.records import batch_to_rows
from millstream.reference.windows import Pane, WindowOperator

ROW = "\0row"
"""Under this name a row carries its number among the rows of its key."""


@dataclass(frozen=True)
class Arrived:
    """A row of the key as it came to the step."""

    number: int
    values: dict[str, Any]
    time: int | None
    weight: int
    origin: Origin | None
    """None if it is the result of a step that keeps state."""
    batch: int
    at: int
    """The number of its replayed bundle."""


@dataclass(frozen=True)
class Fired:
    """A pane before it is sent."""

    rows: tuple[int, ...]
    """The numbers of the rows in it."""
    new: frozenset[int]
    reasons: tuple[Reason, ...]
    instant: Instant


@dataclass(frozen=True)
class SentPane:
    """A pane as the job sent it."""

    values: dict[str, Any]
    fired: Fired
    moment: Moment
    at: int


@dataclass(frozen=True)
class LateRow:
    """A row that a window did not take, with its window and the reason."""

    number: int
    values: dict[str, Any]
    moment: Moment
    at: int


class TracedWindows(WindowOperator):
    """The windows of some rows; knows which rows are in a pane, and why it was sent."""

    def __init__(self, node: WindowedAggregate) -> None:
        super().__init__(node)
        self.fired: list[Fired] = []

    def _arguments(self, rows: list[Row]) -> list[dict[str, Any]]:
        return super()._arguments([replace(row, values=_without_number(row.values)) for row in rows])

    def firing(self, pane: Pane, at_end: bool, bundle: Bundle, *, is_ready: bool) -> None:
        instant = Instant(at_end, bundle.clock, bundle.watermark_before, bundle.watermark, pane.end)
        if not self.node.window.has_end:
            instant = replace(instant, window_end=None)
        found = (
            reasons(self.node.trigger, pane.trigger, instant) if is_ready else [expiry_reason(instant, self.lateness)]
        )
        rows = pane.waiting if self.node.mode is Mode.DISCARDING else pane.rows
        new = frozenset(row.values[ROW] for row in pane.waiting)
        self.fired.append(Fired(tuple(row.values[ROW] for row in rows), new, tuple(found), instant))


def _without_number(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != ROW}


class KeyHistory:
    """All panes and late rows of one key of a step."""

    def __init__(self, step: WindowedAggregate, key: dict[str, Any], replay: Replay) -> None:
        """`replay` observes the input of the step."""
        self.step = step
        self.arrived: list[Arrived] = []
        self.panes: list[SentPane] = []
        self.late: list[LateRow] = []
        self.clocks: dict[int, Clock] = {}
        """By number of a bundle in which rows of the key arrived, or panes of it were sent: its clock and watermark."""
        self._windows = TracedWindows(step)
        self._replay = replay
        self._key = key
        for at, moment in enumerate(replay.moments()):
            self._take(moment, at)

    def _take(self, moment: Moment, at: int) -> None:
        flowing = moment.sent[self.step.inputs[0]]
        rows = list(self._rows(flowing, moment, at))
        clock = flowing.clock
        bundle = Bundle(rows, clock.watermark_before, clock.watermark, clock.now_before, clock.now)
        self._windows.fired = []
        sent = [row for row in self._windows.step(bundle).rows if row.weight > 0]
        moment = moment.without_rows()
        for row, fired in zip(sent, self._windows.fired, strict=True):
            self.panes.append(SentPane(row.values, fired, moment, at))
        for row in self._windows.late:
            self.late.append(LateRow(row.values[ROW], _without_number(row.values), moment, at))
        if rows or sent:
            self.clocks[at] = clock

    def _rows(self, flowing: Flowing, moment: Moment, at: int) -> Iterator[Row]:
        frame = of_key(flowing.rows, self._key)
        table = table_of(frame, self.step.inputs[0].schema)
        values = [row for batch in table.to_batches() for row in batch_to_rows(batch)]
        origins = frame[OFFSET] if OFFSET in frame.columns else [None] * len(frame)
        for row, time, weight, read_at in zip(values, frame[TIME], frame[WEIGHT], origins, strict=True):
            number, origin = len(self.arrived), None if read_at is None else self._replay.origin(read_at)
            self.arrived.append(Arrived(number, row, time, weight, origin, moment.batch.number, at))
            yield Row({**row, ROW: number}, time, weight)


def of_key(rows: pl.DataFrame, key: dict[str, Any]) -> pl.DataFrame:
    for name, value in key.items():
        rows = rows.filter(pl.col(name).is_null() if value is None else pl.col(name) == pl.lit(value))
    return rows
