"""Runs the steps that need Spark's own engine: packed rows become typed ones, Spark evaluates, and packing follows.

Typed rows hold nothing but the rows of these steps: neither filters nor the user's functions see anything else. What is
packed for other steps waits in a file meanwhile. All of it is one task of Spark, without a shuffle, so the Python
processes before and behind share a folder that has the number of the task's attempt.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from millstream.expressions.clock import NOW
from millstream.expressions.expression import Expression
from millstream.expressions.spark_types import INSTANT
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET, within_range
from millstream.operators.lateness import with_ahead_marked
from millstream.operators.source_watermarks import advanced
from millstream.operators.stateful import DEAD, SENT
from millstream.operators.windows.assignment import instant
from millstream.plan.nodes import Node, Project, Read, Where, WithEventTime
from millstream.plan.on_spark.needs_spark import SparkFunction, expressions_of
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.private_files import private_folder
from millstream.records import Schema
from millstream.spark.frame_functions import applied, guarded
from millstream.spark.query import task_messages
from millstream.spark.query.data_source import PACKED
from millstream.spark.query.known_failures import KnownFailures, place_of
from millstream.spark.query.packing import ARROW, DRIVER, REPORT, Packer, split_origin, to_batch
from millstream.spark.query.physical_plan import SourcePartition
from millstream.spark.query.spark_parts import SparkPart
from millstream.spark.query.state_runner import Shipment
from millstream.spark.query.task_messages import RowsOrigin, SourceControl, SourceReport, origin_from_bytes
from millstream.spark.query_failures import marked

FOLDER = "@spark"
"""Beside the folders of steps with state, none of which can have this name."""
ONLY_PARTITION = ""
"""A DataFrame counts as one partition."""
CAME = "__came"
"""The number of a row's origin, among those of its task."""
HIDDEN = pa.schema([(TIME, pa.int64()), (WEIGHT, pa.int32()), (OFFSET, pa.int64()), (CAME, pa.int32())])
ROW = "__row"
TASK_BITS = 32
"""Rows behind a part have task numbers of their own, in the order of the tasks before."""
ROWS_MIN = 50_000
"""How many rows are collected before the next steps run on them."""


def with_part(packed: DataFrame, part: SparkPart, shipment: Shipment) -> DataFrame:
    """The packed rows, with those of a part replaced by what its last step sends on."""
    names, hidden = part.given.schema.names, hidden_columns(part)
    types = [f"`{_quoted(name)}` {spark_type(part.given.schema, name)}" for name in names]
    frame = packed.mapInArrow(Unpack(shipment, part.number), ", ".join([*types, str(Schema.from_arrow(hidden))]))
    return evaluated(frame, part, part.steps).mapInArrow(Pack(shipment, part.number), PACKED)


def evaluated(frame: DataFrame, part: SparkPart, steps: Iterable[Node]) -> DataFrame:
    """The first steps of a part over typed rows."""
    hidden = hidden_columns(part).names
    for step in steps:
        frame = _VISITS[type(step)](frame, step, hidden)
    return frame


def typed_rows(rows: pl.DataFrame, part: SparkPart, came: int, now: int) -> pa.Table:
    """Rows with all columns of a part and the hidden ones; columns that were not read are null."""
    columns = pa.schema([field.with_nullable(True) for field in part.given.schema.arrow])
    missing = [pl.lit(None).alias(name) for name in (*columns.names, OFFSET) if name not in rows.columns]
    clock = instant(NOW, pl.lit(now, pl.Int64))
    frame = rows.with_columns(pl.lit(came, pl.Int32).alias(CAME), clock, *missing)
    schema = pa.schema([*columns, *hidden_columns(part)])
    return frame.select(schema.names).to_arrow().cast(schema)


def hidden_columns(part: SparkPart) -> pa.Schema:
    """The hidden columns of a part's rows; the clock is among them if a step may use it."""
    uses_clock = any(
        isinstance(step, SparkFunction) or any(each.uses_clock for each in expressions_of(step)) for step in part.steps
    )
    return HIDDEN.append(pa.field(NOW, INSTANT)) if uses_clock else HIDDEN


def _where(frame: DataFrame, step: Where, hidden: Sequence[str]) -> DataFrame:
    if _reads_clock(step):
        return applied(lambda rows: rows.where(_unclocked(step.condition)), frame, hidden, CAME)
    return frame.where(guarded(as_column(step.condition), CAME))


def _project(frame: DataFrame, step: Project, hidden: Sequence[str]) -> DataFrame:
    if _reads_clock(step):
        return applied(lambda rows: rows.select(*_columns(step, _unclocked)), frame, hidden, CAME)
    return frame.select(*_columns(step, as_column), *(sf.col(f"`{name}`") for name in hidden))


def _columns(step: Project, column_of: Callable[[Expression], Column]) -> list[Column]:
    made = []
    for name, value in step.columns:
        column = column_of(value)
        if not value.needs_spark and not value.makes_rows:  # else it has the type that Spark gave it
            column = column.cast(spark_type(step.schema, name))
        made.append(column.alias(name))
    return made


def _reads_clock(step: Node) -> bool:
    """Whether a step reads Spark's own clock, as a Column does: text reads that of the batch."""
    return any(each.uses_clock and each.clocked == each.spark for each in expressions_of(step))


def _unclocked(made: Expression) -> Column:
    """An expression with Spark's own clock, which is then replaced."""
    return sf.expr(made.spark) if made.native is None else as_column(made)


def _function(frame: DataFrame, step: SparkFunction, hidden: Sequence[str]) -> DataFrame:
    return applied(step.function.value, frame, hidden, CAME)


def _event_time(frame: DataFrame, step: WithEventTime, hidden: Sequence[str]) -> DataFrame:
    return frame.withColumn(TIME, sf.unix_micros(as_column(step.time).cast("timestamp")))


_VISITS: Mapping[type[Node], Any] = {
    Where: _where,
    Project: _project,
    SparkFunction: _function,
    WithEventTime: _event_time,
}


def as_column(made: Expression) -> Column:
    if made.native is not None:
        found: Column = made.native.value
        return found
    return sf.expr(made.clocked or made.spark)


def spark_type(schema: Schema, name: str) -> str:
    """The type of a column in Spark's words."""
    column = str(Schema.from_arrow(pa.schema([pa.field("x", schema.field(name).type)])))
    return column.split(" ", 1)[1]


def _quoted(name: str) -> str:
    return name.replace("`", "``")


_tidied: set[str] = set()


class Passage:
    """What waits beside Spark in one attempt of a task: packed rows for other steps, and the origins of rows."""

    def __init__(self, shipment: Shipment, number: int) -> None:
        context = TaskContext.get()
        assert context is not None
        self._run = shipment.mark[-9:-1]
        attempt = f"{self._run}-{context.taskAttemptId()}-{number}"
        self.folder = private_folder(shipment.folder) / FOLDER / attempt
        self._origins: list[bytes] = []

    @property
    def _waiting(self) -> Path:
        return self.folder / "packed"

    def _origin_path(self, number: int) -> Path:
        return self.folder / f"origin-{number}"

    def number_of(self, origin: bytes) -> int:
        """The number of an origin, which is stored before its first row is sent."""
        if origin not in self._origins:
            self._origin_path(len(self._origins)).write_bytes(origin)
            self._origins.append(origin)
        return self._origins.index(origin)

    def origin(self, number: int) -> RowsOrigin:
        return origin_from_bytes(self._origin_path(number).read_bytes())

    def origins(self) -> Iterator[RowsOrigin]:
        """All origins; complete once all typed rows have passed."""
        number = 0
        while self._origin_path(number).exists():
            yield self.origin(number)
            number += 1

    def writer(self) -> pa.RecordBatchStreamWriter:
        self._remove_older_runs()
        self.folder.mkdir(parents=True)
        return pa.ipc.new_stream(str(self._waiting), ARROW)

    def waiting(self) -> Iterator[pa.RecordBatch]:
        """Packed rows of other steps; complete once all typed rows have passed."""
        with pa.memory_map(str(self._waiting)) as source:
            yield from pa.ipc.open_stream(source)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_older_runs(self) -> None:
        """Removes what tasks of earlier runs left that did not end normally, once per process and run."""
        if self._run in _tidied:
            return
        _tidied.add(self._run)
        for entry in self.folder.parent.glob("*"):
            if not entry.name.startswith(self._run):
                shutil.rmtree(entry, ignore_errors=True)


@dataclass(frozen=True)
class _OfPart:
    shipment: Shipment
    number: int

    @cached_property
    def part(self) -> SparkPart:
        plan = self.shipment.worker_plan.physical_plan
        return next(part for part in plan.spark_parts if part.number == self.number)

    @cached_property
    def known_failures(self) -> KnownFailures:
        return KnownFailures.in_task()


class Unpack(_OfPart):
    """Makes typed rows of those that are packed for a part, in a task."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked(self.shipment.mark, self.part.first.name):
            passage = Passage(self.shipment, self.number)
            counts: Counter[str] = Counter()
            with passage.writer() as waiting:
                for batch in batches:
                    own = pc.equal(batch.column("step"), self.number)
                    others = batch.filter(pc.invert(own))
                    if len(others):
                        waiting.write_batch(others.cast(ARROW))
                    for blob in batch.column("blob").filter(own):
                        origin, rows = split_origin(blob.as_buffer())
                        came = passage.number_of(origin)
                        sender = origin_from_bytes(origin)
                        kept = self._kept(rows, sender, counts)
                        yield from typed_rows(kept, self.part, came, sender.now).to_batches()

    def _kept(self, rows: pl.DataFrame, sender: RowsOrigin, counts: Counter[str]) -> pl.DataFrame:
        """Without the rows that the part is known to fail on."""
        first = counts[place_of(sender)]
        counts[place_of(sender)] += len(rows)
        failing = [place - first for place in self.known_failures.places(self.number, sender)]
        if not any(0 <= place < len(rows) for place in failing):
            return rows
        return rows.with_row_index(ROW).filter(~pl.col(ROW).cast(pl.Int64).is_in(failing)).drop(ROW)


class SourceMarks:
    """The watermarks of a source's partitions, from rows that get their event time in or behind a part."""

    def __init__(self, packer: Packer) -> None:
        origin = packer.origin
        self._source = origin.name
        self._timed = packer.physical_plan.timing.get(origin) if isinstance(origin, Read) else None
        self._is_frame = isinstance(origin, Read) and isinstance(origin.source, SparkFrame)
        self._partitions: dict[str, tuple[int | None, bool]] = {}
        self._now = 0

    def observe(self, origin: RowsOrigin, made: Mapping[Node, pl.DataFrame]) -> None:
        if self._timed is None or self._timed not in made:
            return
        if origin.source is None and not self._is_frame:  # a test: its script sets the watermark
            return
        self._now = 0 if self._is_frame else origin.now  # a DataFrame does not carry our clock
        partition = ONLY_PARTITION if self._is_frame else str(origin.partition)
        before = self._partitions.get(partition, (None, False))
        self._partitions[partition] = advanced(before, self._timed, made[self._timed])

    def control(self) -> SourceControl | None:
        return SourceControl(self._source, self._now, self._partitions) if self._partitions else None

    def report(self) -> SourceReport | None:
        """For the driver: the rows were counted where they were read."""
        if not self._partitions:
            return None
        return SourceReport(
            self._source, 0, partitions={name: watermark for name, (watermark, _) in self._partitions.items()}
        )


class Pack(_OfPart):
    """Packs what Spark has made, after the element-wise steps that follow, and lets the waiting rows pass."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked(self.shipment.mark, self.part.last.name):
            passage = Passage(self.shipment, self.number)
            try:
                yield from self._packed(batches, passage)
            finally:
                passage.remove()

    def _packed(self, batches: Iterator[pa.RecordBatch], passage: Passage) -> Iterator[pa.RecordBatch]:
        packers: dict[int, Packer] = {}
        origins: dict[int, RowsOrigin] = {}
        marks: dict[int, SourceMarks] = {}
        for came, rows in self._by_origin(batches):
            if came not in origins:
                origins[came] = passage.origin(came)
            origin = origins[came]
            partition = None if origin.source is None else SourcePartition(origin.source, str(origin.partition))
            packer = self._packer_of(packers, origin)
            made = packer.add({SENT: self._timed(rows, origin)}, origin.now, partition)
            marks.setdefault(packer.task, SourceMarks(packer)).observe(origin, made)
        named = {step.name: step for step in self.part.steps}
        for origin in passage.origins():  # all of them are known now
            for step, letters in self.known_failures.dead_letters(self.number, origin):
                self._packer_of(packers, origin).add({DEAD: letters}, origin.now, entry=named[step])
        yield from passage.waiting()
        for packer in packers.values():
            found = marks.get(packer.task)
            for packed in packer.pack(found.control() if found else None):
                yield to_batch([packed])
            if found and (report := found.report()) is not None:
                yield to_batch([(packer.own_label, DRIVER, REPORT, packer.task, task_messages.to_bytes(report))])

    def _timed(self, rows: pl.DataFrame, origin: RowsOrigin) -> pl.DataFrame:
        """Rows whose event time Spark has computed, as those of any other step that sets it."""
        last = self.part.last
        if not isinstance(last, WithEventTime):
            return rows
        return with_ahead_marked(rows.with_columns(within_range(rows[TIME])), last, origin.now)

    def _by_origin(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pl.DataFrame]]:
        """Rows that come from one place, in order, many at a time."""
        collected: list[pl.DataFrame] = []
        came: int | None = None
        for batch in batches:
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            for (number,), rows in frame.group_by(CAME, maintain_order=True):
                assert isinstance(number, int)
                if collected and (number != came or sum(map(len, collected)) >= ROWS_MIN):
                    assert came is not None
                    yield came, pl.concat(collected)
                    collected = []
                came = number
                collected.append(rows.drop(CAME, NOW, strict=False))
        if collected and came is not None:
            yield came, pl.concat(collected)

    def _task(self, task: int) -> int:
        parts = [part.number for part in self.shipment.worker_plan.physical_plan.spark_parts]
        return ((parts.index(self.number) + 1) << TASK_BITS) + task % (1 << TASK_BITS)

    def _packer_of(self, packers: dict[int, Packer], origin: RowsOrigin) -> Packer:
        task = self._task(origin.task)
        if task not in packers:
            packers[task] = self._packer(origin, task)
        return packers[task]

    def _packer(self, origin: RowsOrigin, task: int) -> Packer:
        plan = self.shipment.worker_plan
        named = {node.name: node for node in plan.physical_plan.order}
        return plan.packer(
            named[origin.origin],
            task=task,
            watermark_max=origin.watermark_max,
            entry=self.part.last,
            own_label=origin.label,
        )
