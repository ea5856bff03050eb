"""Jobs with steps in Spark's own engine: batches continue, and rows keep their partition and offset behind them."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from jobs.support import CAUGHT_UP, SCHEMA, put, read, scores
from millstream.log import EmbeddedLog
from millstream.spark.query.spark_steps import FOLDER

pytestmark = pytest.mark.usefixtures("spark")


def odd_only(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] % 2 == 0:
        raise ValueError(f"{row['n']} is even")
    return row


def flow_of() -> ms.Flow:
    flow = ms.Flow("hashed")
    hashed = scores(flow, "pairs").with_column("n", "n + int(xxhash64(user) % 1)", name="hashed_n")
    kept = hashed.map(odd_only)
    kept.dead.write("dead")
    kept.key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n")).write("totals")
    return flow


@pytest.mark.more
def test_batches_offsets_and_windows(log: EmbeddedLog) -> None:
    log.create_topic("pairs", schema=SCHEMA, partitions=2)
    put(log, "pairs", [("ann", 1, 0.0), ("ann", 2, 1.0)])
    put(log, "pairs", [("bob", 4, 0.0), ("bob", 5, 1.0)], partition=1)
    flow_of().run(broker=log.path, until=CAUGHT_UP)
    put(log, "pairs", [("ann", 7, 2.0), ("ann", 9, 60.0)])
    put(log, "pairs", [("bob", 11, 60.0)], partition=1)
    flow_of().run(broker=log.path, until=CAUGHT_UP)
    totals = sorted((row["user"], row["total"]) for row in read(log, "totals"))
    assert totals == [("ann", 8), ("bob", 5)]
    dead = sorted((row["topic"], row["partition"], row["offset"]) for row in read(log, "dead"))
    assert dead == [("pairs", 0, 1), ("pairs", 1, 0)]


def test_a_column_may_be_written_in_any_case(log: EmbeddedLog) -> None:
    """Only columns that are used are read: also one that Spark finds under another spelling."""
    log.create_topic("pairs", schema=SCHEMA)
    put(log, "pairs", [("ann", 1, 0.0)])
    flow = ms.Flow("spelled")
    scores(flow, "pairs").select(known="xxhash64(USER) = xxhash64('ann')").write("known")
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert [row["known"] for row in read(log, "known")] == [True]


@pytest.mark.more
def test_nothing_is_left_beside_spark(log: EmbeddedLog) -> None:
    """What tasks of an earlier run left, because they were killed, is removed by the next run."""
    log.create_topic("pairs", schema=SCHEMA)
    put(log, "pairs", [("ann", 1, 0.0)])
    job = flow_of().run(broker=log.path, until=CAUGHT_UP)
    beside = job._shipment.folder / FOLDER  # type: ignore[attr-defined]
    assert list(beside.glob("*")) == []
    (beside / "dead0000-1-2").mkdir(parents=True)
    put(log, "pairs", [("ann", 3, 1.0)])
    flow_of().run(broker=log.path, until=CAUGHT_UP)
    assert list(beside.glob("*")) == []


@pytest.mark.more
def test_an_idle_partition_does_not_hold_back_time_that_is_set_after_parsing(log: EmbeddedLog) -> None:
    log.create_topic("texts", partitions=2, schema="body string")
    with log.producer(acks="all") as producer:
        for second in (0, 5, 60):
            producer.send("texts", {"body": f'{{"n": 1, "ts": {second}}}'}, partition=0)
    flow = ms.Flow("idle")
    parsed = flow.read("texts", "body string").parse("body", "n int, ts bigint")
    timed = parsed.with_event_time("timestamp_seconds(ts)", ms.bounded("1 second", idle="1 minute"))
    timed.window(ms.fixed("10 seconds")).agg(n=ms.sum("n")).write("sums")
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert [each["n"] for each in read(log, "sums")] == [2]


def test_the_physical_plan_says_which_steps_and_why() -> None:
    drawn = flow_of().explain(physical=True)
    assert "hashed_n in Spark's own engine (the function xxhash64" in drawn
