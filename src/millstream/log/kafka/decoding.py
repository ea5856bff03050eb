"""Turns what Kafka's client has received into the batches of columns that every consumer returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidRecord
from millstream.log.agreement.groups import TopicPartition
from millstream.log.batches import Batch, Record, pairs_of
from millstream.log.kafka.messages import BAD_HEADER, Headers, nearest_us
from millstream.log.kafka.received import Received
from millstream.log.storage.layout import HEADERS, TIMESTAMP, no_values, stored_schema
from millstream.records import Codec, Schema, codec
from millstream.records.codecs.plain_json import PlainRows, plain_rows
from millstream.records.values import values_or_raw


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
    plain = None if schema is None else plain_rows(schema, received.values)
    if schema is not None and plain is not None:
        return ParsedBatch(received, schema, plain), None
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
    return Batch(*received.place, received.offsets, _with_values(received, schema, values)), None


def _with_values(received: Received, schema: Schema | None, values: pa.Array) -> pa.RecordBatch:
    columns = [received.keys, values, _times(received), _header_column(_headers(received))]
    return pa.RecordBatch.from_arrays(columns, schema=stored_schema(schema))


def _times(received: Received) -> pa.Array:
    assert received.times_ms is not None
    return pa.array(nearest_us(received.times_ms)).cast(TIMESTAMP)


def _headers(received: Received) -> Sequence[Headers | None]:
    assert received.headers is not None
    return received.headers


class ParsedBatch(Batch):
    """Values that are parsed, but not columns yet: who polls for records never needs these."""

    __slots__ = ("_made", "_received", "_rows", "_schema")
    _made: pa.RecordBatch | None
    _received: Received | None
    _rows: PlainRows | None
    """What it was made of, until there are columns."""
    _schema: Schema

    def __init__(self, received: Received, schema: Schema, rows: PlainRows) -> None:
        set_field = object.__setattr__  # batches are frozen
        set_field(self, "topic", received.place.topic)
        set_field(self, "partition", received.place.partition)
        set_field(self, "offsets", received.offsets)
        set_field(self, "_received", received)
        set_field(self, "_schema", schema)
        set_field(self, "_rows", rows)
        set_field(self, "_made", None)

    @property
    def columns(self) -> pa.RecordBatch:
        if self._received is not None and self._rows is not None:
            struct = stored_schema(self._schema).field("value").type
            values = pa.StructArray.from_arrays(self._rows.columns(), fields=list(struct))
            object.__setattr__(self, "_made", _with_values(self._received, self._schema, values))
            object.__setattr__(self, "_received", None)
            object.__setattr__(self, "_rows", None)
        assert self._made is not None
        return self._made

    def records(self) -> list[Record]:
        received, rows = self._received, self._rows
        if received is None or rows is None:
            return super().records()
        assert received.keys is not None
        headers = pairs_of(_header_column(_headers(received)))
        return self._records(values_or_raw(_times(received)), received.keys.to_pylist(), rows.dicts(), headers)

    def __reduce__(self) -> tuple[type[Batch], tuple[object, ...]]:
        return Batch, (self.topic, self.partition, self.offsets, self.columns)

    def split(self, count: int) -> tuple[Batch, Batch]:
        received, rows = self._received, self._rows
        if received is None or rows is None:
            return super().split(count)
        bounds = ((0, count), (count, len(self)))
        first, second = (ParsedBatch(received.part(*part), self._schema, rows.part(*part)) for part in bounds)
        return first, second


def _header_column(headers: Sequence[Headers | None]) -> pa.Array:
    if not any(headers):
        return no_values(HEADERS, len(headers))
    return pa.array([_pairs(each) for each in headers], HEADERS)


def _pairs(headers: Headers | None) -> list[tuple[str, bytes]] | None:
    return [(name, b"" if value is None else value) for name, value in headers] if headers else None
