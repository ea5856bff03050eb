"""What the tests of reading Kafka share: topics, records and transactions, made with Kafka's own client."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millstream.connectors.kafka.source import KafkaSource
from millstream.connectors.source import Offsets, Slab
from millstream.log.kafka.address import KafkaAddress
from millstream.records import Schema
from waiting import PATIENCE_S, until

WAIT_S = PATIENCE_S
SCHEMA = "user string, n int"


def client(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def made(bootstrap: str, partitions: int = 1, name: str | None = None, **config: str) -> str:
    """A new topic; dots of settings as underscores."""
    name = name or f"t{uuid.uuid4().hex}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = client(bootstrap)
    admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(WAIT_S)
    until_known(admin, name, partitions)
    return name


def until_known(admin: AdminClient, topic: str, partitions: int) -> None:
    until(
        lambda: len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == partitions,
        f"{topic} to have {partitions} partitions",
        0.02,
    )


def removed(bootstrap: str, topic: str) -> None:
    admin = client(bootstrap)
    admin.delete_topics([topic])[topic].result(WAIT_S)
    until_known(admin, topic, 0)


def grown(bootstrap: str, topic: str, partitions: int) -> None:
    admin = client(bootstrap)
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(WAIT_S)
    until_known(admin, topic, partitions)


def cut_before(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    """Deletes the records before an offset, as retention does."""
    admin = client(bootstrap)
    [done] = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    done.result(WAIT_S)


def send(bootstrap: str, topic: str, values: Iterable[bytes | None], partition: int = 0, **more: Any) -> None:
    """Returns when all are acknowledged."""
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=_noting(refused), **more)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert refused == []


def _noting(refused: list[object]) -> Any:
    return lambda error, _: refused.append(error) if error else None


class Transactions:
    """A transactional producer of one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex, "linger.ms": 0, "log_level": 0}
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self, values: Iterable[bytes], partition: int = 0) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self._topic, value, partition=partition)
        assert self._producer.flush(WAIT_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)


def until_ends(source: KafkaSource, ends: Offsets) -> None:
    """The markers of a transaction are written after its producer learned that it has ended."""
    until(lambda: source.latest() == ends, f"the end to be {ends}", 0.02)


def row(user: str, n: int, **more: Any) -> bytes:
    return json.dumps({"user": user, "n": n, **more}).encode()


def rows(count: int, begin: int = 0) -> list[bytes]:
    return [row(f"u{n % 7}", n) for n in range(begin, begin + count)]


def opened(
    bootstrap: str, topic: str, schema: str = SCHEMA, settings: Mapping[str, str] | None = None, **more: Any
) -> closing[KafkaSource]:
    address = KafkaAddress(bootstrap, settings or {})
    return closing(KafkaSource(address, topic, Schema.of(schema), **more))


def slabs(source: KafkaSource, start: Offsets | None = None, end: Offsets | None = None, tasks: int = 1) -> list[Slab]:
    begin = source.earliest() if start is None else start
    until = source.latest() if end is None else end
    return [slab for part in source.slices(begin, until, tasks) for slice in part for slab in source.read(slice)]


def numbers(found: Iterable[Slab]) -> list[int]:
    return [n for slab in found for n in slab.rows.column("n").to_pylist()]
