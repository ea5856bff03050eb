"""The brokers of the Kafka tests: records go in and out, leaders are replaced, unknown users are rejected.

None is left running: not after Ctrl-C, and not when the process that started it is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import kafka_cluster
import kafka_jars
from brokers import USERS
from kafka_cluster import KafkaCluster, KafkaFailed, KafkaUnavailable
from waiting import PATIENCE_S, exit_code, until

pytestmark = pytest.mark.soak  # brokers are killed, for a minute in all

WAIT_S = PATIENCE_S


def new_topic(bootstrap: str) -> str:
    """A topic of one partition, with the brokers' default number of replicas."""
    name = f"t{uuid.uuid4().hex}"

    def made() -> bool:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        with contextlib.suppress(KafkaException):  # a client waits for the broker it was told of, even if that has died
            admin.create_topics([NewTopic(name, 1)], request_timeout=10)[name].result()
        return name in admin.list_topics(timeout=WAIT_S).topics

    until(made, f"the topic {name} to be created")
    return name


def described(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    """The settings of a topic; asked again while the broker that was asked has not heard of it yet."""
    resource, found = ConfigResource(ResourceType.TOPIC, topic), {}

    def answered() -> bool:
        with contextlib.suppress(KafkaException):
            found.update(admin.describe_configs([resource])[resource].result(WAIT_S))
        return bool(found)

    until(answered, f"the settings of {topic} were returned")
    return found


def replicas(admin: AdminClient, topic: str) -> set[int]:
    """The brokers that hold partition 0; none while the one that was asked has not heard of the topic."""
    known = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    return set(known[0].replicas) if 0 in known else set()


def send(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Returns when all are acknowledged."""
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: refused.append(error) if error else None)
    assert producer.flush(WAIT_S) == 0
    assert refused == []


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """The first `count` values of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"g-{topic}", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []

    def enough() -> bool:
        found.extend(message.value() for message in consumer.consume(count, 1) if not message.error())
        return len(found) >= count

    until(enough, f"{count} records of {topic} were read")
    consumer.close()
    return found


def serves(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


# ---------------------------------------------------------------- one broker


def test_a_record_goes_in_and_out(kafka: KafkaCluster) -> None:
    topic = new_topic(kafka.bootstrap)
    send(kafka.bootstrap, topic, [b"one", b"two"])
    assert read(kafka.bootstrap, topic, 2) == [b"one", b"two"]
    assert until(lambda: kafka.leader_of(topic, 0), "a leader") == 1
    assert until(kafka.controller, "a controller") == 1


def test_a_partition_that_is_not_there_has_no_leader(kafka: KafkaCluster) -> None:
    with pytest.raises(KafkaFailed, match="no partition 1 of topic"):
        kafka.leader_of(new_topic(kafka.bootstrap), 1)
    with pytest.raises(KafkaFailed, match="no partition 0 of topic 'never-made'"):
        kafka.leader_of("never-made", 0)


def test_the_members_of_a_share_group_get_each_record_once(kafka: KafkaCluster) -> None:
    topic, group = new_topic(kafka.bootstrap), f"share-{uuid.uuid4().hex}"
    first = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[first])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    values = [b"%d" % number for number in range(50)]
    send(kafka.bootstrap, topic, values)
    members = [ShareConsumer({"bootstrap.servers": kafka.bootstrap, "group.id": group}) for _ in range(2)]
    got: list[bytes | None] = []

    def all_of_them() -> bool:
        for member in members:
            got.extend(message.value() for message in member.poll(0.5) if not message.error())
        return len(got) >= len(values)

    for member in members:
        member.subscribe([topic])
    until(all_of_them, "the group had every record")
    for member in members:
        member.close()
    assert sorted(got, key=lambda value: int(value or b"-1")) == values


# ---------------------------------------------------------------- three brokers


@contextlib.contextmanager
def without(cluster: KafkaCluster, node: int) -> Iterator[None]:
    cluster.kill(node)
    try:
        yield
    finally:
        cluster.restart(node)
        cluster.wait_in_sync()


def test_another_broker_takes_over_from_a_killed_leader(kafka3: KafkaCluster) -> None:
    topic = new_topic(kafka3.bootstrap)
    send(kafka3.bootstrap, topic, [b"before"])
    leader = until(lambda: kafka3.leader_of(topic, 0), "a leader")
    with without(kafka3, leader):
        until(lambda: kafka3.leader_of(topic, 0) not in (leader, None), "there was another leader")
        send(kafka3.bootstrap, topic, [b"meanwhile"])
    send(kafka3.bootstrap, topic, [b"after"])
    assert read(kafka3.bootstrap, topic, 3) == [b"before", b"meanwhile", b"after"]


def test_another_controller_takes_over_from_a_killed_one(kafka3: KafkaCluster) -> None:
    controller = until(kafka3.controller, "a controller")
    with without(kafka3, controller):
        until(lambda: kafka3.controller() not in (controller, None), "there was another controller")
        new_topic(kafka3.bootstrap)  # only a controller can make one


def test_two_of_three_brokers_must_have_a_record(kafka3: KafkaCluster) -> None:
    topic = new_topic(kafka3.bootstrap)
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap})
    assert described(admin, topic)["min.insync.replicas"].value == "2"
    until(lambda: replicas(admin, topic) == {1, 2, 3}, "the topic had a replica on each broker")


# ---------------------------------------------------------------- SASL_SSL


def secure_client(kafka: KafkaCluster, user: str, password: str, **more: object) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": kafka.secure_bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
            **more,
        }
    )


@pytest.mark.parametrize("user", USERS)
def test_a_client_with_the_password_is_accepted(kafka: KafkaCluster, user: str) -> None:
    client = secure_client(kafka, user, USERS[user], **{"ssl.ca.location": str(kafka.certificate)})
    assert client.list_topics(timeout=WAIT_S).brokers.keys() == {1}


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("ann", USERS["bob"]), ("eve", USERS["ann"])])
def test_a_client_without_the_password_is_rejected(kafka: KafkaCluster, user: str, password: str) -> None:
    errors: list[str] = []
    trusted: dict[str, object] = {
        "ssl.ca.location": str(kafka.certificate),
        "error_cb": lambda e: errors.append(e.name()),
    }
    client = secure_client(kafka, user, password, **trusted)

    def refused() -> bool:
        client.poll(0.1)
        return "_AUTHENTICATION" in errors

    until(refused, "the broker had refused the password")
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)


def test_a_broker_is_not_trusted_without_its_certificate(kafka: KafkaCluster) -> None:
    errors: list[str] = []
    client = secure_client(kafka, "ann", USERS["ann"], error_cb=lambda error: errors.append(error.name()))

    def distrusted() -> bool:
        client.poll(0.1)
        return "_SSL" in errors

    until(distrusted, "the client had refused the broker")


# ---------------------------------------------------------------- starting, stopping, and failing to


def started(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """What `make kafka` runs, and the address it says."""
    program = [sys.executable, kafka_cluster.__file__, "--folder", str(folder)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("MILLSTREAM_BROKER=kafka://"):
            return process, line.strip().removeprefix("MILLSTREAM_BROKER=kafka://")
    raise AssertionError(f"it ended with {process.wait()}")


@pytest.mark.usefixtures("kafka")  # the jars are there
def test_no_broker_is_left_behind_and_its_data_stay(tmp_path: Path) -> None:
    process, address = started(tmp_path)
    topic = new_topic(address)
    send(address, topic, [b"kept"])
    process.send_signal(signal.SIGINT)
    assert exit_code(process, "the starter of Kafka, after Ctrl-C") == 0
    assert not serves(int(address.rpartition(":")[2]))

    process, address = started(tmp_path)
    assert read(address, topic, 1) == [b"kept"]
    process.kill()
    process.wait()
    until(lambda: not serves(int(address.rpartition(":")[2])), "the broker of a killed starter was gone")


def test_a_node_that_dies_is_reported_with_its_log(kafka3: KafkaCluster) -> None:
    assert kafka3.ended() is None
    os.killpg(kafka3.pid(2), signal.SIGKILL)
    until(lambda: kafka3.ended() is not None, "the end of the broker was seen")
    last = (kafka3.folder / "node-2.log").read_text().splitlines()[-1]
    assert last in str(kafka3.ended())
    kafka3.restart(2)
    kafka3.wait_in_sync()
    assert kafka3.ended() is None


def test_a_broker_that_cannot_start_says_why(kafka: KafkaCluster, tmp_path: Path) -> None:
    broken = KafkaCluster(1, tmp_path, settings={"num.io.threads": "none"})
    with pytest.raises(KafkaFailed, match=r"num\.io\.threads"):
        broken.start()
    with pytest.raises(KafkaFailed, match="another Kafka runs in this folder"):
        KafkaCluster(1, kafka.folder).start()
    with pytest.raises(KafkaFailed, match="not 2"):
        KafkaCluster(2)


def test_without_maven_the_reason_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_jars, "KEPT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KafkaUnavailable, match="Maven is needed"):
        kafka_cluster.assemble()
