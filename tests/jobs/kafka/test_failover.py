"""Three brokers, some of which are killed while a job runs: nothing acknowledged is lost, and results are correct."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from kafka_cluster import KafkaCluster
from millstream.errors import KafkaUnavailable
from millstream.log.kafka.log import KafkaLog
from waiting import PATIENCE_S, until

SCHEMA = "user string, score int"
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.soak]


@contextmanager
def killed(cluster: KafkaCluster, node: int) -> Iterator[None]:
    """Without a node, which died by kill -9; afterwards it is back and in sync."""
    cluster.kill(node)
    yield
    cluster.restart(node)
    cluster.wait_in_sync()


def send(log: KafkaLog, topic: str, scores: range) -> list[int]:
    """Sends rows and waits for each: what is returned was acknowledged by all in-sync replicas."""
    with log.producer(acks="all") as producer:
        receipts = [
            (score, producer.send(topic, {"user": f"u{score % 7}", "score": score}, key=f"u{score % 7}"))
            for score in scores
        ]
        return [score for score, receipt in receipts if receipt.wait(timeout=PATIENCE_S).offset >= 0]


def read(log: KafkaLog, topic: str) -> list[Any]:
    """All records; tried again while brokers that have just come back do not answer."""
    found: list[Any] = []

    def answered() -> bool:
        try:
            with log.consumer(topic) as consumer:
                found[:] = consumer.until_caught_up()
        except KafkaUnavailable:
            return False
        return True

    until(answered, f"the records of {topic} to be read")
    return found


def leader_of(cluster: KafkaCluster, topic: str) -> int:
    """Of partition 0, once there is one."""
    return int(until(lambda: cluster.leader_of(topic, 0), f"a leader of {topic}"))


def sums(topic: str) -> ms.Flow:
    flow = ms.Flow(f"sums-{topic}")
    rows = flow.read(topic, SCHEMA)
    rows.write(f"{topic}.copy")
    rows.group_by("user").agg(total=ms.sum("score"), n=ms.count()).write(f"{topic}.sums")
    return flow


def test_a_leader_and_the_controller_die_in_the_middle_of_a_run(kafka3: KafkaCluster, tmp_path: Path) -> None:
    """Goal: with replication 3 and min.insync.replicas 2 nothing acknowledged with acks=all is lost, and a job from
    Kafka to Kafka that ran all the while has written every row once, and the right sums.

    Method: kill -9 of the leader of a partition, then of the controller, each while rows are sent and read.
    """
    address, topic = f"kafka://{kafka3.bootstrap}", f"failing-{uuid.uuid4().hex[:8]}"
    acknowledged: list[int] = []
    with KafkaLog(address) as log:
        log.create_topic(topic, partitions=3, schema=SCHEMA)
        job = sums(topic).start(broker=address, folder=tmp_path / "job")
        try:
            acknowledged += send(log, topic, range(300))
            with killed(kafka3, leader_of(kafka3, topic)):
                acknowledged += send(log, topic, range(300, 600))
            with killed(kafka3, int(until(kafka3.controller, "a controller"))):
                acknowledged += send(log, topic, range(600, 900))
        finally:
            job.stop()
        sums(topic).run(broker=address, folder=tmp_path / "job", until="caught up", progress="none")
        assert acknowledged == list(range(900))
        stored = Counter(record.value["score"] for record in read(log, topic))
        assert stored == Counter(range(900))
        assert Counter(record.value["score"] for record in read(log, f"{topic}.copy")) == Counter(range(900))
        newest = {record.key: record.value for record in read(log, f"{topic}.sums")}
        expected = {
            f"u{user}".encode(): {
                "user": f"u{user}",
                "total": sum(range(user, 900, 7)),
                "n": len(range(user, 900, 7)),
            }
            for user in range(7)
        }
        assert newest == expected


def test_what_each_acks_promises(kafka3: KafkaCluster) -> None:
    """Goal: acks 0 answers before anything is stored, 1 with the leader's word, all with that of every replica in sync.

    Method: while the leader is dead, a record with acks 0 counts as done at once; those with 1 and all wait for the
    next leader, and are there.
    """
    address, topic = f"kafka://{kafka3.bootstrap}", f"acks-{uuid.uuid4().hex[:8]}"
    with KafkaLog(address) as log:
        log.create_topic(topic)
        with killed(kafka3, leader_of(kafka3, topic)):
            with log.producer(acks=0) as producer:
                producer.send(topic, b"0").wait(timeout=0)  # does not wait for anybody
            for acks in (1, "all"):
                with log.producer(acks=acks) as producer:
                    assert producer.send(topic, str(acks).encode()).wait(timeout=PATIENCE_S).offset >= 0
        assert {record.value for record in read(log, topic)} >= {b"1", b"all"}


def test_a_topic_is_created_while_the_controller_that_the_client_knows_is_dead(kafka3: KafkaCluster) -> None:
    """Clients are told any broker as the controller, since all forward requests, and wait for that one alone.

    Method: each of them dies in turn, so one that a client knows does, before and after another client has asked.
    """
    with KafkaLog(f"kafka://{kafka3.bootstrap}") as log:
        for _ in range(2):
            topic = f"during-{uuid.uuid4().hex[:8]}"
            known = log.clients.admin.list_topics(timeout=PATIENCE_S).controller_id
            with killed(kafka3, known):
                log.create_topic(topic)
                assert topic in log.topics()
