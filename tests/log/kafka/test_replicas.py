"""Replicas on three real brokers: their number, how many must be in sync, and moving them with Kafka's own tool."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kafka_cluster import BROKER, KafkaCluster, assemble
from kafka_jars import assemble_archive, find_java
from millstream.cli.app import app
from millstream.errors import InvalidInput, InvalidSetting, KafkaUnavailable, NotFound
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


def command(address: str, *arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["--log", address, *map(str, arguments)], input=stdin)


@pytest.mark.more
def test_the_commands_for_replicas(on_three: KafkaLog, topic: str, tool: Path) -> None:
    """Goal: what the calls above do can be asked for by commands, and records stay through all of it."""

    def topics(name: str, *given: object) -> Result:
        return command(on_three.address, "topics", name, topic, *given)

    def replicas() -> dict[int, list[int]]:
        return replicas_of(on_three.clients, topic)[0]

    def settings() -> tuple[int, int]:
        """Replicas, and how many must be in sync, as the command reports them."""
        found = json.loads(topics("describe", "--json").stdout)["settings"]
        return found["replication_factor"], found["min_insync_replicas"]

    refused = topics("create", "--replication-factor", 4)
    assert (refused.exit_code, "there are 3" in refused.stderr) == (2, True)
    refused = topics("create", "--replication-factor", 1, "--min-insync-replicas", 2)
    assert (refused.exit_code, "no record could be written" in refused.stderr) == (2, True)
    assert topic not in on_three.topics()
    made = topics("create", "--partitions", 2, "--replication-factor", 2, "--min-insync-replicas", 1)
    assert made.exit_code == 0, made.stderr
    until(lambda: settings() == (2, 1), "a broker knows the topic")
    assert {len(brokers) for brokers in replicas().values()} == {2}
    assert command(on_three.address, "produce", topic, stdin="a\nb\nc\n").exit_code == 0

    assert topics("alter", "--set", "min.insync.replicas=2").exit_code == 0
    until(lambda: settings() == (2, 2), "a broker knows the change", look_s=1.0)
    assert topics("change", "--min-insync-replicas", 1).exit_code == 0
    until(lambda: settings() == (2, 1), "a broker knows the change", look_s=1.0)
    refused = topics("change", "--replication-factor", 1)
    assert (refused.exit_code, "by moving it" in refused.stderr, "--to" in refused.stderr) == (2, True, True)

    refused = topics("move", "--to", "1,9")
    assert (refused.exit_code, "no broker 9" in refused.stderr) == (3, True)
    moved = topics("move", "--to", "3", "--replication-factor", 1)
    assert (moved.exit_code, "partition 0 is on 3" in moved.stdout + moved.stderr) == (0, True), moved.stderr
    assert replicas() == {0: [3], 1: [3]}
    assert command(on_three.address, "produce", topic, stdin="d\n").exit_code == 0
    moved = topics("move", "--to", "1,2,3", "--replication-factor", 3, "--json")
    assert json.loads(moved.stdout)["replicas"] == {"0": [1, 2, 3], "1": [2, 3, 1]}
    assert replicas() == {0: [1, 2, 3], 1: [2, 3, 1]}
    until(lambda: settings() == (3, 1), "a broker knows the move", look_s=1.0)
    assert sorted(command(on_three.address, "consume", topic).stdout.split()) == ["a", "b", "c", "d"]


@pytest.mark.soak
def test_a_record_waits_for_as_many_replicas_as_were_asked_for(
    kafka3: KafkaCluster, on_three: KafkaLog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: with one of two replicas dead, min.insync.replicas=2 acknowledges nothing, and 1 does."""
    monkeypatch.setattr("millstream.log.kafka.chunk_sending.PATIENCE_SECONDS", 4.0)
    create = ("topics", "create", topic, "--replication-factor", 2, "--min-insync-replicas", 2)
    assert command(on_three.address, *create).exit_code == 0
    assert command(on_three.address, "produce", topic, stdin="a\n").exit_code == 0
    ((_, dead),) = replicas_of(on_three.clients, topic)[0].values()

    def is_out_of_sync() -> bool:
        """Asks as a new client: that of before may wait for an answer of the dead broker."""
        with suppress(KafkaUnavailable), KafkaLog(on_three.address) as other:
            return dead not in replicas_of(other.clients, topic)[1][0]
        return False

    kafka3.kill(dead)
    try:
        until(is_out_of_sync, "the dead broker is out of sync")
        late = command(on_three.address, "produce", topic, stdin="b\n")
        assert (late.exit_code, late.stdout) == (5, "")
        assert command(on_three.address, "topics", "alter", topic, "--set", "min.insync.replicas=1").exit_code == 0
        until(lambda: command(on_three.address, "produce", topic, stdin="c\n").exit_code == 0, "it is stored")
    finally:
        kafka3.restart(dead)
        kafka3.wait_in_sync()
    assert {"a", "c"} <= set(command(on_three.address, "consume", topic).stdout.split())


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
