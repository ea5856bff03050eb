"""A log on the broker that all tests of a worker share. What kills brokers and drivers for minutes is for the soak."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from kafka_cluster import KafkaCluster
from millstream.log.kafka.log import KafkaLog


@pytest.fixture
def log(kafka: KafkaCluster) -> Iterator[KafkaLog]:
    with KafkaLog(f"kafka://{kafka.bootstrap}") as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    """A name that no topic of the broker has."""
    return f"scores-{uuid.uuid4().hex[:12]}"
