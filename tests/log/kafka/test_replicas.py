"""Replicas on three real brokers: their number, how many must be in sync, and moving them with Kafka's own tool."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_cluster import BROKER, KafkaCluster, assemble
from kafka_jars import assemble_archive, find_java
from millstream.errors import InvalidInput, InvalidSetting, NotFound
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.log import KafkaLog
from millstream.log.kafka.replicas import java_settings, planned, replicas_of
from millstream.secrets import hidden
from waiting import until

TOOL = "org.apache.kafka:kafka-tools:4.3.1:jar"


@pytest.fixture
def on_three(kafka3: KafkaCluster) -> Iterator[KafkaLog]:
    with KafkaLog(f"kafka://{kafka3.bootstrap}") as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    return f"replicated-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kafka's own tool, as in the folder of an unpacked Kafka."""
    jars = f"{assemble(BROKER)}/*:{assemble_archive(TOOL)}/*"
    script = tmp_path / "bin" / "kafka-reassign-partitions.sh"
    script.parent.mkdir()
    main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    script.write_text(f"#!/bin/sh\nexec '{find_java().command}' -cp '{jars}' {main} \"$@\"\n")
    script.chmod(0o755)
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    return script


@pytest.mark.more
def test_a_topic_has_the_replicas_that_were_asked_for(on_three: KafkaLog, topic: str) -> None:
    made = on_three.create_topic(topic, partitions=2, replication_factor=2, min_insync_replicas=1)
    assert (made.settings.replication_factor, made.settings.min_insync_replicas) == (2, 1)
    placed, _ = replicas_of(on_three.clients, topic)
    assert {len(brokers) for brokers in placed.values()} == {2}

    def knows(count: int) -> bool:
        """Asks as a new client: each stays with the broker that it asked first, which may be behind the others."""
        with KafkaLog(on_three.address) as other:
            return other.topic(topic, fresh=True).settings.min_insync_replicas == count

    on_three.change_topic(topic, min_insync_replicas=2)
    until(lambda: knows(2), "a broker knows the change", look_s=1.0)
    on_three.alter_topic(topic, {"min.insync.replicas": "1", "compression.type": "zstd"})
    until(lambda: knows(1), "a broker knows the change", look_s=1.0)
    usual = on_three.create_topic(f"{topic}-usual").settings
    assert (usual.replication_factor, usual.min_insync_replicas) == (3, 2)


@pytest.mark.more
def test_replicas_that_cannot_be_are_refused(on_three: KafkaLog, topic: str) -> None:
    with pytest.raises(InvalidSetting, match="there are 3"):
        on_three.create_topic(topic, replication_factor=4)
    with pytest.raises(InvalidSetting, match="no record could be written"):
        on_three.create_topic(topic, replication_factor=1, min_insync_replicas=2)
    on_three.create_topic(topic)
    with pytest.raises(InvalidSetting, match="by moving it") as raised:
        on_three.change_topic(topic, replication_factor=1)
    assert "--to" in str(raised.value.next_step)
    with pytest.raises(InvalidSetting):
        on_three.alter_topic(topic, {"no.such.setting": "1"})


@pytest.mark.more
def test_partitions_are_moved_while_records_stay(on_three: KafkaLog, topic: str, tool: Path) -> None:
    on_three.create_topic(topic, partitions=3, replication_factor=1)
    with on_three.producer() as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number, partition=number % 3)
    assert on_three.move_replicas(topic, [3], wait_seconds=120) == {0: [3], 1: [3], 2: [3]}
    assert replicas_of(on_three.clients, topic)[0] == {0: [3], 1: [3], 2: [3]}
    moved = on_three.move_replicas(topic, [1, 2], factor=2, wait_seconds=120)
    assert moved == {0: [1, 2], 1: [2, 1], 2: [1, 2]}
    placed, in_sync = replicas_of(on_three.clients, topic)
    assert placed == moved
    assert {number: sorted(brokers) for number, brokers in in_sync.items()} == {0: [1, 2], 1: [1, 2], 2: [1, 2]}
    until(lambda: on_three.describe_topic(topic).settings.replication_factor == 2, "every broker knows the move")
    with on_three.consumer(topic) as consumer:
        assert sorted(int(record.value) for record in consumer.until_caught_up()) == list(range(30))


@pytest.mark.more
def test_a_move_that_cannot_be_is_refused(
    on_three: KafkaLog, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_three.create_topic(topic, replication_factor=2)
    with pytest.raises(NotFound, match="no broker 9"):
        on_three.move_replicas(topic, [1, 9])
    with pytest.raises(InvalidInput, match="2 replicas"):
        on_three.move_replicas(topic, [1])
    with pytest.raises(InvalidInput, match="twice"):
        on_three.move_replicas(topic, [1, 1])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    elsewhere = sorted({1, 2, 3} - set(replicas_of(on_three.clients, topic)[0][0]))
    with pytest.raises(NotFound, match="librdkafka cannot") as raised:
        on_three.move_replicas(topic, elsewhere, factor=1)
    assert '"replicas"' in str(raised.value.next_step)


def test_the_plan_spreads_leaders_and_replicas() -> None:
    assert planned({0: [], 1: [], 2: []}, [4, 5, 6], 2) == {0: [4, 5], 1: [5, 6], 2: [6, 4]}


def test_the_tool_logs_in_as_this_client_does() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": 'a"b',
        "ssl.ca.location": "/ca.pem",
        "linger.ms": "5",
    }
    made = java_settings(KafkaAddress("host:9092", hidden(given)))
    login = made.pop("sasl.jaas.config")
    assert login.startswith("org.apache.kafka.common.security.scram.ScramLoginModule required username=")
    assert made == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }
