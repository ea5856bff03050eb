"""Positions in Kafka's partitions by time, and the records between two of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.clients import ANSWER_SECONDS, END, READER_DEFAULTS, Clients
from millstream.log.kafka.failures import admin_module, client_module
from millstream.log.kafka.topics import offsets

COUNTED_MAX = 10_000  # offsets
COUNTING_SECONDS = 5.0


def offsets_at(clients: Clients, places: Iterable[TopicPartition], time_ms: int | None) -> dict[int, int]:
    if time_ms is None:
        return {}
    return {place.partition: offset for place, offset in offsets(clients, places, time_ms).items()}


def time_reached(clients: Clients, reached: Mapping[TopicPartition, int]) -> int | None:
    """The time (ms) of the first unread record; if all were read, just after the last one."""
    starts = offsets(clients, reached, "earliest")
    ends = offsets(clients, reached, "latest", committed=True)
    unread, read = [], []
    for place, offset in reached.items():
        first = max(offset, starts[place])
        found = _first_record_time(clients, place, first) if first < ends[place] else None
        if found is not None:
            unread.append(found)
        elif (newest := _newest_time(clients, place)) is not None:
            read.append(newest + 1)
    return min(unread, default=max(read, default=None))


def _first_record_time(clients: Clients, place: TopicPartition, offset: int) -> int | None:
    """The time (ms) of the first committed record from an offset on; None if there is none yet."""
    reader = clients.consumer(
        defaults=READER_DEFAULTS,
        group_id="millstream-times",
        enable_auto_commit=False,
        enable_partition_eof=True,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    try:
        reader.assign([client_module().TopicPartition(place.topic, place.partition, offset)])
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            message = reader.poll(0.5)
            error = None if message is None else message.error()
            if message is not None and error is None:
                return int(message.timestamp()[1])
            if error is not None and error.name() == END:
                return None
        return None
    finally:
        reader.close()


def records_between(
    clients: Clients, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """How many records lie between offsets: counted if that is fast, otherwise the number of offsets.

    Transaction markers and aborted records have offsets, too.
    """
    found = {place: max(0, ends[place] - start) for place, start in starts.items()}
    counted = {place for place, lag in found.items() if 0 < lag <= COUNTED_MAX}
    if not counted:
        return found
    reader = clients.consumer(
        defaults=READER_DEFAULTS,
        group_id="millstream-lags",
        enable_auto_commit=False,
        enable_partition_eof=True,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    counts, left = dict.fromkeys(counted, 0), set(counted)
    try:
        reader.assign([client_module().TopicPartition(*place, starts[place]) for place in counted])
        deadline = time.monotonic() + COUNTING_SECONDS
        while left and time.monotonic() < deadline:
            for message in reader.consume(COUNTED_MAX, 0.2):
                place = TopicPartition(message.topic() or "", int(message.partition() or 0))
                error = message.error()
                if error is None and (message.offset() or 0) < ends[place]:
                    counts[place] += 1
                elif error is None or error.name() == END:
                    left.discard(place)
    finally:
        reader.close()
    return found | {place: count for place, count in counts.items() if place not in left}


def _newest_time(clients: Clients, place: TopicPartition) -> int | None:
    """The latest timestamp (ms) in a partition."""
    request = {client_module().TopicPartition(*place): admin_module().OffsetSpec.max_timestamp()}
    [found] = clients.answered(lambda: clients.admin.list_offsets(request), str(place)).values()
    return int(found.timestamp) if found.timestamp >= 0 else None
