"""Goal: the queues of flows work on Kafka, too: a writer waits, the most urgent row is first, rows wait inside a flow.

Method: jobs on Spark, whose queues are topics of a real broker with a schema of their own.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from jobs.support import CAUGHT_UP, read
from millstream.log.kafka.log import KafkaLog
from waiting import until

pytestmark = pytest.mark.more
SCHEMA = "n int, level int"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


@pytest.fixture
def name(log: KafkaLog, spark: SparkSession) -> str:
    """Of a flow, and the beginning of its topics' names."""
    name = f"f{uuid.uuid4().hex[:12]}"
    log.create_topic(f"{name}.rows", schema=SCHEMA, partitions=2)
    return name


def put(log: KafkaLog, topic: str, *numbers: int) -> None:
    """In both partitions; the level is the number's last digit."""
    with log.producer() as producer:
        for n in numbers:
            producer.send(topic, {"n": n, "level": n % 10}, partition=n % 2)


def numbers(log: KafkaLog, topic: str) -> list[int]:
    return [row["n"] for row in read(log, topic)] if topic in log.topics() else []


def test_a_writer_waits_for_its_reader(log: KafkaLog, name: str) -> None:
    queue = ms.queue(f"{name}.q", at_most=20, when_full="wait")
    log.create_topic(queue.topic, schema=SCHEMA, partitions=2)
    put(log, f"{name}.rows", *range(100))
    writing, reading = ms.Flow(f"{name}-writer", log=log.address), ms.Flow(f"{name}-reader", log=log.address)
    writing.read(f"{name}.rows", SCHEMA).write(queue, name="fill")
    reading.read(queue, SCHEMA, name="drain").write(f"{name}.out")
    writer = writing.start(progress="none")
    try:
        until(lambda: writer.progress.waits, "a full queue")
        assert "nobody has read them yet" in str(writer.progress.waits)
        full = len(numbers(log, queue.topic))
        assert 20 <= full < 40
        reader = reading.start(progress="none")
        try:
            until(lambda: len(numbers(log, f"{name}.out")) >= 100, "all of it")
            group = f"queue.{queue.topic}.{name}-reader.drain"
            until(lambda: log.describe_group(group).lag == 0, "its position")
        finally:
            reader.stop()
    finally:
        writer.stop()
    assert sorted(numbers(log, f"{name}.out")) == sorted(numbers(log, queue.topic)) == list(range(100))


def test_the_most_urgent_first(log: KafkaLog, name: str) -> None:
    """The offsets have holes: markers of transactions."""
    filling, urgent = ms.Flow(f"{name}-filling", log=log.address), ms.Flow(f"{name}-urgent", log=log.address)
    filling.read(f"{name}.rows", SCHEMA).write(f"{name}.q", partitions=1)
    urgent.read(ms.queue(f"{name}.q", priority="level"), SCHEMA, name="q").write(f"{name}.out", partitions=1)
    sent: list[int] = []
    for first in (0, 25):
        for start in (first, first + 10):
            put(log, f"{name}.rows", *range(start, start + 10))
            filling.run(until=CAUGHT_UP, progress="none")
        job = urgent.run(until=CAUGHT_UP, progress="none", batch_rows=7)
        assert job.lag() == 0
        got = numbers(log, f"{name}.out")[len(sent) :]
        assert sorted(got) == list(range(first, first + 20))
        assert [n % 10 for n in got] == sorted((n % 10 for n in got), reverse=True)
        sent += got


def test_rows_wait_inside_a_flow(log: KafkaLog, name: str) -> None:
    def a_flow() -> ms.Flow:
        flow = ms.Flow(name, log=log.address)
        flow.read(f"{name}.rows", SCHEMA, name="rows").queue("slow", at_once=4).write(f"{name}.out", name="out")
        return flow

    put(log, f"{name}.rows", *range(10))
    a_flow().run(until=CAUGHT_UP, progress="none")
    put(log, f"{name}.rows", 10)
    job = a_flow().run(until=CAUGHT_UP, progress="none")
    assert sorted(numbers(log, f"{name}.out")) == sorted(numbers(log, f"{name}.slow")) == list(range(11))
    assert job.lag() == 0
    a_flow().run(until=CAUGHT_UP, progress="none", start_over=True)
    assert sorted(numbers(log, f"{name}.out")) == sorted(numbers(log, f"{name}.slow")) == list(range(11))
