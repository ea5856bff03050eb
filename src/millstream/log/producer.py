"""A producer stores records in the order they were sent, and each exactly once, however many retries it takes.

`send` only puts a record into the buffer; one thread takes chunks out, calls the partitioner, and stores them. A chunk
that the broker cannot accept now stays at the head and is retried, so nothing overtakes it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

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
from millstream.log.buffer import RECORD_BYTES, BatchReceipt, Buffer, Chunk, Receipt, microseconds
from millstream.log.channel import Channel, Headers, LaidOut, Placed, checked_headers, checked_key
from millstream.log.partitioners import OwnPartitioner, partitioner
from millstream.log.ports import Acks, Producible, Progress
from millstream.log.sending import Sending
from millstream.log.storage.validity import Malformed, check_texts
from millstream.records import duration, size_bytes

RETRY_SECONDS = 0.2
logger = terminal.logger(__name__)


class Producer:
    """Made by `log.producer(…)`; use it as a context manager, or call `close`."""

    def __init__(
        self,
        log: Producible,
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
            raise InvalidSetting(f"acks must be 0, 1 or 'all', not {acks!r}")
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
        self._name = name
        self._must_abort = False
        self._channels: dict[str, Channel] = {}
        self._sending = Sending(self._buffer)
        self._storing = log.open_producer(name, acks, self._sending)
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
        """Buffers one record. A value of None is a tombstone: it deletes its key in a compacted topic."""
        channel = self._channels.get(topic)
        if channel is None or self._sending.is_closing or self._must_abort:
            channel = self._open_channel(topic)
        key_bytes = key if key is None or type(key) is bytes else checked_key(key, topic)
        if type(value) is bytes and channel.takes_bytes and partition is None:  # the common case, and the fastest
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
        """Sends a whole Arrow or polars batch. `key` and `timestamp` name their columns.

        For a topic with a schema the columns are the schema's; otherwise `value` and optionally `key`, `timestamp` and
        `headers`.
        """
        channel = self._open_channel(topic)
        if partition is not None:
            channel.check_partition(partition)
        table = records.to_arrow() if isinstance(records, pl.DataFrame) else records
        stored = channel.stored(table, key, timestamp)
        try:
            check_texts(stored)
        except Malformed as fault:  # readers would report it as damage
            raise InvalidRecord(
                f"a text in the batch is not UTF-8: {fault}",
                where=f"topic '{topic}'",
                next_step="send it as binary, or decode it first",
            ) from fault
        return self._buffer.add_batch(topic, stored, partition)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything sent so far is stored; raises if it cannot be, and keeps the records."""
        if self._must_abort:
            self._abort()
        self._buffer.wait_until_stored(timeout)
        self._sending.raise_failure()

    @property
    def waiting(self) -> int:
        """Buffered records, not stored yet."""
        return self._buffer.waiting

    @property
    def dropped(self) -> int:
        """Records dropped because the buffer was full."""
        return self._buffer.dropped

    # ------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self, consuming: Progress | None = None) -> Iterator[Producer]:
        """Committed readers see everything sent inside, or nothing.

        With `consuming` (a consumer, or `queue.acknowledging(messages)`) its progress is part of the transaction: after
        an abort the same records are read again.
        """
        if self._name is None:
            raise InvalidInput("only a producer with a name can have transactions", next_step="log.producer(name='…')")
        if consuming is not None and consuming.transaction_type is not self._log.transaction_type:
            raise InvalidInput(
                "a transaction can only include the progress of a consumer or queue of the same broker",
                next_step="with producer.transaction(consumer), both made by the same log",
            )
        if self._must_abort:
            self._abort()
        if self._sending.in_transaction:
            raise InvalidInput(f"producer '{self._name}' is already in a transaction", next_step="end that one first")
        self.flush()
        self._storing.begin()
        self._sending.in_transaction = True
        try:
            yield self
            self.flush()
            self._storing.commit(consuming.commit_with if consuming is not None else lambda transaction: None)
            if consuming is not None:
                consuming.committed_elsewhere()
            self._end_transaction()
        except BaseException:
            # Set first: another exception may come while this one is handled.
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
        """Also completes an earlier abort that an exception interrupted: until then nothing else is sent or stored."""
        self._discard_buffer()
        self._storing.abort()
        self._end_transaction()
        self._must_abort = False

    def _end_transaction(self) -> None:
        self._sending.in_transaction = False
        self._sending.forget_failures()

    def _discard_buffer(self) -> None:
        """Discards the buffer, and returns when none of it is being stored any more."""
        self._sending.is_discarding = True
        try:
            self._buffer.discard()
            self._buffer.wait_for(lambda: self._buffer.is_empty)
        finally:
            self._sending.is_discarding = False

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        """Stores what is buffered, then closes. If that fails, the error says how many records are lost."""
        if self._sending.is_closing:
            return
        try:
            self.flush()
        except StorageError as error:
            lost = self.waiting
            if not lost:  # it was about records that are done already
                raise
            raise type(error)(
                f"{lost} records could not be stored and are lost: {error.what}",
                where=error.where,
                next_step=error.next_step,
            ) from error
        finally:
            self._sending.is_closing = True
            self._buffer.close()
            self._thread.join(timeout=10)
            self._storing.close()
            _open_producers.discard(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ------------------------------------------------------------ storing, in its own thread

    def _open_channel(self, topic: str) -> Channel:
        if self._sending.is_closing:
            raise ClosedError("the producer was closed", next_step="make a new one with log.producer(…)")
        if self._must_abort:
            self._abort()
        return self._channel(topic)

    def _channel(self, topic: str) -> Channel:
        """The channel of a topic, as currently described."""
        found = self._log.topic(topic)
        channel = self._channels.get(topic)
        if channel is None or channel.topic is not found:  # new here, or changed since
            if channel is None and (read := self._log.resolve(topic)) != topic:
                logger.warning(
                    "readers of '%s' were switched to '%s': they do not see what is written here", topic, read
                )
            channel = self._channels[topic] = Channel(found)
        return channel

    def _run(self) -> None:
        while (chunk := self._buffer.take(lambda: self._sending.is_closing)) is not None:
            try:
                self._store(chunk)
            except StorageError as error:
                may_pass = not isinstance(error, DamagedLog | UnsupportedFormat | NotALog)
                sending = self._sending
                if may_pass and not (sending.is_closing or sending.is_discarding):  # keep the chunk and retry
                    error = _passing(error)
                    sending.warn(chunk, error)
                    sending.report(error)
                    time.sleep(RETRY_SECONDS)
                    continue
                chunk.error = error
            except MillstreamError as error:
                chunk.error = error
            except Exception as error:  # from the user's partitioner, or a bug
                what = f"storing failed with {type(error).__name__}: {error}"
                chunk.error = MillstreamError(what, where=f"topic '{chunk.topic}'")
            if chunk.error:
                self._sending.note_failure(chunk.error)
            self._buffer.settle(chunk)

    def _store(self, chunk: Chunk) -> None:
        if chunk.placed is None:
            chunk.placed = self._place(chunk)
        self._storing.store(chunk, chunk.placed)

    def _place(self, chunk: Chunk) -> Placed:
        """Lays out the records of a chunk and assigns partitions; kept, so that a retry stores exactly the same."""
        channel = self._channel(chunk.topic)
        laid = channel.lay_out(chunk)
        for reason in chunk.refused.values():
            self._sending.note_failure(InvalidRecord(reason, where=f"topic '{chunk.topic}'"))
        chosen: int | npt.NDArray[np.int64] = 0
        if laid.batch.num_rows:
            chosen = self._choose(laid, channel.topic.settings.partitions, chunk.topic)
        return Placed(channel.topic, laid.batch, laid.rows, chosen)

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
                f"partition {least if least < 0 else most} was chosen, but the topic has {partitions}",
                where=f"topic '{topic}'",
            )
        return least if least == most else chosen


def _passing(error: StorageError) -> StorageError:
    if not isinstance(error, DiskFull):
        return error
    step = "free some space; the producer keeps the records and retries"
    return DiskFull(error.what, where=error.where, next_step=step)


_open_producers: set[Producer] = set()


def _drop_in_child() -> None:
    """A forked child has no storing thread: the producers stay with its parent."""
    for producer in _open_producers:
        producer._sending.is_closing = True
    _open_producers.clear()


os.register_at_fork(after_in_child=_drop_in_child)


@atexit.register
def _close_at_exit() -> None:
    """Stores the records of producers that a script did not close."""
    for producer in list(_open_producers):
        try:
            producer.close()
        except MillstreamError as error:
            logger.error("%s", error)
