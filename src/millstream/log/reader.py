"""A reader walks one partition from an offset on, without locks, and never sees a record twice or out of order.

It reads up to the mark: to its end, or, if it wants committed records only, to the first open transaction. What
retention or compaction does to the files meanwhile does not disturb it: a mapped segment stays whole until it is let
go of, and the next one is found by offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import OffsetLost
from millstream.log.frame import SPARSE, TRANSACTIONAL, Header
from millstream.log.mark import Mark, Place
from millstream.log.partition import Partition
from millstream.log.segment import OFFSET_COLUMN, Segment, segment_names
from millstream.records import align

READ_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Fetch:
    """Records of one frame, and the offset of each."""

    offsets: npt.NDArray[np.int64]
    records: pa.RecordBatch
    size_bytes: int


class PartitionReader:
    def __init__(self, partition: Partition, offset: int, *, committed: bool) -> None:
        self.partition = partition
        self.offset = offset
        self.committed = committed
        self._segment: Segment | None = None
        self._position = 0

    def limit(self, mark: Mark) -> Place:
        return mark.stable if self.committed else mark.end

    def lag(self) -> int:
        return max(0, self.limit(self.partition.marks.read()).offset - self.offset)

    def seek(self, offset: int) -> None:
        self.offset = offset
        self._segment = None

    def read(self, max_bytes: int = READ_BYTES) -> list[Fetch]:
        """What there is from the current offset on, a frame at least and not much more than `max_bytes`."""
        mark = self.partition.marks.read()
        self.partition.refresh()  # after the mark, so that the schema is not older than the records
        limit = self.limit(mark)
        fetched: list[Fetch] = []
        if self.offset > mark.end.offset:
            raise self._lost(mark)
        while self.offset < limit.offset and max_bytes > 0:
            segment = self._segment or self._locate(mark)
            for position, header in segment.frames(self._position, self._end_of(segment, mark)):
                if header.base_offset >= limit.offset:
                    return fetched
                self._position = position + header.size_bytes
                fetch = self._fetch(segment, position, header, mark)
                self.offset = max(self.offset, header.next_offset)
                if fetch is not None:
                    fetched.append(fetch)
                    max_bytes -= header.length
                    if max_bytes <= 0:
                        return fetched
            if segment.name.base == mark.end.segment:
                return fetched
            self.offset = max(self.offset, segment.name.end or 0)
            self._segment = None
        return fetched

    def _end_of(self, segment: Segment, mark: Mark) -> int:
        return mark.end.position if segment.name.base == mark.end.segment else segment.size_bytes()

    def _fetch(self, segment: Segment, position: int, header: Header, mark: Mark) -> Fetch | None:
        if not header.rows or header.next_offset <= self.offset:
            return None
        transaction = (header.producer_id, header.epoch)
        checked = self.committed and header.flags & TRANSACTIONAL
        if checked and transaction in self.partition.aborted.known(mark.aborted_count):
            return None
        records = segment.batch(position, header)
        offsets = segment.offsets(header, records)
        if header.flags & SPARSE:
            records = records.drop_columns([OFFSET_COLUMN])
        if offsets[0] < self.offset:
            first = int(np.searchsorted(offsets, self.offset))
            offsets, records = offsets[first:], records.slice(first)
        if not len(offsets):
            return None
        if not records.schema.equals(self.partition.schema):
            records = align(records, self.partition.schema)
        return Fetch(offsets, records, header.length)

    def _locate(self, mark: Mark) -> Segment:
        """Opens the segment with the current offset, at the frame with it or shortly before."""
        while True:
            name = max(
                (name for name in segment_names(self.partition.folder)[0] if name.base <= self.offset), default=None
            )
            if name is None:
                self.partition.check_alive()
                raise self._lost(mark)
            try:
                self._segment = Segment(name)
            except FileNotFoundError:  # replaced or deleted between the two looks
                continue
            self._position = self._segment.position_of(self.offset, self._end_of(self._segment, mark))
            return self._segment

    def _lost(self, mark: Mark) -> OffsetLost:
        start = self.partition.start_offset()
        return OffsetLost(
            f"offset {self.offset} is not there any more: the partition now holds {start} to {mark.end.offset}",
            where=f"topic '{self.partition.topic}', partition {self.partition.number}",
            next_step="read on with on_lost='earliest'; if this must not happen, lengthen the topic's retention",
        )


def offset_at_time(partition: Partition, timestamp: int) -> int:
    """The offset of the first record at or after a time (µs), or the end if there is none."""
    mark = partition.marks.read()
    for name in segment_names(partition.folder)[0]:
        try:
            segment = Segment(name)
        except FileNotFoundError:
            continue
        end = mark.end.position if name.base == mark.end.segment else segment.size_bytes()
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
