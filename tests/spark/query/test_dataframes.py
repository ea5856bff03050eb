"""DataFrames of Spark go into a flow, and streams of a flow come out as DataFrames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import millstream as ms
from jobs.support import CAUGHT_UP, SCHEMA, per_user, put, read, scores, seconds, t
from millstream.log import EmbeddedLog
from waiting import until

ROWS = [("ann", 1, 0.0), ("bob", 2, 3.0), ("ann", 4, 12.0), ("bob", 8, 31.0)]
CLOSED = [("ann", 0, 1), ("ann", 10, 4), ("bob", 0, 2)]  # the last window is still open
ALL = [*CLOSED, ("bob", 30, 8)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    lines = [json.dumps({"user": user, "n": n, "at": t(second).isoformat()}) for user, n, second in ROWS]
    (made / "rows.json").write_text("\n".join(lines) + "\n")
    return made


def files(spark: SparkSession, folder: Path, *, streams: bool) -> DataFrame:
    reader = spark.readStream if streams else spark.read
    return reader.schema(SCHEMA).json(str(folder))


def totals(name: str, frame: DataFrame) -> ms.Flow:
    """Steps that stay in Spark, then steps of ours."""
    flow = ms.Flow(name)
    rows = flow.read(frame, event_time="at", watermark=ms.bounded("5 seconds"))
    wanted = rows.where("n > 0").with_column("user", "lower(user)").map(lambda row: row)
    per_user(wanted).write("totals")
    wanted.write("rows")
    return flow


@pytest.mark.parametrize("streams", [pytest.param(True, marks=pytest.mark.more), False])
def test_a_dataframe_is_a_source(spark: SparkSession, log: EmbeddedLog, folder: Path, streams: bool) -> None:
    totals("framed", files(spark, folder, streams=streams)).run(broker=log.path, until=CAUGHT_UP)
    assert sorted(each["n"] for each in read(log, "rows")) == [1, 2, 4, 8]
    assert seconds(read(log, "totals")) == CLOSED


@pytest.mark.more
def test_a_function_of_a_dataframe_behind_a_condition_of_spark(
    spark: SparkSession, log: EmbeddedLog, folder: Path
) -> None:
    flow = ms.Flow("detour")
    rows = flow.read(files(spark, folder, streams=True)).where("xxhash64(user) is not null and n > 1")
    rows.spark(lambda df: df.selectExpr("user", "n + 1 as n")).write("rows")
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert sorted(each["n"] for each in read(log, "rows")) == [3, 5, 9]


@pytest.mark.parametrize("streams", [True, pytest.param(False, marks=pytest.mark.more)])
def test_the_event_time_of_a_dataframe_is_computed(
    spark: SparkSession, log: EmbeddedLog, folder: Path, streams: bool
) -> None:
    """In Spark where it is read, and in a task after a function."""
    frame = files(spark, folder, streams=streams).withColumn("ts", sf.unix_millis("at")).drop("at")
    flow = ms.Flow("timed")
    rows = flow.read(frame, event_time="timestamp_millis(ts)", watermark=ms.bounded("5 seconds"))
    per_user(rows.where("n > 0")).write("totals")
    later = flow.read(frame, name="again").map(lambda row: row).where("n > 0")
    timed = later.with_event_time("timestamp_millis(ts)", ms.bounded("5 seconds"))
    timed.key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n")).write("again")
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert seconds(read(log, "totals")) == seconds(read(log, "again")) == CLOSED


@pytest.mark.more
def test_times_of_a_dataframe_that_are_out_of_range_are_no_event_times(
    spark: SparkSession, log: EmbeddedLog, folder: Path
) -> None:
    """One of them must not push the watermark past all others."""
    frame = files(spark, folder, streams=True).withColumn(
        "at", sf.expr("case when n = 4 then timestamp_micros(9223372036854775000) else at end")
    )
    flow = ms.Flow("range")
    made = per_user(flow.read(frame, event_time="at", watermark=ms.bounded("5 seconds")))
    made.write("totals")
    made.late.select("n", "reason").write("late")
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert [(each["n"], each["reason"]) for each in read(log, "late")] == [(4, "no event time")]
    assert read(log, "totals")


@pytest.mark.more
def test_the_clock_behind_a_dataframe_is_that_of_the_batch(spark: SparkSession, log: EmbeddedLog, folder: Path) -> None:
    """Whether a step stays in Spark, runs in a task, or needs Spark's own engine."""
    flow = ms.Flow("clock")
    first = flow.read(files(spark, folder, streams=True)).with_column("a", "current_timestamp()")
    second = first.map(lambda row: row | {"b": None}, f"{first.schema}, b timestamp").with_column("b", "now()")
    second.with_column("c", "timestamp_seconds(xxhash64(n) % 1 + unix_seconds(now()))").write("rows")
    flow.run(broker=log.path, until=CAUGHT_UP)
    rows = read(log, "rows")
    assert {each["a"] for each in rows} == {each["b"] for each in rows}
    assert {each["c"] for each in rows} == {each["a"].replace(microsecond=0) for each in rows}
    assert len({each["a"] for each in rows}) == 1


@pytest.mark.more
def test_rows_of_a_dataframe_that_are_far_ahead(spark: SparkSession, log: EmbeddedLog, folder: Path) -> None:
    """By the clock of Spark's batch: in Spark where they are read, and in a task after a function."""
    far = {"user": "eve", "n": 1, "at": "2999-01-01T00:00:00Z"}
    (folder / "far.json").write_text(json.dumps(far) + "\n")
    strategy = ms.bounded("5 seconds", ahead_at_most="1 day")
    flow = ms.Flow("ahead")
    frame = files(spark, folder, streams=True)
    first = per_user(flow.read(frame, event_time="at", watermark=strategy))
    second = per_user(flow.read(frame, name="again").map(lambda row: row).with_event_time("at", strategy))
    for name, made in (("first", first), ("second", second)):
        made.write(name)
        made.late.write(f"{name}.late")
    flow.run(broker=log.path, until=CAUGHT_UP)
    for name in ("first", "second"):
        assert seconds(read(log, name)) == CLOSED
        assert [(each["user"], each["reason"]) for each in read(log, f"{name}.late")] == [("eve", "ahead")]


@pytest.mark.more
def test_a_dataframe_as_one_batch(spark: SparkSession, log: EmbeddedLog, folder: Path) -> None:
    """All windows close."""
    totals("framed", files(spark, folder, streams=False)).run(broker=log.path, batch=True)
    assert seconds(read(log, "totals")) == ALL


def test_a_streaming_dataframe_is_not_a_batch(spark: SparkSession, log: EmbeddedLog, folder: Path) -> None:
    with pytest.raises(ms.MillstreamError, match="is a streaming DataFrame"):
        totals("framed", files(spark, folder, streams=True)).run(broker=log.path, batch=True)


@pytest.mark.more
def test_a_streaming_dataframe_continues(spark: SparkSession, log: EmbeddedLog, folder: Path) -> None:
    totals("framed", files(spark, folder, streams=True)).run(broker=log.path, until=CAUGHT_UP)
    more = {"user": "ANN", "n": 16, "at": t(60).isoformat()}
    (folder / "more.json").write_text(json.dumps(more) + "\n")
    totals("framed", files(spark, folder, streams=True)).run(broker=log.path, until=CAUGHT_UP)
    assert seconds(read(log, "totals")) == ALL
    assert len(read(log, "rows")) == 5


@pytest.mark.more
def test_the_rate_source_of_spark(spark: SparkSession, log: EmbeddedLog) -> None:
    frame = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    flow = ms.Flow("rate")
    rows = flow.read(frame, event_time="timestamp").with_column("odd", "value % 2")
    rows.key_by("odd").window(ms.fixed("1 second")).agg(k=ms.count()).write("counts")
    rows.write("rows")
    job = flow.start(broker=log.path)
    until(lambda: len(read(log, "counts")) >= 4, "some windows")
    job.stop()
    values = sorted(each["value"] for each in read(log, "rows"))
    assert values == list(range(len(values)))
    counts = read(log, "counts")
    for each in counts:
        inside = [
            row
            for row in read(log, "rows")
            if row["odd"] == each["odd"] and each["window"]["start"] <= row["timestamp"] < each["window"]["end"]
        ]
        assert each["k"] == len(inside)


# ---------------------------------------------------------------- back into PySpark


def collected(spark: SparkSession, frame: DataFrame, name: str, checkpoint: Path) -> list[Any]:
    writer = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.table(name).collect()


def test_a_stream_comes_out_as_a_dataframe(spark: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    """Panes are taken further by plain PySpark."""
    log.create_topic("scores", schema=SCHEMA)
    put(log, "scores", ROWS)
    frame = per_user(scores(ms.Flow("out"))).to_dataframe(broker=log.path)
    assert frame.isStreaming
    made = frame.where("total > 1").select("user", (sf.col("total") * 10).alias("tens"), "window.start")
    found = collected(spark, made, "panes", tmp_path / "checkpoint")
    assert sorted((each.user, each.tens) for each in found) == [("ann", 40), ("bob", 20)]


def test_a_stream_without_state_comes_out_too(spark: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("scores", schema=SCHEMA)
    put(log, "scores", ROWS)
    flow = ms.Flow("out", log=log.path)  # also without broker=…
    frame = scores(flow).where("n > 1").select("user", tens="n * 10").to_dataframe()
    assert frame.columns == ["user", "tens"]
    found = collected(spark, frame, "plain", tmp_path / "checkpoint")
    assert [(each.user, each.tens) for each in found] == [("bob", 20), ("ann", 40), ("bob", 80)]


@pytest.mark.more
def test_a_table_comes_out_with_the_weight_of_each_change(
    spark: SparkSession, log: EmbeddedLog, tmp_path: Path
) -> None:
    """A retraction without its weight would look like one more row."""
    log.create_topic("scores", schema=SCHEMA)
    frame = scores(ms.Flow("out")).group_by("user").agg(total=ms.sum("n")).to_dataframe(broker=log.path)
    assert frame.columns == ["user", "total", "weight"]
    found: list[tuple[Any, ...]] = []
    for rows in (ROWS[:2], ROWS[2:]):
        put(log, "scores", rows)
        writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(map(tuple, batch.collect())))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(found[:2]) == [("ann", 1, 1), ("bob", 2, 1)]
    assert sorted(found[2:]) == [("ann", 1, -1), ("ann", 5, 1), ("bob", 2, -1), ("bob", 10, 1)]


def test_a_table_with_a_column_named_weight_does_not_come_out(log: EmbeddedLog) -> None:
    totals = scores(ms.Flow("out")).group_by("user").agg(total=ms.sum("n")).select("user", weight="total")
    with pytest.raises(ms.MillstreamError, match="the DataFrame of a table adds a column 'weight'"):
        totals.to_dataframe(broker=log.path)


def test_a_flow_explains_its_physical_plan(spark: SparkSession) -> None:
    flow = ms.Flow("shown")
    per_user(scores(flow).where("n > 0", name="wanted")).write("totals")
    said = flow.explain(physical=True)
    assert "wanted" in said
    assert "shuffle 1 by key group, then in one stage:\n        scores.agg-" in said
    assert "TransformWithState" in said
    assert "Exception" not in said
    assert max(map(len, said.splitlines())) < 2000  # what travels inside is not shown
