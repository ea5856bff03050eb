"""Goal: rows pass a queue inside a flow once, in a bounded run, over several runs, beside the job, and from the start.

Method: jobs on Spark with a log on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("numbers", schema="n int")
        yield opened


def put(log: EmbeddedLog, *numbers: int) -> None:
    with log.producer() as producer:
        for number in numbers:
            producer.send("numbers", {"n": number})


def got(log: EmbeddedLog, topic: str) -> list[int]:
    with log.consumer(topic) as consumer:
        return sorted(record.value["n"] for record in consumer.until_caught_up())


def a_flow(log: EmbeddedLog) -> ms.Flow:
    flow = ms.Flow("inner", log=str(log.path))
    numbers = flow.read("numbers", "n int", name="numbers")
    numbers.queue("slow", at_once=4).write("out", name="out")
    return flow


def test_each_row_passes_once(spark: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    put(log, *range(10))
    job = a_flow(log).run(until="caught up", folder=tmp_path / "job")
    assert got(log, "out") == got(log, "inner.slow") == list(range(10))
    assert job.progress.batch >= 3  # four at once, after the batch that filled it
    put(log, 10)
    a_flow(log).run(until="caught up", folder=tmp_path / "job")
    assert got(log, "out") == list(range(11))
    a_flow(log).replay(into="out.v2", folder=tmp_path / "replay")
    assert got(log, "out.v2") == list(range(11))
    assert got(log, "inner.slow") == list(range(11))  # a replay does not write into it
    a_flow(log).run(until="caught up", folder=tmp_path / "job", start_over=True)
    assert got(log, "out") == got(log, "inner.slow") == list(range(11))


def test_a_topic_with_other_columns_is_refused(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("inner.slow", schema="text string")
    with pytest.raises(InvalidInput, match=r"does not fit the queue 'slow\.in'"):
        a_flow(log).run(until="caught up", folder=tmp_path / "job")
