"""Turns what Kafka's client has received into the batches of columns that every consumer returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidRecord
from millstream.log.batches import Batch
from millstream.log.groups import TopicPartition
from millstream.log.kafka.messages import BAD_HEADER, Headers, nearest_us
from millstream.log.kafka.received import Received
from millstream.log.layout import HEADERS, TIMESTAMP, no_values, stored_schema
from millstream.records import Codec, Schema, codec


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


def to_batch(received: Received, schema: Schema | None) -> tuple[Batch | None, Unreadable | None]:
    """The records up to the first that cannot be decoded, and that one."""
    if not received.bad_headers:
        return _to_batch(received, schema)
    cut = received.bad_headers[0]
    batch, unreadable = _to_batch(received.part(0, cut), schema) if cut else (None, None)
    return batch, unreadable or Unreadable(int(received.offsets[cut]), BAD_HEADER, "cannot be read")


def _to_batch(received: Received, schema: Schema | None) -> tuple[Batch | None, Unreadable | None]:
    values = received.values
    if schema is not None:
        decoded = _json(schema.ddl).decode(values)
        if decoded.failures:
            first = min(decoded.failures, key=lambda failure: failure.index)
            batch, _ = _to_batch(received.part(0, first.index), schema) if first.index else (None, None)
            return batch, Unreadable(int(received.offsets[first.index]), first.reason)
        struct = stored_schema(schema).field("value").type
        values = pa.StructArray.from_arrays(decoded.rows.columns, fields=list(struct))
        if len(decoded.tombstones):
            sources = np.zeros(len(received), np.int64)
            sources[decoded.indices] = np.arange(len(decoded.indices))
            is_null = np.isin(np.arange(len(received)), decoded.tombstones)
            values = values.take(pa.array(sources, mask=is_null))
    assert received.times_ms is not None
    assert received.headers is not None
    columns = [
        received.keys,
        values,
        pa.array(nearest_us(received.times_ms)).cast(TIMESTAMP),
        _header_column(received.headers),
    ]
    records = pa.RecordBatch.from_arrays(columns, schema=stored_schema(schema))
    return Batch(received.place.topic, received.place.partition, received.offsets, records), None


def _header_column(headers: Sequence[Headers | None]) -> pa.Array:
    if not any(headers):
        return no_values(HEADERS, len(headers))
    return pa.array([_pairs(each) for each in headers], HEADERS)


def _pairs(headers: Headers | None) -> list[tuple[str, bytes]] | None:
    return [(name, b"" if value is None else value) for name, value in headers] if headers else None
