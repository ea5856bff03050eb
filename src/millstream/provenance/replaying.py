"""Runs recorded batches again in this process: the same rows, watermarks and clock, and where each row came from.

A row carries its origin through all steps that process single rows, as one number in place of its offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from millstream.connectors.opening import connector_errors, open_source
from millstream.connectors.source import Offsets, Slice, Source
from millstream.errors import InvalidInput, NeedsSpark
from millstream.jobs.previews.local_reading import nothing_read, up_to_event_time, watermarks_of
from millstream.local import Flowing, Local
from millstream.log.kafka.address import as_kafka
from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.clock import Clock
from millstream.operators.elementwise import OFFSET, frame_of
from millstream.operators.lateness import with_ahead_marked
from millstream.operators.source_watermarks import SourceWatermark, implied_watermark
from millstream.plan.nodes import Dead, Node, Read
from millstream.plan.on_spark.needs_spark import needs_spark
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.time.bundles import BEGINNING
from millstream.plan.time.timing import Timed, timing
from millstream.plan.time.watermarks import Bounded, Custom
from millstream.plan.walking import in_order
from millstream.provenance.batches import RecordedBatch
from millstream.spark.query.physical_plan import SourcePartition
from millstream.spark.query.source_frames import dead_frame, framed

OFFSET_BITS = 40
"""The origin of a row is one number: the offset, and above these bits the place of its partition in a list."""
STEP_ROWS = 200_000
"""How many rows are read at once where it is not recorded how they were cut into batches."""


@dataclass(frozen=True)
class Origin:
    """Where a row was read."""

    source: str
    """The name of the step that reads it."""
    topic: str
    partition: str
    offset: int

    def document(self) -> dict[str, Any]:
        number = self.partition.rpartition("/")[2]
        return {"topic": self.topic, "partition": int(number) if number.isdigit() else number, "offset": self.offset}


@dataclass(frozen=True)
class PartitionTrack:
    """A partition of a source in one batch: its watermark before and after, and its rows with their event times."""

    source: Read
    partition: str
    ranges: tuple[tuple[int, int], ...]
    """What was read, as numbers of origins."""
    before: int
    after: int
    timed: Timed | None
    rows: pl.DataFrame
    """As the step has them that gives them their event time."""

    def has(self, origin: int) -> bool:
        """Whether a record was read in this batch."""
        return any(first <= origin < end for first, end in self.ranges)

    @property
    def first(self) -> int:
        return min(first for first, _ in self.ranges)

    def first_reaching(self, watermark: int) -> int | None:
        """The origin of the first row that brought the partition's watermark this far; None if no single row did."""
        if self.timed is None or isinstance(self.timed.watermark, Custom) or not len(self.rows):
            return None
        low, high = 1, len(self.rows)  # the watermark of the first n rows never decreases with n
        if not self._reaches(high, watermark):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._reaches(middle, watermark) else (middle + 1, high)
        return int(self.rows[OFFSET][low - 1])

    def _reaches(self, count: int, watermark: int) -> bool:
        assert self.timed is not None
        reached = implied_watermark(self.timed, self.rows.head(count))
        return reached is not None and reached >= watermark


@dataclass(frozen=True)
class Moment:
    """One batch, or a part of what was read before the recorded ones: what every step sent."""

    batch: RecordedBatch
    clock_before: int
    clock: int
    is_end: bool
    """Whether all windows were closed, at the end of a bounded run."""
    sent: Mapping[Node, Flowing]
    tracks: Sequence[PartitionTrack]

    def without_rows(self) -> Moment:
        """Without what the steps sent, which may be much."""
        return replace(self, sent={})


class Replay:
    """Repeats the steps up to some nodes. Rows have their origin as long as they are single rows of a source."""

    def __init__(
        self,
        observed: Sequence[Node],
        flow_steps: Sequence[Node],
        batches: Iterable[RecordedBatch],
        *,
        folder: Path,
        broker: str,
    ) -> None:
        """`flow_steps` are all steps of the flow: those whose dead letters it uses do not stop the replay."""
        order = in_order(observed)
        check_here(order)
        dead = [node for node in flow_steps if isinstance(node, Dead) and node.inputs[0] in order]
        self._observed = list(dict.fromkeys([*observed, *dead]))
        self._batches = batches
        self._folder = folder
        self._broker = broker
        self._places: list[tuple[Read, str]] = []
        self.notes: list[str] = []
        """What could not be read again."""

    @cached_property
    def sources(self) -> list[Read]:
        return [node for node in in_order(self._observed) if isinstance(node, Read)]

    def origin(self, number: int) -> Origin:
        read, partition = self._places[number >> OFFSET_BITS]
        topic = SourcePartition(str(read.source), partition).topic
        return Origin(read.name, topic, partition, number & ((1 << OFFSET_BITS) - 1))

    def numbers_of(self, topic: str, partition: int, offset: int) -> list[int]:
        """The numbers that a record has as an origin, one for each source that has read it."""
        found = []
        for place, (read, name) in enumerate(self._places):
            named = SourcePartition(str(read.source), name)
            if (named.topic, named.number) == (topic, partition):
                found.append((place << OFFSET_BITS) + offset)
        return found

    def moments(self) -> Iterator[Moment]:
        """The batches, oldest first."""
        with ExitStack() as opened:
            local = Local(self._observed)
            readers = [self._reader(node, opened) for node in self.sources]
            opened.callback(self._note_losses, readers)
            clock = 0
            for batch in self._batches:
                starts = batch.starts or {}
                for reader in readers:
                    reader.begin(starts.get(reader.node.name, {}))
                is_done = False
                while not is_done:
                    ends = {reader: reader.end_of(batch) for reader in readers}
                    yield self._moment(local, readers, ends, batch, clock)
                    clock = batch.clock
                    is_done = all(reader.is_at_end_of(batch) for reader in readers)

    def _note_losses(self, readers: Sequence[_Reader]) -> None:
        found = [loss for reader in readers for loss in (*reader.expired, *reader.source.take_losses())]
        self.notes = list(dict.fromkeys([*self.notes, *found]))

    def _moment(
        self,
        local: Local,
        readers: Sequence[_Reader],
        ends: Mapping[_Reader, Offsets],
        batch: RecordedBatch,
        clock_before: int,
    ) -> Moment:
        given: dict[Node, Flowing] = {}
        dead: dict[Node, pl.DataFrame] = {}
        tracks: list[PartitionTrack] = []
        is_last = batch.is_end and all(reader.reaches(batch, ends[reader]) for reader in readers)
        nothing = nothing_read(readers, batch.clock)
        taken = {reader: reader.take(ends[reader], batch, self._places, nothing) for reader in readers}
        for reader, reached in watermarks_of(readers, batch.clock, is_last=is_last).items():
            rows, letters, found = taken[reader]
            given[reader.node] = Flowing(rows, Clock(reader.reached, reached, clock_before, batch.clock))
            dead[reader.node] = letters
            reader.reached = reached
            tracks += found
        return Moment(batch, clock_before, batch.clock, is_last, local.run(given, dead), tracks)

    def _reader(self, node: Read, opened: ExitStack) -> _Reader:
        source = open_source(
            node.source,
            node.schema,
            broker=as_kafka(self._broker) or self._broker,
            folder=self._folder / "sources" / node.name,
            name=node.name,
            on_lost="earliest",  # what has expired is reported, and the rest is repeated
        )
        opened.callback(source.close)
        timed = timing(in_order(self._observed)).get(node)
        return _Reader(node, source, timed, up_to_event_time(node, timed, self._observed))


class _Reader:
    """A source: the position in it, and the watermarks of its partitions."""

    def __init__(self, node: Read, source: Source, timed: Timed | None, before: Local | None) -> None:
        self.node = node
        self.source = source
        self.reached = BEGINNING
        self.watermark = None if timed is None else SourceWatermark(timed, (), 0)
        self._timed = timed
        self._before = before
        self._position: Offsets = {}
        self._marks: dict[str, int] = {}
        self.expired: list[str] = []
        """Describes records that were deleted before the first one that can be read."""

    def begin(self, starts: Offsets) -> None:
        """Continues at the recorded offsets; a partition without one starts at its earliest record."""
        self._position = self._position | starts

    def end_of(self, batch: RecordedBatch) -> Offsets:
        """Where the next step ends: at the end of its batch, unless how rows were cut into batches is unknown."""
        ends = dict(batch.ends.get(self.node.name, {}))
        missing = [name for name in ends if name not in self._position]
        if missing:
            with connector_errors(self.node.source, self.node.name):
                earliest = self.source.earliest()
            self._position |= {name: min(ends[name], earliest.get(name, 0)) for name in missing}
            self.expired += [
                f"records of partition {name} of '{self.node.source}' before offset {earliest[name]} have expired"
                for name in missing
                if earliest.get(name, 0) > 0
            ]
        if batch.is_whole:
            return ends
        share = max(1, STEP_ROWS // max(1, len(ends)))
        return {name: min(end, self._position[name] + share) for name, end in ends.items()}

    def reaches(self, batch: RecordedBatch, ends: Offsets) -> bool:
        return all(ends[name] >= end for name, end in batch.ends.get(self.node.name, {}).items())

    def is_at_end_of(self, batch: RecordedBatch) -> bool:
        return self.reaches(batch, self._position)

    def take(
        self, ends: Offsets, batch: RecordedBatch, places: list[tuple[Read, str]], others: Mapping[Node, Flowing]
    ) -> tuple[pl.DataFrame, pl.DataFrame, list[PartitionTrack]]:
        """The rows up to these offsets, their dead letters, and what they did to the watermark."""
        hidden = frame_of([], self.node).with_columns(pl.Series(OFFSET, [], pl.Int64))
        frames, dead, tracks = [hidden], [frame_of([], None)], []
        for partition in sorted(ends, key=_numbered):
            start, end = self._position[partition], ends[partition]
            read: Sequence[Slice] = []
            timed: list[pl.DataFrame] = []
            if (self.node, partition) not in places:
                places.append((self.node, partition))
            place = places.index((self.node, partition)) << OFFSET_BITS
            if end > start:
                with connector_errors(self.node.source, self.node.name):
                    read = self.source.pieces(partition, start, end)
                    for slab in chain.from_iterable(map(self.source.read, read)):
                        rows = framed(slab, self.node, self.node.schema.names)
                        rows = rows.with_columns(pl.col(OFFSET) + place)
                        rows = with_ahead_marked(rows, self.node, batch.clock).select(hidden.columns)
                        frames.append(rows)
                        dead.append(dead_frame(slab))
                        timed.append(self._timed_rows(rows, dead[-1], batch.clock, others))
            ranges = [(place + each.start, place + each.end) for each in read] or [(place + start, place + end)]
            tracks.append(self._track(partition, tuple(ranges), timed, batch.clock))
            self._position[partition] = end
        if self.watermark is not None:
            for partition in batch.done.get(self.node.name, []):
                if partition in ends and not any(len(each.rows) for each in tracks if each.partition == partition):
                    self.watermark.leave(partition)
        return pl.concat(frames), pl.concat(dead), tracks

    def _timed_rows(
        self, rows: pl.DataFrame, dead: pl.DataFrame, now: int, others: Mapping[Node, Flowing]
    ) -> pl.DataFrame:
        """Rows as the step has them that gives them their event time."""
        if self._before is None:
            return rows
        assert self._timed is not None
        given = {**others, self.node: Flowing(rows, Clock(BEGINNING, BEGINNING, now, now))}
        return self._before.run(given, {self.node: dead})[self._timed].rows

    def _track(
        self, partition: str, ranges: tuple[tuple[int, int], ...], timed: list[pl.DataFrame], now: int
    ) -> PartitionTrack:
        rows = pl.concat(timed, how="diagonal") if timed else pl.DataFrame()
        if len(rows) and self._timed is not None and isinstance(self._timed.watermark, Bounded):
            rows = rows.select(TIME, OFFSET)  # batches are kept for a while, and it needs no more
        before = self._marks.get(partition, BEGINNING)
        after = before
        if self.watermark is not None:
            assert self._timed is not None
            reached = implied_watermark(self._timed, rows) if len(rows) else None
            self.watermark.update(partition, reached, now, has_rows=len(rows) > 0)
            after = max(before, BEGINNING if reached is None else reached)
        self._marks[partition] = after
        return PartitionTrack(self.node, partition, ranges, before, after, self._timed, rows)


def _numbered(partition: str) -> tuple[str, int, str]:
    topic, _, last = partition.rpartition("/")
    return (topic, int(last), "") if last.isdigit() else (topic, -1, last)


def check_here(order: Sequence[Node]) -> None:
    """Refuses steps that cannot be repeated in this process."""
    for node in order:
        if isinstance(node, Read) and isinstance(node.source, SparkFrame):
            raise InvalidInput(
                f"'{node.name}' is a Spark DataFrame, and its batches cannot be read again here",
                where=node.user_line,
                next_step="ask about a step that reads topics or files only",
            )
        if needs_spark(node):
            raise NeedsSpark(
                f"'{node.name}' only runs on Spark, and the question is answered by repeating batches without Spark",
                where=node.user_line,
                next_step="use an expression that also runs without Spark, or ask about a step before this one",
            )
