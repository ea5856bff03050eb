"""Why a record was late: what moved the watermark past it, and what would have kept it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import polars as pl

from millstream.errors import InvalidInput, NotFound
from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.elementwise import OFFSET, table_of
from millstream.plan.nodes import Node, Read, WindowedAggregate
from millstream.plan.time.bundles import AHEAD, END, micros, moment
from millstream.plan.time.late import late_columns
from millstream.plan.time.timing import Timed, timing
from millstream.plan.time.watermarks import Bounded
from millstream.plan.time.windows import microseconds
from millstream.plan.walking import in_order
from millstream.provenance.bounds import with_bound
from millstream.provenance.history import History
from millstream.provenance.replaying import Moment, Origin, Replay
from millstream.provenance.watermark_moves import moves_over, reached_at
from millstream.provenance.windows import KeyHistory, LateRow
from millstream.records import batch_to_rows, format_duration

Record = tuple[str, int, int]
"""Topic, partition and offset."""


@dataclass(frozen=True)
class Came:
    """A record as a row in front of a step."""

    step: Node
    values: dict[str, Any]
    time: int | None
    origin: Origin
    moment: Moment
    watermark: int
    """Of the step's input, when the row arrived."""


def why_late(history: History, record: Record, step: str | None = None) -> dict[str, Any]:
    """For each step that can have late rows: whether the record was late there, why, and what would have kept it."""
    topic, partition, offset = record
    steps = [node for node in history.steps if late_columns(node) is not None and step in (None, node.name)]
    if not steps:
        what = f"the flow '{history.flow.name}' has no step" + (f" '{step}'" if step else "")
        raise InvalidInput(f"{what} with late rows", next_step="name a step with a window, or leave out step= (--step)")
    replay = history.replay([given for node in steps for given in node.inputs])
    batch, came = _found(replay, steps, record)
    if batch is None:
        raise NotFound(
            f"no recorded batch of '{history.job}' has read offset {offset} of partition {partition} of '{topic}'",
            next_step=f"sources: {', '.join(str(node.source) for node in replay.sources)}; see also the notes: "
            f"{'; '.join(replay.notes) or 'none'}",
        )
    return {
        "job": history.job,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "batch": batch.batch.number,
        "clock": moment(batch.clock),
        "steps": [_answer(history, each) for each in came],
        "reached": [each.step.name for each in came],
        "notes": history.notes(replay, steps[0]),
    }


def late_row(history: History, record: Record, step: str | None) -> tuple[KeyHistory, LateRow] | None:
    """The late row that a record became in a windowed step; None if it was not late."""
    for node in history.windowed:
        if step not in (None, node.name):
            continue
        replay = history.replay([node.inputs[0]])
        _, came = _found(replay, [node], record)
        for each in came:
            _, found = _of_key(history, node, each)
            for late in found.late:
                if found.arrived[late.number].origin == each.origin:
                    return found, late
    return None


def _found(replay: Replay, steps: Sequence[Node], record: Record) -> tuple[Moment | None, list[Came]]:
    """The batch that read a record, and the record as a row in front of each step that it reached."""
    for at in replay.moments():
        numbers = replay.numbers_of(*record)
        if not any(track.has(number) for track in at.tracks for number in numbers):
            continue
        came = []
        for step in steps:
            for given in step.inputs:
                flowing = at.sent[given]
                if OFFSET not in flowing.rows.columns:
                    continue
                rows = flowing.rows.filter(pl.col(OFFSET).is_in(numbers))
                values = [row for batch in table_of(rows, given.schema).to_batches() for row in batch_to_rows(batch)]
                came += [
                    Came(step, row, time, replay.origin(number), at.without_rows(), flowing.clock.watermark_before)
                    for row, time, number in zip(values, rows[TIME], rows[OFFSET], strict=True)
                ]
        return at, came
    return None, []


def _of_key(history: History, step: WindowedAggregate, came: Came) -> tuple[Replay, KeyHistory]:
    again = history.replay([step.inputs[0]])
    key = {name: came.values[name] for name in step.keys}
    return again, KeyHistory(step, key, again)


def _answer(history: History, came: Came) -> dict[str, Any]:
    answer: dict[str, Any] = {"step": came.step.name, "row": came.values, "event_time": _event_time(came.time)}
    answer["watermark"] = None if abs(came.watermark) >= END else moment(came.watermark)
    if came.time is None or came.time == AHEAD:
        reason = "no event time" if came.time is None else "ahead"
        return {**answer, "late": True, "windows": [{"window": None, "reason": reason}]}
    if isinstance(came.step, WindowedAggregate):
        return {**answer, **_in_windows(history, came.step, came)}
    if came.time >= came.watermark:
        return {**answer, "late": False, "windows": []}
    late_by = timedelta(microseconds=came.watermark - came.time)
    bound, needed = _bounds(came.step, late_by)
    kept_by = {"bound": bound, "bound_needed": None if needed is None else format_duration(needed)}
    window = {"window": None, "reason": "expired", "late_by": format_duration(late_by), **kept_by}
    return {**answer, "late": True, "windows": [window]}


def _in_windows(history: History, step: WindowedAggregate, came: Came) -> dict[str, Any]:
    again, found = _of_key(history, step, came)
    late = [each for each in found.late if found.arrived[each.number].origin == came.origin]
    return {"late": bool(late), "windows": [_window(history, step, came, each, again) for each in late]}


def _window(history: History, step: WindowedAggregate, came: Came, late: LateRow, replay: Replay) -> dict[str, Any]:
    """Why a window did not take the row. A trigger that finishes closes its window before it expires."""
    span, reason = late.values["window"], late.values["reason"]
    answer: dict[str, Any] = {"window": span, "reason": reason}
    if span is None or span["end"] is None or not step.window.has_end:
        return answer
    end = micros(span["end"])
    limit = end if step.trigger.can_finish else min(END, end + microseconds(step.lateness))
    if came.watermark < limit:
        return answer
    passed = reached_at(limit, step.inputs[0], replay)
    answer["passed_by"] = None if passed is None else moves_over(limit, passed, replay)
    late_by = timedelta(microseconds=came.watermark - limit + 1)
    bound, needed = _bounds(step, late_by)
    if needed is not None and step.trigger.can_finish and _is_late_with(history, step, came, needed):
        needed = None  # the trigger finishes for another reason
    lateness = None if step.trigger.can_finish else step.lateness + late_by
    return {
        **answer,
        "late_by": format_duration(late_by),
        "bound": bound,
        "bound_needed": None if needed is None else format_duration(needed),
        "lateness": format_duration(step.lateness),
        "lateness_needed": None if lateness is None else format_duration(lateness),
    }


def _bounds(step: Node, late_by: timedelta) -> tuple[list[str], timedelta | None]:
    """The bounds of a step's sources, and the one with which a row would not have been late."""
    bounds = {node.watermark.delay for node in _timed(step) if isinstance(node.watermark, Bounded)}
    return [format_duration(each) for each in sorted(bounds)], bounds.pop() + late_by if len(bounds) == 1 else None


def _is_late_with(history: History, step: WindowedAggregate, came: Came, bound: timedelta) -> bool:
    other = history.changed(partial(with_bound, bound=bound))
    _, found = _of_key(other, other.windowed_step(step.name), came)
    return any(found.arrived[each.number].origin == came.origin for each in found.late)


def _timed(step: Node) -> list[Timed]:
    order = in_order([step])
    found = timing(order)
    return [found[node] for node in order if isinstance(node, Read) and node in found]


def _event_time(time: int | None) -> datetime | None:
    return None if time == AHEAD else moment(time)
