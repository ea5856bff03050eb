"""Sends a producer's chunks to Kafka.

A chunk is stored when the brokers have acknowledged all its records. Until then the records are kept, and Kafka's
client keeps retrying; with acks='all', the default here, each record is stored once, however many retries it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import KafkaUnavailable, MillstreamError, NoAccess, ProducerFenced, TransactionAborted
from millstream.log.buffer import Chunk
from millstream.log.channel import Placed
from millstream.log.kafka.clients import PRODUCER_DEFAULTS, Clients
from millstream.log.kafka.failures import client_module, translated
from millstream.log.kafka.transactions import FENCED, Transactions
from millstream.log.ports import Acks, Sender
from millstream.records import Schema, codec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as ClientMessage

SLOW_SECONDS = 5.0
PATIENCE_SECONDS = 30.0  # another broker takes over within seconds
REFUSED = (
    "MSG_SIZE_TOO_LARGE",
    "_MSG_SIZE_TOO_LARGE",
    "INVALID_TIMESTAMP",
    "INVALID_RECORD",
    "_INVALID_DIFFERENT_RECORD",
)
Row = tuple[Any, ...]  # the row of the chunk, partition, key, value, time in ms, headers
Refused = tuple[Row, str]  # and the reason


class KafkaStorage:
    """A named producer stores only in transactions: outside of the user's, each chunk is one."""

    def __init__(self, clients: Clients, name: str | None, acks: Acks, sender: Sender) -> None:
        self._clients = clients
        self._sender = sender
        self._name = name
        self._transactions = None if name is None else Transactions(name, clients)
        self.client: Producer | None = (
            clients.producer(defaults=PRODUCER_DEFAULTS, **_reliability(acks))
            if self._transactions is None
            else self._transactions.client
        )

    # ------------------------------------------------------------ storing

    def store(self, chunk: Chunk, placed: Placed) -> None:
        places = np.full((2, len(chunk)), -1, np.int64)
        chunk.places_known = places[0], places[1]
        if not placed.batch.num_rows:
            return
        assert self.client is not None
        sending = _Sending(self, self._clients, self._sender, self.client, chunk, places)
        transactions = None if self._sender.in_transaction else self._transactions  # for this chunk only
        if transactions is not None:
            transactions.begin()
        try:
            refused = sending.send(_rows(placed))
            if self._transactions is None:  # in a transaction, one rejected record is fatal
                refused = sending.send_singly(refused)
            for row, reason in refused:
                self._sender.refuse(chunk, row[0], reason)
            if transactions is not None:
                self._commit(chunk, transactions)
        except BaseException as error:
            if transactions is not None:
                transactions.abort()
                places[:] = -1
            if not isinstance(error, NoAccess):
                raise
            chunk.error = error  # a retry would be rejected, too, and would duplicate what was stored

    def _commit(self, chunk: Chunk, transactions: Transactions) -> None:
        """Waits for the answer: sent again, the records of a pending commit would be stored twice."""
        while True:
            try:
                return transactions.commit(lambda transaction: None)
            except KafkaUnavailable as trouble:
                if not transactions.is_unanswered or self._sender.is_closing or self._sender.is_discarding:
                    raise
                self._sender.warn(chunk, trouble)
                self._sender.report(trouble)

    def final_error(self, error: KafkaError, topic: str) -> MillstreamError:
        """An error after which the chunk is not retried: the client has tried everything."""
        where = f"topic '{topic}'" + (f", producer '{self._name}'" if self._name is not None else "")
        if error.name() in FENCED or (self._transactions and self._transactions.is_fenced()):
            return ProducerFenced(
                "a newer producer of the same name has taken over", where=where, next_step="let that producer write"
            )
        if error.name() in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            kind = TransactionAborted if self._sender.is_discarding else MillstreamError
            return kind("the record was discarded before it was stored", where=where)
        found = translated(error, where)
        return MillstreamError(found.what, where=where) if isinstance(found, KafkaUnavailable) else found

    # ------------------------------------------------------------ transactions

    def begin(self) -> None:
        assert self._transactions is not None
        self._transactions.begin()

    def commit(self, include: Callable[[object], None]) -> None:
        assert self._transactions is not None
        self._transactions.commit(include)

    def abort(self) -> None:
        assert self._transactions is not None
        self._transactions.abort()

    def close(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
        self.client = self._transactions = None


@dataclass(slots=True, eq=False)
class _Sending:
    """One chunk in flight: until every record was acknowledged or rejected."""

    storage: KafkaStorage
    clients: Clients
    sender: Sender
    client: Producer
    chunk: Chunk
    places: npt.NDArray[np.int64]
    unanswered: int = 0
    refused: list[Refused] = field(default_factory=list)
    failures: list[KafkaError] = field(default_factory=list)

    def send(self, rows: Iterable[Row]) -> list[Refused]:
        """Returns the rejected records."""
        self.refused, self.failures = [], []
        for row in rows:
            index, partition, key, value, time_ms, headers = row
            if time_ms < 1:
                self.sender.refuse(self.chunk, index, "Kafka does not store times before 1970")
                continue
            produce = partial(
                self.client.produce,
                self.chunk.topic,
                value,
                key,
                partition,
                on_delivery=partial(self._answered, row),
                timestamp=time_ms,
                headers=headers,
            )
            try:
                self._when_queue_has_room(produce)
                self.unanswered += 1
            except client_module().KafkaException as error:
                if error.args[0].name() != "_MSG_SIZE_TOO_LARGE":
                    raise self.storage.final_error(error.args[0], self.chunk.topic) from error
                self.sender.refuse(self.chunk, index, error.args[0].str())
        self._wait_until_answered()
        if self.failures:
            raise self.storage.final_error(self.failures[0], self.chunk.topic)
        return self.refused

    def send_singly(self, refused: list[Refused]) -> list[Refused]:
        """Brokers reject a whole batch because of one record: halves are sent again until that one is alone."""
        found: list[Refused] = []
        waiting = [refused] if refused else []
        while waiting:
            some = waiting.pop()
            again = self.send([row for row, _ in some])
            if len(some) == 1:
                found += again
            elif again:
                half = (len(again) + 1) // 2
                waiting += [part for part in (again[half:], again[:half]) if part]
        return found

    def _answered(self, row: Row, error: KafkaError | None, sent: ClientMessage) -> None:
        self.unanswered -= 1
        if error is None:
            self.clients.refused = None
            partition, offset = sent.partition(), sent.offset()
            self.places[0, row[0]] = -1 if partition is None else partition
            self.places[1, row[0]] = -1 if offset is None else offset
        elif error.name() in REFUSED:
            self.refused.append((row, error.str()))
        else:
            self.failures.append(error)

    def _when_queue_has_room(self, produce: Callable[[], None]) -> None:
        while True:
            try:
                return produce()
            except BufferError:  # the client's own queue is full
                self.client.poll(0.05)
                if self.sender.is_discarding:
                    raise TransactionAborted(
                        "the transaction was aborted", where=f"topic '{self.chunk.topic}'"
                    ) from None

    def _wait_until_answered(self) -> None:
        since = warned_at = reported_at = time.monotonic()
        while self.unanswered:
            self.client.flush(0.1)
            now = time.monotonic()
            has_waited = now - reported_at > (PATIENCE_SECONDS if self.clients.refused is None else SLOW_SECONDS)
            if self.unanswered and (self.sender.is_discarding or (has_waited and self.sender.is_closing)):
                self.client.purge()  # each of them is then reported
                continue
            if self.unanswered and (has_waited or now - warned_at > SLOW_SECONDS):
                trouble = self.clients.refused or KafkaUnavailable(
                    f"Kafka has not acknowledged {self.unanswered} records for {now - since:.0f} seconds",
                    where=f"topic '{self.chunk.topic}', {self.clients.where}",
                    next_step="check its brokers; the records are kept and will be stored when they are back",
                )
                self.sender.warn(self.chunk, trouble)
                warned_at = now
                if has_waited:
                    reported_at = now  # the next waiter also has some patience
                    self.sender.report(trouble)


def _reliability(acks: Acks) -> dict[str, Any]:
    if acks == "all":
        return {"acks": "all", "enable_idempotence": True, "message_timeout_ms": 0}
    return {"acks": acks, "enable_idempotence": False, "message_timeout_ms": 0, "max_in_flight": 1}


def _rows(placed: Placed) -> Iterable[Row]:
    """Row in the chunk, partition, key, value, time and headers of each record, as Kafka's client expects them."""
    batch = placed.batch
    rows = np.arange(batch.num_rows) if placed.rows is None else placed.rows
    partitions = np.broadcast_to(placed.partitions, (batch.num_rows,))
    times_ms = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000).to_pylist()
    headers = [pairs or [] for pairs in batch.column("headers").to_pylist()]
    values = _values(batch.column("value"), placed.topic.settings.schema)
    return zip(
        rows.tolist(), partitions.tolist(), batch.column("key").to_pylist(), values, times_ms, headers, strict=True
    )


def _values(column: pa.Array, schema: Schema | None) -> list[bytes | None]:
    if schema is None:
        values: list[bytes | None] = column.to_pylist()
        return values
    rows = pa.RecordBatch.from_arrays(column.drop_null().flatten(), schema=schema.arrow)
    lines = iter(codec("json", schema).encode(rows).to_pylist())
    return [next(lines) if there else None for there in column.is_valid().to_pylist()]
