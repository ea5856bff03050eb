"""A real Apache Kafka, of one broker or of three, started when the first test asks for it.

One worker has all of these tests, so that no broker is started twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_cluster import KafkaCluster, KafkaUnavailable

HERE = Path(__file__).parent
USERS = {"ann": "a password of ann's", "bob": "another"}


@pytest.hookimpl(tryfirst=True)  # before the workers are told their groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.soak)  # brokers start and die for a minute, and nothing of ours is on them yet
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group("kafka"))


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker, with a plain listener and one with SASL_SSL for `USERS`."""
    yield from _running(KafkaCluster(1, users=USERS))


@pytest.fixture(scope="session")
def kafka3() -> Iterator[KafkaCluster]:
    """Three brokers. Who kills one restarts it."""
    yield from _running(KafkaCluster(3))


def _running(cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    try:
        cluster.start()
    except KafkaUnavailable as missing:
        pytest.skip(str(missing))
    yield cluster
    cluster.stop()
