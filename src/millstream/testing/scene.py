"""The contents of a figure, in event time and processing time; no pixels here.

Processing time is the clock, or the number of the step if a script does not set the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import pyarrow as pa

from millstream.expressions.expression import evaluate
from millstream.plan.nodes import WindowedAggregate
from millstream.records import format_duration, rows_to_batch
from millstream.reference import BEGINNING, END, Row, micros
from millstream.testing.recording import Moment, Recording

Key = tuple[Any, ...]
Span = tuple[int | None, int | None]
YEAR = timedelta(days=366) // timedelta(microseconds=1)
LABEL_LENGTH_MAX = 22


class Fate(Enum):
    """What happened to an element: it was ahead of the watermark, behind it, or too late for a window."""

    IN_TIME = "in time"
    BEHIND = "behind the watermark"
    LOST = "too late"


@dataclass(frozen=True)
class Element:
    key: Key
    time: int | None
    at: int
    label: str
    fate: Fate
    weight: int


@dataclass(frozen=True)
class Pane:
    """A pane, with the values of the panes that it retracts."""

    key: Key
    span: Span
    at: int
    timing: str
    label: str
    retracted: tuple[str, ...]


@dataclass(frozen=True)
class Move:
    """The watermark moves; unbounded times are None."""

    at: int
    to: int | None


@dataclass(frozen=True)
class Scene:
    elements: list[Element]
    panes: list[Pane]
    watermark: list[Move]
    partitions: dict[str, list[Move]]
    caption: list[tuple[str, str]]
    key_names: tuple[str, ...]
    by_clock: bool
    in_processing_time: bool
    steps: int
    keys: list[Key] = field(default_factory=list)


def scene_of(recording: Recording) -> Scene:
    node, moments = recording.aggregate, recording.moments
    by_clock = _clock_is_used(moments)
    seen = [(moment, moment.clock if by_clock else number) for number, moment in enumerate(moments)]
    elements = list(_elements(node, seen))
    panes = [pane for moment, at in seen for pane in _panes(node, moment.sent, at)]
    names = moments[0].partitions if moments and len(moments[0].partitions) > 1 else ()
    partitions = {name: _moves([(at, moment.partitions[name]) for moment, at in seen]) for name in names}
    return Scene(
        elements,
        panes,
        _moves([(at, moment.watermark) for moment, at in seen]),
        partitions,
        _caption(node),
        node.keys,
        by_clock,
        _in_processing_time(node),
        len(moments),
        sorted({element.key for element in elements} | {pane.key for pane in panes}, key=str),
    )


def _in_processing_time(node: WindowedAggregate) -> bool:
    return getattr(node.window, "time", "event") == "processing"


def _clock_is_used(moments: Sequence[Moment]) -> bool:
    """Whether the clock is worth an axis: things happen at several times, and never before the clock is set."""
    clocks = {moment.clock for moment in moments if moment.given or moment.sent}
    return len(clocks) > 1 and not (0 in clocks and max(clocks) > YEAR)


def _moves(reached: Sequence[tuple[int, int]]) -> list[Move]:
    moves, last = [], BEGINNING
    for at, time in reached:
        if time > last:
            moves.append(Move(at, None if time >= END else time))
            last = time
    return moves


def _caption(node: WindowedAggregate) -> list[tuple[str, str]]:
    what = ", ".join(f"{name}={made}" for name, made in node.aggregates)
    lateness = f", allowed lateness {format_duration(node.lateness)}" if node.lateness else ""
    return [
        ("what", what + (f" per {', '.join(node.keys)}" if node.keys else "")),
        ("where", f"{node.window}{lateness}"),
        ("when", str(node.trigger)),
        ("how", node.mode.value),
    ]


# ---------------------------------------------------------------- elements


def _elements(node: WindowedAggregate, seen: Sequence[tuple[Moment, int]]) -> Iterator[Element]:
    lost = _lost([moment for moment, _ in seen])
    by_event_time = not _in_processing_time(node)
    for number, (moment, at) in enumerate(seen):
        for place, (row, value) in enumerate(zip(moment.given, _inputs(node, moment.given), strict=True)):
            behind = by_event_time and row.time is not None and row.time < moment.watermark_before
            fate = Fate.LOST if (number, place) in lost else Fate.BEHIND if behind else Fate.IN_TIME
            yield Element(tuple(row.values[name] for name in node.keys), row.time, at, value, fate, row.weight)


def _lost(moments: Sequence[Moment]) -> set[tuple[int, int]]:
    """Step and position of elements that went to `.late`: of this step, or an earlier one in a closed session."""
    lost: set[tuple[int, int]] = set()
    for number, moment in enumerate(moments):
        for late in moment.lost:
            alike = [
                (earlier, place)
                for earlier in reversed(range(number + 1))
                for place, row in enumerate(moments[earlier].given)
                if _is_same(late, row)
            ]
            here = [found for found in alike if found[0] == number] or alike
            lost.update(next(([found] for found in here if found not in lost), []))
    return lost


def _is_same(late: Row, row: Row) -> bool:
    return late.time == row.time and all(
        late.values.get(name) == value for name, value in row.values.items() if name not in ("window", "reason")
    )


def _inputs(node: WindowedAggregate, rows: Sequence[Row]) -> list[str]:
    """The input of the first aggregate that uses the rows."""
    arguments = dict(node.arguments)
    wanted = next((arguments[f"{name}.input"] for name, made in node.aggregates if "input" in made.arguments), None)
    if wanted is None or not rows:
        return ["" for _ in rows]
    batch, _ = rows_to_batch([row.values for row in rows], node.inputs[0].schema)
    made = evaluate({"value": wanted.lowered}, pa.Table.from_batches([batch]))
    return [short(value) for value in made.column("value").to_pylist()]


# ---------------------------------------------------------------- panes


def _panes(node: WindowedAggregate, rows: Sequence[Row], at: int) -> Iterator[Pane]:
    """Rows of weight -1 belong to the next pane of their key: it retracts them."""
    retracted: list[str] = []
    for row in rows:
        label = " · ".join(short(row.values[name]) for name, _ in node.aggregates[:3])
        if row.weight < 0:
            retracted.append(label)
            continue
        key = tuple(row.values[name] for name in node.keys)
        window = row.values["window"]
        span = (_micros(window["start"]), _micros(window["end"]))
        yield Pane(key, span, at, row.values["pane"]["timing"], label, tuple(retracted))
        retracted = []


def _micros(time: datetime | None) -> int | None:
    return None if time is None else micros(time)


def short(value: Any) -> str:
    """A value that fits a label."""
    if value is None:
        return "null"
    if isinstance(value, list):
        text = "[" + ", ".join(short(part) for part in value) + "]"
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LABEL_LENGTH_MAX else text[: LABEL_LENGTH_MAX - 1] + "…"
