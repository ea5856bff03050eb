"""Goal: who writes a queue waits while it is full, exactly once and visibly, and nothing waits for itself.

Method: jobs on Spark with a log on disk; the plan of who is held, for every shape of flows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.connectors.topic.queue_positions import QueuePositions, Waiting, group_of
from millstream.connectors.topic.queue_source import Limits
from millstream.errors import SinkFailed
from millstream.jobs.measuring.job_progress import read_progress
from millstream.log import EmbeddedLog
from millstream.metrics.history import read_metrics
from millstream.metrics.silence import why_silent
from millstream.plan.apps import App
from millstream.records import Schema
from millstream.spark.query import batch_offsets
from millstream.spark.query.full_queues import written_queues
from waiting import until

NUMBERS = "n int"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("numbers", schema=NUMBERS)
        opened.create_topic("q", schema=NUMBERS, partitions=2)
        yield opened


def put(log: EmbeddedLog, topic: str, *numbers: int) -> None:
    with log.producer() as producer:
        for number in numbers:
            producer.send(topic, {"n": number})


def got(log: EmbeddedLog, topic: str) -> list[int]:
    with log.consumer(topic) as consumer:
        return sorted(record.value["n"] for record in consumer.until_caught_up())


def a_queue(at_most: int = 20, **more: Any) -> Any:
    return ms.queue("q", at_most=at_most, when_full="wait", **more)


def writer(log: EmbeddedLog, sink: Any) -> ms.Flow:
    flow = ms.Flow("writer", log=str(log.path))
    flow.read("numbers", NUMBERS).write(sink, name="fill")
    return flow


def reader(log: EmbeddedLog, source: Any) -> ms.Flow:
    flow = ms.Flow("reader", log=str(log.path))
    flow.read(source, NUMBERS, name="drain").write("out")
    return flow


# ---------------------------------------------------------------- what waits


def test_the_slowest_reader_counts(log: EmbeddedLog) -> None:
    schema = Schema.of(NUMBERS)
    positions = QueuePositions(str(log.path))
    assert positions.waiting("none", schema) == Waiting(0, None, None)
    put(log, "q", *range(10))
    assert positions.waiting("q", schema).reader is None
    assert positions.waiting("q", schema).records == 10
    ends = {str(each.number): each.stable_offset for each in log.describe_topic("q").partitions}
    positions.store("q", group_of("q", "fast", "read"), ends)
    assert (positions.waiting("q", schema).records, positions.waiting("q", schema).reader) == (0, "queue.q.fast.read")
    positions.store("q", group_of("q", "slow", "app:read"), dict.fromkeys(ends, 1))
    waiting = positions.waiting("q", schema)
    assert (waiting.records, waiting.reader) == (sum(max(0, end - 1) for end in ends.values()), "queue.q.slow.app.read")
    log.delete_group("queue.q.slow.app.read")
    assert QueuePositions(str(log.path)).waiting("q", schema).records == 0
    assert log.describe_group("queue.q.fast.read").lag == 0  # as any group


@pytest.mark.parametrize(
    ("limits", "records", "room"),
    [
        (Limits(at_most=10), 3, 7),
        (Limits(at_most=10), 30, 0),
        (Limits(size_bytes=1000), 3, 7),
        (Limits(at_most=5, size_bytes=1000), 3, 2),
        (Limits(size_bytes=10), 0, 1),  # a record larger than the limit passes alone
    ],
)
def test_room(limits: Limits, records: int, room: int) -> None:
    assert Waiting(records, 100.0, None).room(limits) == room


# ---------------------------------------------------------------- who is held


def held(*flows: ms.Flow) -> dict[str, tuple[set[str], bool]]:
    outputs = App(flows).check() if len(flows) > 1 else flows[0].check()
    return {each.topic: (set(each.held), each.drained_here) for each in written_queues(outputs)}


def test_the_whole_flow_waits() -> None:
    flow = ms.Flow("a")
    one, other = flow.read("one", NUMBERS, name="one"), flow.read("other", NUMBERS, name="other")
    flow.read("apart", NUMBERS, name="apart").write("apart.out")
    one.union(other).write("both")
    one.write(a_queue())
    assert held(flow) == {"q": ({"one", "other"}, False)}


def test_who_reads_the_queue_is_not_held() -> None:
    filling, draining = ms.Flow("filling"), ms.Flow("draining")
    filling.read("numbers", NUMBERS, name="from").write(a_queue())
    draining.read(a_queue(), NUMBERS, name="to").write("out")
    assert held(filling, draining) == {"q": ({"filling:from"}, True)}


def test_a_loop_does_not_wait_for_itself() -> None:
    flow = ms.Flow("retries")
    orders, again = flow.read("orders", NUMBERS, name="orders"), flow.read(a_queue(), NUMBERS, name="again", loop=True)
    orders.union(again).write(a_queue())
    assert held(flow) == {"q": ({"orders"}, True)}


def test_nor_does_a_longer_one() -> None:
    one, two = ms.Flow("one"), ms.Flow("two")
    back = ms.queue("back", at_most=3, when_full="wait")
    one.read("orders", NUMBERS, name="orders").union(one.read(back, NUMBERS, name="back")).write(a_queue())
    two.read(a_queue(), NUMBERS, name="q").write(back)
    assert held(one, two) == {"q": ({"one:orders"}, True), "back": (set(), True)}


# ---------------------------------------------------------------- jobs


def test_the_writer_waits_for_the_reader(spark: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    put(log, "numbers", *range(100))
    writing = writer(log, a_queue()).start(folder=tmp_path / "writer")
    try:
        until(lambda: got(log, "q") == list(range(20)), "a full queue")
        metrics = until(lambda: _waits(tmp_path / "writer"), "it to be seen")
        assert metrics.newest.waits_for == (
            "fill: the queue 'q' is full: 20 records wait, and nobody has read them yet"
        )
        assert writing.progress.waits == metrics.newest.waits_for
        assert (
            until(lambda: read_progress(tmp_path / "writer")["waits_for"], "others to see it") == writing.progress.waits
        )
        silence = why_silent("writer", metrics, "running", metrics.newest.at)
        assert [(each.kind, each.step) for each in silence.findings] == [("queue_full", "fill")]
        assert got(log, "q") == list(range(20))  # no more
        reading = reader(log, a_queue()).start(folder=tmp_path / "reader")
        until(lambda: len(got(log, "out")) >= 100, "all of it")
        reading.stop()
        until(lambda: not _waits(tmp_path / "writer"), "the writer to go on")
    finally:
        writing.stop()
    assert got(log, "out") == list(range(100))
    assert log.describe_group("queue.q.reader.drain").lag == 0


def _waits(folder: Path) -> Any:
    metrics = read_metrics(folder)
    return metrics if metrics and metrics.newest and metrics.newest.waits_for else None


def test_a_bounded_run_ends_when_no_reader_moves(
    spark: SparkSession, log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(log, "numbers", *range(50))
    with pytest.raises(SinkFailed, match=r"the queue 'q' is full: 20 records wait.*no reader has moved") as failed:
        writer(log, a_queue()).run(until="caught up", folder=tmp_path / "writer")
    assert "groups delete" in str(failed.value.next_step)
    reader(log, a_queue()).run(until="caught up", folder=tmp_path / "reader")
    assert got(log, "out") == list(range(20))
    assert batch_offsets.STALLED_S_MAX == 30


def test_an_app_does_not_wait_for_itself(spark: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    put(log, "numbers", *range(60))
    app = ms.app([writer(log, a_queue(at_most=7)), reader(log, a_queue(at_most=7))])
    job = app.start(folder=tmp_path / "app")
    try:
        until(lambda: len(got(log, "out")) >= 60, "all of it")
    finally:
        job.stop()
    assert got(log, "out") == list(range(60))
