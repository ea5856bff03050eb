"""The feed of a running job: its sources, the clock, and how far a batch may go.

An idle job ticks, so that processing time goes on: a batch without rows carries the clock. While nothing comes the
planner waits at the log, so rows are seen as soon as they are there.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from millstream import terminal
from millstream.connectors.opening_sources import KafkaSource, Offsets, Slab, Slice, Source, TopicSource, open_source
from millstream.errors import DamagedState, KafkaUnavailable
from millstream.log.disk import read_document
from millstream.log.kafka.address import KafkaAddress, as_kafka
from millstream.operators.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET, frame_of
from millstream.operators.stateful import DEAD, SENT
from millstream.operators.watermarks import told
from millstream.plan.bundles import BEGINNING, END
from millstream.plan.endpoints import Kafka
from millstream.plan.nodes import Read
from millstream.records import Schema
from millstream.secrets import Secret
from millstream.spark.failures import marked
from millstream.spark.query.input_watermarks import CLOCK
from millstream.spark.query.job_clock import JobClock
from millstream.spark.query.lost_records import taken_losses
from millstream.spark.query.packing import CONTROL, DRIVER, REPORT, Packed, control_to_bytes, to_batch
from millstream.spark.query.physical_plan import Place, event_times
from millstream.spark.query.state_runner import Plan, Shipment

STOP = "stop"
Answer = TypeVar("Answer")
logger = terminal.logger(__name__)
REACHED = "reached.json"
REDO = "redo.json"
SEVERAL_WAIT_S = 0.02
AWAY_S_MAX, AWAY_LOOK_S = 600.0, 1.0
BATCH_BYTES_MAX = 256 << 20
SOURCES_KEPT = 32


@dataclass(frozen=True)
class Task:
    """What one task of a batch reads: by the number of a source, its slices, and partitions that have nothing new."""

    number: int
    slices: dict[int, list[Slice]]
    silent: dict[int, list[str]]
    ends: dict[str, Offsets]
    """By the name of a source, how far the batch goes; one task reports it."""
    done: dict[str, list[str]]
    """By the name of a source, partitions that count as idle from now on."""
    notes: list[str]
    """What the planner found odd: one task reports it."""
    now: int
    ended: bool
    reached: int


@dataclass
class LiveFeed:
    shipment: Shipment
    folder: str
    """The job's own."""
    broker: str | None
    tasks_max: int
    limit_rows: int | None
    tick_s: float
    starts: dict[str, Offsets]
    """Where to begin, by the name of a source; the earliest rows where nothing is said."""
    ends: bool = False
    """Whether time ends with what is there now: a bounded run whose windows all close."""
    _until: dict[str, Offsets] | None = field(default=None, repr=False)
    _ticked: bool = False
    _clock: JobClock = field(default_factory=JobClock, repr=False)
    _planned_at: float = field(default=-math.inf, repr=False)
    _notes: list[str] = field(default_factory=list, repr=False)
    """What sources passed over while a batch was planned."""
    _kafka: KafkaAddress | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._kafka = as_kafka(self.broker)  # here, where the file is that its settings may stand in

    # ------------------------------------------------------------ in the driver

    def initial(self) -> dict[str, Any]:
        starts = {node.name: self.starts.get(node.name) or self._open(node).earliest() for node in self._nodes()}
        return {"clock": 0, "ended": False, "sources": starts}

    def stop_at_present(self) -> None:
        self._until = {node.name: self._open(node).latest() for node in self._nodes()}

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        if start["ended"] or (Path(self.folder) / STOP).exists():
            return start
        if start["clock"] in self._redone:
            return self._redone[start["clock"]]
        sources = self._retrying(lambda: self._reachable(start["sources"]))
        if sources == start["sources"] and self._until is None:
            self._retrying(lambda: self._wait(start["sources"]))
            sources = self._retrying(lambda: self._reachable(start["sources"]))
        ended = self.ends and self._is_all(sources)
        moves = sources != start["sources"] or ended != start["ended"]
        waited_s = time.monotonic() - self._planned_at
        ticks = (
            self._until is None
            and bool(self.shipment.layout.chain)
            and (bool(self._nodes()) or waited_s >= self.tick_s)
        )
        if self._until is not None and self.shipment.layout.framed_sources and not self._ticked:
            ticks = self._ticked = True  # once, so that a DataFrame's rows have a time
        if not moves and not ticks:
            return start
        self._planned_at = time.monotonic()
        clock = self._clock.read(start["clock"])
        return {"clock": clock, "ended": ended, "sources": sources, "done": self._done(sources)}

    @cached_property
    def _redone(self) -> dict[int, dict[str, Any]]:
        """By the clock of the batch before, how far batches went that a repaired job does again."""
        return {entry["after"]: entry["end"] for entry in redo_entries(Path(self.folder))}

    def _done(self, sources: dict[str, Offsets]) -> dict[str, list[str]]:
        """In a bounded run, the partitions that are read to their end: with `idle` given, nobody waits for them.

        It is part of the offset, so that a batch that is done again, in whatever kind of run, has the same watermarks.
        """
        if self._until is None:
            return {}
        return {
            node.name: [part for part, end in self._until[node.name].items() if sources[node.name].get(part, 0) >= end]
            for node in self._nodes()
            if node.watermark is not None and node.watermark.idle is not None
        }

    def _reachable(self, start: dict[str, Offsets]) -> dict[str, Offsets]:
        """As far as a batch may go that begins there. A source that is not in the flow now keeps its place."""
        found = dict(start)
        for node in self._nodes():
            source = self._open(node)
            end = source.limited(start.get(node.name, {}), self._limit(node))
            self._notes += taken_losses(source)
            if self._until is not None:
                until = self._until[node.name]
                end = {name: min(offset, until[name]) for name, offset in end.items() if name in until}
            found[node.name] = end
        return found

    def _retrying(self, ask: Callable[[], Answer]) -> Answer:
        """An answer of the sources; brokers that are away are waited for, unless the job is to end."""
        deadline = time.monotonic() + AWAY_S_MAX
        while True:
            try:
                return ask()
            except KafkaUnavailable as away:
                if self._until is not None or time.monotonic() > deadline or (Path(self.folder) / STOP).exists():
                    raise
                logger.warning("the job waits for Kafka: %s", away.what)
                time.sleep(AWAY_LOOK_S)

    def _limit(self, node: Read) -> int | None:
        """How many rows of a source a batch has at most: as was asked for, and what fits into memory."""
        source = self._open(node)
        if self.limit_rows is None or not isinstance(source, TopicSource | KafkaSource):
            return self.limit_rows
        return max(1, min(self.limit_rows, int(BATCH_BYTES_MAX / max(1.0, source.row_bytes()))))

    def _is_all(self, sources: dict[str, Offsets]) -> bool:
        assert self._until is not None
        return all(
            sources[name].get(part, 0) >= end for name, ends in self._until.items() for part, end in ends.items()
        )

    def _wait(self, start: dict[str, Offsets]) -> None:
        nodes = self._nodes()
        if len(nodes) == 1:
            self._open(nodes[0]).wait(start.get(nodes[0].name, {}), self.tick_s)
            return
        if not nodes:  # DataFrames of Spark wait for nobody: the clock must not hold them up
            time.sleep(SEVERAL_WAIT_S)
            return
        deadline = time.monotonic() + self.tick_s
        while time.monotonic() < deadline:
            if any(self._open(node).wait(start.get(node.name, {}), SEVERAL_WAIT_S / len(nodes)) for node in nodes):
                return

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        slices: dict[int, dict[int, list[Slice]]] = {0: {}}
        silent: dict[int, list[str]] = {}
        for number, node in enumerate(self._nodes()):
            source = self._open(node)
            if node.name not in end["sources"]:
                continue  # added to the flow since the batch was first begun
            begin, until = start["sources"].get(node.name, {}), end["sources"][node.name]
            found = self._retrying(partial(source.slices, begin, until, self.tasks_max))
            self._notes += taken_losses(source)
            for task, part in enumerate(found):
                slices.setdefault(task, {})[number] = part
            spoke = {each.partition for part in found for each in part}
            silent[number] = [name for name in until if name not in spoke]
        reached = self._reached(start["clock"])
        notes = [*([self._clock.report] if self._clock.report else []), *self._notes]
        self._notes.clear()
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
                reached,
            )
            for task, parts in slices.items()
        ]

    def _reached(self, clock: int) -> int:
        """How far watermarks had come at most after the batch with this clock; the end of time if nobody knows."""
        if clock == 0:
            return BEGINNING
        try:
            note = json.loads((Path(self.folder) / REACHED).read_text())
            return int(note["watermark"]) if note["clock"] >= clock else END
        except (OSError, ValueError, LookupError, TypeError):
            return END

    def _nodes(self) -> list[Read]:
        return self.shipment.layout.fed_sources

    def _open(self, node: Read) -> Source:
        columns = self.shipment.layout.reading[node]
        return opened(node, columns, self._kafka or self.broker, Path(self.folder), self.shipment.name)

    # ------------------------------------------------------------ in the workers

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        plan = self.shipment.plan
        if task.number == 0 and plan.layout.framed_sources:  # a DataFrame of Spark does not know our time
            said = control_to_bytes({"origin": CLOCK, "now": task.now})
            steps = range(len(plan.layout.chain))
            yield to_batch([(label, step, CONTROL, 0, said) for step in steps for label in plan.labels])
        for number, node in enumerate(plan.layout.fed_sources):
            if number in task.slices or number in task.silent:
                for packed in self._read(plan, node, number, task):
                    yield to_batch([packed])  # one at a time: Spark holds a batch in one piece

    def _read(self, plan: Plan, node: Read, number: int, task: Task) -> Iterator[Packed]:
        with marked(self.shipment.mark, node.name):
            yield from self._read_all(plan, node, number, task)

    def _read_all(self, plan: Plan, node: Read, number: int, task: Task) -> Iterator[Packed]:
        packer = plan.packer(node, task=(number << 16) + task.number, reached=task.reached)
        partitions: dict[str, tuple[int | None, bool]] = dict.fromkeys(task.silent.get(number, []), (None, False))
        count = dead = 0
        for each in task.slices.get(number, []):
            partitions.setdefault(each.partition, (None, True))
            for slab in self._open(node).read(each):
                rows = framed(slab, node, plan.layout.reading[node].names)
                count, dead = count + len(rows), dead + (0 if slab.dead is None else len(slab.dead))
                said, before = told(node, rows), partitions[each.partition][0]
                if said is not None:
                    partitions[each.partition] = (said if before is None else max(said, before), True)
                packer.add({SENT: rows, DEAD: dead_frame(slab)}, task.now, Place(str(node.source), each.partition))
        control: dict[str, Any] = {"now": task.now, "partitions": partitions}
        if done := [name for name in task.silent.get(number, []) if name in task.done.get(node.name, [])]:
            control["done"] = done
        if task.ended:
            control["watermark"] = END
        yield from packer.pack(control)
        ends = task.ends.get(node.name, {})
        report = {"source": node.name, "rows": count, "dead": dead, "now": task.now, "ends": ends}
        report |= {
            "partitions": {name: told_ for name, (told_, _) in partitions.items()},
            "notes": [*task.notes, *taken_losses(self._open(node))],
        }
        yield plan.labels[0], DRIVER, REPORT, task.number, control_to_bytes(report)


def framed(slab: Slab, node: Read, names: Sequence[str]) -> pl.DataFrame:
    """Some columns of rows as they were read, with time, weight and offset."""
    rows = pl.from_arrow(slab.rows.select(list(names)))
    assert isinstance(rows, pl.DataFrame)
    # A topic whose first records had no such column gives nulls for them.
    weights = rows["weight"].cast(pl.Int32).fill_null(1) if node.changes and "weight" in rows.columns else None
    return rows.with_columns(
        event_times(rows, node),
        pl.lit(1, pl.Int32).alias(WEIGHT) if weights is None else weights.alias(WEIGHT),
        pl.Series(OFFSET, np.asarray(slab.offsets, np.int64)),
    )


def dead_frame(slab: Slab) -> pl.DataFrame:
    if slab.dead is None or not len(slab.dead):
        return frame_of([], None)
    dead = pl.from_arrow(slab.dead)
    assert isinstance(dead, pl.DataFrame)
    return dead.with_columns(pl.lit(None, pl.Int64).alias(TIME), pl.lit(1, pl.Int32).alias(WEIGHT))


def redo_entries(folder: Path) -> list[dict[str, Any]]:
    """The batches that a repaired job does again after the first: their numbers, and how far they went."""
    path = folder / REDO
    if not path.exists():
        return []
    try:
        found = [dict(entry) for entry in read_document(path)["batches"]]
        if any(entry.keys() != {"batch", "after", "end"} for entry in found):
            raise ValueError("it lists something else than batches")
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedState(
            f"how far the batches went that the job does again cannot be read: {error}",
            where=str(path),
            next_step=f"restore the file from a copy, or rebuild the results: millstream jobs rebuild {folder.name}",
        ) from error
    return found


_SOURCES: dict[tuple[Any, ...], Source] = {}


def opened(node: Read, columns: Schema, broker: str | KafkaAddress | None, folder: Path, run: str) -> Source:
    """A source is opened once in each process for a run of a job: the next may start over in the same folder."""
    place = (
        *_named(node.source),
        node.on_lost,
        repr(node.schema),
        repr(columns),
        str(broker),
        str(folder),
        node.name,
        run,
    )
    if place not in _SOURCES:
        while len(_SOURCES) >= SOURCES_KEPT:
            _SOURCES.pop(next(iter(_SOURCES))).close()
        own = folder / "sources" / node.name
        _SOURCES[place] = open_source(
            node.source,
            node.schema,
            broker=broker,
            folder=own,
            name=node.name,
            columns=columns,
            on_lost=node.on_lost,
        )
    return _SOURCES[place]


def _named(source: Any) -> tuple[str, ...]:
    """Tells sources apart, also by their settings; a secret is named by its number."""
    if not isinstance(source, Kafka):
        return (str(source),)
    settings = (
        f"{name}={value.number if isinstance(value, Secret) else value}" for name, value in source.settings.items()
    )
    return (str(source), source.format, str(source.registry), source.on_lost, *sorted(settings))
