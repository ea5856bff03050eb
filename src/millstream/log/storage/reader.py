"""A reader scans one partition from an offset on, without locks, and never sees a record twice or out of order.

It reads up to the mark: to its end, or, for committed records only, to the first open transaction. Retention and
compaction do not disturb it: a mapped segment stays intact until it is released, and the next one is found by offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import DamagedLog, OffsetLost
from millstream.log.storage.frame import NO_TIMESTAMP, SPARSE, TRANSACTIONAL, Header
from millstream.log.storage.layout import completed
from millstream.log.storage.mark import FrameBoundary, Mark
from millstream.log.storage.partition import Partition
from millstream.log.storage.segment import OFFSET_COLUMN, Segment, segment_names
from millstream.log.storage.validity import Malformed, check_texts
from millstream.records import align

COUNTED_MAX = 10_000  # offsets
READ_BYTES = 1 << 20  # about one frame: verified data is still in the CPU cache when it is used


@dataclass(frozen=True, slots=True)
class Fetch:
    """Records of one frame. Their offsets are consecutive, except after compaction."""

    stored: pa.RecordBatch
    schema: pa.Schema
    first_offset: int
    thinned_offsets: npt.NDArray[np.int64] | None
    size_bytes: int
    refused: Mapping[int, str] = field(default_factory=dict)
    """Records, by position in this fetch, that must not be used as they are, and why."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        if self.thinned_offsets is not None:
            return self.thinned_offsets
        return np.arange(self.first_offset, self.first_offset + self.stored.num_rows, dtype=np.int64)

    @property
    def records(self) -> pa.RecordBatch:
        """Key, value, timestamp and headers; missing keys and headers as nulls."""
        return completed(self.with_checked_texts().stored, self.schema)

    def with_checked_texts(self) -> Fetch:
        """Itself, after checking its texts; for callers that take the records out of Arrow."""
        try:
            check_texts(self.stored)
        except Malformed as error:
            raise DamagedLog(
                f"records are damaged: {error}",
                where=f"the frame with offset {self.first_offset}",
                next_step="restore the partition from a copy, or skip it",
            ) from error
        return self


class PartitionReader:
    def __init__(self, partition: Partition, offset: int, *, committed: bool) -> None:
        self.partition = partition
        self.offset = offset
        self.committed = committed
        self._segment: Segment | None = None
        self._schema = partition.schema
        self._is_aligned: bool | None = None
        self._position = 0

    def limit(self, mark: Mark) -> FrameBoundary:
        return mark.stable if self.committed else mark.end

    def end_offset(self) -> int:
        return max(self.offset, self.limit(self.partition.marks.read()).offset)

    def lag(self) -> int:
        return records_between(self.partition, self.offset, self.end_offset(), committed=self.committed)

    def seek(self, offset: int) -> None:
        self.offset = offset
        self._segment = None

    def read(self, max_bytes: int = READ_BYTES) -> list[Fetch]:
        """Records from the current offset on: at least a frame and not much more than `max_bytes`.

        Records before a damaged frame are returned first; the next read raises.
        """
        fetched = []
        try:
            for fetch in self.stream():
                fetched.append(fetch)
                max_bytes -= fetch.size_bytes
                if max_bytes <= 0:
                    break
        except DamagedLog:
            if not fetched:
                raise
        return fetched

    def stream(self) -> Iterator[Fetch]:
        """Frame by frame up to the current end of the partition; the position is after the last one yielded."""
        try:
            yield from self._stream()
        except DamagedLog as error:
            self._segment = None  # the next try reopens the file: it may have been repaired
            raise DamagedLog(
                error.what,
                where=f"topic '{self.partition.topic}', partition {self.partition.number}, offset {self.offset}; "
                f"{error.where}",
                next_step=f"restore the file from a copy, or run 'millstream topics repair {self.partition.topic}' to "
                "keep what is intact",
            ) from error

    def _stream(self) -> Iterator[Fetch]:
        mark = self.partition.marks.read()
        self.partition.refresh()  # after the mark, so that the schema is not older than the records
        limit = self.limit(mark)
        if self.offset > mark.end.offset:
            raise self._lost(mark)
        self._schema, self._is_aligned = self.partition.schema, None  # another reader may change it meanwhile
        finished: Segment | None = None
        while self.offset < limit.offset:
            segment = self._segment or self._locate(mark)
            if finished is not None and segment.name == finished.name:
                raise segment.damaged(segment.size_bytes(), f"the records from offset {self.offset} on are missing")
            for position, header in segment.frames(self._position, _end_of(segment, mark)):
                if header.base_offset >= limit.offset:
                    return
                self._position = position + header.size_bytes
                fetch = self._fetch(segment, position, header, mark)
                self.offset = max(self.offset, header.next_offset)
                if fetch is not None:
                    yield fetch
            if _is_active(segment, mark):
                return
            self.offset = max(self.offset, segment.name.end or 0)
            self._segment, finished = None, segment

    def _fetch(self, segment: Segment, position: int, header: Header, mark: Mark) -> Fetch | None:
        if not header.rows or header.next_offset <= self.offset:
            return None
        transaction = (header.producer_id, header.epoch)
        checked = self.committed and header.flags & TRANSACTIONAL
        if checked and transaction in self.partition.aborted.known(mark.aborted_count):
            return None
        records = segment.stored(position, header)
        thinned = None
        first = max(self.offset, header.base_offset)
        if header.flags & SPARSE:
            thinned = segment.offsets(header, records)
            passed = int(np.searchsorted(thinned, first))
            thinned, records = thinned[passed:], records.drop_columns([OFFSET_COLUMN]).slice(passed)
        elif first > header.base_offset:
            records = records.slice(first - header.base_offset)
        if not records.num_rows:
            return None
        if self._is_aligned is None:
            written = pa.schema([field for field in segment.schema if field.name != OFFSET_COLUMN])
            self._is_aligned = written.equals(self._schema)
        if not self._is_aligned:
            records = align(records, self._schema)
        return Fetch(records, self._schema, first, thinned, header.length)

    def _locate(self, mark: Mark) -> Segment:
        """Opens the segment with the current offset, at its frame or shortly before."""
        while True:
            name = max(
                (name for name in segment_names(self.partition.folder)[0] if name.base <= self.offset), default=None
            )
            if name is None and self.partition.archive is not None:
                name = self.partition.archive.find(self.offset)
            if name is None:
                self.partition.check_alive()
                raise self._missing()
            try:
                self._segment = Segment(name)
                self._is_aligned = None
            except FileNotFoundError:  # replaced or deleted between listing and opening
                continue
            self.partition.check_alive()  # so the file is not one of a recreated topic
            self._position = self._segment.position_of(self.offset, _end_of(self._segment, mark))
            return self._segment

    def _missing(self) -> OffsetLost | DamagedLog:
        """Why no segment has the current offset: only records before the start were deleted on purpose."""
        mark = self.partition.marks.read()
        names = segment_names(self.partition.folder)[0]
        known = mark.start if mark.start is not None else None if names else 0
        if known is None or self.offset < known:
            return self._lost(mark)
        end = names[0].base if names else mark.end.offset
        return DamagedLog(
            f"acknowledged records are missing: offsets {self.offset} to {end - 1} are in no segment",
            where=str(self.partition.folder),
        )

    def _lost(self, mark: Mark) -> OffsetLost:
        start = self.partition.start_offset()
        return OffsetLost(
            f"offset {self.offset} no longer exists: the partition now has {start} to {mark.end.offset}",
            where=f"topic '{self.partition.topic}', partition {self.partition.number}",
            next_step="continue with on_lost='earliest'; to prevent this, raise the topic's retention",
        )


def _is_active(segment: Segment, mark: Mark) -> bool:
    """Whether the mark ends in this file; it may have been closed, and even compacted, since."""
    return segment.name.base == mark.end.segment and segment.name.end is None


def _end_of(segment: Segment, mark: Mark) -> int:
    return mark.end.position if _is_active(segment, mark) else segment.size_bytes()


def offset_at_time(partition: Partition, timestamp: int) -> int:
    """The offset of the first record at or after a time (µs), or the end if there is none."""
    mark = partition.marks.read()
    own = partition.own_start_offset()
    archived = iter(()) if partition.archive is None else partition.archive.since(timestamp, own)
    for name in chain(archived, segment_names(partition.folder)[0]):
        if name.base > mark.end.segment:
            break  # started since, or by a process that died: nothing in it is acknowledged
        try:
            segment = Segment(name)
        except FileNotFoundError:  # replaced, deleted or archived since it was listed
            partition.check_alive()
            return offset_at_time(partition, timestamp)
        end = _end_of(segment, mark)
        if segment.max_timestamp(end) < timestamp:
            continue
        for position, header in segment.frames(segment.position_of_time(timestamp, end), end):
            if not header.rows or header.max_timestamp < timestamp:
                continue
            records = segment.batch(position, header)
            times = records.column("timestamp").cast(pa.int64())
            first = pc.index(pc.greater_equal(times, timestamp), True).as_py()
            if first >= 0:
                return int(segment.offsets(header, records)[first])
    return mark.end.offset


def newest_timestamp(partition: Partition) -> int | None:
    """The newest timestamp (µs) of a partition's records, if it has any."""
    mark = partition.marks.read()
    newest = NO_TIMESTAMP
    for name in segment_names(partition.folder)[0]:
        if name.base <= mark.end.segment:
            with suppress(FileNotFoundError):  # replaced or deleted between listing and opening
                segment = Segment(name)
                newest = max(newest, segment.max_timestamp(_end_of(segment, mark)))
    return None if newest == NO_TIMESTAMP else newest


def records_between(partition: Partition, start: int, end: int, *, committed: bool = True) -> int:
    """How many records lie between two offsets: counted if that is fast, otherwise the number of offsets."""
    if end - start > COUNTED_MAX:
        return end - start
    count = 0
    try:
        for fetch in PartitionReader(partition, start, committed=committed).stream():
            count += int((fetch.offsets < end).sum())
            if fetch.first_offset >= end:
                break
    except (DamagedLog, OffsetLost):  # reported when they are read
        return max(0, end - start)
    return count
