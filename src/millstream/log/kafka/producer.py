"""A producer whose chunks go to Kafka: buffer, receipts and partitioners are those of the embedded log.

A chunk is stored when the brokers have acknowledged every record of it. While none can, the records are held, and
Kafka's client tries on; with acks='all', the default here, each record is stored once however often that was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream import terminal
from millstream.errors import (
    InvalidInput,
    InvalidRecord,
    KafkaUnavailable,
    MillstreamError,
    NoAccess,
    ProducerFenced,
    TransactionAborted,
)
from millstream.log.buffer import Chunk
from millstream.log.channel import Channel
from millstream.log.kafka.clients import ANSWER_SECONDS, PASSING, Clients
from millstream.log.kafka.failures import client_module, translated
from millstream.log.partitioners import OwnPartitioner
from millstream.log.producer import Acks, Producer, Progress
from millstream.records import codec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from millstream.log.kafka.log import KafkaLog

SLOW_SECONDS = 5.0
PATIENCE_SECONDS = 30.0  # another broker takes over within some seconds
RECORD_BYTES_MAX = 1_000_000_000  # the broker's own limit is the one that counts
FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
REFUSED = (
    "MSG_SIZE_TOO_LARGE",
    "_MSG_SIZE_TOO_LARGE",
    "INVALID_TIMESTAMP",
    "INVALID_RECORD",
    "_INVALID_DIFFERENT_RECORD",
)
COMMIT, ABORT = "commit_transaction", "abort_transaction"
Work = Callable[[Any], None]
Refused = tuple[tuple[Any, ...], str]  # a record, its row first, and why
logger = terminal.logger(__name__)


class KafkaProducer(Producer):
    """Made by `log.producer(…)`. One with a name sends in transactions alone: unasked, each chunk is one."""

    def __init__(
        self,
        log: KafkaLog,
        *,
        acks: Acks = "all",
        partition_by: str | OwnPartitioner = "key",
        batch_bytes: int | str = 1 << 20,
        linger: str | timedelta = "5 milliseconds",
        buffer_bytes: int | str = 64 << 20,
        when_full: str = "wait",
        wait_at_most: str | timedelta = "60 seconds",
        name: str | None = None,
    ) -> None:
        self._clients = log.clients
        self._transactions: Transactions | None = None
        self._client: Any = None
        if name is None and acks in (0, 1, "all") and not isinstance(acks, bool):
            self._client = self._clients.producer(unsaid=_UNSAID, **_reliability(acks))
        try:
            super().__init__(
                cast(Any, log),
                acks=acks,
                partition_by=partition_by,
                batch_bytes=batch_bytes,
                linger=linger,
                buffer_bytes=buffer_bytes,
                when_full=when_full,
                wait_at_most=wait_at_most,
                name=name,
            )
        except BaseException:
            self._client = None
            raise
        self._transactions = cast("Transactions | None", self._named)
        if self._transactions is not None:
            self._client = self._transactions.client

    @contextmanager
    def transaction(self, consuming: Progress | None = None) -> Iterator[Producer]:
        from millstream.log.kafka.committing import Committing

        if consuming is not None and not isinstance(consuming, Committing):
            raise InvalidInput(
                "a transaction of Kafka takes the offsets of a consumer of the same Kafka along, and nothing else",
                next_step="with producer.transaction(consumer), both made by the same log",
            )
        with super().transaction(consuming) as producer:
            yield producer

    # ------------------------------------------------------------ storing, in its own thread

    def _store(self, chunk: Chunk) -> None:
        while self._client is None:  # the thread was quicker than the constructor
            time.sleep(0.001)
        channel = chunk.channel = self._channel(chunk.topic)
        laid = channel.lay_out(chunk)
        for reason in chunk.refused.values():
            self._note_failure(InvalidRecord(reason, where=f"topic '{chunk.topic}'"))
        places = np.full((2, len(chunk)), -1, np.int64)
        chunk.places_known = places[0], places[1]
        if not laid.batch.num_rows:
            return
        rows = np.arange(laid.batch.num_rows) if laid.rows is None else laid.rows
        chosen = self._choose(laid, channel.topic.settings.partitions, chunk.topic)
        transactions = self._transactions
        alone = transactions is not None and not self._in_transaction
        if transactions is not None and alone:
            transactions.begin()
        try:
            wide = np.broadcast_to(chosen, (laid.batch.num_rows,))
            records = zip(rows.tolist(), wide.tolist(), *_columns(laid.batch, channel), strict=True)
            refused = self._send_some(chunk, records, places)
            if transactions is None:  # of a transaction one refused record is the end
                refused = self._send_singly(chunk, refused, places)
            for record, reason in refused:
                self._refuse(chunk, record[0], reason)
            if transactions is not None and alone:
                self._commit(chunk, transactions)
        except BaseException as error:
            if transactions is not None and alone:
                transactions.abort()
                places[:] = -1
            if not isinstance(error, NoAccess):
                raise
            chunk.error = error  # asked again, it would be refused again, and what was stored be stored twice

    def _send_singly(self, chunk: Chunk, refused: list[Refused], places: npt.NDArray[np.int64]) -> list[Refused]:
        """Brokers refuse a whole batch for one record: the halves are sent again until that one is alone."""
        found: list[Refused] = []
        waiting = [refused] if refused else []
        while waiting:
            some = waiting.pop()
            again = self._send_some(chunk, [record for record, _ in some], places)
            if len(some) == 1:
                found += again
            elif again:
                half = (len(again) + 1) // 2
                waiting += [part for part in (again[half:], again[:half]) if part]
        return found

    def _send_some(
        self, chunk: Chunk, records: Iterable[tuple[Any, ...]], places: npt.NDArray[np.int64]
    ) -> list[Refused]:
        """Hands records to the client, and returns those that were refused when each was acknowledged or refused."""
        client, failures, open_records = self._client, cast("list[KafkaError]", []), [0]
        refused: list[Refused] = []

        def answered(record: tuple[Any, ...], error: KafkaError | None, sent: Any) -> None:
            open_records[0] -= 1
            if error is None:
                self._clients.refused = None
                places[0, record[0]] = sent.partition()
                places[1, record[0]] = -1 if sent.offset() is None else sent.offset()
            elif error.name() in REFUSED:
                refused.append((record, error.str()))
            else:
                failures.append(error)

        for record in records:
            row, partition, key, value, time_ms, headers = record
            if time_ms < 1:
                self._refuse(chunk, row, "Kafka keeps no times before 1970")
                continue
            report = partial(answered, record)
            send = partial(
                client.produce,
                chunk.topic,
                value,
                key,
                partition,
                on_delivery=report,
                timestamp=time_ms,
                headers=headers,
            )
            try:
                self._patiently(send, chunk.topic)
                open_records[0] += 1
            except client_module().KafkaException as error:
                if error.args[0].name() != "_MSG_SIZE_TOO_LARGE":
                    raise self._said(error.args[0], chunk.topic) from error
                self._refuse(chunk, row, error.args[0].str())
        self._until_answered(chunk, open_records)
        if failures:
            raise self._said(failures[0], chunk.topic)
        return refused

    def _commit(self, chunk: Chunk, transactions: Transactions) -> None:
        """Until it is answered: sent again, the records of a commit on its way would be stored twice."""
        while True:
            try:
                return transactions.commit(lambda client: None)
            except KafkaUnavailable as trouble:
                if not transactions.is_unanswered or self._closing or self._giving_up:
                    raise
                self._warn(chunk, trouble)
                self._buffer.tell(trouble)

    def _patiently(self, send: Callable[[], None], topic: str) -> None:
        while True:
            try:
                return send()
            except BufferError:  # the client's own queue is full
                self._client.poll(0.05)
                if self._giving_up:
                    raise TransactionAborted("the transaction was given up", where=f"topic '{topic}'") from None

    def _until_answered(self, chunk: Chunk, open_records: list[int]) -> None:
        since = warned_at = told_at = time.monotonic()
        while open_records[0]:
            self._client.flush(0.1)
            now = time.monotonic()
            waited = now - told_at > (PATIENCE_SECONDS if self._clients.refused is None else SLOW_SECONDS)
            if open_records[0] and (self._giving_up or (waited and self._closing)):
                self._client.purge()  # reports come for all of them
                continue
            if open_records[0] and (waited or now - warned_at > SLOW_SECONDS):
                trouble = self._clients.refused or KafkaUnavailable(
                    f"Kafka has not acknowledged {open_records[0]} records for {now - since:.0f} seconds",
                    where=f"topic '{chunk.topic}', {self._clients.where}",
                    next_step="see its brokers; the records are held and will be stored when they are back",
                )
                self._warn(chunk, trouble)  # type: ignore[arg-type]
                warned_at = now
                if waited:
                    told_at = now  # who asks after this has some patience, too
                    self._buffer.tell(trouble)

    def _refuse(self, chunk: Chunk, row: int, reason: str) -> None:
        chunk.refused[row] = reason
        self._note_failure(InvalidRecord(reason, where=f"topic '{chunk.topic}'"))

    def _said(self, error: KafkaError, topic: str) -> MillstreamError:
        """An error after which the chunk is not tried again: the client has tried all it could."""
        where = f"topic '{topic}'" + (f", producer '{self._named.name}'" if self._named else "")
        if error.name() in FENCED or (self._transactions and self._transactions.is_fenced()):
            return ProducerFenced(
                "a newer producer of the same name has taken over", where=where, next_step="let that one write"
            )
        if error.name() in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            kind = TransactionAborted if self._giving_up else MillstreamError
            return kind("the record was given up before it was stored", where=where)
        found = translated(error, where)
        return MillstreamError(found.what, where=where) if isinstance(found, KafkaUnavailable) else found

    def close(self) -> None:
        super().close()
        self._client = self._transactions = None if self._closing else self._transactions


_UNSAID = {
    "partitioner": "murmur2_random",
    "linger.ms": 0,  # records have lingered in the buffer
    "compression.type": "lz4",
    "queue.buffering.max.messages": 1_000_000,
    "message.max.bytes": RECORD_BYTES_MAX,
    "topic.metadata.refresh.interval.ms": 10_000,
}


def _reliability(acks: Acks) -> dict[str, Any]:
    if acks == "all":
        return {"acks": "all", "enable_idempotence": True, "message_timeout_ms": 0}
    return {"acks": acks, "enable_idempotence": False, "message_timeout_ms": 0, "max_in_flight": 1}


def _columns(batch: pa.RecordBatch, channel: Channel) -> tuple[list[Any], list[Any], list[int], list[Any]]:
    """Keys, values, times and headers as Kafka's client takes them."""
    schema, value = channel.topic.settings.schema, batch.column("value")
    if schema is None:
        values = value.to_pylist()
    else:
        written = codec("json", schema).encode(
            pa.RecordBatch.from_arrays(value.drop_null().flatten(), schema=schema.arrow)
        )
        lines = iter(written.to_pylist())
        values = [next(lines) if there else None for there in value.is_valid().to_pylist()]
    milliseconds = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000).to_pylist()
    headers = [pairs or [] for pairs in batch.column("headers").to_pylist()]
    return batch.column("key").to_pylist(), values, milliseconds, headers


class Transactions:
    """The name of a producer: a newer one of the same name fences it, and ends what it left open."""

    id = 0
    epoch = 0

    def __init__(self, name: str, clients: Clients) -> None:
        self.name = name
        self._clients = clients
        self._fenced = False
        self._unanswered: str | None = None  # the client takes no other call until it is
        self.client: Any = clients.producer(
            unsaid={**_UNSAID, "transaction.timeout.ms": 60_000},
            transactional_id=name,
            acks="all",
            enable_idempotence=True,
        )
        self._tried(lambda: self.client.init_transactions(ANSWER_SECONDS))

    def begin(self) -> None:
        if self._unanswered is not None:
            try:
                self._end(self._unanswered)
            except TransactionAborted as error:
                logger.warning("a transaction of which the outcome was unknown was not stored: %s", error)
                self._end(ABORT)
        try:
            self._tried(self.client.begin_transaction)
        except KafkaUnavailable as error:
            if not _is_of_state(error):
                raise
            self._end(ABORT)  # an exception hid from the producer that it had begun one
            self._tried(self.client.begin_transaction)

    def commit(self, work: Work) -> None:
        if self._unanswered is None:
            work(self)
        self._end(COMMIT)

    def abort(self) -> None:
        """A commit that was not answered cannot be taken back: the next transaction begins when it was."""
        if not self._fenced and not self.is_unanswered:
            try:
                self._end(ABORT)
            except KafkaUnavailable as error:
                if not _is_of_state(error):  # else none is open: an exception hid that it had ended
                    raise

    @property
    def is_unanswered(self) -> bool:
        """Whether a commit is on its way."""
        return self._unanswered == COMMIT

    def _end(self, call: str) -> None:
        try:
            self._tried(lambda: getattr(self.client, call)(ANSWER_SECONDS))
            self._unanswered = None
        except KafkaUnavailable as error:
            cause = error.__cause__
            goes_on = isinstance(cause, client_module().KafkaException) and cause.args[0].retriable()
            self._unanswered = call if goes_on else None
            if call == ABORT or not goes_on:
                raise
            raise KafkaUnavailable(
                f"Kafka has not answered whether the transaction is stored: {error.what}",
                where=error.where,
                next_step="it may be; the next transaction waits for the answer",
            ) from error
        except MillstreamError:
            self._unanswered = None
            raise

    def send_offsets(self, offsets: Any, group: Any) -> None:
        self._tried(lambda: self.client.send_offsets_to_transaction(offsets, group, ANSWER_SECONDS))

    def check(self) -> None:
        """Whether it is fenced is found out when it sends."""

    def is_fenced(self) -> bool:
        return self._fenced

    def close(self) -> None:
        self.client.poll(0)

    def _tried(self, act: Callable[[], None]) -> None:
        """Tries again what may pass, as the client allows it."""
        confluent_kafka = client_module()
        deadline = time.monotonic() + 2 * ANSWER_SECONDS
        while True:
            try:
                return act()
            except confluent_kafka.KafkaException as raised:
                error = raised.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                raise self._said(error) from raised

    def _said(self, error: KafkaError) -> MillstreamError:
        where = f"producer '{self.name}', {self._clients.where}"
        if error.name() in FENCED or (error.fatal() and error.name() not in PASSING):
            self._fenced = True
            return ProducerFenced(
                "a newer producer of the same name has taken over", where=where, next_step="let that one write"
            )
        if error.txn_requires_abort():
            return TransactionAborted(f"Kafka gave the transaction up: {error.str()}", where=where)
        return translated(error, where)


def _is_of_state(error: MillstreamError) -> bool:
    """Whether the client refused a call because its transaction is, or is not, open."""
    cause = error.__cause__
    return isinstance(cause, client_module().KafkaException) and cause.args[0].name() == "_STATE"
