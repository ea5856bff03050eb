"""The broker that all tests of a worker share, and topics with names of their own."""

from __future__ import annotations

import uuid

import pytest

from client_ways import either_way
from millstream.log.kafka.log import KafkaLog

__all__ = ["either_way"]


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def topic() -> str:
    """A name that no topic of the broker has."""
    return f"scores-{uuid.uuid4().hex[:12]}"
