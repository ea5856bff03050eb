"""The bounded buffer between `send` and the broker: holds records in chunks; a policy applies when it is full.

Chunks leave in the order they were started, so that records of one partition are stored in the order they were sent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import (
    BufferFull,
    ClosedError,
    InvalidRecord,
    InvalidSetting,
    MillstreamError,
    RecordDropped,
    TransactionAborted,
)
from millstream.log.storage.frame import Draft

if TYPE_CHECKING:
    from millstream.log.channel import Placed

POLICIES = ("wait", "drop_oldest", "drop_newest", "refuse")
PATIENCE_SECONDS = 5.0
RECORD_BYTES = 96  # memory overhead of a small record


@dataclass(slots=True, eq=False)
class Chunk:
    """Records of one topic that are stored together: rows sent one by one, or one whole batch."""

    topic: str
    begun_at: float
    rows: list[tuple[Any, ...]] = field(default_factory=list)  # key, value, timestamp, headers, partition
    batch: pa.RecordBatch | None = None
    batch_partition: int | None = None
    size_bytes: int = 0
    dropped: int = 0
    settled: bool = False
    taken: bool = False
    error: MillstreamError | None = None
    refused: dict[int, str] = field(default_factory=dict)
    placed: Placed | None = None
    work: list[PartitionWork] | None = None
    stored: list[PartitionWork] = field(default_factory=list)
    length: int | None = None
    places_known: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        if self.length is not None:
            return self.length
        return len(self.rows) if self.batch is None else self.batch.num_rows

    def unstored(self) -> int:
        """How many records are not stored yet."""
        if self.work is None:
            return len(self) - self.dropped
        return sum(len(self) if work.rows is None else len(work.rows) for work in self.work)

    def places(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Partition and offset of every record; -1 if it is not stored."""
        if self.places_known is not None:
            return self.places_known
        partitions = np.full(len(self), -1, np.int64)
        offsets = np.full(len(self), -1, np.int64)
        for work in self.stored:
            rows = slice(None) if work.rows is None else work.rows
            partitions[rows] = work.partition
            offsets[rows] = np.concatenate([np.arange(start, start + count) for start, count in work.spans])
        if self.settled:
            self.places_known = partitions, offsets
        return partitions, offsets


@dataclass(slots=True)
class PartitionWork:
    """The part of a chunk not yet stored in one partition; kept, so that a retry stores exactly the same frames."""

    partition: int
    rows: npt.NDArray[np.int64] | None  # rows of the chunk; None: all of them
    drafts: list[Draft]
    tried_since: int | None = None
    uncertain: object = None  # keeps compaction away from frames that a failed attempt may have stored
    spans: list[tuple[int, int]] = field(default_factory=list)  # first offset and number of rows of each frame stored


class Receipt:
    """The result of a `send`: where the record is stored, once it is."""

    __slots__ = ("_buffer", "_chunk", "_index")

    def __init__(self, buffer: Buffer, chunk: Chunk, index: int) -> None:
        self._buffer = buffer
        self._chunk = chunk
        self._index = index

    @property
    def done(self) -> bool:
        return self._chunk.settled or self._index < self._chunk.dropped

    def wait(self, timeout: float | None = None) -> Receipt:
        """Waits until the record is stored as `acks` requires (with 0 it returns at once); raises if it cannot be.

        It also raises if the disk keeps failing; the record is still buffered then and can be waited for again.
        """
        if not self._buffer.answers_at_once:
            self._buffer.wait_for_record(lambda: self.done, timeout)
        if error := self.error:
            raise error
        return self

    @property
    def error(self) -> MillstreamError | None:
        if self._index < self._chunk.dropped:
            return RecordDropped(
                "the record was dropped because the buffer was full", where=f"topic '{self._chunk.topic}'"
            )
        if self._index in self._chunk.refused:
            return InvalidRecord(self._chunk.refused[self._index], where=f"topic '{self._chunk.topic}'")
        error = self._chunk.error
        is_stored = error is not None and self._chunk.places()[1][self._index] >= 0  # others of its chunk were not
        return None if is_stored else error

    @property
    def partition(self) -> int:
        return int(self.wait()._chunk.places()[0][self._index])

    @property
    def offset(self) -> int:
        return int(self.wait()._chunk.places()[1][self._index])


class BatchReceipt(Receipt):
    """The result of a `send_batch`: partition and offset of every row."""

    __slots__ = ()

    @property
    def partitions(self) -> npt.NDArray[np.int64]:
        return self.wait()._chunk.places()[0]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return self.wait()._chunk.places()[1]

    def ranges(self) -> dict[int, tuple[int, int]]:
        """By partition, the first offset and the one after the last; without looking at single rows."""
        found: dict[int, tuple[int, int]] = {}
        for work in self.wait()._chunk.stored:
            for start, count in work.spans:
                first, end = found.get(work.partition, (start, start))
                found[work.partition] = min(first, start), max(end, start + count)
        return found


class Buffer:
    """Shared by the threads that send and the one that stores."""

    def __init__(
        self,
        *,
        bytes_max: int,
        chunk_bytes: int,
        linger_seconds: float,
        when_full: str,
        wait_seconds: float,
        answers_at_once: bool = False,
    ) -> None:
        if when_full not in POLICIES:
            raise InvalidSetting(
                f"there is no policy {when_full!r} for a full buffer", next_step=f"choose one of {', '.join(POLICIES)}"
            )
        self.bytes_max = bytes_max
        self.chunk_bytes = chunk_bytes
        self.linger_seconds = linger_seconds
        self.when_full = when_full
        self.wait_seconds = wait_seconds
        self.answers_at_once = answers_at_once
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.ready = threading.Condition(self.lock)
        self.held_bytes = 0
        self.dropped = 0
        self._chunks: deque[Chunk] = deque()
        self._open: dict[str, Chunk] = {}
        self._urgent = 0
        self._closed = False
        self._trouble: MillstreamError | None = None
        self._trouble_since = 0.0

    # ------------------------------------------------------------ sending

    def add(self, topic: str, row: tuple[Any, ...], size_bytes: int) -> Receipt:
        with self.lock:
            if self._is_full(size_bytes) and not self._make_room(topic, size_bytes):
                self.dropped += 1
                return Receipt(self, Chunk(topic, 0.0, dropped=1, settled=True), 0)
            self._check_open()
            chunk = self._open.get(topic)
            if chunk is None:
                chunk = self._begin(Chunk(topic, time.monotonic()))
                self._open[topic] = chunk
            rows = chunk.rows
            receipt = Receipt(self, chunk, len(rows))
            rows.append(row)
            chunk.size_bytes += size_bytes
            self.held_bytes += size_bytes
            if chunk.size_bytes >= self.chunk_bytes:
                del self._open[topic]
                self.ready.notify()
            return receipt

    def add_batch(self, topic: str, batch: pa.RecordBatch, partition: int | None) -> BatchReceipt:
        size_bytes = batch.nbytes
        with self.lock:
            if self._is_full(size_bytes) and not self._make_room(topic, size_bytes):
                self.dropped += batch.num_rows
                return BatchReceipt(self, Chunk(topic, 0.0, dropped=batch.num_rows, settled=True), 0)
            self._check_open()
            self._open.pop(topic, None)
            chunk = self._begin(Chunk(topic, 0.0, batch=batch, batch_partition=partition, size_bytes=size_bytes))
            self.held_bytes += size_bytes
            self.ready.notify()
            return BatchReceipt(self, chunk, 0)

    def _begin(self, chunk: Chunk) -> Chunk:
        self._chunks.append(chunk)
        self.ready.notify()
        return chunk

    def _is_full(self, size_bytes: int) -> bool:
        """A record larger than the whole buffer is accepted when the buffer is empty."""
        return self.held_bytes > 0 and self.held_bytes + size_bytes > self.bytes_max

    def _check_open(self) -> None:
        if self._closed:  # by another thread, after the producer last checked
            raise ClosedError("the producer was closed", next_step="make a new one with log.producer(…)")

    def _make_room(self, topic: str, size_bytes: int) -> bool:
        """Applies the policy; False means that the new record is dropped."""
        if self.when_full == "drop_newest":
            return False
        if self.when_full == "drop_oldest":
            return self._drop_oldest(size_bytes)
        if self.when_full == "wait":
            self._urgent += 1
            try:
                self.ready.notify()
                deadline = time.monotonic() + self.wait_seconds
                while self._is_full(size_bytes):
                    if not self.changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                        break
                else:
                    return True
            finally:
                self._urgent -= 1
            if self._trouble:
                raise self._trouble
        raise BufferFull(
            f"{self.held_bytes} bytes are buffered, and the limit is {self.bytes_max}",
            where=f"topic '{topic}'",
            next_step="send more slowly, raise buffer_bytes, or choose another policy with when_full",
        )

    def _drop_oldest(self, size_bytes: int) -> bool:
        self.changed.notify_all()  # the dropped record may have a waiter
        for chunk in [chunk for chunk in self._chunks if not chunk.taken]:
            while self._is_full(size_bytes) and chunk.dropped < len(chunk):
                count = len(chunk) if chunk.batch is not None else 1
                share = chunk.size_bytes // (len(chunk) - chunk.dropped) * count
                if chunk.batch is None:
                    chunk.rows[chunk.dropped] = ()  # frees its memory
                chunk.dropped += count
                chunk.size_bytes -= share
                self.held_bytes -= share
                self.dropped += count
            if chunk.dropped == len(chunk):
                self._remove(chunk)
            if not self._is_full(size_bytes):
                return True
        return False

    def _remove(self, chunk: Chunk) -> None:
        """Removes a chunk that has no records left."""
        self.held_bytes -= chunk.size_bytes
        chunk.length, chunk.size_bytes, chunk.rows, chunk.batch = len(chunk), 0, [], None
        self._chunks.remove(chunk)
        if self._open.get(chunk.topic) is chunk:
            del self._open[chunk.topic]

    # ------------------------------------------------------------ storing

    def take(self, closing: Callable[[], bool]) -> Chunk | None:
        """The next chunk that is full, has lingered long enough or has a waiter; None when closing and empty."""
        with self.lock:
            while True:
                if not self._chunks:
                    if closing():
                        return None
                    self.ready.wait()
                    continue
                chunk = self._chunks[0]
                patience = chunk.begun_at + self.linger_seconds - time.monotonic()
                full = self._open.get(chunk.topic) is not chunk
                if full or patience <= 0 or self._urgent or closing():
                    if not full:
                        del self._open[chunk.topic]
                    chunk.taken = True
                    return chunk
                self.ready.wait(patience)

    def settle(self, chunk: Chunk) -> None:
        with self.lock:
            chunk.settled, chunk.length = True, len(chunk)
            for work in chunk.work or ():
                work.uncertain = None  # it is not retried any more
            chunk.rows, chunk.batch, chunk.placed, chunk.work = [], None, None, None
            if self._chunks and self._chunks[0] is chunk:
                self._chunks.popleft()
            self.held_bytes -= chunk.size_bytes
            self._trouble = None
            self.changed.notify_all()

    def discard(self) -> None:
        """Drops everything that is not being stored right now."""
        with self.lock:
            for chunk in [chunk for chunk in self._chunks if not chunk.taken]:
                chunk.error = TransactionAborted(
                    "the transaction was aborted before the record was stored", where=f"topic '{chunk.topic}'"
                )
                chunk.settled = True
                self.held_bytes -= chunk.size_bytes
                self._chunks.remove(chunk)
            self._open.clear()
            self.changed.notify_all()

    # ------------------------------------------------------------ both

    def wait_for(self, holds: Callable[[], bool], timeout: float | None = None) -> None:
        """Waits until a condition holds; meanwhile, chunks are stored without lingering."""
        with self.lock:
            self._urgent += 1
            self.ready.notify_all()
            try:
                if not self.changed.wait_for(holds, timeout):
                    raise TimeoutError(f"not stored within {timeout} seconds")
            finally:
                self._urgent -= 1

    def wait_for_record(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Waits until a record is done; raises the error that has blocked it for a while."""

        def is_stuck() -> bool:
            return self._trouble is not None and time.monotonic() - self._trouble_since > PATIENCE_SECONDS

        self.wait_for(lambda: done() or is_stuck(), timeout)
        if self._trouble is not None and not done():
            raise self._trouble

    def wait_until_stored(self, timeout: float | None) -> None:
        """Waits until everything added so far is stored; raises the error that blocks it."""
        with self.lock:
            last = self._chunks[-1] if self._chunks else None
            self._trouble = None
        if last is None:
            return
        self.wait_for(lambda: last.settled or last not in self._chunks or self._trouble is not None, timeout)
        if self._trouble and not last.settled:
            raise self._trouble

    def report(self, trouble: MillstreamError) -> None:
        """Passes an error that blocks storing on to the waiting threads."""
        with self.lock:
            if self._trouble is None:
                self._trouble_since = time.monotonic()
            self._trouble = trouble
            self.changed.notify_all()

    def close(self) -> None:
        """Accepts no more records; buffered ones can still be stored."""
        with self.lock:
            self._closed = True
            self.ready.notify_all()
            self.changed.notify_all()

    @property
    def is_empty(self) -> bool:
        return not self._chunks

    @property
    def waiting(self) -> int:
        """How many records are not stored yet."""
        return sum(chunk.unstored() for chunk in list(self._chunks))


def microseconds(moment: datetime | None) -> int:
    if moment is None:
        return time.time_ns() // 1000
    if not isinstance(moment, datetime):
        raise InvalidRecord(f"a timestamp must be a datetime, not {type(moment).__name__}")
    if moment.tzinfo is None:
        raise InvalidRecord(
            f"the timestamp {moment.isoformat()} has no time zone",
            next_step="give an aware datetime, for example datetime.now(timezone.utc)",
        )
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    since = moment - epoch
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
