"""Offsets in other topics that correspond to a time, for readers that are switched."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.log.storage.partition import Partition
from millstream.log.storage.reader import PartitionReader, newest_timestamp, offset_at_time


def offsets_at(partitions: Iterable[Partition], time_us: int | None) -> dict[int, int]:
    if time_us is None:
        return {}
    return {partition.number: offset_at_time(partition, time_us) for partition in partitions}


def time_reached(positions: Iterable[tuple[Partition, int]]) -> int | None:
    """The time (µs) of the first unread record; if all were read, just after the last one."""
    unread, read = [], []
    for partition, offset in positions:
        first = min(max(offset, partition.start_offset()), partition.end_offset())
        fetch = next(PartitionReader(partition, first, committed=True).stream(), None)
        if fetch is not None:
            unread.append(fetch.records.column("timestamp")[0].value)
        elif (newest := newest_timestamp(partition)) is not None:
            read.append(newest + 1)
    return min(unread, default=max(read, default=None))
