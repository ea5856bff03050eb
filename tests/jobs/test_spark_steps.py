"""Jobs with steps in Spark's own engine: batches continue, and rows keep their partition and offset behind them."""

from __future__ import annotations

from pathlib import Path
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
    beside = job.parts.shipment.folder / FOLDER  # type: ignore[attr-defined]
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


def put_texts(log: EmbeddedLog, partition: int, *seconds: int) -> None:
    with log.producer(acks="all") as producer:
        for second in seconds:
            producer.send(
                "texts", {"body": f'{{"ts": {second}, "items": [{{"n": 1}}, {{"n": 2}}]}}'}, partition=partition
            )


def items(**watermark: Any) -> ms.Flow:
    """Sums of what `from_json` finds; the event time is set behind Spark's own engine."""
    flow = ms.Flow("items")
    texts = flow.read("texts", "body string").where("xxhash64(body) is not null")
    parsed = texts.select(event="from_json(body, 'ts bigint, items array<struct<n: int>>')")
    made = parsed.select(ts="event.ts", item="explode(event.items)")
    timed = made.with_event_time("timestamp_seconds(ts)", ms.bounded("1 second", **watermark)).where("item.n > 1")
    timed.window(ms.fixed("10 seconds")).agg(n=ms.sum("item.n")).write("sums")
    return flow


@pytest.mark.more
def test_each_partition_has_its_own_watermark_behind_spark(log: EmbeddedLog) -> None:
    """Windows close when all partitions have reached their end, in this run and in the next."""
    log.create_topic("texts", partitions=2, schema="body string")
    put_texts(log, 0, 0, 5, 60)
    items().run(broker=log.path, until=CAUGHT_UP, progress="none")
    assert read(log, "sums") == []  # partition 1 has no rows yet
    put_texts(log, 1, 3, 12)
    items().run(broker=log.path, until=CAUGHT_UP, progress="none")
    assert [each["n"] for each in read(log, "sums")] == [6]
    put_texts(log, 1, 31)
    items().run(broker=log.path, until=CAUGHT_UP, progress="none")
    assert [each["n"] for each in read(log, "sums")] == [6, 2]


@pytest.mark.more
def test_an_idle_partition_does_not_hold_back_time_that_is_set_behind_spark(log: EmbeddedLog) -> None:
    log.create_topic("texts", partitions=2, schema="body string")
    put_texts(log, 0, 0, 5, 60)
    items(idle="1 minute").run(broker=log.path, until=CAUGHT_UP, progress="none")
    assert [each["n"] for each in read(log, "sums")] == [4]


@pytest.mark.more
def test_rows_of_a_sink_that_may_refuse_them_have_their_place_behind_spark(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("pairs", schema=SCHEMA, partitions=2)
    put(log, "pairs", [("ann", 1, 0.0)])
    put(log, "pairs", [("bob", 5, 1.0), ("x" * 300, 4, 0.0)], partition=1)
    flow = ms.Flow("refusing")
    hashed = scores(flow, "pairs").where("xxhash64(user) is not null")
    hashed.write(ms.files(tmp_path / "out", partition_by="user")).dead.write("refused")
    flow.run(broker=log.path, until=CAUGHT_UP, progress="none")
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 2
    assert [(row["topic"], row["partition"], row["offset"]) for row in read(log, "refused")] == [("pairs", 1, 1)]


def test_the_physical_plan_says_which_steps_and_why() -> None:
    drawn = flow_of().explain(physical=True)
    assert "hashed_n in Spark's own engine (the function xxhash64" in drawn
