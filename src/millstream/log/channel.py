"""A channel is a producer's view of one topic: it rejects values that do not fit, and lays out those that do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidRecord, UnknownPartition
from millstream.log.buffer import RECORD_BYTES, Chunk, microseconds
from millstream.log.ports import BrokerTopic
from millstream.log.storage.layout import HEADERS, TIMESTAMP, no_values
from millstream.records import align, can_evolve, codec, rows_to_batch, same_kind

Headers = Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]]
CELL_BYTES = 32  # approximate memory of a value in a typed record


def checked_headers(headers: Headers) -> list[tuple[str, bytes]]:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    for pair in pairs:
        fits = isinstance(pair, tuple | list) and len(pair) == 2
        if not fits or not isinstance(pair[0], str) or not isinstance(pair[1], bytes | str):
            raise InvalidRecord(f"a header must be a pair of text and bytes, not {pair!r}")
        _encoded(pair[0], "the name of a header")
    return [(name, _encoded(value, f"header '{name}'") if isinstance(value, str) else value) for name, value in pairs]


def checked_key(key: Any, topic: str) -> bytes:
    if isinstance(key, str):
        return _encoded(key, f"a key for topic '{topic}'")
    if not isinstance(key, bytes | bytearray | memoryview):
        raise InvalidRecord(f"a key must be bytes or text, not {type(key).__name__}", where=f"topic '{topic}'")
    return bytes(key)


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"{what} is not valid text: {error}", next_step="send it as bytes") from error


def _held_bytes(value: Any) -> int:
    """About how much memory a value takes."""
    if isinstance(value, str | bytes | bytearray):
        return CELL_BYTES + len(value)
    if isinstance(value, Mapping):
        return CELL_BYTES + sum(_held_bytes(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return CELL_BYTES + sum(map(_held_bytes, value))
    return CELL_BYTES


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Records as they are stored, their rows in the chunk (None: all), and the requested partitions."""

    batch: pa.RecordBatch
    rows: npt.NDArray[np.int64] | None
    asked: npt.NDArray[np.int64] | int | None


@dataclass(frozen=True, slots=True)
class Placed:
    """Records as they are stored, their rows in the chunk (None: all), and one partition, or one per record."""

    topic: BrokerTopic
    batch: pa.RecordBatch
    rows: npt.NDArray[np.int64] | None
    partitions: npt.NDArray[np.int64] | int


class Channel:
    def __init__(self, topic: BrokerTopic) -> None:
        self.topic = topic
        self.keyed = topic.settings.compaction
        self.takes_bytes = not self.keyed  # stored unchanged; with a schema, the codec decodes them
        self._codec = codec(topic.settings.codec or "json", topic.settings.schema) if topic.settings.schema else None
        self._names = frozenset(topic.settings.schema.names) if topic.settings.schema else frozenset()

    # ------------------------------------------------------------ one record, when it is sent

    def checked(self, value: Any, key: bytes | None, partition: int | None) -> tuple[Any, int]:
        """The value as it is buffered, and about how many bytes the record takes in the buffer."""
        if partition is not None:
            self.check_partition(partition)
        key_bytes = RECORD_BYTES if key is None else RECORD_BYTES + len(key)
        if type(value) is bytes and not self.keyed:
            return value, len(value) + key_bytes
        value, size_bytes = self._checked_value(value, key)
        return value, size_bytes + key_bytes

    def _checked_value(self, value: Any, key: bytes | None) -> tuple[Any, int]:
        if self.keyed and key is None:
            raise self._refuse(
                "a record of a compacted topic needs a key", "give key=…; the newest of each key is kept"
            )
        if value is None:
            return None, 0
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value), len(bytes(value))
        if self.topic.settings.schema is not None:
            row = dict(self._checked_row(value))  # a copy: the caller may change its dict
            return row, sum(map(_held_bytes, row.values()))
        if not isinstance(value, str):
            raise self._refuse(
                f"a value of this topic must be bytes or text, not {type(value).__name__}",
                "send bytes, or give the topic a schema to send dicts",
            )
        encoded = _encoded(value, "the value")
        return encoded, len(encoded)

    def _checked_row(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._refuse(f"a value of this topic must be a dict, not {type(value).__name__}", self._columns())
        if not value.keys() <= self._names:
            unknown = ", ".join(sorted(map(str, value.keys() - self._names)))
            raise self._refuse(f"the topic has no column {unknown}", self._columns())
        return value

    def check_partition(self, partition: int) -> None:
        count = self.topic.settings.partitions
        if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition < count:
            raise UnknownPartition(
                f"there is no partition {partition!r}",
                where=f"topic '{self.topic.name}'",
                next_step=f"choose 0 to {count - 1}",
            )

    # ------------------------------------------------------------ a chunk, when it is stored

    def lay_out(self, chunk: Chunk) -> LaidOut:
        """Lays out the records of a chunk that can be stored; the reasons for the others are noted in the chunk."""
        if chunk.batch is not None:
            dropped = chunk.dropped >= chunk.batch.num_rows
            records = self._empty() if dropped else self._as_described(chunk.batch)
            return LaidOut(records, None, chunk.batch_partition)
        if chunk.dropped >= len(chunk.rows):
            return LaidOut(self._empty(), None, None)
        keys, values, times, headers, partitions = zip(*chunk.rows[chunk.dropped :], strict=True)
        value_array, refused = self._value_array(values)
        chunk.refused = {index + chunk.dropped: reason for index, reason in refused.items()}
        columns = [pa.array(keys, pa.binary()), value_array, pa.array(times, TIMESTAMP), pa.array(headers, HEADERS)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.topic.stored_schema)
        rows = np.arange(chunk.dropped, len(chunk.rows)) if chunk.dropped or refused else None
        asked = None
        if any(partition is not None for partition in partitions):
            asked = np.array([-1 if partition is None else partition for partition in partitions], np.int64)
        if refused:
            assert rows is not None
            kept = np.setdiff1d(np.arange(batch.num_rows), np.fromiter(refused, np.int64))
            return LaidOut(batch.take(pa.array(kept)), rows[kept], None if asked is None else asked[kept])
        return LaidOut(batch, rows, asked)

    def _as_described(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Checks a batch again if the topic may have changed since it was sent."""
        old, new = batch.schema.field("value").type, self.topic.stored_schema.field("value").type
        if old.equals(new):
            return batch
        untyped = not (pa.types.is_struct(old) and pa.types.is_struct(new))
        reasons = ["it has gained or lost its schema"] if untyped else can_evolve(pa.schema(old), pa.schema(new))
        if reasons:
            raise self._refuse(f"the topic has changed since the batch was sent: {'; '.join(reasons)}", "send it again")
        return align(batch, self.topic.stored_schema)

    def _value_array(self, values: tuple[Any, ...]) -> tuple[pa.Array, dict[int, str]]:
        """The values as stored, and a reason for each that cannot be."""
        schema = self.topic.settings.schema
        if schema is None:
            return pa.array(values, pa.binary()), {}
        assert self._codec is not None
        struct = self.topic.stored_schema.field("value").type
        as_rows = [index for index, value in enumerate(values) if isinstance(value, Mapping)]
        as_bytes = [index for index, value in enumerate(values) if isinstance(value, bytes)]
        decoded, row_failures = rows_to_batch([values[index] for index in as_rows], schema)
        refused = {as_rows[failure.index]: failure.reason for failure in row_failures}
        pieces = [(decoded, [index for index in as_rows if index not in refused])]
        if as_bytes:
            result = self._codec.decode([values[index] for index in as_bytes])
            refused |= {as_bytes[failure.index]: failure.reason for failure in result.failures}
            pieces.append((result.rows, [as_bytes[index] for index in result.indices]))
        joined = pa.concat_arrays([_struct(batch, struct) for batch, _ in pieces])
        # The position of each value in the joined array; null for tombstones and rejected values.
        source: list[int | None] = [None] * len(values)
        for position, index in enumerate(index for _, indices in pieces for index in indices):
            source[index] = position
        return joined.take(pa.array(source, pa.int64())), refused

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.topic.stored_schema)

    # ------------------------------------------------------------ a user's batch

    def stored(self, records: pa.RecordBatch | pa.Table, key: str | None, timestamp: str | None) -> pa.RecordBatch:
        """A user's batch as the columns of records."""
        if not isinstance(records, pa.Table | pa.RecordBatch):
            raise self._refuse(
                f"a batch must be Arrow or polars, not {type(records).__name__}", "use send for one record"
            )
        if len(set(records.schema.names)) < len(records.schema.names):
            raise self._refuse("the batch has two columns of the same name", f"its columns: {records.schema.names}")
        batches = records.combine_chunks().to_batches() if isinstance(records, pa.Table) else [records]
        if not batches:
            batches = [pa.RecordBatch.from_pylist([], schema=records.schema)]
        if len(batches) > 1:
            raise self._refuse("a column of the batch has more than 2 GiB", "split the batch")
        given = batches[0]
        for column in (key, timestamp):
            if column is not None and column not in given.schema.names:
                raise self._refuse(
                    f"the batch has no column '{column}'", f"its columns: {', '.join(given.schema.names)}"
                )
        rows = given.num_rows
        untyped = self.topic.settings.schema is None
        names = given.schema.names
        keys = self._column(given, key or ("key" if untyped and "key" in names else None), pa.binary())
        times = self._column(given, timestamp or ("timestamp" if untyped and "timestamp" in names else None), TIMESTAMP)
        now = pa.scalar(microseconds(None), TIMESTAMP)
        times = pa.repeat(now, rows) if times is None else times.fill_null(now)
        headers = self._column(given, "headers" if untyped and "headers" in names else None, HEADERS)
        if self.keyed and (keys is None or keys.null_count):
            raise self._refuse("records of a compacted topic need a key", "name the column of the key with key=…")
        columns = [
            no_values(pa.binary(), rows) if keys is None else keys,
            self._untyped_values(given) if untyped else self._typed_values(given),
            times,
            no_values(HEADERS, rows) if headers is None else headers,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.topic.stored_schema)

    def _untyped_values(self, batch: pa.RecordBatch) -> pa.Array:
        if "value" not in batch.schema.names:
            raise self._refuse(
                "the batch has no column 'value'",
                f"its columns: {', '.join(batch.schema.names)}; the topic has no schema",
            )
        values = self._column(batch, "value", pa.binary())
        assert values is not None
        return values

    def _typed_values(self, batch: pa.RecordBatch) -> pa.Array:
        schema = self.topic.settings.schema
        assert schema is not None
        if unknown := [name for name in batch.schema.names if name not in self._names]:
            raise self._refuse(f"the topic has no column {', '.join(unknown)}", self._columns())
        struct = self.topic.stored_schema.field("value").type
        if batch.schema.equals(schema.arrow):
            return _struct(batch, struct)
        columns = []
        for field in schema.arrow:
            column = self._typed(batch, field)
            if not field.nullable and column.null_count:
                raise self._refuse(
                    f"column '{field.name}' is NOT NULL and {column.null_count} rows have no value", None
                )
            columns.append(column)
        return _struct(pa.RecordBatch.from_arrays(columns, schema=schema.arrow), struct)

    def _typed(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """Casts a column to the type of the schema: encoding and size may differ, but not the kind of value."""
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        given = batch.column(field.name)
        if not same_kind(given.type, field.type):
            raise self._refuse(
                f"column '{field.name}' is {given.type}, and the topic's is {field.type}", self._columns()
            )
        column = self._column(batch, field.name, field.type)
        assert column is not None
        if pa.types.is_floating(field.type) and pa.types.is_floating(given.type):
            too_large = pc.and_(pc.is_inf(column), pc.is_finite(given))
            if pc.any(too_large).as_py():
                raise self._refuse(f"column '{field.name}' has numbers too large for {field.type}", None)
        return column

    def _column(self, batch: pa.RecordBatch, name: str | None, kind: pa.DataType) -> pa.Array | None:
        if name is None:
            return None
        column = batch.column(name)
        if column.type.equals(kind):
            return column
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if kind == TIMESTAMP and pa.types.is_timestamp(column.type) and column.type.tz is None:
            raise self._refuse(f"column '{name}' has no time zone", "convert it to timestamps in UTC")
        try:
            if kind == pa.binary() and not (_is_bytes(column.type)):
                column = pc.cast(column, pa.string())  # keys are hashed as text
            return pc.cast(column, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._refuse(
                f"column '{name}' is {column.type} and cannot be stored as {kind}: {error}", None
            ) from error

    def _refuse(self, what: str, next_step: str | None) -> InvalidRecord:
        return InvalidRecord(what, where=f"topic '{self.topic.name}'", next_step=next_step)

    def _columns(self) -> str:
        return f"its columns: {self.topic.settings.schema}"


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(kind)


def _struct(batch: pa.RecordBatch, struct: pa.StructType) -> pa.Array:
    return pa.StructArray.from_arrays(batch.columns, fields=list(struct))
