"""The newest batch that a step of a run has written to Kafka: a record in a compacted topic.

It is written in the batch's transaction, so it exists if and only if the rows do. Consumer group offsets would do too,
but Kafka expires those of a group that was idle for a week; a compacted topic keeps them.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from millstream import terminal
from millstream.errors import KafkaUnavailable, SinkFailed
from millstream.log import TopicPartition
from millstream.log.kafka.clients import ANSWER_SECONDS, Clients
from millstream.log.kafka.failures import client_module, translated, translated_errors
from millstream.log.kafka.topics import kept_settings, make_topic, offsets
from millstream.log.murmur2 import murmur2

TOPIC = "_millstream_markers"
PARTITIONS = 16  # must never change: it determines the partition of a marker
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 << 20),  # the active segment is not compacted, and is read in full
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
}
HELD_BACK_S = 10
READ_AT_ONCE = 1000
READ_S = 0.05  # the longest wait for a full batch
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class Marker:
    """The marker of one step of one run of a job."""

    clients: Clients
    producer: str
    run: str
    identity: dict[str, str] = field(default_factory=dict)
    """Additional information for anyone inspecting the topic."""

    @property
    def key(self) -> bytes:
        return f"{self.producer}/{self.run}".encode()

    @property
    def partition(self) -> int:
        return place(self.key)

    def record(self, batch: int) -> dict[str, Any]:
        """The marker of a batch, to be sent as the last record of its transaction.

        The last: if the process dies before the commit, the open transaction blocks readers of the marker's partition.
        """
        value = json.dumps({**self.identity, "batch": batch}).encode()
        return {"topic": TOPIC, "value": value, "key": self.key, "partition": self.partition}

    def newest(self) -> int | None:
        """The newest batch written; None before the first.

        Only valid after the producer's `init_transactions`, which aborts open transactions of an earlier one.
        """
        own = TopicPartition(TOPIC, self.partition)
        # Up to the high watermark, not the last stable offset: while another job's transaction is open, a reader does
        # not get the markers after it, and one of ours may be among them.
        end = offsets(self.clients, [own], "latest")[own]
        consumer = self.clients.consumer(
            group_id=self.producer,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            enable_partition_eof=True,
            fetch_wait_max_ms=10,
        )
        try:
            with translated_errors(self._where):
                consumer.assign([client_module().TopicPartition(*own, 0)])
                return self._read(consumer, end)
        finally:
            consumer.close()

    @property
    def _where(self) -> str:
        return f"{self.clients.where}, topic {TOPIC}, partition {self.partition}"

    def _read(self, consumer: Any, end: int) -> int | None:
        newest: int | None = None
        foreign: int | None = None
        came, refusal = time.monotonic(), None
        reached = 0
        while reached < end:
            for message in consumer.consume(READ_AT_ONCE, READ_S):
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    refusal = error
                    continue
                if message.offset() > reached:
                    reached, came = message.offset(), time.monotonic()
                if error is None and message.key() == self.key:
                    batch = batch_of(message.value())
                    newest, foreign = (newest, message.offset()) if batch is None else (batch, foreign)
            if time.monotonic() - came > HELD_BACK_S:
                raise self._held_back(refusal)
        if newest is None and foreign is not None:
            # It may have replaced one of ours: compaction keeps the newest record of a key.
            raise SinkFailed(
                f"the record at offset {foreign} has the key of this step and was not written by Millstream, so it is "
                "not known which batches were written",
                where=self._where,
                next_step="run the job under another name, or into another topic; only Millstream may "
                f"write to {TOPIC}",
            )
        if foreign is not None:
            logger.warning(
                "%s, offset %d: skipped a record that was not written by Millstream; do not write to this topic",
                self._where,
                foreign,
            )
        return newest

    def _held_back(self, refusal: Any) -> KafkaUnavailable:
        if refusal is not None:
            failure = translated(refusal, self._where)
            if isinstance(failure, KafkaUnavailable):
                return failure
            raise failure
        return KafkaUnavailable(
            "the transaction of another job that was killed in the middle of a batch is still open",
            where=self._where,
            next_step="restart that job, or wait: Kafka aborts it in a few minutes",
        )


def place(key: bytes) -> int:
    """The partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % PARTITIONS


def batch_of(value: bytes | None) -> int | None:
    """None if it is not a marker: any client may write to the topic."""
    try:
        batch = json.loads(value or b"")["batch"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return batch if isinstance(batch, int) and not isinstance(batch, bool) and batch >= 0 else None


def make_ready(clients: Clients) -> None:
    """Creates the markers topic, or checks that the existing one is compacted."""
    if TOPIC not in clients.retrying(lambda: clients.admin.list_topics(timeout=ANSWER_SECONDS).topics, clients.where):
        make_topic(clients, TOPIC, PARTITIONS, SETTINGS, missing_ok=True)
    policy = kept_settings(clients, TOPIC)["cleanup.policy"]
    if policy != "compact":
        raise SinkFailed(
            f"the topic {TOPIC} records which batches were written, but its cleanup.policy is '{policy}'",
            where=clients.where,
            next_step="set its cleanup.policy to 'compact'",
        )
