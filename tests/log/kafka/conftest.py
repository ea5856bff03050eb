"""The log of these tests is the broker that all tests of a worker share."""

from __future__ import annotations

import pytest

from millstream.log.kafka.log import KafkaLog


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log
