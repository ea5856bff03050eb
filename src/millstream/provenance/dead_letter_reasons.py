"""Why a record became a dead letter: the step that could not handle it, and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from millstream.errors import InvalidInput, NotFound
from millstream.operators.clock import Clock
from millstream.plan.nodes import Dead, Node, Read, Write
from millstream.plan.time.bundles import moment
from millstream.provenance.history import History
from millstream.provenance.late_reasons import Record
from millstream.provenance.replaying import Moment, Origin, Replay


@dataclass(frozen=True)
class DeadRecord:
    """A record that a step of the flow could not handle."""

    step: Node
    reason: str
    value: bytes | None
    moment: Moment
    clock: Clock
    origin: Origin


def dead_record(history: History, record: Record) -> tuple[Replay, DeadRecord]:
    """The dead letter that a record became; an error if it became none."""
    sides = [node for node in history.steps if isinstance(node, Dead) and _is_here(node)]
    if not sides:
        raise InvalidInput(
            f"the flow '{history.flow.name}' writes no dead letters that could be repeated here",
            next_step="write .dead of a step to a topic",
        )
    replay = history.replay(sides)
    was_read = False
    for at in replay.moments():
        numbers = replay.numbers_of(*record)
        here = [number for track in at.tracks for number in numbers if track.has(number)]
        if not here:
            continue
        was_read = True
        for side in sides:
            step, flowing = side.inputs[0], at.sent[side]
            # A source knows the offsets of its letters; behind it, a row carries its origin in the place of an offset.
            wanted = [record[2]] if isinstance(step, Read) else here
            if isinstance(step, Read) and not any(replay.origin(each).source == step.name for each in here):
                continue
            letters = flowing.rows.filter(pl.col("offset").is_in(wanted))
            if isinstance(step, Read):
                letters = letters.filter((pl.col("topic") == record[0]) & (pl.col("partition") == record[1]))
            for letter in letters.to_dicts():
                found = replay.origin(here[0] if isinstance(step, Read) else letter["offset"])
                return replay, DeadRecord(step, letter["reason"], letter["value"], at, flowing.clock, found)
        break
    topic, partition, offset = record
    what = "became no dead letter" if was_read else "was not read in a recorded batch"
    raise NotFound(
        f"offset {offset} of partition {partition} of '{topic}' {what} of '{history.job}'",
        next_step="millstream dead-letters list shows the dead letters of a topic, with their origins",
    )


def why_dead(history: History, record: Record) -> dict[str, Any]:
    """The step that could not handle a record, and why."""
    replay, found = dead_record(history, record)
    return {
        "job": history.job,
        "topic": record[0],
        "partition": record[1],
        "offset": record[2],
        "step": found.step.name,
        "reason": found.reason,
        "value": found.value,
        "batch": found.moment.batch.number,
        "clock": moment(found.moment.clock),
        "notes": history.notes(replay, found.step),
    }


def _is_here(side: Node) -> bool:
    """Whether the letters of a step are known without writing to a sink."""
    return not isinstance(side.inputs[0], Write)
