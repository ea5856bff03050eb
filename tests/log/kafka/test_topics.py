"""Kafka as a broker: connecting, authentication, and topics that are created, described, changed and deleted."""

from __future__ import annotations

import gc
import logging
import pickle
import socket
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

import millstream as ms
from brokers import USERS
from kafka_cluster import KafkaCluster
from millstream.errors import (
    AlreadyExists,
    ClosedError,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    KafkaUnavailable,
    NoAccess,
    UnknownTopic,
)
from millstream.log import Broker, connect, open_embedded
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.log import KafkaLog
from waiting import until

from .support import WAIT_S, all_of, filled, new, numbers

# ---------------------------------------------------------------- opening


@pytest.mark.more
def test_an_address_without_a_broker(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"kafka://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(KafkaUnavailable, match=address):
            connect(address)
    assert capfd.readouterr() == ("", "")


def test_nothing_of_kafka_is_loaded_for_a_folder(tmp_path: Path) -> None:
    program = "import sys, millstream; millstream.connect(sys.argv[1]).close(); print('confluent_kafka' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "log"], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.more
def test_a_closed_log_has_no_connection(kafka: KafkaCluster) -> None:
    """Method: the garbage collector, which would end them some time later, does not run."""

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def use() -> None:
        with KafkaLog(f"kafka://{kafka.bootstrap}") as opened:
            opened.topics()

    use()  # the first use of the library may open files for good
    gc.collect()
    before = open_files()
    gc.disable()
    try:
        for _ in range(5):
            use()
        until(lambda: open_files() <= before, "the connections have ended")
    finally:
        gc.enable()


def test_what_needs_a_folder_raises() -> None:
    with pytest.raises(InvalidInput, match=r"in a folder(.|\n)*kafka://somewhere:9092"):
        open_embedded("kafka://somewhere:9092")


def test_a_log_is_not_sent_and_not_used_after_its_end(kafka: KafkaCluster) -> None:
    log = KafkaLog(KafkaAddress.of(f"kafka://{kafka.bootstrap}"))
    with pytest.raises(InvalidInput, match="send its address"):
        pickle.dumps(log)
    topic = filled(log, 1)
    consumer, producer = log.consumer(topic), log.producer()
    log.close()
    for use in (log.topics, log.groups, log.queues, consumer.poll, lambda: producer.send(topic, b"")):
        with pytest.raises(ClosedError):
            use()


@pytest.mark.more
def test_with_a_password_and_a_certificate(
    kafka: KafkaCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = USERS["ann"]

    def address(password: str) -> str:
        file = tmp_path / f"{uuid.uuid4().hex}.properties"
        file.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password={password}\n"
            f"ssl.ca.location={kafka.certificate}\n"
        )
        return f"kafka://{kafka.secure_bootstrap}?settings={file}"

    with connect(address(secret)) as log:
        topic = filled(log, 3)
        with log.consumer(topic, group=new("g")) as consumer:
            assert numbers(all_of(consumer)) == [0, 1, 2]
            shown = [repr(each) for each in (log, consumer, log.describe_topic(topic), vars(log), vars(consumer))]
    with pytest.raises(NoAccess, match="refused the user or the password") as refused:
        connect(address("a wrong guess"))
    found = "\n".join([*shown, str(refused.value), caplog.text, *capfd.readouterr()])
    assert secret not in found
    assert "a wrong guess" not in found


# ---------------------------------------------------------------- topics


def kept(kafka: KafkaCluster, topic: str) -> dict[str, str]:
    admin, resource = AdminClient({"bootstrap.servers": kafka.bootstrap}), ConfigResource(ResourceType.TOPIC, topic)
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(WAIT_S).items()}


def test_settings_are_kafkas_under_other_names(log: Broker, kafka: KafkaCluster) -> None:
    topic = new()
    made = {
        "partitions": 3,
        "schema": "user string, score int",
        "codec": "json",
        "retention": timedelta(days=7),
        "retention_bytes": 1 << 30,
        "retention_archive": None,
        "segment_bytes": 4 << 20,
        "compaction": True,
        "tombstone_retention": timedelta(hours=1),
    }
    info = log.create_topic(topic, **made)
    assert info == log.describe_topic(topic)
    assert topic in log.topics()
    replicas = {"replication_factor": 1, "min_insync_replicas": 1}
    assert {name: value for name, value in vars(info.settings).items() if name != "schema"} == {
        name: value for name, value in {**made, **replicas}.items() if name != "schema"
    }
    assert info.settings.schema is not None
    assert info.settings.schema.ddl == "user string, score int"
    found = kept(kafka, topic)
    assert found["cleanup.policy"].split(",") == ["compact", "delete"]
    assert (found["retention.ms"], found["segment.bytes"]) == (str(7 * 86_400_000), str(4 << 20))
    with connect(f"kafka://{kafka.bootstrap}") as another:  # another process knows the schema, too
        assert another.topic(topic).settings == info.settings
        assert another.topic(topic).identity == log.topic(topic).identity


def test_a_topic_is_changed(log: Broker, kafka: KafkaCluster) -> None:
    topic = filled(log, 2)
    info = log.change_topic(topic, partitions=2, retention="1 hour", compaction=False)
    assert (len(info.partitions), info.settings.retention) == (2, timedelta(hours=1))
    assert kept(kafka, topic)["retention.ms"] == "3600000"
    assert log.change_topic(topic, retention=None).settings.retention is None
    with pytest.raises(InvalidSetting, match="cannot lose partitions"):
        log.change_topic(topic, partitions=1)
    with pytest.raises(InvalidSetting, match="cannot gain or lose its schema"):
        log.change_topic(topic, schema="a int")
    assert log.describe_topic(topic).records_max == 2


@pytest.mark.more
def test_a_schema_grows_under_a_producer_at_work(log: Broker, kafka: KafkaCluster) -> None:
    topic = new()
    log.create_topic(topic, schema="a int")
    with connect(f"kafka://{kafka.bootstrap}") as another, another.producer() as producer:
        producer.send(topic, {"a": 1}).wait()
        log.change_topic(topic, schema="a int, b string")

        def takes_it() -> bool:
            try:
                producer.send(topic, {"a": 2, "b": "x"}).wait()
            except InvalidInput:
                return False
            return True

        until(takes_it, "the producer had heard of the new column")
    with log.consumer(topic) as consumer:
        assert [record.value for record in all_of(consumer)] == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_a_topic_is_deleted_and_recreated(log: Broker) -> None:
    topic = new()
    log.create_topic(topic, schema="a int")
    before = log.topic(topic).identity
    with log.consumer(topic, group="g-" + topic) as consumer, log.producer() as producer:
        producer.send(topic, {"a": 1}).wait()
        assert len(all_of(consumer)) == 1
    log.delete_topic(topic)
    assert topic not in log.topics()
    with pytest.raises(UnknownTopic, match=f"there is no topic '{topic}'"):
        log.topic(topic)
    log.create_topic(topic)
    assert log.topic(topic).identity != before
    assert log.topic(topic).settings.schema is None
    with pytest.raises(AlreadyExists):
        log.create_topic(topic)


def test_topics_that_others_made_are_read_as_bytes(log: Broker, kafka: KafkaCluster) -> None:
    topic = new()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, config={"retention.bytes": "1000"})])[topic].result(WAIT_S)
    until(lambda: topic in log.topics(), "the broker knows the topic that its controller created")
    settings = log.describe_topic(topic).settings
    assert (settings.schema, settings.retention, settings.retention_bytes) == (None, timedelta(days=7), 1000)
    with log.producer() as producer:
        assert producer.send(topic, b"x").offset == 0


def test_invalid_names_and_settings(log: Broker) -> None:
    for name in ("", "a/b", "a b", ".."):
        with pytest.raises(InvalidName):
            log.create_topic(name)
    with pytest.raises(InvalidSetting, match="segment"):
        log.create_topic(new(), segment_bytes=5000)  # which the brokers find too small
    assert "_millstream" not in log.topics()


def test_what_brokers_do_themselves(log: Broker) -> None:
    with pytest.raises(InvalidInput, match="apply retention and compaction themselves"):
        log.clean()
    with pytest.raises(InvalidInput, match="repair a topic themselves"):
        log.repair_topic("any")


def test_a_flow_reads_a_topic_by_the_schema_it_has(kafka: KafkaCluster) -> None:
    topic, address = new(), f"kafka://{kafka.bootstrap}"
    with connect(address) as log:
        log.create_topic(topic, schema="team string, at timestamp")
    flow = ms.Flow("f", log=address)
    assert flow.read(topic, event_time="at").schema.ddl == "team string, at timestamp"
    assert flow.read(ms.kafka(kafka.bootstrap, topic=topic)).schema.ddl == "team string, at timestamp"
