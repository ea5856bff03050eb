"""The log of these tests is the broker that all tests of a worker share."""

from __future__ import annotations

import pytest

from client_ways import either_way
from millstream.log.kafka.log import KafkaLog

__all__ = ["either_way"]


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log
