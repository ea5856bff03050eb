"""A producer stores records in the order they were sent, each once however often storing had to be tried.

`send` only puts a record into the buffer; one thread takes chunks out, asks the partitioner, and appends. A chunk that
the disk refuses stays at the head and is tried again, so nothing overtakes it.
"""

from __future__ import annotations

import atexit
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from millstream import terminal
from millstream.errors import (
    ClosedError,
    DamagedLog,
    DiskFull,
    InvalidInput,
    InvalidRecord,
    InvalidSetting,
    MillstreamError,
    NotALog,
    StorageError,
    UnknownPartition,
    UnsupportedFormat,
)
from millstream.log.buffer import RECORD_BYTES, BatchReceipt, Buffer, Chunk, PartitionWork, Receipt, microseconds
from millstream.log.channel import Channel, Headers, LaidOut, checked_headers, checked_key
from millstream.log.frame import NO_TIMESTAMP, TRANSACTIONAL, Draft, draft, parts
from millstream.log.groups import TopicPartition
from millstream.log.partition import Partition
from millstream.log.partitioners import OwnPartitioner, partitioner
from millstream.log.validity import Malformed, check_texts
from millstream.records import duration, size_bytes

if TYPE_CHECKING:
    from millstream.log.embedded import EmbeddedLog

Acks = Literal[0, 1, "all"]
RETRY_SECONDS = 0.2
WARN_SECONDS = 10.0
logger = terminal.logger(__name__)


class Progress(Protocol):
    """Something read that a transaction counts as done: a consumer's offsets, or a queue's messages."""

    must_rewind: bool  # what a transaction had taken along is not to be counted as done by the next

    def commit_with(self, db: sqlite3.Connection) -> None: ...

    def committed_elsewhere(self) -> None: ...

    def rewind(self) -> None: ...


class Producer:
    """Made by `log.producer(…)`; use it as a context manager, or call `close`."""

    def __init__(
        self,
        log: EmbeddedLog,
        *,
        acks: Acks = 1,
        partition_by: str | OwnPartitioner = "key",
        batch_bytes: int | str = 1 << 20,
        linger: str | timedelta = "5 milliseconds",
        buffer_bytes: int | str = 64 << 20,
        when_full: str = "wait",
        wait_at_most: str | timedelta = "60 seconds",
        name: str | None = None,
    ) -> None:
        if acks not in (0, 1, "all") or isinstance(acks, bool):
            raise InvalidSetting(f"acks is 0, 1 or 'all', not {acks!r}")
        self._log = log
        self.acks = acks
        self._partitioner = partitioner(partition_by)
        self._buffer = Buffer(
            bytes_max=size_bytes(buffer_bytes),
            chunk_bytes=size_bytes(batch_bytes),
            linger_seconds=duration(linger, what="linger").total_seconds(),
            when_full=when_full,
            wait_seconds=duration(wait_at_most, what="wait_at_most").total_seconds(),
            answers_at_once=acks == 0,
        )
        self._named = log.named_producer(name) if name is not None else None
        self._id = self._named.id if self._named else random.getrandbits(62) | 1 << 62
        self._sequences: dict[TopicPartition, int] = {}
        self._in_transaction = False
        self._must_abort = False
        self._enlisted: set[TopicPartition] = set()
        self._channels: dict[str, Channel] = {}
        self._partitions: dict[TopicPartition, Partition] = {}  # kept open between chunks
        self._warned_at = 0.0
        self._first_failure: MillstreamError | None = None
        self._failures = 0
        self._closing = False
        self._giving_up = False
        self._thread = threading.Thread(target=self._run, name="millstream-producer", daemon=True)
        self._thread.start()
        _open_producers.add(self)

    # ------------------------------------------------------------ sending

    def send(
        self,
        topic: str,
        value: Any,
        key: bytes | str | None = None,
        *,
        partition: int | None = None,
        timestamp: datetime | None = None,
        headers: Headers | None = None,
    ) -> Receipt:
        """Puts one record into the buffer. A value of None is a tombstone: it deletes its key in a compacted topic."""
        channel = self._channels.get(topic)
        if channel is None or self._closing or self._must_abort:
            channel = self._open_channel(topic)
        key_bytes = key if key is None or type(key) is bytes else checked_key(key, topic)
        if type(value) is bytes and channel.takes_bytes and partition is None:  # the usual, and the fastest
            size = len(value) + len(key_bytes or b"") + RECORD_BYTES
            row = (key_bytes, value, microseconds(timestamp), checked_headers(headers) if headers else None, None)
            return self._buffer.add(topic, row, size)
        try:
            value, size = channel.checked(value, key_bytes, partition)
        except (InvalidRecord, UnknownPartition):
            changed = self._channel(topic)
            if changed is channel:
                raise
            value, size = changed.checked(value, key_bytes, partition)
        sent_us = microseconds(timestamp)
        pairs = checked_headers(headers) if headers else None
        return self._buffer.add(topic, (key_bytes, value, sent_us, pairs, partition), size)

    def send_batch(
        self,
        topic: str,
        records: pa.RecordBatch | pa.Table | pl.DataFrame,
        *,
        key: str | None = None,
        timestamp: str | None = None,
        partition: int | None = None,
    ) -> BatchReceipt:
        """Sends a whole Arrow or polars batch. `key` and `timestamp` name the columns that hold them.

        For a topic with a schema the columns are the schema's; for one without, `value` and, if there, `key`,
        `timestamp` and `headers`.
        """
        channel = self._open_channel(topic)
        if partition is not None:
            channel.check_partition(partition)
        table = records.to_arrow() if isinstance(records, pl.DataFrame) else records
        stored = channel.stored(table, key, timestamp)
        try:
            check_texts(stored)
        except Malformed as fault:  # it would be taken for damage by whoever reads it
            raise InvalidRecord(
                f"a text in the batch is not UTF-8: {fault}",
                where=f"topic '{topic}'",
                next_step="send it as binary, or decode it first",
            ) from fault
        return self._buffer.add_batch(topic, stored, partition)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything sent so far is stored; raises what stands in the way, the records still held."""
        if self._must_abort:
            self._abort()
        self._buffer.wait_until_stored(timeout)
        first, count = self._first_failure, self._failures
        self._first_failure, self._failures = None, 0
        if first is not None:
            more = f" (and {count - 1} more failures)" if count > 1 else ""
            raise type(first)(first.what + more, where=first.where, next_step=first.next_step)

    @property
    def waiting(self) -> int:
        """Records in the buffer, not stored yet."""
        return self._buffer.waiting

    @property
    def dropped(self) -> int:
        """Records given up by the policy of a full buffer."""
        return self._buffer.dropped

    # ------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self, consuming: Progress | None = None) -> Iterator[Producer]:
        """Everything sent inside is seen by committed readers together or never.

        With `consuming` (a consumer, or `queue.acknowledging(messages)`) how far that has come is part of it: after an
        abort the same records are read again.
        """
        named = self._named
        if named is None:
            raise InvalidInput("only a producer with a name can have transactions", next_step="log.producer(name='…')")
        if self._must_abort:
            self._abort()
        if self._in_transaction:
            raise InvalidInput(f"producer '{named.name}' is in a transaction already", next_step="end that one first")
        self.flush()
        named.begin()
        self._sequences.clear()
        self._enlisted.clear()
        self._in_transaction = True
        try:
            yield self
            self.flush()
            named.commit(consuming.commit_with if consuming is not None else lambda db: None)
            if consuming is not None:
                consuming.committed_elsewhere()
            self._end_transaction()
        except BaseException:
            # Noted before all else: another exception may come while this one is dealt with.
            self._must_abort = True
            if consuming is not None:
                consuming.must_rewind = True
            try:
                self._abort()
            finally:
                if consuming is not None:
                    consuming.rewind()
            raise

    def _abort(self) -> None:
        """Also what an exception kept the last transaction from doing: until then nothing else is sent or stored."""
        assert self._named is not None
        self._give_up_waiting()
        self._named.abort()
        self._end_transaction()
        self._must_abort = False

    def _end_transaction(self) -> None:
        self._in_transaction = False
        self._first_failure, self._failures = None, 0

    def _give_up_waiting(self) -> None:
        """Forgets what is buffered, and returns when none of it is on its way to the disk any more."""
        self._giving_up = True
        try:
            self._buffer.discard()
            self._buffer.wait_for(lambda: self._buffer.is_empty)
        finally:
            self._giving_up = False

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Stores what waits, then ends. If that cannot be done it says how many records are lost."""
        if self._closing:
            return
        try:
            self.flush()
        except StorageError as error:
            lost = self.waiting
            if not lost:  # it was said of records that are settled already
                raise
            raise type(error)(
                f"{lost} records could not be stored and are lost: {error.what}",
                where=error.where,
                next_step=error.next_step,
            ) from error
        finally:
            self._closing = True
            self._buffer.close()
            self._thread.join(timeout=10)
            self._partitions.clear()
            if self._named:
                self._named.close()
            _open_producers.discard(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ------------------------------------------------------------ storing, in its own thread

    def _open_channel(self, topic: str) -> Channel:
        if self._closing:
            raise ClosedError("the producer was closed", next_step="make a new one with log.producer(…)")
        if self._must_abort:
            self._abort()
        return self._channel(topic)

    def _channel(self, topic: str) -> Channel:
        """For a topic as it is described now."""
        found = self._log.topic(topic)
        channel = self._channels.get(topic)
        if channel is None or channel.topic is not found:  # new here, or changed since
            if channel is None and (read := self._log.resolve(topic)) != topic:
                logger.warning(
                    "readers of '%s' were switched to '%s': what is written here they do not see", topic, read
                )
            channel = self._channels[topic] = Channel(found)
        return channel

    def _run(self) -> None:
        while (chunk := self._buffer.take(lambda: self._closing)) is not None:
            try:
                self._store(chunk)
            except StorageError as error:
                may_pass = not isinstance(error, DamagedLog | UnsupportedFormat | NotALog)
                if may_pass and not (self._closing or self._giving_up):  # keep the chunk and try again
                    error = _passing(error)
                    self._warn(chunk, error)
                    self._buffer.tell(error)
                    time.sleep(RETRY_SECONDS)
                    continue
                chunk.error = error
            except MillstreamError as error:
                chunk.error = error
            except Exception as error:  # of the user's partitioner, or a fault of ours
                what = f"storing failed with {type(error).__name__}: {error}"
                chunk.error = MillstreamError(what, where=f"topic '{chunk.topic}'")
            if chunk.error:
                self._note_failure(chunk.error)
            self._buffer.settle(chunk)

    def _warn(self, chunk: Chunk, error: StorageError) -> None:
        """Now and then, not with every try."""
        if time.monotonic() - self._warned_at > WARN_SECONDS:
            self._warned_at = time.monotonic()
            logger.warning("records for topic '%s' could not be stored yet: %s", chunk.topic, error)

    def _store(self, chunk: Chunk) -> None:
        if chunk.work is None:
            channel = chunk.channel = self._channel(chunk.topic)
            chunk.work = self._plan(chunk, channel)
        assert chunk.channel is not None
        while chunk.work:
            work = chunk.work[0]
            place = TopicPartition(chunk.topic, work.partition)
            partition = self._partitions[place] = chunk.channel.topic.partition(work.partition)
            if self._in_transaction and place not in self._enlisted:
                assert self._named is not None
                self._named.enlist(place)
                self._enlisted.add(place)
            tried_since = work.tried_since
            if tried_since is None:
                work.tried_since = partition.end_offset()
            offsets = partition.append(
                work.drafts,
                sync=self.acks == "all",
                permit=self._named.check if self._named else None,
                tried_since=tried_since,
            )
            work.spans = [(offset, part.rows) for offset, part in zip(offsets, work.drafts, strict=True)]
            work.drafts = []
            chunk.stored.append(chunk.work.pop(0))

    def _note_failure(self, error: MillstreamError) -> None:
        """For the next flush to raise; only the first is kept, however many there are."""
        self._first_failure = self._first_failure or error
        self._failures += 1

    def _plan(self, chunk: Chunk, channel: Channel) -> list[PartitionWork]:
        """The frames of a chunk, partition by partition."""
        laid = channel.lay_out(chunk)
        for reason in chunk.refused.values():
            self._note_failure(InvalidRecord(reason, where=f"topic '{chunk.topic}'"))
        if not laid.batch.num_rows:
            return []
        chosen = self._choose(laid, channel.topic.settings.partitions, chunk.topic)
        if isinstance(chosen, int):
            return [PartitionWork(chosen, laid.rows, self._drafts(TopicPartition(chunk.topic, chosen), laid.batch))]
        work = []
        for number in map(int, np.unique(chosen)):
            own = np.flatnonzero(chosen == number)
            drafts = self._drafts(TopicPartition(chunk.topic, number), laid.batch.take(pa.array(own)))
            work.append(PartitionWork(number, own if laid.rows is None else laid.rows[own], drafts))
        return work

    def _choose(self, laid: LaidOut, partitions: int, topic: str) -> int | npt.NDArray[np.int64]:
        """The partition of all records, or of each."""
        if isinstance(laid.asked, int):
            return laid.asked
        if laid.asked is None or (laid.asked < 0).any():
            chosen = self._partitioner(laid.batch.column("key"), partitions)
            if laid.asked is not None:
                chosen = np.where(laid.asked < 0, chosen, laid.asked)
        else:
            chosen = laid.asked
        least, most = int(chosen.min()), int(chosen.max())
        if least < 0 or most >= partitions:
            raise UnknownPartition(
                f"partition {least if least < 0 else most} was chosen, and there are {partitions}",
                where=f"topic '{topic}'",
            )
        return least if least == most else chosen

    def _drafts(self, place: TopicPartition, records: pa.RecordBatch) -> list[Draft]:
        drafts = []
        for piece in parts(records):
            sequence = self._sequences.get(place, 0)
            self._sequences[place] = (sequence + 1) & 0x7FFFFFFF
            newest = pc.max(piece.column("timestamp").cast(pa.int64())).as_py()
            drafts.append(
                draft(
                    piece,
                    NO_TIMESTAMP if newest is None else newest,
                    producer_id=self._id,
                    epoch=self._named.epoch if self._named else 0,
                    sequence=sequence,
                    flags=TRANSACTIONAL if self._in_transaction else 0,
                )
            )
        return drafts


def _passing(error: StorageError) -> StorageError:
    if not isinstance(error, DiskFull):
        return error
    step = "make room; the producer keeps the records and goes on by itself"
    return DiskFull(error.what, where=error.where, next_step=step)


_open_producers: set[Producer] = set()


def _leave_to_parent() -> None:
    """A forked child has no thread that would store anything: the producers stay its parent's."""
    for producer in _open_producers:
        producer._closing = True
    _open_producers.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _close_forgotten() -> None:
    """A script that ends without closing its producers still has its records stored."""
    for producer in list(_open_producers):
        try:
            producer.close()
        except MillstreamError as error:
            logger.error("%s", error)
