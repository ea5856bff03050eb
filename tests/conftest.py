"""What all tests share: a Spark session, brokers and a Postgres, each started when the first test of a worker needs it.

With several workers, two have the tests that use a session, file by file, and one has those that use Kafka alone; tests
that start Spark in processes of their own run beside them. Those that use both Spark and Kafka are in the first of the
two, so that the second starts no brokers. A broker is not shared between workers: tests stop it, let it hang and change
its topics. The tests of any other server that takes seconds to start are in one worker, too. Random examples are in
properties.py, the runners of transcripts in transcripts.py, and what the long runs do in soak.py.
"""

from __future__ import annotations

import os
from collections import Counter
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
# Their files alternate between two sessions: one worker with all of them would be busy long after the others.
SPARK_GROUPS = ("spark", "spark2")
# Fixtures of servers whose start takes 3 to 6 s of processor time, and the group of the tests that use one.
SERVER_GROUPS = {
    "artemis": "artemis",
    "aws": "aws",
    "aws_server": "aws",
    "hdfs": "hdfs",
    "rabbit": "rabbit",
    "s3": "s3",
    "schema_registry": "kafka",  # where others need both
}


@pytest.hookimpl(tryfirst=True)  # before the workers learn their groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sessions = _balanced(items, part) if (part := config.getoption("soak")) else {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            uses = _uses(item)
            with_kafka = bool(uses & {"kafka", "kafka3"})
            if "spark" in uses and not with_kafka:
                group = sessions.setdefault(item.path, SPARK_GROUPS[len(sessions) % len(SPARK_GROUPS)])
                item.add_marker(pytest.mark.xdist_group(group))
            elif "spark" in uses:
                item.add_marker(pytest.mark.xdist_group(SPARK_GROUPS[0]))
            elif with_kafka:
                item.add_marker(pytest.mark.xdist_group("kafka"))
            elif groups := [group for server, group in SERVER_GROUPS.items() if server in uses]:
                item.add_marker(pytest.mark.xdist_group(groups[0]))
    items.sort(key=lambda item: item.get_closest_marker("own_processes") is None)  # the longest; none should be last


def _balanced(items: list[pytest.Item], part: str) -> dict[Path, str]:
    """Where a part of the soak uses sessions, both have about as many of its tests: the largest files are first."""
    from soak import part_of  # a plugin, which pytest imports first

    counts = Counter(item.path for item in items if "spark" in _uses(item) and part_of(item) == part)
    sessions, totals = {}, dict.fromkeys(SPARK_GROUPS, 0)
    for path, count in counts.most_common():
        sessions[path] = min(SPARK_GROUPS, key=totals.__getitem__)
        totals[sessions[path]] += count
    return sessions


def _uses(item: pytest.Item) -> set[str]:
    """The names of fixtures, and parameters that may be the name of a runner or a broker."""
    return {*item.fixturenames, *_texts(item)} if isinstance(item, pytest.Function) else set()


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
