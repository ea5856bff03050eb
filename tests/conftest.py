"""What all tests share: a Spark session, brokers and a Postgres, each started when the first test of a worker needs it.

With several workers, one has all tests that use the session, so that there is only one, and one has those that use
Kafka alone; tests that start Spark in processes of their own run beside them. A broker is not shared between workers:
tests stop it, let it hang and change its topics. Random examples are in properties.py, the runners of transcripts in
transcripts.py, and what the long runs do in soak.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokers import running
from kafka_cluster import KafkaCluster
from millstream.log import EmbeddedLog
from millstream.log.kafka.log import KafkaLog
from postgres_server import Server
from s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["properties", "soak", "transcripts"]
# JVMs of tests live for seconds: compiling hot code a second time takes a third of their processor time.
os.environ.setdefault("MILLSTREAM_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.hookimpl(tryfirst=True)  # before the workers learn their groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            uses = {*item.fixturenames, *_texts(item)}
            for shared, group in (("spark", "spark"), ("kafka", "kafka"), ("kafka3", "kafka")):
                if shared in uses:
                    item.add_marker(pytest.mark.xdist_group(group))
                    break
    items.sort(key=lambda item: item.get_closest_marker("own_processes") is None)  # the longest; none should be last


def _texts(item: pytest.Function) -> list[str]:
    """The parameters that may name a runner or a broker."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [value for value in given if isinstance(value, str)]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that use this: starting one takes seconds."""
    from millstream.spark import session, stop

    yield session(name="tests")
    stop()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server that speaks S3, with a bucket `tests`."""
    with S3Server("tests") as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    yield from running(1)


@pytest.fixture(scope="session")
def kafka3() -> Iterator[KafkaCluster]:
    """Three brokers. A test that kills one restarts it."""
    yield from running(3)


@pytest.fixture
def kafka_log(kafka: KafkaCluster) -> Iterator[KafkaLog]:
    """A log on the broker that all tests of a worker share."""
    with KafkaLog(f"kafka://{kafka.bootstrap}") as opened:
        yield opened


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A Postgres. Each test takes a database of its own, and restarts the server if it stops it."""
    made = Server(wal_level="logical", max_prepared_transactions="20")  # for capture and two-phase commits
    yield made
    made.close()


@pytest.fixture
def dsn(server: Server) -> str:
    """The address of an empty database."""
    return server.new_database()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """An empty log in a folder."""
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        yield opened
