"""How many dead letters a flow would take: their records are decoded, and run through its steps for single rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl

from millstream.connectors.opening import open_source
from millstream.connectors.source import Slice, Source
from millstream.errors import InvalidInput
from millstream.local import Flowing, Local
from millstream.log.kafka.address import as_kafka
from millstream.operators.clock import Clock
from millstream.operators.elementwise import OFFSET, frame_of
from millstream.operators.mapping import MAPPED
from millstream.plan.flow import Flow
from millstream.plan.nodes import Dead, Node, Read
from millstream.plan.time.bundles import BEGINNING
from millstream.plan.walking import in_order
from millstream.provenance.dead_letters import DeadLetter
from millstream.provenance.replaying import check_here
from millstream.records import DEAD_LETTER_SCHEMA
from millstream.spark.query.source_frames import dead_frame, framed


def rehearsed(flow: Flow, letters: Sequence[DeadLetter], *, broker: str, folder: Path) -> dict[str, Any]:
    """What the flow would do with the letters: how many of each reason it takes, and why it would not take the rest."""
    steps = in_order(flow.check())
    sources = [node for node in steps if isinstance(node, Read)]
    outcomes: dict[int, str | None] = {}
    expired = set(range(len(letters)))
    for node in sources:
        own = [number for number, letter in enumerate(letters) if letter.topic == node.source.broker_topic]
        if own:
            made = _outcomes(node, steps, {number: letters[number] for number in own}, broker, folder)
            outcomes |= {number: reason for number, reason in made.items() if outcomes.get(number) is None}
            expired -= made.keys()
    if not any(letter.topic == node.source.broker_topic for letter in letters for node in sources):
        origins = ", ".join(sorted({str(letter.topic) for letter in letters})) or "none"
        raise InvalidInput(
            f"the flow '{flow.name}' reads none of the topics that the dead letters come from: {origins}",
            next_step="name the file of the flow that wrote them",
        )
    reasons = dict.fromkeys(letter.reason for letter in letters)
    return {
        "letters": len(letters),
        "taken": sum(reason is None for reason in outcomes.values()),
        "expired": len(expired),
        "reasons": [_of_reason(reason, letters, outcomes) for reason in reasons],
    }


def _of_reason(reason: str, letters: Sequence[DeadLetter], outcomes: dict[int, str | None]) -> dict[str, Any]:
    own = [number for number, letter in enumerate(letters) if letter.reason == reason]
    left = Counter(outcomes[number] for number in own if outcomes.get(number) is not None)
    taken = sum(number in outcomes and outcomes[number] is None for number in own)
    return {"reason": reason, "letters": len(own), "taken": taken, "left": dict(left)}


def _outcomes(
    node: Read, steps: Sequence[Node], letters: dict[int, DeadLetter], broker: str, folder: Path
) -> dict[int, str | None]:
    """By letter, why its record would be dead again; None if it would not. Expired ones are left out."""
    ends = [step for step in steps if _is_of_rows(step, node)]
    check_here(ends)
    failing = [step for step in ends if isinstance(step, Read) or type(step) in MAPPED]
    sides = [Dead(f"{step.name}.rehearsed", DEAD_LETTER_SCHEMA, (step,), step.user_line) for step in failing]
    outcomes: dict[int, str | None] = {}
    with ExitStack() as opened:
        source = open_source(
            node.source,
            node.schema,
            broker=as_kafka(broker) or broker,
            folder=folder / "sources" / node.name,
            name=node.name,
            on_lost="earliest",
        )
        opened.callback(source.close)
        local = Local([*ends, *sides])
        frames = [frame_of([], node).with_columns(pl.Series(OFFSET, [], pl.Int64))]
        for number, rows, lost in _read(node, source, letters):
            frames.append(rows.with_columns(pl.lit(number, pl.Int64).alias(OFFSET)).select(frames[0].columns))
            outcomes |= {number: lost["reason"][0]} if len(lost) else {number: None} if len(rows) else {}
        now = time.time_ns() // 1000
        sent = local.run(
            {node: Flowing(pl.concat(frames), Clock(BEGINNING, BEGINNING, now, now))}, {node: frame_of([], None)}
        )
        for side in sides:
            outcomes |= dict(zip(sent[side].rows["offset"], sent[side].rows["reason"], strict=True))
    return outcomes


def _read(
    node: Read, source: Source, letters: dict[int, DeadLetter]
) -> Iterator[tuple[int, pl.DataFrame, pl.DataFrame]]:
    for number, letter in letters.items():
        if not letter.has_origin:
            continue
        assert letter.source_offset is not None
        place = Slice(str(letter.source_partition), letter.source_offset, letter.source_offset + 1)
        for slab in source.read(place):
            yield number, framed(slab, node, node.schema.names), dead_frame(slab)


def _is_of_rows(step: Node, source: Read) -> bool:
    """Whether a step handles single rows of this source alone."""
    before = in_order([step])
    others = [node for node in before if isinstance(node, Read) and node is not source]
    return source in before and not others and not any(node.keeps_state or isinstance(node, Dead) for node in before)
