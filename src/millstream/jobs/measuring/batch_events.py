"""Writes the events of a job's batches, in a thread of the driver: no batch fails or waits because of it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millstream import terminal
from millstream.connectors.sink import Sink
from millstream.connectors.source import Offsets
from millstream.errors import AlreadyExists, MillstreamError, UnknownTopic
from millstream.jobs.checkpoint_reader import Checkpoint
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.measuring.batch_event import (
    BatchEvent,
    StepFigures,
    TaskFigures,
    events_topic,
    from_bytes,
    plan_hash,
    to_bytes,
)
from millstream.jobs.measuring.job_metrics import JobMetrics, plan_of
from millstream.log import Broker, Producer
from millstream.metrics.samples import StepPlan, StepSample
from millstream.plan.nodes import Node, Read, Write
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.task_messages import Report, RowsReport, SourceReport, StepReport

RETENTION, RETENTION_BYTES, SEGMENT_BYTES = "30 days", 64 << 20, 4 << 20
WAITING_MAX = 10_000
"""Events that wait for a broker. What is dropped beyond that is missing in the topic."""
TICKS_MAX = 60
"""Fewer than a checkpoint has batches, so that a kill loses none for good."""
BATCHES_KEPT = 200
"""More than Spark keeps in a checkpoint."""
TAIL = 10
"""The newest events, which are read first to find out what was recorded."""
CLOSE_S = 30.0
"""A producer gives up sooner if its broker is away."""
TASK_MASK, GROUP_MASK = 0xFFFF, 0xFFF
"""The part of a task's number that counts tasks of a source, or key groups of a step."""
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class EventPlan:
    """The plan of some batches."""

    physical_plan: PhysicalPlan
    digest: str
    steps: Mapping[str, StepPlan]


@dataclass(frozen=True)
class Done:
    """What the driver knows of a batch when it is written."""

    number: int
    spark_number: int
    """In the checkpoint."""
    at: float
    reports: Sequence[tuple[int, Report]]
    rows: Mapping[str, StepSample]
    """By step, since the start of the run."""
    places: Mapping[str, Mapping[str, tuple[int, int]]]
    plan: EventPlan


@dataclass
class BatchEvents:
    """One per run. `record` is called by the batches, in order."""

    log: Broker
    folder: JobFolder
    run: str
    physical_plan: PhysicalPlan
    metrics: JobMetrics
    counts_rows: bool
    """Whether tasks report the rows of each step."""
    _waiting: queue.Queue[Done | None] = field(default_factory=lambda: queue.Queue(WAITING_MAX), init=False)
    _has_failed: bool = field(default=False, init=False)
    _is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._topic = events_topic(self.folder)
        self.change(self.physical_plan)
        self._complete = self.folder.newest_batches()[1]
        self._before: Mapping[str, StepSample] = {}
        self._ticks: list[BatchEvent] = []
        self._thread = threading.Thread(target=self._run, name="millstream-provenance", daemon=True)
        self._thread.start()

    def change(self, physical_plan: PhysicalPlan) -> None:
        """The batches that are recorded from now on have this plan."""
        steps = {each.name: each for each in plan_of(physical_plan)}
        self._plan = EventPlan(physical_plan, plan_hash(physical_plan), steps)

    def record(
        self,
        number: int,
        spark_number: int,
        reports: Sequence[tuple[int, Report]],
        written: Mapping[str, int],
        sinks: Mapping[Write, Sink],
    ) -> None:
        """Notes a batch whose results are written. `reports` have the numbers of their tasks."""
        if not self._thread.is_alive():
            return
        places = {output.name: sink.take_places() for output, sink in sinks.items()}
        rows = self.metrics.counts(written)
        done = Done(number, spark_number, time.time(), reports, rows, places, self._plan)
        try:
            self._waiting.put_nowait(done)
        except queue.Full:
            self._warn("the broker accepts none")

    def close(self) -> None:
        """Stores the events that wait, unless that takes too long. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            self._create()
            with self.log.producer(when_full="drop_oldest", buffer_bytes="8 MiB") as producer:
                for event in self._missed():
                    self._send(producer, event)
                while (done := self._waiting.get()) is not None:
                    self._add(producer, self._event(done))
                self._send_ticks(producer)
        except MillstreamError as error:
            self._warn(error.what)
        except Exception:  # a job goes on without its events
            logger.exception("events of the batches of '%s' are missing", self.folder.job)

    def _warn(self, why: str) -> None:
        if not self._has_failed:
            logger.warning("events of the batches of '%s' are missing: %s", self.folder.job, why)
        self._has_failed = True

    def _create(self) -> None:
        try:
            self.log.describe_topic(self._topic)
        except UnknownTopic:
            settings = {"retention": RETENTION, "retention_bytes": RETENTION_BYTES, "segment_bytes": SEGMENT_BYTES}
            with suppress(AlreadyExists):  # another process was faster
                self.log.create_topic(self._topic, **settings)

    def _missed(self) -> Iterator[BatchEvent]:
        """What the checkpoint has of batches whose events were lost, because the job was killed."""
        if self._complete < 0:
            return
        newest, kept = self._newest(), self.folder.description()
        shift = 0 if kept is None else kept.shift
        before: dict[str, Any] | None = None
        for number in range(max(0, newest - shift, self._complete - BATCHES_KEPT), self._complete + 1):
            end = self._offsets(number)
            if end is not None and number + shift > newest:
                starts = None if before is None else before["sources"]
                yield _event(self.run, number + shift, end["clock"] / 1e6, starts, end)
            before = end

    def _newest(self) -> int:
        """The newest batch that has an event."""
        info = self.log.describe_topic(self._topic).partitions[0]
        for first in (max(info.start_offset, info.end_offset - TAIL), info.start_offset):
            with self.log.consumer(self._topic, start=first) as consumer:
                events = [from_bytes(record.value) for record in consumer.until_caught_up()]
            numbers = [event.batch for event in events if event.run == self.run]
            if numbers:
                return max(numbers)
        return -1

    def _offsets(self, number: int) -> dict[str, Any] | None:
        return Checkpoint(self.folder.checkpoint, operators=0, partitions=0).offsets_of(number)

    def _event(self, done: Done) -> BatchEvent:
        read: dict[str, Offsets] = {}
        for _, report in done.reports:
            if isinstance(report, SourceReport):
                own = read.setdefault(report.source, {})
                for partition, start, _ in report.read:
                    own[partition] = min(start, own.get(partition, start))
        end = self._offsets(done.spark_number) or {"clock": 0, "ended": False, "sources": {}}
        starts = {
            source: {name: read.get(source, {}).get(name, offset) for name, offset in own.items()}
            for source, own in end["sources"].items()
        }
        before, self._before = self._before, {**self._before, **done.rows}  # a step that is away may come back
        steps = {
            node.name: self._figures(node, done, before.get(node.name, StepSample(0, 0)))
            for node in done.plan.physical_plan.order
        }
        made = _event(self.run, done.number, done.at, starts, end)
        return msgspec.structs.replace(made, plan=done.plan.digest, steps=steps, tasks=tuple(_tasks(done)))

    def _figures(self, node: Node, done: Done, before: StepSample) -> StepFigures:
        now, plan = done.rows[node.name], done.plan.steps[node.name]
        target = str(node.source) if isinstance(node, Read) else str(node.sink) if isinstance(node, Write) else None
        is_counted = self.counts_rows or target is not None
        return StepFigures(
            plan.kind,
            _since(now.rows_in, before.rows_in) if self.counts_rows else None,
            _since(now.rows_out, before.rows_out) if is_counted else None,
            now.rows_late - before.rows_late,
            now.rows_dead - before.rows_dead,
            target,
            plan.topic,
            dict(done.places.get(node.name, {})),
        )

    def _add(self, producer: Producer, event: BatchEvent) -> None:
        """Sends an event, unless nothing happened: such batches are part of the next event."""
        if event.is_idle:
            self._ticks.append(event)
            if len(self._ticks) > TICKS_MAX:
                self._send_ticks(producer)
            return
        ticks, self._ticks = tuple(each.clock for each in self._ticks), []
        self._send(producer, msgspec.structs.replace(event, ticks=ticks))

    def _send_ticks(self, producer: Producer) -> None:
        if self._ticks:
            *before, last = self._ticks
            self._ticks = []
            self._send(producer, msgspec.structs.replace(last, ticks=tuple(each.clock for each in before)))

    def _send(self, producer: Producer, event: BatchEvent) -> None:
        producer.send(self._topic, to_bytes(event))


def _tasks(done: Done) -> Iterator[TaskFigures]:
    sources = {node.name for node in done.plan.physical_plan.order if isinstance(node, Read)}
    found: dict[tuple[str, int], TaskFigures] = {}
    for number, report in done.reports:
        match report:
            case SourceReport(source=step) | StepReport(step=step) | RowsReport(origin=step):
                task = number & (TASK_MASK if step in sources else GROUP_MASK)
                found[step, task] = _added(found.get((step, task), TaskFigures(step, task)), report)
    return (each for each in found.values() if each != TaskFigures(each.step, each.task))


def _event(run: str, batch: int, at: float, starts: Mapping[str, Offsets] | None, end: Mapping[str, Any]) -> BatchEvent:
    """`end` is that of the batch in the checkpoint."""
    known = None if starts is None else dict(starts)
    return BatchEvent(run, batch, at, "", end["clock"], known, end["sources"], end.get("done", {}), end["ended"])


def _since(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _added(task: TaskFigures, report: SourceReport | StepReport | RowsReport) -> TaskFigures:
    match report:
        case SourceReport():
            read, rows, dead = (*task.read, *report.read), task.rows + report.rows, task.rows_dead + report.dead
            return msgspec.structs.replace(task, read=read, rows=rows, rows_dead=dead)
        case StepReport():
            return msgspec.structs.replace(task, rows_late=task.rows_late + report.late)
    rows_out = {**task.rows_out}
    for step, rows in report.rows.items():
        rows_out[step] = rows_out.get(step, 0) + rows
    return msgspec.structs.replace(task, rows_out=rows_out)
