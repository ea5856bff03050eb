"""The claim of a Kafka topic: a record in the markers topic, keyed by the name of the sink's producer.

It is not part of a transaction, and is read without waiting for open transactions: so another run of the same job is
detected before its producer is fenced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from millstream.connectors.claims import Claim, Found, shared
from millstream.connectors.kafka.markers import (
    PARTITIONS,
    READ_AT_ONCE,
    READ_S,
    TOPIC,
    Marker,
    batch_of,
    make_ready,
    place,
)
from millstream.connectors.topic.records_sink import producer_name
from millstream.errors import KafkaUnavailable, SinkUnavailable, UnknownTopic
from millstream.log import TopicPartition
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.clients import ANSWER_SECONDS, OPEN_SECONDS, Clients
from millstream.log.kafka.failures import client_module, translated_errors
from millstream.log.kafka.log import KafkaLog
from millstream.log.kafka.topics import described, offsets

READER = "millstream-claims"
CREATED = "created"


class KafkaKeeper:
    keeps_claims = True

    def __init__(self, address: KafkaAddress, topic: str, claim: Claim, *, is_inner: bool = False) -> None:
        """`is_inner`: the topic is a queue inside the flow, so whatever is in it passes the job."""
        self._is_inner = is_inner
        self._address = address
        self._opened: KafkaLog | None = None
        self._topic = topic
        self._claim = claim
        self._producer = producer_name(claim.job, claim.step)
        self.where = f"topic '{topic}' of {address}"

    @property
    def _key(self) -> bytes:
        return self._producer.encode()

    @contextmanager
    def _kafka(self) -> Iterator[KafkaLog]:
        try:
            if self._opened is None:
                self._opened = KafkaLog(self._address)
            with translated_errors(self.where):
                yield self._opened
        except KafkaUnavailable as error:
            raise SinkUnavailable(
                f"topic '{self._topic}' cannot be reached: {error.what}", where=error.where, next_step=error.next_step
            ) from error

    def look(self) -> Found:
        with self._kafka() as log:
            identity = _identity(log.clients, self._topic)
            marker = Marker(log.clients, self._producer, self._claim.run)
            claim, newest = None, None
            for key, value in _records(log.clients, {place(self._key), marker.partition}):
                if key == self._key and (document := _document(value)):
                    claim = Claim.read(document)
                elif key == marker.key and (batch := batch_of(value)) is not None:
                    newest = batch
            return Found(identity != "", claim, newest, identity)

    def make(self) -> None:
        with self._kafka() as log:
            make_ready(log.clients)
            created = not _identity(log.clients, self._topic)
            self._write(log.clients, self._claim.run, created or self._created(log.clients))

    def _created(self, clients: Clients) -> bool:
        """Whether the topic was created by this job."""
        held: dict[str, Any] = {}
        for key, value in _records(clients, {place(self._key)}):
            if key == self._key:
                held = _document(value) or held
        return held.get("topic") == self._topic and held.get(CREATED) is True

    def _write(self, clients: Clients, run: str, created: bool) -> None:
        document = {**self._claim.document(), "run": run, "topic": self._topic, CREATED: created}
        producer = clients.producer(acks="all")
        producer.produce(TOPIC, json.dumps(document).encode(), self._key, place(self._key))
        if producer.flush(ANSWER_SECONDS):
            raise KafkaUnavailable("Kafka has not stored the claim of the job", where=self.where)

    def check_clear(self) -> None:
        with self._kafka() as log:
            if not _identity(log.clients, self._topic) or not self._has_records(log):
                return
            created, others = False, set()
            claims: dict[bytes, dict[str, Any]] = {}
            for key, value in _records(log.clients, range(PARTITIONS)):
                if (document := _document(value)) and document.get("topic") == self._topic:
                    claims[key] = document
            for key, document in claims.items():
                if key == self._key:
                    created = document.get(CREATED) is True or self._is_inner
                elif claim := Claim.read(document):
                    others.add(claim.job)
        by_hand = f"delete it if they are not needed (millstream topics delete {self._topic}), and start over again"
        if others:
            listed = ", ".join(f"'{job}'" for job in sorted(others))
            raise shared(
                f"the topic '{self._topic}' also holds records of the job {listed}, so it is not emptied",
                self.where,
                by_hand,
            )
        if not created:
            raise shared(
                f"the topic '{self._topic}' was not created by the job '{self._claim.job}' and may hold records of "
                "others, so it is not emptied",
                self.where,
                by_hand,
            )

    def _has_records(self, log: KafkaLog) -> bool:
        places = log.topic(self._topic, fresh=True).places()
        ends = offsets(log.clients, places, "latest")
        return any(ends[each] > begin for each, begin in offsets(log.clients, places, "earliest").items())

    def clear(self) -> None:
        """Deletes and recreates the topic, so that consumers do not mistake the new records for a continuation."""
        with self._kafka() as log:
            producer = log.clients.producer(transactional_id=self._producer)
            producer.init_transactions(OPEN_SECONDS)  # fences a run that is still writing
            make_ready(log.clients)
            created = self._created(log.clients)
            if _identity(log.clients, self._topic) and self._has_records(log):
                settings = log.topic(self._topic, fresh=True).settings
                log.delete_topic(self._topic)
                log.create_topic(self._topic, **settings.to_document())
            self._write(log.clients, "", created)

    def release(self) -> None:
        with self._kafka() as log:
            self._write(log.clients, "", self._created(log.clients))

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def _identity(clients: Clients, topic: str) -> str:
    """Empty if there is no such topic."""
    try:
        return described(clients, topic)[0]
    except UnknownTopic:
        return ""


def _document(value: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and {"job", "step", "run", "folder", "topic"} <= found.keys() else None


def _records(clients: Clients, numbers: Iterable[int]) -> Iterator[tuple[bytes, bytes | None]]:
    """The records of markers partitions as key and value, including those of open transactions."""
    if not _identity(clients, TOPIC):
        return
    places = [TopicPartition(TOPIC, number) for number in sorted(set(numbers))]
    ends = {each.partition: end for each, end in offsets(clients, places, "latest").items() if end}
    consumer = clients.consumer(
        group_id=READER,
        isolation_level="read_uncommitted",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        enable_partition_eof=True,
        fetch_wait_max_ms=10,
    )
    try:
        kind, deadline = client_module().TopicPartition, time.monotonic() + ANSWER_SECONDS
        consumer.assign([kind(TOPIC, number, 0) for number in ends])
        while ends:
            for message in consumer.consume(READ_AT_ONCE, READ_S):
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    continue
                deadline = time.monotonic() + ANSWER_SECONDS
                key, number, offset = message.key(), message.partition(), message.offset()
                if error is None and key is not None:
                    yield key, message.value()
                if number in ends and offset is not None and offset + (error is None) >= ends[number]:
                    del ends[number]
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"the topic {TOPIC} cannot be read",
                    where=clients.where,
                    next_step="check that its brokers are up and reachable",
                )
    finally:
        consumer.close()
