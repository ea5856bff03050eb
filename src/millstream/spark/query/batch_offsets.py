"""The feed of a running job: its sources, its clock, and the limits of a batch.

An idle job ticks, so that processing time advances: a batch without rows carries the clock. While no rows arrive the
planner waits on the log, so it sees new rows at once.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from millstream import terminal
from millstream.connectors.source import Offsets, Slab, Slice, Source
from millstream.errors import DamagedState, MillstreamError, SinkFailed, SourceUnavailable
from millstream.log.kafka.address import KafkaAddress, as_kafka
from millstream.log.storage.disk import read_document
from millstream.plan.nodes import Read
from millstream.plan.time.bundles import BEGINNING, END
from millstream.spark.query import task_messages
from millstream.spark.query.full_queues import FullQueues, JobQueues, Rooms
from millstream.spark.query.job_clock import JobClock
from millstream.spark.query.opened_sources import opened
from millstream.spark.query.packing import CONTROL, Packed, to_batch
from millstream.spark.query.rewinding import Rewind, read_rewinds, rewound
from millstream.spark.query.state_runner import Shipment
from millstream.spark.query.task_messages import ClockControl
from millstream.spark.query.task_reading import Reader, Task, grouped
from millstream.spark.query_failures import marked

STOP = "stop"
Result = TypeVar("Result")
logger = terminal.logger(__name__)
REACHED = "reached.json"
REDO = "redo.json"
HALTED = "halted"
"""In the end of a batch: the job reads nothing behind it. Only a rehearsal has such a batch."""
SEVERAL_WAIT_S = 0.02
UNAVAILABLE_S_MAX, RETRY_S = 600.0, 1.0
BATCH_BYTES_MAX = 256 << 20
FULL_S = 0.1
"""How often a full queue is looked at."""
STALLED_S_MAX = 30.0
"""How long a bounded run waits for the reader of a full queue that does not move."""


@dataclass
class JobFeed:
    shipment: Shipment
    folder: str
    """The job's folder."""
    broker: str | None
    tasks_max: int
    limit_rows: int | None
    tick_s: float
    starts: dict[str, Offsets]
    """By source, the offsets to start at; by default the earliest."""
    ends: bool = False
    """Whether this is a batch run, which closes all windows at the end."""
    queues: JobQueues | None = None
    """Those in which it stores its positions, and those for whose readers it waits."""
    _until: dict[str, Offsets] | None = field(default=None, repr=False)
    _ticked: bool = False
    _clock: JobClock = field(default_factory=JobClock, repr=False)
    _planned_at: float = field(default=-math.inf, repr=False)
    _notes: list[str] = field(default_factory=list, repr=False)
    """Losses that sources reported while a batch was planned."""
    _waited_s: float = field(default=0.0, repr=False)
    _planned_s: float = field(default=0.0, repr=False)
    """Since the last batch."""
    _kafka: KafkaAddress | None = field(default=None, repr=False)
    _rooms: Rooms = field(default_factory=Rooms, repr=False)

    def __post_init__(self) -> None:
        self._kafka = as_kafka(self.broker)  # in the driver, which has the file that its settings may be in

    # ------------------------------------------------------------ in the driver

    def initial(self) -> dict[str, Any]:
        starts = {node.name: self.starts.get(node.name) or self.source(node).earliest() for node in self._nodes()}
        return {"clock": 0, "ended": False, "sources": starts}

    def stop_at_latest(self) -> None:
        self._until = self.ends_of(self._nodes())

    def ends_of(self, nodes: Sequence[Read]) -> dict[str, Offsets]:
        """By source, the first offset of each partition that does not exist yet; the same for all of one topic."""
        found: dict[int, Offsets] = {}
        for node in nodes:
            if id(self.source(node)) not in found:
                found[id(self.source(node))] = self.source(node).latest()
        return {node.name: found[id(self.source(node))] for node in nodes}

    def latest(self, start: dict[str, Any], *, must_move: bool = False) -> dict[str, Any]:
        """With `must_move` there is a next batch, also without rows."""
        began, waited_s = time.monotonic(), self._waited_s
        end = self._latest(start, must_move=must_move)
        self._planned_s += time.monotonic() - began - (self._waited_s - waited_s)
        return end

    def _latest(self, start: dict[str, Any], *, must_move: bool) -> dict[str, Any]:
        if start["ended"] or start.get(HALTED):
            return start
        if (Path(self.folder) / STOP).exists():
            self._note(self._begun(start))
            return start
        if start["clock"] in self._repeated_ends:
            return self._repeated_ends[start["clock"]]
        begun = self._begun(start)
        sources = self._retrying(lambda: self._reachable(begun))
        if sources == begun and self._until is not None:
            sources = self._when_there_is_room(begun)
        if sources == begun and self._until is None and not must_move:
            began = time.monotonic()
            self._retrying(lambda: self._wait(begun))
            self._waited_s += time.monotonic() - began
            sources = self._retrying(lambda: self._reachable(begun))
        ended = self.ends and self._is_all(sources)
        moves = must_move or sources != begun or ended != start["ended"]
        waited_s = time.monotonic() - self._planned_at
        ticks = (
            self._until is None
            and self.shipment.physical_plan.needs_ticks
            and ((bool(self._nodes()) and self._rooms.waits_for is None) or waited_s >= self.tick_s)
        )
        if self._until is not None and self.shipment.physical_plan.dataframe_sources and not self._ticked:
            ticks = self._ticked = True  # once, so that a DataFrame's rows have a time
        if not moves and not ticks:
            return start
        self._planned_at = time.monotonic()
        clock = self._clock.read(start["clock"])
        return {"clock": clock, "ended": ended, "sources": sources, "done": self._finished(sources)}

    @cached_property
    def _repeated_ends(self) -> dict[int, dict[str, Any]]:
        """By the clock of the previous batch, the end of each batch that a repaired job repeats."""
        return {entry["after"]: entry["end"] for entry in redo_entries(Path(self.folder))}

    def _begun(self, offset: dict[str, Any]) -> dict[str, Offsets]:
        """By source, where a batch starts that follows the one with this end."""
        found = rewound(offset, self._rewinds)
        return {name: begun or self.starts.get(name, {}) for name, begun in found.items()}  # empty: before any batch

    @cached_property
    def _rewinds(self) -> list[Rewind]:
        return read_rewinds(Path(self.folder))

    def _finished(self, sources: dict[str, Offsets]) -> dict[str, list[str]]:
        """In a bounded run, the fully read partitions, which the watermark ignores if `idle` is set.

        Part of the offset, so that a repeated batch has the same watermarks in any kind of run.
        """
        if self._until is None:
            return {}
        timing = self.shipment.physical_plan.timing
        return {
            node.name: [part for part, end in self._until[node.name].items() if sources[node.name].get(part, 0) >= end]
            for node in self._nodes()
            if (timed := timing.get(node)) is not None and timed.watermark is not None
            if timed.watermark.idle is not None
        }

    def _reachable(self, start: dict[str, Offsets]) -> dict[str, Offsets]:
        """The furthest end of a batch with this start. A source that left the flow keeps its offsets."""
        self._note(start)
        if self._full_queues is not None:
            self._rooms = self._full_queues.rooms(bounded=self._until is not None)
        found = dict(start)
        ends: dict[tuple[Any, ...], Offsets] = {}
        for node in self._nodes():
            source = self.source(node)
            if self._rooms.is_held(node.name):
                found.setdefault(node.name, {})
                continue
            place = id(source), self._limit(node), *sorted(start.get(node.name, {}).items())
            if place not in ends:
                with step_of_error(node):
                    ends[place] = source.limited(start.get(node.name, {}), self._limit(node))
                self._notes += source.take_losses()
            end = ends[place]
            if self._until is not None and not node.source.is_inner:  # what the run writes there, it reads as well
                until = self._until[node.name]
                end = {name: min(offset, until[name]) for name, offset in end.items() if name in until}
            found[node.name] = start.get(node.name, {}) | end  # a partition that is away keeps its offset
        return found

    def _note(self, done: dict[str, Offsets]) -> None:
        if self._full_queues is not None:
            self._full_queues.note(done)

    def _when_there_is_room(self, start: dict[str, Offsets]) -> dict[str, Offsets]:
        """The furthest end once a full queue has room. A reader that does not move ends the run."""
        moved_at, before = time.monotonic(), self._rooms
        while (waits_for := before.waits_for) is not None and not (Path(self.folder) / STOP).exists():
            time.sleep(FULL_S)
            found = self._retrying(lambda: self._reachable(start))
            if found != start:
                return found
            if self._rooms.waiting != before.waiting:
                moved_at, before = time.monotonic(), self._rooms
            elif time.monotonic() - moved_at > STALLED_S_MAX:
                step, _, why = waits_for.partition(": ")
                raise SinkFailed(
                    f"{why}; no reader has moved for {STALLED_S_MAX:g} seconds",
                    where=f"step '{step}'",
                    next_step="start the flow that reads the queue, and run this one again: it continues where it "
                    "stopped. A reader that is gone for good: millstream groups delete GROUP",
                )
            before = replace(before, waits_for=self._rooms.waits_for)
        return start

    @cached_property
    def _full_queues(self) -> FullQueues | None:
        if self.queues is None:
            return None
        return FullQueues(self.queues, self._kafka or self.broker, Path(self.folder))

    def _retrying(self, ask: Callable[[], Result]) -> Result:
        """Asks the sources; retries while brokers are unavailable, unless the job is asked to stop."""
        deadline = time.monotonic() + UNAVAILABLE_S_MAX
        while True:
            try:
                return ask()
            except SourceUnavailable as error:
                if self._until is not None or time.monotonic() > deadline or (Path(self.folder) / STOP).exists():
                    raise
                logger.warning("waiting for a source: %s", error.what)
                time.sleep(RETRY_S)

    def _limit(self, node: Read) -> int | None:
        """The largest number of rows that a batch reads of a source: the user's limit, and what fits into memory."""
        room, limit = self._rooms.by_source.get(node.name), self.limit_rows
        row_bytes = None if limit is None else self.source(node).row_bytes()
        if limit is not None and row_bytes is not None:
            limit = max(1, min(limit, int(BATCH_BYTES_MAX / max(1.0, row_bytes))))
        return limit if room is None else min(room, room if limit is None else limit)

    def _is_all(self, sources: dict[str, Offsets]) -> bool:
        assert self._until is not None
        return all(
            sources[name].get(part, 0) >= end for name, ends in self._until.items() for part, end in ends.items()
        )

    def _wait(self, start: dict[str, Offsets]) -> None:
        free = [node for node in self._nodes() if not self._rooms.is_held(node.name)]
        places = {(id(self.source(node)), *sorted(start.get(node.name, {}).items())): node for node in free}
        nodes = list(places.values())  # steps that read the same topic from the same place wait for the same rows
        patience_s = self.tick_s if self._rooms.waits_for is None else min(FULL_S, self.tick_s)
        if len(nodes) == 1:
            self.source(nodes[0]).wait(start.get(nodes[0].name, {}), patience_s)
            return
        if not nodes and self._rooms.waits_for is not None:
            time.sleep(patience_s)
            return
        if not nodes:  # Spark DataFrames do not wait: the clock must not delay them
            time.sleep(SEVERAL_WAIT_S)
            return
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if any(self.source(node).wait(start.get(node.name, {}), SEVERAL_WAIT_S / len(nodes)) for node in nodes):
                return

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        began = time.monotonic()
        slices: dict[int, dict[int, list[Slice]]] = {0: {}}
        silent: dict[int, list[str]] = {}
        begun = self._begun(start)
        known: dict[tuple[Any, ...], list[list[Slice]]] = {}
        for number, node in enumerate(self._nodes()):
            source = self.source(node)
            if node.name not in end["sources"]:
                continue  # added to the flow since the batch was planned
            first, until = begun.get(node.name, {}), end["sources"][node.name]
            place = id(source), tuple(sorted(first.items())), tuple(sorted(until.items()))
            if place not in known:
                with step_of_error(node):
                    known[place] = self._retrying(partial(source.slices, first, until, self.tasks_max))
                self._notes += source.take_losses()
            found = known[place]
            for task, part in enumerate(found):
                slices.setdefault(task, {})[number] = part
            active = {each.partition for part in found for each in part}
            silent[number] = [name for name in until if name not in active]
        watermark_max = self._watermark_max(start["clock"])
        notes = [*([self._clock.report] if self._clock.report else []), *self._notes]
        self._notes.clear()
        waited_s, planned_s = self._waited_s, self._planned_s + time.monotonic() - began
        self._waited_s = self._planned_s = 0.0
        counts = {node.name: self.source(node).dropped_rows for node in self._nodes()}
        dropped = {name: count for name, count in counts.items() if count}
        return [
            Task(
                task,
                parts,
                silent if task == 0 else {},
                end["sources"] if task == 0 else {},
                end.get("done", {}) if task == 0 else {},
                notes if task == 0 else [],
                end["clock"],
                end["ended"],
                watermark_max,
                waited_s if task == 0 else 0.0,
                planned_s if task == 0 else 0.0,
                dropped=dropped if task == 0 else {},
            )
            for task, parts in slices.items()
        ]

    def _watermark_max(self, clock: int) -> int:
        """The highest watermark after the batch with this clock; the end of time if unknown."""
        if clock == 0:
            return BEGINNING
        try:
            published = json.loads((Path(self.folder) / REACHED).read_text())
            return int(published["watermark"]) if published["clock"] >= clock else END
        except (OSError, ValueError, LookupError, TypeError):
            return END

    def _nodes(self) -> list[Read]:
        return self.shipment.physical_plan.fed_sources

    def source(self, node: Read) -> Source:
        broker = self._kafka or self.broker
        return opened(node, self.shipment.physical_plan, broker, Path(self.folder), self.shipment.run)

    # ------------------------------------------------------------ in the workers

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        plan = self.shipment.worker_plan
        if task.number == 0 and plan.physical_plan.dataframe_sources:  # a Spark DataFrame does not carry our clock
            clock = task_messages.to_bytes(ClockControl(task.now))
            steps = range(len(plan.physical_plan.chain))
            yield to_batch([(label, step, CONTROL, 0, clock) for step in steps for label in plan.labels])
        together: dict[tuple[Any, ...], list[Reader]] = {}
        for number, node in enumerate(plan.physical_plan.fed_sources):
            if number in task.slices or number in task.silent:
                place = plan.physical_plan.reads_as[node], tuple(task.slices.get(number, []))
                together.setdefault(place, []).append(Reader(plan, node, number, task))
        for readers in together.values():
            for packed in grouped(self._read(readers, task)):  # a few at a time: Spark buffers a whole batch
                yield to_batch(packed)

    def _read(self, readers: Sequence[Reader], task: Task) -> Iterator[Packed]:
        """Reads a source once for all steps that read the same of it."""
        first = readers[0]
        for each in task.slices.get(first.number, []):
            with marked(self.shipment.mark, first.node.name):
                for slab in self._slabs(first.node, each):
                    for reader in readers:
                        with marked(self.shipment.mark, reader.node.name):
                            reader.add(slab, each.partition)
        losses = self.source(first.node).take_losses()
        for reader in readers:
            with marked(self.shipment.mark, reader.node.name):
                yield from reader.packed(losses if reader is first else [])

    def _slabs(self, node: Read, slice: Slice) -> Iterator[Slab]:
        """The rows of a slice. While the source is unavailable the task waits, then continues after the last row."""
        reached, dead = slice.start - 1, 0
        asked_at = time.monotonic()
        while True:
            seen = 0
            try:
                for slab in self.source(node).read(slice):
                    count = 0 if slab.dead is None else slab.dead.num_rows
                    rest = slab.after(reached, min(count, max(0, dead - seen)))
                    seen += count
                    dead = max(dead, seen)
                    reached = max(reached, int(slab.offsets[-1])) if len(slab.offsets) else reached
                    yield rest
                    asked_at = time.monotonic()
                return
            except SourceUnavailable as error:  # a source may have waited for long itself
                if time.monotonic() - asked_at > UNAVAILABLE_S_MAX or (Path(self.folder) / STOP).exists():
                    raise
                logger.warning("waiting for a source: %s", error.what)
                time.sleep(RETRY_S)


@contextmanager
def step_of_error(node: Read) -> Iterator[None]:
    """Names the source in an error that is raised while a batch is planned."""
    try:
        yield
    except MillstreamError as error:
        error.step = node.name
        raise


def redo_entries(folder: Path) -> list[dict[str, Any]]:
    """The batches that a repaired job repeats after the first: their numbers, and the offsets they end at."""
    path = folder / REDO
    if not path.exists():
        return []
    try:
        found = [dict(entry) for entry in read_document(path)["batches"]]
        if any(entry.keys() != {"batch", "after", "end"} for entry in found):
            raise ValueError("it does not list batches")
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedState(
            f"the batches that the job has to repeat cannot be read: {error}",
            where=str(path),
            next_step=f"restore the file from a copy, or rebuild the results: millstream jobs rebuild {folder.name}",
        ) from error
    return found
