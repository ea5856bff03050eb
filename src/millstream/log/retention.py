"""Retention deletes whole closed segments from the oldest on; what an open transaction still needs stays."""

from __future__ import annotations

from millstream.log.frame import NO_TIMESTAMP
from millstream.log.partition import Partition
from millstream.log.segment import Segment, SegmentName, segment_names


def delete_old(partition: Partition, before_us: int | None, bytes_max: int | None) -> list[SegmentName]:
    """Deletes the segments whose newest record is older than a time, and the oldest beyond a total size."""
    if before_us is not None and _newest_active(partition) < before_us:
        partition.roll()
    deleted = []
    while (oldest := _oldest_closed(partition)) is not None:
        too_old = before_us is not None and _newest_of(oldest) < before_us
        too_many = bytes_max is not None and partition.size_bytes() > bytes_max
        if not (too_old or too_many):
            break
        if partition.marks.read().synced.segment <= oldest.base:
            partition.sync()  # recovery begins where all was synced, and must find that place
        delete(oldest)
        deleted.append(oldest)
    return deleted


def delete_replaced(partition: Partition) -> None:
    """Clears away what compaction has written anew, and drafts of one that was cut short."""
    for name in segment_names(partition.folder)[1]:
        delete(name)
    for draft in partition.folder.glob("*.compacting"):
        draft.unlink(missing_ok=True)


def delete(name: SegmentName) -> None:
    """The segment first: an index without one does no harm."""
    name.path.unlink(missing_ok=True)
    name.index_path.unlink(missing_ok=True)


def _oldest_closed(partition: Partition) -> SegmentName | None:
    mark = partition.marks.read()
    names = segment_names(partition.folder)[0]
    undecided = mark.stable.segment
    return names[0] if len(names) > 1 and names[0].base < min(mark.end.segment, undecided) else None


def _newest_of(name: SegmentName) -> int:
    segment = Segment(name)
    return segment.max_timestamp(segment.size_bytes())


def _newest_active(partition: Partition) -> int:
    """The newest timestamp of the active segment; one without records has nothing that could be old."""
    mark = partition.marks.read()
    segment = Segment(SegmentName(mark.end.segment, None, partition.folder))
    newest = segment.max_timestamp(mark.end.position)
    return newest if newest != NO_TIMESTAMP else 1 << 62
