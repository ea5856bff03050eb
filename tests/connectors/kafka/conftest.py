"""The broker that all tests of a worker share, and topics with names of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from client_ways import either_way
from kafka_jars import KafkaUnavailable
from millstream.log.kafka.log import KafkaLog
from schema_registry_server import SchemaRegistryServer

__all__ = ["either_way"]


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def topic() -> str:
    """A name that no topic of the broker has."""
    return f"scores-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[SchemaRegistryServer]:
    """A real one, for all tests of a worker."""
    try:
        server = SchemaRegistryServer().start()
    except KafkaUnavailable as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()
