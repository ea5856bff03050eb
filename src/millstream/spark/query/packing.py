"""Packed rows: one Spark row holds a whole frame, for one key group of one step.

`label` identifies the key group to Spark, `step` is the number of a step of the chain or of an output, `kind` is the
kind of blob, and `task` its origin, so that a step processes frames in the same order every time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from millstream import terminal
from millstream.connectors.sink import Preparer
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET
from millstream.operators.lateness import without_ahead
from millstream.operators.stateful import FOR_EVERY_KEY, Stateful
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.time.bundles import END
from millstream.plan.time.late import late_columns
from millstream.spark.query import task_messages
from millstream.spark.query.physical_plan import Frames, PhysicalPlan, SourcePartition, evaluated
from millstream.spark.query.task_messages import Control, DiscardReport, PreparedReport, RowsOrigin, RowsReport
from millstream.state.arrow_bytes import from_stream, to_stream
from millstream.state.hashing import key_groups

ARROW = pa.schema(
    [
        ("label", pa.int32()),
        ("step", pa.int32()),
        ("kind", pa.int32()),
        ("task", pa.int64()),
        ("blob", pa.binary()),
    ]
)
ROWS, OTHERS, PARTIALS, CONTROL, REPORT, MATCHING = range(6)
SIDES = (ROWS, OTHERS, MATCHING)
PARTITION = "__partition"
TOPIC = "__topic"
"""The source partition of an output's rows, next to their offset, if its sink may refuse some."""
DRIVER, PLAN = -1, -2
"""The step numbers of reports, which are for the driver, and of the name of the batch's plan, if that has changed."""
logger = terminal.logger(__name__)
BATCH_PROPERTY = "streaming.sql.batchId"
BLOB_BYTES_MAX = 4 << 20
"""Larger frames are split: the next is packed while one is in transit."""

Content = bytes | pl.DataFrame
"""A frame for a step of the same stage is passed as is, everything else as bytes."""
Packed = tuple[int, int, int, int, Content]


def to_bytes(frame: pl.DataFrame) -> bytes:
    """A frame as compressed Arrow: panes shrink to a tenth, which is faster than moving them uncompressed."""
    return to_stream(frame, compressed=True)


def from_bytes(blob: bytes) -> pl.DataFrame:
    return from_stream(blob)


def with_origin(origin: bytes, frame: pl.DataFrame) -> bytes:
    """Rows for Spark's own engine, behind a description of where they come from."""
    return len(origin).to_bytes(4, "big") + origin + to_stream(frame)


def split_origin(blob: bytes) -> tuple[bytes, pl.DataFrame]:
    end = 4 + int.from_bytes(blob[:4], "big")
    return blob[4:end], from_stream(blob[end:])


def to_batch(rows: Sequence[Packed]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ([] for _ in ARROW)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), kind.type) for column, kind in zip(columns, ARROW, strict=True)], schema=ARROW
    )


@dataclass
class Packer:
    """Collects the rows of a region, and packs them for the steps and outputs they go to."""

    physical_plan: PhysicalPlan
    origin: Node
    labels: Sequence[int]
    steps: Sequence[Stateful]
    task: int
    own_label: int
    """The label of rows that belong to no key group: those of outputs."""
    watermark_max: int = END
    """The highest possible watermark of the next steps."""
    entry: Node | None = None
    """The step after the origin whose rows are added, if not the origin itself."""
    local_steps: Container[int] = ()
    """The steps of the same stage, which run here for the same key group."""
    preparers: Mapping[str, Preparer] = field(default_factory=dict)
    """By output, what prepares its rows here if there are many."""
    counts_rows: bool = True
    """Whether to report the number of rows of each step."""
    _fed: dict[tuple[int, int], list[pl.DataFrame]] = field(default_factory=dict)
    _partials: dict[int, list[pl.DataFrame]] = field(default_factory=dict)
    _outputs: dict[int, list[pl.DataFrame]] = field(default_factory=dict)
    _discarded: dict[str, int] = field(default_factory=dict)
    _for_spark: dict[tuple[int, bytes], list[pl.DataFrame]] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)
    _rows_of: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._region = self.physical_plan.region(self.origin)
        self._ends = self.physical_plan.ends(self.origin)
        self._parts = [part for part in self.physical_plan.spark_parts if part.first in self._region.steps]

    def add(
        self, sent: Frames, now: int, partition: SourcePartition | None = None, entry: Node | None = None
    ) -> Mapping[Node, pl.DataFrame]:
        """Runs the steps of the region on rows of the origin, or of `entry`, and returns the rows of each."""
        made = self._region.run(sent, now, entry or self.entry, partition)
        if self.counts_rows:
            for node, frame in made.items():
                if len(frame) and not isinstance(node, Read):  # a source reports its rows itself
                    self._rows_of[node.name] = self._rows_of.get(node.name, 0) + len(frame)
        for part in self._parts:
            if part.given in made and len(made[part.given]):
                came = RowsOrigin(self.origin.name, self.task, self.own_label, now, self.watermark_max)
                if partition is not None:
                    came = msgspec.structs.replace(came, source=partition.source, partition=partition.name)
                place = part.number, task_messages.to_bytes(came)
                self._for_spark.setdefault(place, []).append(made[part.given])
        for end in self._ends:
            number, rows = end.number, made.get(end.node)
            if rows is None or rows.is_empty():
                continue
            if isinstance(end.node, Write) and end.node.is_discarded:
                self._discarded[end.node.name] = self._discarded.get(end.node.name, 0) + len(rows)
                continue
            if end.side is None:
                self._outputs.setdefault(number, []).append(self._written(rows, end.node, partition))
                continue
            if late_columns(self.physical_plan.chain[number]) is None:
                rows = without_ahead(rows)
            step, count = self.steps[number], self._counts.get(number, 0)
            fold = partial(step.folded, first=count, watermark=self.watermark_max, side=end.side)
            partials, fed = evaluated(self.physical_plan.chain[number], rows, fold, partition)
            if partials is not None and len(partials):
                self._partials.setdefault(number, []).append(partials)
            if len(fed):
                self._fed.setdefault((number, end.side), []).append(fed)
                self._counts[number] = count + len(fed)
        return made

    def pack(self, control: Control | None) -> Iterable[Packed]:
        """Packs all added rows; every key group of the next steps gets the control, if it was not sent before."""
        if control is not None:
            yield from self._controls(task_messages.to_bytes(control))
        for (number, came), frames in self._for_spark.items():
            for part in _slices(pl.concat(frames, how="diagonal")):
                yield self.own_label, number, ROWS, self.task, with_origin(came, part)
        for (number, side), frames in self._fed.items():
            yield from self._sent(number, SIDES[side], pl.concat(frames))
        for number, frames in self._partials.items():
            yield from self._sent(number, PARTIALS, self.steps[number].joined(frames))
        for number, frames in self._outputs.items():
            rows = pl.concat(frames, how="diagonal")
            report, rows = self._prepared(number, rows)
            if report is not None:
                yield self.own_label, DRIVER, REPORT, self.task, task_messages.to_bytes(report)
            for part in _slices(rows):
                yield self.own_label, number, ROWS, self.task, to_bytes(part)
        if self._discarded:
            yield self.own_label, DRIVER, REPORT, self.task, task_messages.to_bytes(DiscardReport(self._discarded))
        if self._rows_of:
            counted = RowsReport(self._rows_of, self.origin.name)
            yield self.own_label, DRIVER, REPORT, self.task, task_messages.to_bytes(counted)

    def _controls(self, control: bytes) -> Iterable[Packed]:
        for number in self.physical_plan.steps_after(self.origin):
            is_local = self.physical_plan.shares_key_group(self.origin, self.physical_plan.chain[number])
            for label in [self.own_label] if is_local else self.labels:
                yield label, number, CONTROL, self.task, control

    def _written(self, rows: pl.DataFrame, output: Node, partition: SourcePartition | None) -> pl.DataFrame:
        """The columns for a sink: with weights if rows can be retracted, without those that only steps need."""
        if not isinstance(output, Write):
            return rows
        if OFFSET in rows.columns and partition is not None and self.physical_plan.traces(output):
            rows = rows.with_columns(pl.lit(partition.number, pl.Int32).alias(PARTITION))
            if partition.topic != partition.source:
                rows = rows.with_columns(pl.lit(partition.topic).alias(TOPIC))
        else:
            rows = rows.drop(OFFSET, strict=False)
        return rows.drop(TIME, *([] if output.is_changing else [WEIGHT]), strict=False)

    def _prepared(self, number: int, rows: pl.DataFrame) -> tuple[PreparedReport | None, pl.DataFrame]:
        """Prepares rows of an output here; returns the report for the driver, and the rows left to send."""
        output = self.physical_plan.outputs[number - len(self.physical_plan.chain)]
        preparer = self.preparers.get(output.name)
        if preparer is None or rows.estimated_size() <= BLOB_BYTES_MAX:
            return None, rows
        assert isinstance(output, Write)
        try:
            table, weights = as_written(rows, output)
            prepared = preparer.prepare(batch_number(), self.task + 1, table, weights)
        except Exception as error:  # the driver tries the same, retries if that may help, and reports the error
            logger.info("the rows of '%s' are sent to the driver: %s: %s", output.name, type(error).__name__, error)
            return None, rows
        if prepared is None:
            return None, rows
        # Refused rows are sent to the driver, which refuses them with their origin.
        accepted = len(rows) - len(prepared.refused)
        return PreparedReport(output.name, accepted, prepared.receipt), rows[sorted(prepared.refused)]

    def _sent(self, number: int, kind: int, rows: pl.DataFrame) -> Iterable[Packed]:
        if number in self.local_steps:
            yield self.own_label, number, kind, self.task, rows
            return
        if kind in SIDES and SIDES.index(kind) == self.physical_plan.chain[number].broadcast_input:
            for blob in map(to_bytes, _slices(rows)):
                yield from ((label, number, kind, self.task, blob) for label in self.labels)
            return
        if FOR_EVERY_KEY in rows.columns:
            is_for_all = rows[FOR_EVERY_KEY]
            for blob in map(to_bytes, _slices(rows.filter(is_for_all))):
                yield from ((label, number, kind, self.task, blob) for label in self.labels)
            rows = rows.filter(~is_for_all)
        for group, blob in self._split(rows, self.steps[number].keys):
            yield self.labels[group], number, kind, self.task, blob

    def _split(self, rows: pl.DataFrame, keys: list[str]) -> Iterable[tuple[int, bytes]]:
        count = len(self.labels)
        if count == 1 or not keys:
            group = int(key_groups(rows.head(1), keys, count)[0])
            yield from ((group, to_bytes(part)) for part in _slices(rows))
            return
        groups = key_groups(rows, keys, count).astype(np.uint16)  # more than enough, and sorted by counting
        order = np.argsort(groups, kind="stable")
        rows, bounds = rows[order], np.searchsorted(groups[order], np.arange(count + 1))
        for group, (start, end) in enumerate(pairwise(bounds)):
            if end > start:
                yield from ((group, to_bytes(part)) for part in _slices(rows.slice(int(start), int(end - start))))


def batch_number() -> int:
    """The number of the batch that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
    if number is None:
        raise RuntimeError("this is not a task of a streaming query")
    return int(number)


def as_written(rows: pl.DataFrame, output: Write) -> tuple[pa.Table, pa.Array | None]:
    """The rows as a sink takes them, and their weights if rows may be retracted."""
    table = rows.select(output.schema.names).to_arrow().cast(output.schema.arrow)
    return table, rows[WEIGHT].to_arrow() if output.is_changing else None


def _slices(rows: pl.DataFrame) -> Iterable[pl.DataFrame]:
    """Splits rows into frames small enough for one Spark value."""
    pieces = max(1, -(-int(rows.estimated_size()) // BLOB_BYTES_MAX))
    return rows.iter_slices(max(1, -(-len(rows) // pieces)))
