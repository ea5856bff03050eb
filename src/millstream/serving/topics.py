"""The newest committed record of a key is its row, and a tombstone there means that it has none.

A key is sought where its hash says first. A topic that has got more partitions still holds old keys where they were: of
a key in several partitions the record with the newest timestamp counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import OffsetLost, UnknownTopic
from millstream.log import EmbeddedLog
from millstream.log.embedded import Topic
from millstream.log.partition import Partition
from millstream.log.partitioners import KeyHash
from millstream.log.reader import Fetch, PartitionReader, offset_at_time
from millstream.records import Schema, align
from millstream.serving.rows import Key, PlainRow, Row, TypedRow
from millstream.sinks.records import NULL_KEY, record_keys
from millstream.sinks.remembered import KEY_TEXT, Remembered

CHUNKS_MAX = 4096
SPARE_ROWS = 1 << 16  # so many rows that were replaced are held whatever they cost
NO_TIME = -1

Found: TypeAlias = "tuple[int, pa.Scalar]"
"""The timestamp of a record in microseconds, and its value, which is null in a tombstone."""


class TopicTable:
    """A topic, looked up by the keys of its records. `follows` keeps an index of all keys in memory."""

    def __init__(
        self,
        log: EmbeddedLog,
        table: Remembered,
        *,
        follows: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.kind = table.name, table.kind
        self._log = log
        self._is_text = table.schema is None
        columns = pa.schema([(table.key[0], pa.string())]) if table.schema is None else _columns(table)
        self._key = Key(table.name, columns)
        self.key = self._key.names
        self._follows = follows
        self._clock = clock
        self._index: Index | None = None
        self._lock = threading.Lock()

    def row(self, key: Any) -> Row | None:
        wanted = self._bytes(key)
        with self._lock:
            topic = self._log.topic(self._log.resolve(self.name))
            value = self._fresh(topic).value(wanted) if self._follows else _scanned(self._log, topic, wanted)
        return None if value is None else _row(value, topic.settings.schema)

    def _bytes(self, key: Any) -> bytes:
        if self._is_text and isinstance(key, bytes):
            return key
        found = record_keys(self._key.batch(key), self.key)
        assert found is not None
        made: bytes = found[0].as_py()
        return made

    def text(self, key: Any) -> str:
        return self._key.text(self._key.batch(key))

    def some_keys(self, count: int) -> list[str]:
        """The first keys that have a row."""
        with self._lock:
            topic = self._log.topic(self._log.resolve(self.name))
            index = self._fresh(topic)
            some = islice(index.keys(), count)
            return ["null" if key == NULL_KEY else key.decode(errors="replace") for key in some]

    def close(self) -> None:
        self._index = None

    def _fresh(self, topic: Topic) -> Index:
        """The index with all that is committed by now."""
        index = self._index
        if index is None or not index.still_good(topic):
            index = self._index = Index(self._log, topic, self._clock)
        try:
            index.refresh()
        except (OffsetLost, UnknownTopic):  # cut, or made anew meanwhile: what was read says nothing about it
            self._index = None
            topic = self._log.topic(topic.name)
            index = Index(self._log, topic, self._clock)
            index.refresh()
            self._index = index
        return index


def _columns(table: Remembered) -> pa.Schema:
    schema = Schema.of(table.schema or "")
    return pa.schema([schema.field(name) for name in table.key])


def _row(value: pa.Scalar, schema: Schema | None) -> Row:
    if schema is None:
        return PlainRow(value.as_py())
    held = pa.array([value], value.type)
    batch = pa.RecordBatch.from_arrays(held.flatten(), schema=pa.schema(list(value.type)))
    return TypedRow(align(batch, schema.arrow))  # it may have been read before the topic got a new column


def text_table(topic: str, log: EmbeddedLog) -> Remembered:
    """A topic that no job remembers."""
    return Remembered(topic, "topic", str(log.path), KEY_TEXT, None)


# ---------------------------------------------------------------- once


def _scanned(log: EmbeddedLog, topic: Topic, key: bytes) -> pa.Scalar | None:
    """The value of a key, by a look at all keys of its partition."""
    home = home_of(key, topic.settings.partitions)
    found = _newest(log, topic.partition(home), key)
    for partition in topic.partitions():
        if partition.number != home:
            other = _newest(log, partition, key, since=NO_TIME if found is None else found[0])
            found = _newer(found, other)
    return found[1] if found is not None and found[1].is_valid else None


def _newer(found: Found | None, other: Found | None) -> Found | None:
    return other if found is None or (other is not None and other[0] > found[0]) else found


def _newest(log: EmbeddedLog, partition: Partition, key: bytes, since: int = NO_TIME) -> Found | None:
    """The last record of a key; one that is older than `since` need not be found."""
    wanted = pa.scalar(key, pa.binary())
    found = None
    first = partition.start_offset() if since == NO_TIME else offset_at_time(partition, since)
    for fetch in _fetches(log, PartitionReader(partition, first, committed=True)):
        same = pc.equal(fetch.stored.column("key"), wanted)
        places = pc.indices_nonzero(same)
        if len(places):
            place = places[-1].as_py()
            found = (_times(fetch)[place].as_py() or NO_TIME, fetch.stored.column("value")[place])
    return found


def _fetches(log: EmbeddedLog, reader: PartitionReader) -> Iterator[Fetch]:
    """Frames that have keys. Transactions of producers that died would hold a reader back for ever."""
    if reader.partition.marks.read().open:
        log.end_abandoned(reader.partition)
    for fetch in reader.stream():
        if "key" in fetch.stored.schema.names:
            yield fetch


def _times(fetch: Fetch) -> pa.Array:
    return fetch.stored.column("timestamp").cast(pa.int64())


def home_of(key: bytes, partitions: int) -> int:
    """The partition that producers send a key to."""
    return int(KeyHash()(pa.array([key], pa.binary()), partitions)[0])


# ---------------------------------------------------------------- followed


@dataclass(slots=True)
class Held:
    """What was read of a partition, and where in it the newest record of each key lies: in which chunk and row."""

    reader: PartitionReader
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    chunks: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0

    def take(self, fetch: Fetch) -> list[bytes]:
        """Notes the records of a frame; gives the keys of its tombstones."""
        number, values = len(self.chunks), fetch.stored.column("value")
        keys = fetch.stored.column("key").to_pylist()
        columns = {"value": values, "time": _times(fetch), "offset": pa.array(fetch.offsets)}
        self.chunks.append(pa.RecordBatch.from_pydict(columns))
        self.rows += len(keys)
        self.places.update({key: (number, row) for row, key in enumerate(keys) if key is not None})
        dead = pc.indices_nonzero(values.is_null()).to_pylist() if values.null_count else []
        return [keys[row] for row in dead if keys[row] is not None]

    def found(self, key: bytes, first_offset: int) -> Found | None:
        place = self.places.get(key)
        if place is None:
            return None
        chunk, row = self.chunks[place[0]], place[1]
        if chunk.column("offset")[row].as_py() < first_offset:
            return None
        return chunk.column("time")[row].as_py() or NO_TIME, chunk.column("value")[row]

    def forget_replaced(self) -> None:
        """Brings the rows that are current together, and lets go of all others and of the files they lie in."""
        if self.rows <= 2 * len(self.places) + SPARE_ROWS and len(self.chunks) <= CHUNKS_MAX:
            return
        rows: list[list[int]] = [[] for _ in self.chunks]
        keys: list[list[bytes]] = [[] for _ in self.chunks]
        for key, (chunk, row) in self.places.items():
            rows[chunk].append(row)
            keys[chunk].append(key)
        alike: dict[pa.Schema, list[int]] = {}  # the topic may have got another schema on the way
        for chunk, batch in enumerate(self.chunks):
            if rows[chunk]:
                alike.setdefault(batch.schema, []).append(chunk)
        parts = list(alike.values())
        self.chunks = [
            pa.concat_batches([self.chunks[each].take(pa.array(rows[each], pa.int64())) for each in part])
            for part in parts
        ]
        for number, part in enumerate(parts):
            current = (key for each in part for key in keys[each])
            self.places |= {key: (number, row) for row, key in enumerate(current)}
        self.rows = len(self.places)


class Index:
    """Every key of a topic and its newest record. `refresh` reads only what is new. Not for several threads at once."""

    def __init__(self, log: EmbeddedLog, topic: Topic, clock: Callable[[], float]) -> None:
        self._log = log
        self._name, self._identity = topic.name, topic.identity
        self._clock = clock
        self._read_at = clock()
        self._held: list[Held] = []
        self._topic = topic

    def still_good(self, topic: Topic) -> bool:
        """Not of a topic made anew, nor if tombstones may have come and gone since the last look."""
        same = (topic.name, topic.identity) == (self._name, self._identity)
        self._topic = topic
        rest_s = self._clock() - self._read_at
        return same and 0 <= rest_s < topic.settings.tombstone_retention.total_seconds() / 2

    def refresh(self) -> None:
        self._read_at = self._clock()
        for number in range(len(self._held), self._topic.settings.partitions):
            partition = self._topic.partition(number)
            reader = PartitionReader(partition, partition.start_offset(), committed=True)
            self._held.append(Held(reader))
        gone: list[tuple[Held, bytes]] = []
        for held in self._held:
            mark = held.reader.partition.marks.read()
            if mark.end.offset == held.reader.offset and not mark.open:
                continue
            for fetch in _fetches(self._log, held.reader):
                gone += [(held, key) for key in held.take(fetch)]
                held.forget_replaced()
        # A tombstone matters only where another partition has an older record of its key.
        for held, key in gone:
            found = held.found(key, 0)
            tombstone = found is not None and not found[1].is_valid
            if tombstone and not any(key in other.places for other in self._held if other is not held):
                del held.places[key]

    def value(self, key: bytes) -> pa.Scalar | None:
        found = None
        for held in self._held:
            found = _newer(found, self._found(held, key))
        return found[1] if found is not None and found[1].is_valid else None

    def _found(self, held: Held, key: bytes) -> Found | None:
        settings = self._topic.settings
        loses_rows = settings.retention is not None or settings.retention_bytes is not None
        return held.found(key, held.reader.partition.start_offset() if loses_rows else 0)

    def keys(self) -> Iterator[bytes]:
        seen: set[bytes] = set()
        for held in self._held:
            for key in held.places:
                if key not in seen and self.value(key) is not None:
                    yield key
                seen.add(key)
