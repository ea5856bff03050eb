"""Goal: settings of TLS and SASL reach the handles of librdkafka as they reach confluent-kafka's clients.

Method: a broker with a listener for SASL_SSL, and every kind of client: a producer, also of transactions, a reader, and
a member of a group.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from brokers import USERS
from kafka_cluster import KafkaCluster
from millstream.errors import NoAccess
from millstream.log import connect
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.column_client import ColumnConsumer, column_consumer
from millstream.log.kafka.column_producer import ColumnProducer, column_producer
from millstream.log.kafka.group_client import GroupConsumer
from millstream.log.kafka.received import ALL
from waiting import until

from .support import all_of, new, numbers

pytestmark = pytest.mark.more
WAIT_S = 60
KINDS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


def user_of(kafka: KafkaCluster, mechanism: str) -> tuple[str, str]:
    """A name and a password; for SCRAM they are made here."""
    if mechanism == "PLAIN":
        return "ann", USERS["ann"]
    name, password = f"user{uuid.uuid4().hex[:8]}", "pass word of a user"
    made = UserScramCredentialUpsertion(name, ScramCredentialInfo(KINDS[mechanism], 4096), password.encode())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for answer in admin.alter_user_scram_credentials([made]).values():
        answer.result(WAIT_S)
    return name, password


def address(kafka: KafkaCluster, folder: Path, mechanism: str, user: str, password: str, certificate: Path) -> str:
    file = folder / f"{uuid.uuid4().hex}.properties"
    file.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\nsasl.username={user}\nsasl.password={password}\n"
        f"ssl.ca.location={certificate}\n"
    )
    return f"kafka://{kafka.secure_bootstrap}?settings={file}"


@pytest.mark.parametrize("mechanism", ["PLAIN", *KINDS])
def test_every_client_logs_in(kafka: KafkaCluster, tmp_path: Path, mechanism: str, either_way: str) -> None:
    user, password = user_of(kafka, mechanism)
    topic = new()
    with connect(address(kafka, tmp_path, mechanism, user, password, kafka.certificate)) as log:
        log.create_topic(topic, partitions=2)
        with log.producer() as producer:
            producer.send_batch(topic, pa.table({"value": ["0", "1"], "key": ["a", "b"]}))
            kinds = [type(producer._storing.client)]  # type: ignore[attr-defined]
        with log.consumer(topic) as reader:
            assert numbers(all_of(reader)) == [0, 1]
            kinds.append(type(reader._fetching.client))  # type: ignore[attr-defined]
        with (
            log.producer(name=new("p")) as named,
            log.consumer(topic, group=new("g"), delivery="exactly_once") as member,
        ):
            with named.transaction(member):
                got = member.poll(WAIT_S)
                while len(got) < 2:
                    got += member.poll(WAIT_S)
                named.send(topic, "2")
            kinds.append(type(member._fetching.client))  # type: ignore[attr-defined]
        with log.consumer(topic) as reader:
            assert numbers(all_of(reader)) == [0, 1, 2]
    if either_way == "columns":
        assert kinds == [ColumnProducer, ColumnConsumer, GroupConsumer]


@pytest.mark.parametrize("mechanism", ["PLAIN", *KINDS])
def test_a_wrong_password_is_refused(kafka: KafkaCluster, tmp_path: Path, mechanism: str) -> None:
    user, _ = user_of(kafka, mechanism)
    with pytest.raises(NoAccess, match="refused the user or the password"):
        connect(address(kafka, tmp_path, mechanism, user, "a guess", kafka.certificate))


@pytest.mark.parametrize(("wrong", "heard"), [("sasl.password", "_AUTHENTICATION"), ("ssl.ca.location", "_SSL")])
def test_a_handle_reports_that_it_cannot_connect(kafka: KafkaCluster, wrong: str, heard: str) -> None:
    errors: list[Any] = []
    settings = {
        "bootstrap.servers": kafka.secure_bootstrap,
        "group.id": "g",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "a guess" if wrong == "sasl.password" else USERS["ann"],
        "ssl.ca.location": "probe" if wrong == "ssl.ca.location" else str(kafka.certificate),
        "error_cb": errors.append,
        "log_level": 0,
    }
    consumer = column_consumer(settings, ALL)
    assert consumer is not None
    consumer.assign({TopicPartition("t", 0): 0})

    def is_heard(serve: Callable[[], object]) -> bool:
        serve()
        return heard in {error.name() for error in errors}

    until(lambda: is_heard(lambda: list(consumer.take(10, 0.1))), heard)
    consumer.close()
    errors.clear()
    producer = column_producer({name: value for name, value in settings.items() if name != "group.id"})
    assert producer is not None
    until(lambda: is_heard(lambda: producer.poll(0.1)), heard)
    producer.close()
