"""From what Kafka's client hands over to batches of columns, as the embedded log has them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidRecord
from millstream.log.batches import Batch
from millstream.log.groups import TopicPartition
from millstream.log.kafka.clients import ANSWER_SECONDS, Clients
from millstream.log.kafka.failures import admin_module, client_module
from millstream.log.kafka.messages import BAD_HEADER, Headers, headers_of, nearest_us, times_ms
from millstream.log.layout import HEADERS, TIMESTAMP, stored_schema
from millstream.records import Codec, Schema, codec

if TYPE_CHECKING:
    from confluent_kafka import Message

END = "_PARTITION_EOF"
COUNTED_MAX = 10_000  # offsets
COUNTING_SECONDS = 5.0
UNSAID = {"fetch.wait.max.ms": 100, "queued.min.messages": 20_000, "queued.max.messages.kbytes": 32_768}


@dataclass(slots=True, eq=False)
class Place:
    """How far a partition was read. Markers of transactions have offsets, too, and are read without being seen."""

    offset: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The first record that does not fit the schema of its topic, or cannot be read at all."""

    offset: int
    reason: str
    what: str = "does not fit the schema of its topic"

    def error(self, place: TopicPartition) -> InvalidRecord:
        return InvalidRecord(
            f"a record {self.what}: {self.reason}",
            where=f"{place}, offset {self.offset}",
            next_step=f"it was not written through Millstream; go on behind it: seek({self.offset + 1})",
        )


@lru_cache(maxsize=64)
def _json(schema: Schema) -> Codec:
    return codec("json", schema)


def to_batch(
    place: TopicPartition, schema: Schema | None, messages: Sequence[Message]
) -> tuple[Batch | None, Unreadable | None]:
    """The records up to the first that cannot be read, and that."""
    headers, bad = headers_of(messages)
    if not bad:
        return _to_batch(place, schema, messages, headers)
    cut = bad[0]
    batch, unreadable = _to_batch(place, schema, messages[:cut], headers) if cut else (None, None)
    return batch, unreadable or Unreadable(int(messages[cut].offset() or 0), BAD_HEADER, "cannot be read")


def _to_batch(
    place: TopicPartition, schema: Schema | None, messages: Sequence[Message], headers: Sequence[Headers | None]
) -> tuple[Batch | None, Unreadable | None]:
    values = [message.value() for message in messages]
    unreadable = None
    if schema is None:
        column = pa.array(values, pa.binary())
    else:
        there = [index for index, value in enumerate(values) if value is not None]
        decoded = _json(schema).decode([values[index] for index in there])
        if decoded.failures:
            first = min(decoded.failures, key=lambda failure: failure.index)
            cut = there[first.index]
            unreadable = Unreadable(int(messages[cut].offset() or 0), first.reason)
            batch, _ = _to_batch(place, schema, messages[:cut], headers) if cut else (None, None)
            return batch, unreadable
        struct = stored_schema(schema).field("value").type
        rows = pa.StructArray.from_arrays(decoded.rows.columns, fields=list(struct))
        source: list[int | None] = [None] * len(values)
        for position, index in enumerate(there):
            source[index] = position
        column = rows if len(there) == len(values) else rows.take(pa.array(source, pa.int64()))
    times = pa.array(nearest_us(times_ms(messages))).cast(TIMESTAMP)
    columns = [
        pa.array([message.key() for message in messages], pa.binary()),
        column,
        times,
        pa.array([_pairs(each) for each in headers[: len(messages)]], HEADERS),
    ]
    found = np.array([message.offset() for message in messages], np.int64)
    records = pa.RecordBatch.from_arrays(columns, schema=stored_schema(schema))
    return Batch(place.topic, place.partition, found, records), unreadable


def _pairs(headers: Headers | None) -> list[tuple[str, bytes]] | None:
    return [(name, b"" if value is None else value) for name, value in headers] if headers else None


# ---------------------------------------------------------------- times


def first_record_time(clients: Clients, place: TopicPartition, offset: int) -> int | None:
    """The time (ms) of the first committed record from an offset on; None if there is none yet."""
    reader = clients.consumer(
        unsaid=UNSAID,
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
    """How many records lie between offsets: counted where that is quick, else as many as there are offsets.

    Markers of transactions and aborted records have offsets, too.
    """
    found = {place: max(0, ends[place] - start) for place, start in starts.items()}
    counted = {place for place, lag in found.items() if 0 < lag <= COUNTED_MAX}
    if not counted:
        return found
    reader = clients.consumer(
        unsaid=UNSAID,
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


def newest_time(clients: Clients, place: TopicPartition) -> int | None:
    """The latest time (ms) of a record of a partition."""
    request = {client_module().TopicPartition(*place): admin_module().OffsetSpec.max_timestamp()}
    [found] = clients.answered(lambda: clients.admin.list_offsets(request), str(place)).values()
    return int(found.timestamp) if found.timestamp >= 0 else None
