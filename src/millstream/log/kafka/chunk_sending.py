"""One chunk on its way to Kafka: until every record was acknowledged or rejected."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import KafkaUnavailable, MillstreamError, TransactionAborted
from millstream.log.buffer import Chunk
from millstream.log.channel import Placed
from millstream.log.kafka.clients import Clients
from millstream.log.kafka.column_producer import Answers, ColumnProducer, Integers, Outgoing, new_tag
from millstream.log.kafka.failures import client_module
from millstream.log.ports import Sender
from millstream.records import Schema, codec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as ClientMessage

SLOW_SECONDS = 5.0
PATIENCE_SECONDS = 30.0  # another broker takes over within seconds
ROOM_SECONDS = 0.05
FLUSH_SECONDS = 0.1
TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE")
REFUSED = (
    *TOO_LARGE,
    "INVALID_TIMESTAMP",
    "INVALID_RECORD",
    "_INVALID_DIFFERENT_RECORD",
)
Refused = tuple[int, str]  # a position in the records, and the reason


def outgoing(placed: Placed) -> Outgoing:
    """The records of a chunk as Kafka has them."""
    batch = placed.batch
    headers = batch.column("headers")
    return Outgoing(
        placed.topic.name,
        np.ascontiguousarray(np.broadcast_to(placed.partitions, (batch.num_rows,)), np.int64),
        batch.column("key"),
        _values(batch.column("value"), placed.topic.settings.schema),
        pc.divide(batch.column("timestamp").cast(pa.int64()), 1000).to_numpy(),
        None if headers.null_count == len(headers) else headers.to_pylist(),
        np.arange(batch.num_rows),
    )


def _values(column: pa.Array, schema: Schema | None) -> pa.Array:
    if schema is None:
        return column
    rows = pa.RecordBatch.from_arrays(column.drop_null().flatten(), schema=schema.arrow)
    lines = codec("json", schema).encode(rows).cast(pa.binary())
    if not column.null_count:
        return lines
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return lines.take(pa.array(np.cumsum(~is_null) - 1, mask=is_null))


@dataclass(slots=True, eq=False)
class ChunkSending(ABC):
    clients: Clients
    sender: Sender
    chunk: Chunk
    records: Outgoing
    rows: Integers | None
    """The rows of the records in the chunk; None: all."""
    places: Integers
    final_error: Callable[[KafkaError, str], MillstreamError]
    unanswered: int = 0
    refused: list[Refused] = field(default_factory=list)
    failures: list[KafkaError] = field(default_factory=list)

    def send(self) -> list[Refused]:
        """Sends all records; returns the rejected ones."""
        early = self.records.times_ms < 1
        for position in np.flatnonzero(early).tolist():
            self.refuse(position, "Kafka does not store times before 1970")
        return self._sent(np.flatnonzero(~early))

    def send_singly(self, refused: list[Refused]) -> list[Refused]:
        """Brokers reject a whole batch because of one record: halves are sent again until that one is alone."""
        found: list[Refused] = []
        waiting = [refused] if refused else []
        while waiting:
            some = waiting.pop()
            again = self._sent(np.array([position for position, _ in some], np.int64))
            if len(some) == 1:
                found += again
            elif again:
                half = (len(again) + 1) // 2
                waiting += [part for part in (again[half:], again[:half]) if part]
        return found

    def refuse(self, position: int, reason: str) -> None:
        self.sender.refuse(self.chunk, self._row(position), reason)

    def _row(self, position: int) -> int:
        return position if self.rows is None else int(self.rows[position])

    def _sent(self, positions: Integers) -> list[Refused]:
        self.refused, self.failures = [], []
        self._produce(positions)
        self._wait_until_answered()
        if self.failures:
            raise self.final_error(self.failures[0], self.chunk.topic)
        return sorted(self.refused)

    @abstractmethod
    def _produce(self, positions: Integers) -> None:
        """Passes records to the client, in order."""

    @abstractmethod
    def _serve(self) -> None:
        """Waits for answers for a moment."""

    @abstractmethod
    def _purge(self) -> None:
        """Gives up the records without an answer; each of them is then reported."""

    def _check_not_discarding(self) -> None:
        if self.sender.is_discarding:
            raise TransactionAborted("the transaction was aborted", where=f"topic '{self.chunk.topic}'")

    def _refuse_or_raise(self, error: KafkaError, position: int) -> None:
        """After an error of the client itself: for a record that is too large, the others can be sent."""
        if error.name() not in TOO_LARGE:
            raise self.final_error(error, self.chunk.topic)
        self.refuse(position, error.str())

    def _wait_until_answered(self) -> None:
        since = warned_at = reported_at = time.monotonic()
        while self.unanswered:
            self._serve()
            now = time.monotonic()
            has_waited = now - reported_at > (PATIENCE_SECONDS if self.clients.refused is None else SLOW_SECONDS)
            if self.unanswered and (self.sender.is_discarding or (has_waited and self.sender.is_closing)):
                self._purge()
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


@dataclass(slots=True, eq=False, kw_only=True)
class ColumnSending(ChunkSending):
    """Without an object per record."""

    client: ColumnProducer
    tag: int = field(default_factory=new_tag)

    def _produce(self, positions: Integers) -> None:
        is_all = len(positions) == len(self.records)
        records = self.records if is_all else self.records.taken(positions)
        kafka_error, begin = client_module().KafkaError, 0
        while begin < len(records):
            sent, code = self.client.produce(records, begin, self.tag)
            self.unanswered += sent
            begin += sent
            if code == kafka_error._QUEUE_FULL:
                self.client.serve(ROOM_SECONDS, self._answered)
                self._check_not_discarding()
            elif code:
                self._refuse_or_raise(kafka_error(code), int(positions[begin]))
                begin += 1

    def _answered(self, answers: Answers) -> None:
        if answers.tag != self.tag:  # of a chunk that has already failed
            return
        self.unanswered -= len(answers.positions)
        stored = answers.codes == 0
        if stored.any():
            self.clients.refused = None
            positions = answers.positions[stored]
            rows = positions if self.rows is None else self.rows[positions]
            self.places[0, rows] = answers.partitions[stored]
            self.places[1, rows] = np.maximum(answers.offsets[stored], -1)
        for code in np.unique(answers.codes[~stored]).tolist():
            error = client_module().KafkaError(code)
            if error.name() in REFUSED:
                self.refused += [(place, error.str()) for place in answers.positions[answers.codes == code].tolist()]
            else:
                self.failures.append(error)

    def _serve(self) -> None:
        self.client.serve(FLUSH_SECONDS, self._answered)

    def _purge(self) -> None:
        self.client.purge()


@dataclass(slots=True, eq=False, kw_only=True)
class ObjectSending(ChunkSending):
    """By confluent-kafka's producer."""

    client: Producer

    def _produce(self, positions: Integers) -> None:
        records = self.records if len(positions) == len(self.records) else self.records.taken(positions)
        columns = (
            positions.tolist(),
            records.partitions.tolist(),
            records.keys.to_pylist(),
            records.values.to_pylist(),
            records.times_ms.tolist(),
            [None] * len(records) if records.headers is None else records.headers,
        )
        for position, partition, key, value, time_ms, headers in zip(*columns, strict=True):
            produce = partial(
                self.client.produce,
                self.chunk.topic,
                value,
                key,
                partition,
                on_delivery=partial(self._answered, position),
                timestamp=time_ms,
                headers=list(headers or ()),
            )
            try:
                self._when_queue_has_room(produce)
                self.unanswered += 1
            except client_module().KafkaException as error:
                self._refuse_or_raise(error.args[0], position)

    def _when_queue_has_room(self, produce: Callable[[], None]) -> None:
        while True:
            try:
                return produce()
            except BufferError:  # the client's own queue is full
                self.client.poll(ROOM_SECONDS)
                self._check_not_discarding()

    def _answered(self, position: int, error: KafkaError | None, sent: ClientMessage) -> None:
        self.unanswered -= 1
        if error is None:
            self.clients.refused = None
            row, partition, offset = self._row(position), sent.partition(), sent.offset()
            self.places[0, row] = -1 if partition is None else partition
            self.places[1, row] = -1 if offset is None else offset
        elif error.name() in REFUSED:
            self.refused.append((position, error.str()))
        else:
            self.failures.append(error)

    def _serve(self) -> None:
        self.client.flush(FLUSH_SECONDS)

    def _purge(self) -> None:
        self.client.purge()
