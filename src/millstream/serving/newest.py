"""The newest committed record of a key is its row; if it is a tombstone, there is no row.

A key is first looked up in the partition of its hash. A topic whose number of partitions grew still has old keys in
their old partitions: of a key in several partitions, the record with the newest timestamp counts.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream import terminal
from millstream.connectors.catalog import Remembered
from millstream.connectors.lookups import Key, Row
from millstream.connectors.topic.records_sink import NULL_KEY, record_keys
from millstream.errors import OffsetLost, UnknownTopic
from millstream.log import Broker
from millstream.log.partitioners import KeyHash
from millstream.log.ports import BrokerTopic
from millstream.records import Schema

CHUNKS_MAX = 4096
SPARE_ROWS = 1 << 16  # this many replaced rows are always tolerated
NO_TIME = -1
ENTRY_BYTES = 200  # of a key in a dict: its slot, the header of its bytes, and its position
logger = terminal.logger(__name__)

AnyLog = TypeVar("AnyLog", bound=Broker)
AnyTopic = TypeVar("AnyTopic", bound=BrokerTopic)
Found: TypeAlias = "tuple[int, pa.Scalar]"
"""The timestamp of a record in microseconds, and its value, which is null in a tombstone."""
News: TypeAlias = "tuple[int, pa.RecordBatch, npt.NDArray[np.int64]]"
"""A partition number and some of its records: key, value and timestamp, and their offsets."""


class NoRoom(Exception):
    """An index that may not grow further."""


def always() -> bool:
    return True


class KeyedTopic(ABC, Generic[AnyLog, AnyTopic]):
    """A topic, looked up by record key. `follows` keeps an index of all keys in memory while there is `room`; without
    it each lookup reads the keys of the topic."""

    def __init__(
        self,
        log: AnyLog,
        table: Remembered,
        *,
        follows: bool,
        clock: Callable[[], float] = time.time,
        room: Callable[[], bool] = always,
    ) -> None:
        self.name, self.kind = table.name, table.kind
        self._is_text = table.schema is None
        columns = pa.schema([(table.key[0], pa.string())]) if table.schema is None else _columns(table)
        self._key = Key(table.name, columns)
        self.key = self._key.names
        self._log = log
        self._follows = follows
        self._clock = clock
        self._room = room
        self._index: Index[AnyTopic] | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def _topic(self) -> AnyTopic:
        """The topic that the name currently refers to."""

    @abstractmethod
    def _index_of(self, topic: AnyTopic) -> Index[AnyTopic]: ...

    @abstractmethod
    def _scanned(self, topic: AnyTopic, key: bytes) -> Found | None:
        """The newest record of a key, by a scan of all keys."""

    @abstractmethod
    def _row(self, value: pa.Scalar, topic: AnyTopic) -> Row: ...

    def row(self, key: Any) -> Row | None:
        wanted = self._bytes(key)
        with self._lock:
            topic = self._topic()
            found = self._found(topic, wanted)
        return self._row(found[1], topic) if found is not None and found[1].is_valid else None

    def _found(self, topic: AnyTopic, key: bytes) -> Found | None:
        if self._follows:
            try:
                return self._fresh(topic).found(key)
            except NoRoom:
                self._drop_index()
                self._follows = False
                logger.warning(
                    "the index of the table '%s' does not fit into memory next to those in use: each lookup now "
                    "reads all its keys; allow more memory with --index-mb",
                    self.name,
                )
        return self._scanned(topic, key)

    @property
    def held_bytes(self) -> int:
        index = self._index
        return 0 if index is None else index.held_bytes

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
            some = islice(self._fresh(self._topic()).keys(), count)
            return ["null" if key == NULL_KEY else key.decode(errors="replace") for key in some]

    def close(self) -> None:
        with self._lock:
            self._drop_index()

    def _drop_index(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            index.close()

    def _fresh(self, topic: AnyTopic) -> Index[AnyTopic]:
        """The index, updated with all committed records."""
        index = self._index
        if index is None or not index.still_good(topic):
            self._drop_index()
            index = self._index = self._index_of(topic)
        try:
            index.refresh(self._room)
        except (OffsetLost, UnknownTopic):  # truncated or recreated meanwhile: the index is no longer valid
            self._drop_index()
            index = self._index = self._index_of(self._topic())
            index.refresh(self._room)
        return index


def _columns(table: Remembered) -> pa.Schema:
    schema = Schema.of(table.schema or "")
    return pa.schema([schema.field(name) for name in table.key])


def newer(found: Found | None, other: Found | None) -> Found | None:
    return other if found is None or (other is not None and other[0] > found[0]) else found


def home_of(key: bytes, partitions: int) -> int:
    """The partition that producers send a key to."""
    return int(KeyHash()(pa.array([key], pa.binary()), partitions)[0])


# ---------------------------------------------------------------- the index


@dataclass(slots=True)
class Held:
    """The records read from a partition, and the chunk and row of the newest record of each key."""

    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    chunks: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    chunk_bytes: int = 0
    keys_seen: int = 0
    key_bytes_seen: int = 0

    @property
    def held_bytes(self) -> int:
        """Estimated with the average key length so far."""
        key_bytes = self.key_bytes_seen // self.keys_seen if self.keys_seen else 0
        return self.chunk_bytes + len(self.places) * (ENTRY_BYTES + key_bytes)

    def take(self, stored: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> list[bytes]:
        """Adds records; returns the keys of their tombstones."""
        number, values = len(self.chunks), stored.column("value")
        keys = stored.column("key").to_pylist()
        times = stored.column("timestamp").cast(pa.int64())
        self.chunks.append(pa.RecordBatch.from_pydict({"value": values, "time": times, "offset": pa.array(offsets)}))
        self.rows += len(keys)
        self.chunk_bytes += self.chunks[-1].nbytes
        self.keys_seen += len(keys)
        self.key_bytes_seen += stored.column("key").nbytes
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
        """Compacts the current rows, and releases all others and their files."""
        if self.rows <= 2 * len(self.places) + SPARE_ROWS and len(self.chunks) <= CHUNKS_MAX:
            return
        rows: list[list[int]] = [[] for _ in self.chunks]
        keys: list[list[bytes]] = [[] for _ in self.chunks]
        for key, (chunk, row) in self.places.items():
            rows[chunk].append(row)
            keys[chunk].append(key)
        alike: dict[pa.Schema, list[int]] = {}  # the topic's schema may have changed
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
        self.chunk_bytes = sum(chunk.nbytes for chunk in self.chunks)


class Index(ABC, Generic[AnyTopic]):
    """Every key of a topic and its newest record. `refresh` reads only what is new. Not for several threads at once."""

    def __init__(self, topic: AnyTopic, clock: Callable[[], float]) -> None:
        self._name, self._identity = topic.name, topic.identity
        self._clock = clock
        self._read_at = clock()
        self._held: list[Held] = []
        self._firsts: list[int] = []
        self._topic = topic

    @abstractmethod
    def _news(self) -> Iterator[News]:
        """The records committed since the last call."""

    @abstractmethod
    def _first_offsets(self) -> list[int]:
        """The current start offsets of the partitions."""

    def close(self) -> None:
        """Closes the reader of the topic."""

    def still_good(self, topic: AnyTopic) -> bool:
        """Whether the index is valid: not after the topic was recreated, or tombstones may have been compacted away."""
        same = (topic.name, topic.identity) == (self._name, self._identity)
        self._topic = topic
        rest_s = self._clock() - self._read_at
        return same and 0 <= rest_s < topic.settings.tombstone_retention.total_seconds() / 2

    @property
    def held_bytes(self) -> int:
        return sum(held.held_bytes for held in self._held)

    def refresh(self, room: Callable[[], bool] = always) -> None:
        """Raises NoRoom once it has grown too large; the index is unusable then."""
        self._read_at = self._clock()
        settings = self._topic.settings
        self._held += [Held() for _ in range(len(self._held), settings.partitions)]
        gone: list[tuple[Held, bytes]] = []
        for number, stored, offsets in self._news():
            held = self._held[number]
            gone += [(held, key) for key in held.take(stored, offsets)]
            held.forget_replaced()
            if not room():
                raise NoRoom
        # A tombstone matters only where another partition has an older record of its key.
        for held, key in gone:
            found = held.found(key, 0)
            tombstone = found is not None and not found[1].is_valid
            if tombstone and not any(key in other.places for other in self._held if other is not held):
                del held.places[key]
        loses_rows = settings.retention is not None or settings.retention_bytes is not None
        self._firsts = self._first_offsets() if loses_rows else [0] * len(self._held)

    def found(self, key: bytes) -> Found | None:
        """The newest record of a key; on a tie, that of the partition of its hash."""
        there = {
            number: found
            for number, (held, first) in enumerate(zip(self._held, self._firsts, strict=True))
            if (found := held.found(key, first)) is not None
        }
        if len(there) < 2:
            return next(iter(there.values()), None)
        home = home_of(key, len(self._held))
        return there[max(there, key=lambda number: (there[number][0], number == home))]

    def keys(self) -> Iterator[bytes]:
        """The keys that have a row."""
        seen: set[bytes] = set()
        for held in self._held:
            for key in held.places:
                if key not in seen and (found := self.found(key)) is not None and found[1].is_valid:
                    yield key
                seen.add(key)
