"""An event store's topic on Kafka: the process that decides is its only writer, and Kafka fences all others.

The writer is the newest producer with the store's transactional id. A process takes the role over when it has something
to append: it waits for the last transaction of the one before, reads to the end, and decides on that; the one before
cannot commit any more. A process that has lost the role lets the new writer append before it takes it back, so that
each takeover stores something however many processes compete.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from millstream.errors import KafkaUnavailable, MillstreamError, ProducerFenced, StoreBusy, TransactionAborted
from millstream.events.layout import DELETED, RETENTION, SCHEMA, Row, to_batch, to_rows
from millstream.events.ports import Decide, Restate, Span, Stored, events_lost
from millstream.events.scavenging import Expired, Removed
from millstream.log.agreement.groups import TopicPartition
from millstream.log.consumer import Consumer
from millstream.log.kafka.clients import ANSWER_SECONDS
from millstream.log.kafka.failures import client_module, translated
from millstream.log.kafka.log import KafkaLog
from millstream.log.kafka.topics import as_kafka, offsets
from millstream.log.kafka.transactions import FENCED, Transactions
from millstream.records import Schema, codec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka import Message as ClientMessage

WAIT_SECONDS = 60.0  # for the role of the writer, while others hold it
DEAD_SECONDS = 1.5  # a writer that has stored nothing for so long, or left a transaction open, is taken for dead
TURN_SECONDS = 0.2  # for the new writer's next appends, before it is fenced; longer after each lost attempt
TURN_SECONDS_MAX = 3.0
LOOK_SECONDS = 0.02
READ_SECONDS = 1.0
READ_BYTES = 8 << 20
CODEC_SCHEMA = Schema.of(SCHEMA)


class KafkaEventLog:
    has_random_access = False
    has_gaps = True  # the end of a transaction takes an offset
    has_milliseconds = True
    on_lost = "earliest"  # what comes before the first record that is left was removed, see `remove`
    index_path: Path | None = None

    def __init__(self, log: KafkaLog, topic: str) -> None:
        self.identity = log.topic(topic, fresh=True).identity
        self._log = log
        self._topic = topic
        self._writer: Transactions | None = None
        self._reader: Consumer | None = None
        self._others = 0  # how many events of other writers were read, and when the last of them was recorded
        self._others_us = 0
        self._written = 0  # a commit is answered before consumers may read it, and a process reads its own events

    def spans(self, start: int) -> Iterator[Span]:
        end = max(self._end(), self._written)
        if start < end:
            with self._log.consumer(self._topic, start=start, on_lost=self.on_lost) as consumer:
                yield from self._read(consumer, end)

    def news(self, start: int) -> Iterator[Span]:
        end = self._end()
        if start >= end:
            return
        if self._reader is None:
            self._reader = self._log.consumer(self._topic, start=start, on_lost=self.on_lost)
        elif self._reader.position(self._topic, 0) != start:
            self._reader.seek(start)
        rules: list[Row] = []
        for span in self._read(self._reader, end):
            if span.rows:
                self._others += len(span.rows)
                self._others_us = span.rows[-1].at_us
                rules += [row for row in span.rows if row.type == RETENTION]
            yield span
        if start == 0:
            self._check_start(rules)

    def _check_start(self, rules: Sequence[Row]) -> None:
        """What was deleted must have been deleted by `remove`, which says so in rows with rules."""
        stored = self._offset("earliest")
        deleted = [orjson.loads(row.data).get(DELETED, 0) for row in rules]
        if stored > max(deleted, default=0) and (any(deleted) or not rules):
            raise events_lost(self._topic, max(deleted, default=0), stored)

    def _end(self, *, committed: bool = True) -> int:
        return self._offset("latest", committed=committed)

    def _offset(self, spec: str, *, committed: bool = True) -> int:
        place = TopicPartition(self._topic, 0)
        return offsets(self._log.clients, [place], spec, committed=committed)[place]

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
        deadline = time.monotonic() + WAIT_SECONDS
        turn, failed = TURN_SECONDS, False
        while True:
            others = self._others
            try:
                if self._writer is None or not (rows := _rows(decide())):
                    # Refused or recorded before, as it seems: whether it is depends on all that was acknowledged.
                    if not self._is_quiet():
                        self._step_down()
                    elif not any(decide()):
                        return Stored([], 0)  # without a takeover: the writer, perhaps another, can go on
                    others = self._others
                    self._writer = self._writer or self._taken_over()
                    rows = _rows(decide())
                return self._stored(self._writer, rows) if rows else Stored([], 0)
            except (ProducerFenced, TransactionAborted) as error:
                self._step_down()
                if time.monotonic() > deadline:
                    raise self._busy() from error
                self._wait_for_turn(decide, others, turn)
                turn = min(2 * turn, TURN_SECONDS_MAX)
            except KafkaUnavailable:
                # Also after a commit without an answer: the next writer waits for it, and the ids show its outcome.
                self._step_down()
                if failed:
                    raise
                failed = True
            except BaseException:
                self._step_down()
                raise

    def _taken_over(self) -> Transactions:
        return Transactions(f"millstream-events-{self._topic}", self._log.clients)

    def _is_quiet(self) -> bool:
        """Waits until no transaction is open: all that was acknowledged can be read, and no append is cut short."""
        deadline = time.monotonic() + DEAD_SECONDS
        while True:
            end = self._end(committed=False)  # first: a commit that was answered before is at or below it
            if self._end() >= end:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)

    def _wait_for_turn(self, decide: Decide, others: int, turn: float) -> None:
        """Until the new writer has stored something and had its turn; at random, so that not all come back at once."""
        deadline = time.monotonic() + random.uniform(1, 1.5) * DEAD_SECONDS
        while time.monotonic() < deadline:
            decide()  # reads up
            if self._others != others:
                break
            time.sleep(LOOK_SECONDS)
        idle = time.time() - self._others_us / 1e6
        time.sleep(max(0.0, random.uniform(turn / 2, turn) - max(0.0, idle)))

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"other processes kept appending to the event store for {WAIT_SECONDS:.0f} seconds",
            where=f"topic '{self._topic}', {self._log.address}",
            next_step="append the same events again: none is stored twice. On Kafka let one process append to a store, "
            "or give each process a store of its own",
        )

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
            # It also waits for the records, and notices at once that this writer was fenced.
            writer.commit(lambda _: None)
        except KafkaUnavailable as error:
            if failures and not writer.is_unanswered:
                raise self._failure(failures[0]) from error
            raise
        self._written = positions[-1] + 2  # after the marker of the transaction
        return Stored(positions, self._written)

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

    def rows(self, positions: Sequence[int]) -> list[Row | None]:
        raise AssertionError("the index has the contents")

    def remove(self, expired: Expired, restate: Restate) -> Removed:
        """Deletes the expired events before the first that is kept: Kafka deletes nothing in the middle of a topic.

        Rules of streams are in the way of that, so they are recorded again at the end.
        """
        removed, ruled, first_kept = Removed(), dict[str, None](), 0
        for span in self.spans(0):
            gone = 0
            if span.rows:
                values = to_batch(span.rows).column("value")
                is_rule = np.array([row.type == RETENTION for row in span.rows])
                stays = np.flatnonzero(~(expired.among(values) | is_rule))
                gone = int(stays[0]) if len(stays) else len(span.rows)
                events = np.flatnonzero(~is_rule[:gone])
                removed.add(np.array(span.positions, np.int64)[events], values.take(pa.array(events)))
                ruled |= dict.fromkeys(row.stream for row in span.rows[:gone] if row.type == RETENTION)
            if gone < len(span.rows):
                first_kept = span.positions[gone]
                break
            first_kept = span.next_position
        if not removed.versions:
            return removed
        # A stream at least, which says that this was no loss.
        restate(list(ruled or dict.fromkeys(list(removed.versions)[:1])), first_kept)
        clients, place = self._log.clients, TopicPartition(self._topic, 0)
        clients.answered(lambda: clients.admin.delete_records(list(as_kafka({place: first_kept}))), str(place))
        return removed

    def close(self) -> None:
        self._writer = None
        if self._reader is not None:
            self._reader.close()


def _rows(pieces: Sequence[Sequence[Row]]) -> list[Row]:
    return [row for piece in pieces for row in piece]


def _values(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.column("value").flatten(), schema=CODEC_SCHEMA.arrow)
