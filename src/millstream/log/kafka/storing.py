"""Sends a producer's chunks to Kafka.

A chunk is stored when the brokers have acknowledged all its records. Until then the records are kept, and Kafka's
client keeps retrying; with acks='all', the default here, each record is stored once, however many retries it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from millstream.errors import KafkaUnavailable, MillstreamError, NoAccess, ProducerFenced, TransactionAborted
from millstream.log.buffer import Chunk
from millstream.log.channel import Placed
from millstream.log.kafka.chunk_sending import ChunkSending, ColumnSending, ObjectSending, outgoing
from millstream.log.kafka.clients import PRODUCER_DEFAULTS, Clients
from millstream.log.kafka.column_producer import ColumnProducer, Integers
from millstream.log.kafka.failures import translated
from millstream.log.kafka.transactions import FENCED, Transactions
from millstream.log.ports import Acks, Sender

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer


class KafkaStorage:
    """A named producer stores only in transactions: outside of the user's, each chunk is one."""

    def __init__(self, clients: Clients, name: str | None, acks: Acks, sender: Sender) -> None:
        self._clients = clients
        self._sender = sender
        self._name = name
        self._transactions = None if name is None else Transactions(name, clients, clients.record_producer)
        self.client: ColumnProducer | Producer | None = (
            clients.record_producer(defaults=PRODUCER_DEFAULTS, **_reliability(acks))
            if self._transactions is None
            else self._transactions.client
        )

    # ------------------------------------------------------------ storing

    def store(self, chunk: Chunk, placed: Placed) -> None:
        places = np.full((2, len(chunk)), -1, np.int64)
        chunk.places_known = places[0], places[1]
        if not placed.batch.num_rows:
            return
        sending = self._sending(chunk, placed, places)
        transactions = None if self._sender.in_transaction else self._transactions  # for this chunk only
        if transactions is not None:
            transactions.begin()
        try:
            refused = sending.send()
            if self._transactions is None:  # in a transaction, one rejected record is fatal
                refused = sending.send_singly(refused)
            for position, reason in refused:
                sending.refuse(position, reason)
            if transactions is not None:
                self._commit(chunk, transactions)
        except BaseException as error:
            if transactions is not None:
                transactions.abort()
                places[:] = -1
            if not isinstance(error, NoAccess):
                raise
            chunk.error = error  # a retry would be rejected, too, and would duplicate what was stored

    def _sending(self, chunk: Chunk, placed: Placed, places: Integers) -> ChunkSending:
        parts = self._clients, self._sender, chunk, outgoing(placed), placed.rows, places, self.final_error
        if isinstance(self.client, ColumnProducer):
            return ColumnSending(*parts, client=self.client)
        assert self.client is not None
        return ObjectSending(*parts, client=self.client)

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
        self.client = self._transactions = None  # closed with its last user: the storing thread may still wait for it


def _reliability(acks: Acks) -> dict[str, Any]:
    if acks == "all":
        return {"acks": "all", "enable_idempotence": True, "message_timeout_ms": 0}
    return {"acks": acks, "enable_idempotence": False, "message_timeout_ms": 0, "max_in_flight": 1}
