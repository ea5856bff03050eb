"""Turns messages of Kafka's client into the batches of columns that every consumer returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidRecord
from millstream.log.batches import Batch
from millstream.log.groups import TopicPartition
from millstream.log.kafka.messages import BAD_HEADER, Headers, headers_of, nearest_us, times_ms
from millstream.log.layout import HEADERS, TIMESTAMP, stored_schema
from millstream.records import Codec, Schema, codec

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The first record that does not fit the schema of its topic, or cannot be decoded."""

    offset: int
    reason: str
    what: str = "does not fit the schema of its topic"

    def error(self, place: TopicPartition) -> InvalidRecord:
        return InvalidRecord(
            f"a record {self.what}: {self.reason}",
            where=f"{place}, offset {self.offset}",
            next_step=f"it was not written by Millstream; skip it: seek({self.offset + 1})",
        )


@lru_cache(maxsize=64)
def _json(ddl: str) -> Codec:
    """By the text of the schema: equal schemas may differ in the unit of a timestamp."""
    return codec("json", ddl)


def to_batch(
    place: TopicPartition, schema: Schema | None, messages: Sequence[Message]
) -> tuple[Batch | None, Unreadable | None]:
    """The records up to the first that cannot be decoded, and that one."""
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
        decoded = _json(schema.ddl).decode([values[index] for index in there])
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
