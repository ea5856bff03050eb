"""An event store's topic on Kafka: the process that decides is its only writer, and Kafka fences all others.

The writer is the newest producer with the store's transactional id. Whoever takes the role over waits for the last
transaction of the one before, reads to the end, and decides on that; the one before cannot commit any more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import KafkaUnavailable, MillstreamError, ProducerFenced, TransactionAborted
from millstream.events.layout import SCHEMA, Row, to_batch, to_rows
from millstream.events.ports import Decide, Span, Stored
from millstream.log.consumer import Consumer
from millstream.log.groups import TopicPartition
from millstream.log.kafka.clients import ANSWER_SECONDS
from millstream.log.kafka.failures import client_module, translated
from millstream.log.kafka.log import KafkaLog
from millstream.log.kafka.topics import offsets
from millstream.log.kafka.transactions import FENCED, Transactions
from millstream.records import Schema, codec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka import Message as ClientMessage

TAKE_OVERS_MAX = 100
PAUSE_SECONDS_MAX = 0.2
READ_SECONDS = 1.0
READ_BYTES = 8 << 20
CODEC_SCHEMA = Schema.of(SCHEMA)


class KafkaEventLog:
    has_random_access = False
    index_path: Path | None = None

    def __init__(self, log: KafkaLog, topic: str) -> None:
        self.identity = log.topic(topic, fresh=True).identity
        self._log = log
        self._topic = topic
        self._writer: Transactions | None = None
        self._reader: Consumer | None = None

    def spans(self, start: int) -> Iterator[Span]:
        end = self._end()
        if start < end:
            with self._log.consumer(self._topic, start=start) as consumer:
                yield from self._read(consumer, end)

    def news(self, start: int) -> Iterator[Span]:
        end = self._end()
        if start >= end:
            return
        if self._reader is None:
            self._reader = self._log.consumer(self._topic, start=start)
        elif self._reader.position(self._topic, 0) != start:
            self._reader.seek(start)
        yield from self._read(self._reader, end)

    def _end(self) -> int:
        place = TopicPartition(self._topic, 0)
        return offsets(self._log.clients, [place], "latest", committed=True)[place]

    def _read(self, consumer: Consumer, end: int) -> Iterator[Span]:
        """All of it: what a slow broker has not sent yet must not be taken for the markers before the end."""
        moved_at = time.monotonic()
        while (reached := consumer.position(self._topic, 0)) < end:
            for batch in consumer.poll_batches(READ_SECONDS, max_bytes=READ_BYTES):
                yield Span(batch.offsets.tolist(), to_rows(batch.columns.column("value")), batch.next_offset)
            if consumer.position(self._topic, 0) != reached:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > ANSWER_SECONDS:
                raise KafkaUnavailable(
                    f"Kafka sent no events for {ANSWER_SECONDS:.0f} seconds",
                    where=f"topic '{self._topic}', offset {reached} of {end}, {self._log.address}",
                    next_step="check that its brokers are up and reachable",
                )
        yield Span([], [], end)

    def write(self, decide: Decide) -> Stored:
        for attempt in range(TAKE_OVERS_MAX):
            try:
                if self._writer is None:
                    self._writer = Transactions(f"millstream-events-{self._topic}", self._log.clients)
                rows = [row for piece in decide() for row in piece]
                return self._stored(self._writer, rows) if rows else Stored([], 0)
            except (ProducerFenced, TransactionAborted, KafkaUnavailable) as error:
                # Also after a commit without an answer: the next writer waits for it, and the ids show its outcome.
                self._step_down()
                if attempt == TAKE_OVERS_MAX - 1 or (isinstance(error, KafkaUnavailable) and attempt):
                    raise
                time.sleep(random.uniform(0, PAUSE_SECONDS_MAX))
            except BaseException:
                self._step_down()
                raise
        raise AssertionError("the last attempt raises")

    def _stored(self, writer: Transactions, rows: Sequence[Row]) -> Stored:
        batch = to_batch(rows)
        values = codec("json", CODEC_SCHEMA).encode(_values(batch)).to_pylist()
        positions: list[int] = [-1] * len(rows)
        failures: list[KafkaError] = []

        def answered(number: int, error: KafkaError | None, sent: ClientMessage) -> None:
            if error is not None:
                failures.append(error)
            else:
                positions[number] = sent.offset() or 0

        writer.begin()
        for number, (row, value) in enumerate(zip(rows, values, strict=True)):
            self._produce(writer, row, value, lambda error, sent, number=number: answered(number, error, sent))
        try:
            while -1 in positions and not failures:
                writer.client.flush(0.1)
        except client_module().KafkaException as error:
            raise self._failure(error.args[0]) from error
        if failures:
            with suppress(MillstreamError):
                writer.abort()
            raise self._failure(failures[0])
        writer.commit(lambda _: None)
        return Stored(positions, positions[-1] + 2)  # after the marker of the transaction

    def _produce(self, writer: Transactions, row: Row, value: bytes, on_delivery: Any) -> None:
        while True:
            try:
                writer.client.produce(
                    self._topic,
                    value,
                    row.stream.encode(),
                    0,
                    on_delivery=on_delivery,
                    timestamp=max(1, row.at_us // 1000),
                )
                return
            except BufferError:
                writer.client.poll(0.05)
            except client_module().KafkaException as error:
                raise self._failure(error.args[0]) from error

    def _failure(self, error: KafkaError) -> MillstreamError:
        where = f"topic '{self._topic}', {self._log.address}"
        if error.name() in (*FENCED, "_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            return ProducerFenced("another process writes to the event store now", where=where)
        return translated(error, where)

    def _step_down(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(MillstreamError):
                writer.abort()

    def rows(self, positions: Sequence[int]) -> list[Row]:
        raise AssertionError("the index has the contents")

    def close(self) -> None:
        self._writer = None
        if self._reader is not None:
            self._reader.close()


def _values(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.column("value").flatten(), schema=CODEC_SCHEMA.arrow)
