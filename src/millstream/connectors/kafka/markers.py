"""The newest batch that a step of a run has written to Kafka: a record of a compacted topic.

It is written in the transaction of the batch, so it is there if and only if the rows are. Offsets of a consumer group
could hold it too, but Kafka forgets those of a group that was idle for a week; a compacted topic forgets nothing.
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
from millstream.log.kafka.failures import client_module, said_plainly, translated
from millstream.log.kafka.topics import kept_settings, make_topic, offsets
from millstream.log.murmur2 import murmur2

TOPIC = "_millstream_markers"
PARTITIONS = 16  # never another number: it says where a marker is looked for
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 << 20),  # a part that is still written to is not compacted, and is read whole
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
}
HELD_BACK_S = 10
READ_AT_ONCE = 1000
READ_S = 0.05  # it waits so long for as many
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class Marker:
    """Of one step of one run of a job."""

    clients: Clients
    producer: str
    run: str
    said: dict[str, str] = field(default_factory=dict)
    """Further information for people who look at the topic."""

    @property
    def key(self) -> bytes:
        return f"{self.producer}/{self.run}".encode()

    @property
    def partition(self) -> int:
        return place(self.key)

    def record(self, batch: int) -> dict[str, Any]:
        """What a producer is to send with the rows of a batch, as the last record of its transaction.

        As the last: a process that dies before the commit holds up who reads the same partition, if it came so far.
        """
        value = json.dumps({**self.said, "batch": batch}).encode()
        return {"topic": TOPIC, "value": value, "key": self.key, "partition": self.partition}

    def newest(self) -> int | None:
        """The newest batch written; None before the first.

        Only true after `init_transactions` of the producer: it ends what an earlier one has left open.
        """
        own = TopicPartition(TOPIC, self.partition)
        # To the end of what was sent, which may lie behind what is committed: while the transaction of another job is
        # open, a reader does not get to the markers after it, and one of ours may be among them.
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
            with said_plainly(self._where):
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
            # One of ours may have been here: a newer record of the same key has taken its place.
            raise SinkFailed(
                f"the record at offset {foreign} has the key of this step and was not written by Millstream, so it is "
                "not known which batches were written",
                where=self._where,
                next_step="run the job under another name, or into another topic; and let nobody but Millstream "
                f"write to {TOPIC}",
            )
        if foreign is not None:
            logger.warning(
                "%s, offset %d: not written by Millstream, and passed over: leave this topic to it",
                self._where,
                foreign,
            )
        return newest

    def _held_back(self, refusal: Any) -> KafkaUnavailable:
        if refusal is not None:
            told = translated(refusal, self._where)
            if isinstance(told, KafkaUnavailable):
                return told
            raise told
        return KafkaUnavailable(
            "the transaction of another job that has ended in the middle of a batch is still open",
            where=self._where,
            next_step="start that job again, or wait: Kafka ends it in some minutes",
        )


def place(key: bytes) -> int:
    """The partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % PARTITIONS


def batch_of(value: bytes | None) -> int | None:
    """None of what is no marker: any client may have written it."""
    try:
        batch = json.loads(value or b"")["batch"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return batch if isinstance(batch, int) and not isinstance(batch, bool) and batch >= 0 else None


def make_ready(clients: Clients) -> None:
    """Makes the topic of markers, or sees that the one that is there keeps what is in it."""
    if TOPIC not in clients.retrying(lambda: clients.admin.list_topics(timeout=ANSWER_SECONDS).topics, clients.where):
        make_topic(clients, TOPIC, PARTITIONS, SETTINGS, missing_ok=True)
    policy = kept_settings(clients, TOPIC)["cleanup.policy"]
    if policy != "compact":
        raise SinkFailed(
            f"the topic {TOPIC} says which batches were written, and would forget it: its cleanup.policy is '{policy}'",
            where=clients.where,
            next_step="set its cleanup.policy to 'compact'",
        )
