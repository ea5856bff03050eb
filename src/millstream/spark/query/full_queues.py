"""Queues that a job writes, and whose limit makes it wait: while one is full, the sources of its flow are not read.

Whatever drains a queue goes on, so no job waits for itself: a source that reads the queue, or what is made of its rows,
is never held. Other flows of an app go on as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from millstream.connectors.source import Offsets
from millstream.connectors.topic.queue_endpoint import LimitedTopic
from millstream.connectors.topic.queue_positions import QueuePositions, group_of
from millstream.connectors.topic.queue_source import Limits
from millstream.log.kafka.address import KafkaAddress
from millstream.metrics.silence import FULL_QUEUE
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.walking import in_order
from millstream.records import Schema

FILE = "full_queues"
"""In the job's folder: which queue the job waits for, as text."""


@dataclass(frozen=True)
class WrittenQueue:
    output: str
    topic: str
    limits: Limits
    schema: Schema
    held: frozenset[str]
    """The sources that are not read while it is full."""
    drained_here: bool
    """Whether the job itself reads it."""


@dataclass(frozen=True)
class JobQueues:
    """The queues that make writers wait, of one job. Plans that are sent elsewhere have no sinks, but this."""

    job: str
    read: dict[str, str]
    """By source, its topic."""
    written: list[WrittenQueue]


@dataclass(frozen=True)
class Rooms:
    """What a job may read, given how full its queues are."""

    by_source: dict[str, int] = field(default_factory=dict)
    """How many rows a batch may read; sources that feed no queue are not in it."""
    waits_for: str | None = None
    waiting: tuple[int, ...] = ()
    """How many records wait in each of the queues."""

    def is_held(self, source: str) -> bool:
        return self.by_source.get(source) == 0


class FullQueues:
    """In the planner of a job: stores its positions in the queues that it reads, and looks at those that it writes."""

    def __init__(self, queues: JobQueues, broker: str | KafkaAddress | None, folder: Path) -> None:
        self._queues = queues
        self._broker = broker
        self._file = folder / FILE
        self._shown: str | None = None
        self._opened: QueuePositions | None = None
        with suppress(FileNotFoundError):
            self._file.unlink()

    @property
    def _positions(self) -> QueuePositions:
        if self._opened is None:
            self._opened = QueuePositions(self._broker)
        return self._opened

    def note(self, done: dict[str, Offsets]) -> None:
        """Stores up to where the job has read its queues and written what follows from it."""
        for name, topic in self._queues.read.items():
            self._positions.store(topic, group_of(topic, self._queues.job, name), done.get(name, {}))

    def rooms(self, *, bounded: bool) -> Rooms:
        """A bounded run ends where its input ended, so it does not wait for what it would have to read itself."""
        by_source: dict[str, int] = {}
        full: list[str] = []
        counts = []
        for queue in self._queues.written:
            if bounded and queue.drained_here:
                continue
            waiting = self._positions.waiting(queue.topic, queue.schema)
            room = waiting.room(queue.limits)
            counts.append(waiting.records)
            by_source |= {name: min(room, by_source.get(name, room)) for name in queue.held}
            if room == 0:
                full.append(f"{queue.output}: {FULL_QUEUE}{queue.topic}' is full: {waiting}")
        found = Rooms(by_source, "; ".join(full) or None, tuple(counts))
        self._show(found.waits_for)
        return found

    def _show(self, waits_for: str | None) -> None:
        if waits_for == self._shown:
            return
        with suppress(OSError):  # no job fails because it cannot be shown that it waits
            if waits_for is None:
                self._file.unlink(missing_ok=True)
            else:
                draft = self._file.with_suffix(".tmp")
                draft.write_text(waits_for)
                draft.replace(self._file)
        self._shown = waits_for


def waits_for_queue(folder: Path) -> str | None:
    """The full queue that the planner of a running job waits for."""
    try:
        return (folder / FILE).read_text() or None
    except OSError:
        return None


def queues_of(ends: Iterable[Node], job: str) -> JobQueues | None:
    """None, if the job neither reads nor writes a queue that makes writers wait."""
    outputs = [end for end in ends if isinstance(end, Write)]
    reads = [node for node in in_order(outputs) if isinstance(node, Read)]
    read = {node.name: node.source.topic for node in reads if _makes_wait(node.source)}
    written = written_queues(outputs)
    return JobQueues(job, read, written) if read or written else None


def written_queues(outputs: Sequence[Write]) -> list[WrittenQueue]:
    """The queues among the outputs, each with the sources of its flow that wait for it."""
    reads = {output: {node for node in in_order([output]) if isinstance(node, Read)} for output in outputs}
    found = []
    for output in outputs:
        if not _makes_wait(output.sink):
            continue
        flow = set(reads[output])
        while more := {other for own in reads.values() if own & flow for other in own} - flow:
            flow |= more
        draining = _draining(output, reads)
        held = frozenset(node.name for node in flow - draining)
        sink: LimitedTopic = output.sink
        found.append(WrittenQueue(output.name, sink.topic, sink.limits, output.schema, held, bool(draining)))
    return found


def _draining(queue: Write, reads: dict[Write, set[Read]]) -> set[Read]:
    """The sources that read a queue of the same job, or what its other steps make of its rows."""
    topics = {queue.sink.broker_topic}
    found: set[Read] = set()
    while True:
        more = {
            node
            for own in reads.values()
            for node in own
            if any(topic is not None and node.source.reads_topic(topic) for topic in topics)
        } - found
        if not more:
            return found
        found |= more
        topics |= {output.sink.broker_topic for output, own in reads.items() if own & found}


def _makes_wait(endpoint: object) -> bool:
    return isinstance(endpoint, LimitedTopic) and endpoint.makes_wait
