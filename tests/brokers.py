"""A real Apache Kafka, of one broker or of three, started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_cluster import KafkaCluster, KafkaUnavailable

USERS = {"ann": "a password of ann's", "bob": "another"}


def running(nodes: int) -> Iterator[KafkaCluster]:
    """One broker has a listener with SASL_SSL for `USERS` besides the plain one."""
    cluster = KafkaCluster(nodes, users=USERS if nodes == 1 else {}, short_lived=True)
    try:
        cluster.start()
    except KafkaUnavailable as missing:
        pytest.skip(str(missing))
    yield cluster
    cluster.stop()
