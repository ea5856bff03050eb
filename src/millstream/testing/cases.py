"""Writes a pane, a late row or a dead letter of a job as a test: `play` with the real rows, watermarks and clock.

The test is played once before it is written. It is refused unless it gives what the job gave.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from millstream.errors import AlreadyExists, InvalidInput
from millstream.log import connect
from millstream.operators.clock import Clock as StepClock
from millstream.plan.nodes import Node, Read
from millstream.plan.time.bundles import BEGINNING, END, moment
from millstream.plan.walking import in_order
from millstream.provenance.dead_letter_reasons import dead_record
from millstream.provenance.history import History
from millstream.provenance.late_reasons import Record, late_row
from millstream.provenance.panes import PaneQuestion, answered_pane
from millstream.provenance.replaying import Origin
from millstream.provenance.source_records import SourceRecords, source_records
from millstream.provenance.windows import KeyHistory
from millstream.testing.flow_steps import Output, decoded, flow_step
from millstream.testing.script import play
from millstream.testing.steps import Add, Batch, Clock, Watermark

ROWS_MAX = 1_000


@dataclass(frozen=True)
class FlowFile:
    """Where the flow of a test comes from."""

    path: Path
    flow: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A test: what happens, and what has to come out of it."""

    name: str
    story: str
    body: Sequence[str]
    needs: Sequence[str]
    """The names that it imports from millstream.testing."""


def case_of(
    history: History,
    file: FlowFile,
    *,
    pane: Mapping[str, Any] | None = None,
    late: Record | None = None,
    dead: Record | None = None,
    step: str | None = None,
) -> Case:
    """A test of a pane, a late record or a dead letter."""
    if pane is not None and late is None and dead is None:
        return pane_test(history, file, pane, step)
    if late is not None and pane is None and dead is None:
        return late_test(history, file, late, step)
    if dead is not None and pane is None and late is None:
        return dead_test(history, file, dead)
    raise InvalidInput("a test is of a pane, a late record or a dead letter", next_step="add --pane, --late or --dead")


def pane_test(history: History, file: FlowFile, asked: Mapping[str, Any], step: str | None = None) -> Case:
    """A test that a pane is what it was."""
    node = history.windowed_step(step)
    _, found, pane = answered_pane(history, node, PaneQuestion(node, asked))
    same = [each for each in found.panes if each.at <= pane.at and each.values["window"] == pane.values["window"]]
    is_fixed = node.window.has_end and not node.window.merges
    wanted = {number for each in same for number in each.fired.rows}
    rows = [row for row in found.arrived if row.at <= pane.at and (not is_fixed or row.number in wanted)]
    bundles = {row.at for row in rows} | {each.at for each in same}
    steps = _steps(history, found, [row.number for row in rows], sorted(bundles))
    key = ", ".join(f"{name}={value!r}" for name, value in pane.values.items() if name in node.keys)
    window = pane.values["window"]["start"]
    story = f"The pane of {key or 'all rows'}, window {window}, of batch {pane.moment.batch.number}."
    return _played(history, file, "pane", story, node, "rows", steps, pane.values)


def late_test(history: History, file: FlowFile, record: Record, step: str | None = None) -> Case:
    """A test that a record is late as it was."""
    made = late_row(history, record, step)
    if made is None:
        raise InvalidInput(f"offset {record[2]} of '{record[0]}' was not late", next_step="ask with --late alone")
    found, late = made
    numbers = [row.number for row in found.arrived if row.at < late.at or row.number == late.number]
    if late.values["reason"] != "closed" and not found.step.window.merges:
        numbers = [late.number]
    bundles = sorted({found.arrived[number].at for number in numbers})
    steps = _steps(history, found, numbers, bundles)
    story = f"Offset {record[2]} of partition {record[1]} of '{record[0]}' was late: {late.values['reason']}."
    return _played(history, file, "late_row", story, found.step, "late", steps, late.values)


def dead_test(history: History, file: FlowFile, record: Record) -> Case:
    """A test that a record cannot be handled, for the same reason."""
    _, found = dead_record(history, record)
    topic, partition, offset = record
    story = f"Offset {offset} of partition {partition} of '{topic}' became a dead letter of '{found.step.name}'."
    if isinstance(found.step, Read):
        values = [found.value or b""]
        (reason,) = decoded(file.path, found.step.name, values, flow=file.flow, params=file.params)
        _check(reason, found.reason)
        call = f"decoded(FLOW, {found.step.name!r}, [{literal(values[0])}]{_options(file)})"
        return Case("dead_letter", story, [f"assert {call} == [{literal(found.reason)}]"], ["decoded"])
    with source_records(history) as records:
        steps = [_bundle(found.clock, {found.origin.source: [_row(records, found.origin)]}, after=True)]
    return _played(history, file, "dead_letter", story, found.step, "dead", steps, {"reason": found.reason})


def write_test(case: Case, file: FlowFile, path: Path) -> None:
    """Writes a test file. An existing one is not replaced."""
    if path.exists():
        raise AlreadyExists(f"'{path}' exists", next_step="name another file, or delete it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(case, os.path.relpath(file.path.resolve(), path.parent.resolve())))


def text_of(case: Case, flow: str) -> str:
    """A test file; `flow` is the path of the flow's file, absolute or from the folder of the test."""
    lines = [
        f'"""{case.story}"""',
        "",
        "from datetime import date, datetime, timedelta, timezone",
        "from decimal import Decimal",
        "from pathlib import Path",
        "",
        f"from millstream.testing import {', '.join(case.needs)}",
        "",
        f"FLOW = Path(__file__).parent / {flow!r}",
        "",
        "",
        f"def test_{case.name}():",
        *(f"    {line}" if line else "" for line in case.body),
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- what happens


def _steps(history: History, found: KeyHistory, numbers: Sequence[int], bundles: Sequence[int]) -> list[Batch]:
    """The bundles of a key, each after a step that brings clock and watermark to where they were before."""
    rows = [found.arrived[number] for number in numbers]
    if any(row.origin is None for row in rows):
        raise InvalidInput(
            f"the rows of '{found.step.name}' are results of a step that keeps state, and cannot be played alone",
            next_step="write a test of that step instead: --step",
        )
    if any(row.weight != 1 for row in rows):
        raise InvalidInput("a source with retractions cannot be written as a test", next_step="write it by hand")
    if len(rows) > ROWS_MAX:
        raise InvalidInput(
            f"{len(rows):,} rows are too many for a test, which may have {ROWS_MAX:,}",
            next_step="choose a window with fewer rows",
        )
    steps: list[Batch] = []
    with source_records(history) as records:
        for at in bundles:
            clock = found.clocks[at]
            origins = dict.fromkeys(row.origin for row in rows if row.at == at and row.origin is not None)
            given: dict[str, list[dict[str, Any]]] = {}
            for origin in origins:
                given.setdefault(origin.source, []).append(_row(records, origin))
            steps += [_bundle(clock, {}, after=False), _bundle(clock, given, after=True)]
    return steps


def _bundle(clock: StepClock, given: Mapping[str, list[dict[str, Any]]], *, after: bool) -> Batch:
    now, watermark = (clock.now, clock.watermark) if after else (clock.now_before, clock.watermark_before)
    time = moment(now)
    assert time is not None
    made: list[Any] = [Clock(time), *(Add(rows, to=name) for name, rows in given.items())]
    if watermark > BEGINNING:
        made.append(Watermark(None if watermark >= END else moment(watermark)))
    return Batch(made)


def _row(records: SourceRecords, origin: Origin) -> dict[str, Any]:
    row = records.row(origin)
    if row is None:
        raise InvalidInput(
            f"offset {origin.offset} of partition {origin.partition} of '{origin.topic}' has expired",
            next_step="increase the retention of the topic to be able to write tests of older rows",
        )
    return row


# ---------------------------------------------------------------- the test


def _played(
    history: History,
    file: FlowFile,
    name: str,
    story: str,
    step: Node,
    output: Output,
    steps: Sequence[Batch],
    expected: Mapping[str, Any],
) -> Case:
    """Plays the steps, checks that what the job gave is the result, and makes a test of it."""
    sources = [node for node in in_order([step]) if isinstance(node, Read)]
    schema = {node.name: node.schema.ddl for node in sources}
    times = {node.name: node.event_time for node in sources if node.event_time is not None}
    topics = _topics(history)
    build: Callable[..., Any] = flow_step(
        file.path, step.name, output=output, flow=file.flow, topics=topics, params=file.params
    )
    given = list(play(build, steps, schema=schema, event_time=times)[-1])
    shown = [{key: row[key] for key in expected} for row in given]
    _check(dict(expected) if dict(expected) in shown else shown, dict(expected))
    compared = shown if output == "dead" else given
    options = f", output={output!r}" if output != "rows" else ""
    options += f", topics={literal(topics)}" if topics else ""
    body = [
        "steps = [",
        *(line for each in steps for line in _written(each)),
        "]",
        f"build = flow_step(FLOW, {step.name!r}{options}{_options(file)})",
        f"out = play(build, steps, schema={literal(schema)}, event_time={literal(times)})",
    ]
    result = "[row['reason'] for row in out[-1]]" if output == "dead" else "out[-1]"
    values = [row["reason"] for row in compared] if output == "dead" else compared
    body += [f"assert {result} == [", *(f"    {literal(each)}," for each in values), "]"]
    names = {"flow_step", "play", *(type(part).__name__ for each in steps for part in each.steps), "Batch"}
    return Case(name, story, body, sorted(names))


def _check(played: Any, expected: Any) -> None:
    if played != expected:
        raise InvalidInput(
            f"the flow in the file does not give what the job gave: {played!r} instead of {expected!r}",
            next_step="use the file as it was when the job ran; steps that ask other systems cannot be repeated",
        )


def _topics(history: History) -> dict[str, str]:
    """The schemas of the topics that the flow reads, as the log has them."""
    found = {}
    with connect(history.broker) as log:
        known = set(log.topics())
        for node in history.steps:
            topic = node.source.broker_topic if isinstance(node, Read) else None
            if topic in known and (schema := log.topic(topic).settings.schema) is not None:
                found[topic] = schema.ddl
    return found


def _options(file: FlowFile) -> str:
    flow = f", flow={file.flow!r}" if file.flow else ""
    return flow + (f", params={literal(dict(file.params))}" if file.params else "")


def _written(batch: Batch) -> list[str]:
    lines = ["    Batch(["]
    for step in batch.steps:
        if isinstance(step, Add):
            lines += ["        Add(["]
            lines += [f"            {literal(dict(row))}," for row in step.rows]
            lines += [f"        ], to={step.to!r}),"]
        else:
            assert isinstance(step, Clock | Watermark)
            lines.append(f"        {type(step).__name__}({literal(step.to)}),")
    return [*lines, "    ]),"]


def literal(value: Any) -> str:
    """A value as Python that makes an equal one."""
    if isinstance(value, datetime):
        parts = value.astimezone(UTC).timetuple()[:6]
        micros = f", {value.microsecond}" if value.microsecond else ""
        return f"datetime({', '.join(map(str, parts))}{micros}, tzinfo=timezone.utc)"
    if isinstance(value, date):
        return f"date({value.year}, {value.month}, {value.day})"
    if isinstance(value, timedelta):
        return f"timedelta(microseconds={value // timedelta(microseconds=1)})"
    if isinstance(value, Decimal):
        return f"Decimal({str(value)!r})"
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return f"float({str(value)!r})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(name)}: {literal(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(f"{literal(each)}, " for each in value) + ")"
    return repr(value)
