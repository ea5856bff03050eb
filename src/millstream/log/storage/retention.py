"""Retention deletes or archives whole closed segments, oldest first; what an open transaction still needs stays."""

from __future__ import annotations

from millstream.log.storage.frame import NO_TIMESTAMP
from millstream.log.storage.partition import Partition, size_bytes
from millstream.log.storage.segment import Segment, SegmentName, delete, segment_names


def delete_old(partition: Partition, before_us: int | None, bytes_max: int | None) -> list[SegmentName]:
    """Deletes the segments whose newest record is older than a time, and the oldest beyond a total size."""
    if before_us is not None and _newest_active(partition) < before_us:
        partition.roll()
    mark = partition.marks.read()
    undecided = min(mark.end.segment, mark.stable.segment)
    names = segment_names(partition.folder)[0]
    sizes = [size_bytes(name.path) for name in names]
    total_bytes = sum(sizes)
    old: list[SegmentName] = []
    for oldest, size in zip(names, sizes, strict=True):
        if oldest.base >= undecided:
            break
        too_old = before_us is not None and _newest_of(oldest) < before_us
        too_many = bytes_max is not None and total_bytes > bytes_max
        if not (too_old or too_many or oldest.base < partition.own_start_offset()):
            break
        old.append(oldest)
        total_bytes -= size
    if partition.archive is not None:
        for name, following in zip(old, names[1:], strict=False):
            partition.archive.store(name, following.base)
    if old:
        # Durably, before anything is deleted: a reader must be able to distinguish this from data loss. Everything is
        # synced with it, because recovery starts where everything was synced, and must find that position.
        partition.begin_at(names[len(old)].base)
    for name in old:
        delete(name)
    return old


def forget_aborted(partition: Partition) -> None:
    """Of the segments that earlier rounds have deleted or compacted: nobody reads their aborted records any more."""
    if partition.marks.read().aborted_count:
        start = partition.start_offset()  # before the lock: the archive may be slow
        if partition.archive is None:
            start = max(start, _compacted_before(partition))
        with partition.lock:
            partition.aborted.forget(partition.marks.read().aborted_count, start)


def _compacted_before(partition: Partition) -> int:
    """The offset before which every segment has been compacted, which leaves no aborted record in it."""
    before = 0
    for name in segment_names(partition.folder)[0]:
        if name.end is None:
            break
        before = name.end
    return before


def delete_replaced(partition: Partition) -> None:
    """Deletes what compaction has replaced, and unfinished files of a compaction or repair."""
    for name in segment_names(partition.folder)[1]:
        delete(name)
    for draft in [*partition.folder.glob("*.compacting"), *partition.folder.glob("*.repairing")]:
        draft.unlink(missing_ok=True)


def _newest_of(name: SegmentName) -> int:
    segment = Segment(name)
    return segment.max_timestamp(segment.size_bytes())


def _newest_active(partition: Partition) -> int:
    """The newest timestamp of the active segment; one without records never expires."""
    mark = partition.marks.read()
    segment = Segment(SegmentName(mark.end.segment, None, partition.folder))
    newest = segment.max_timestamp(mark.end.position)
    return newest if newest != NO_TIMESTAMP else 1 << 62
