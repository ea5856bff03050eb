"""Rows that a step in Spark's own engine fails on: named with their offset, or dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millstream as ms
from jobs.support import CAUGHT_UP, read
from millstream.errors import InvalidPlan, RecordFailed
from millstream.log import EmbeddedLog
from millstream.testing import Add, play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODIES = ["1", "2", "x", "4", "five", "6"]
SCHEMA = "id int, body string"
FAILS = "cast(body as int) + cast(xxhash64(id) % 1 as int)"
"""An expression that only Spark evaluates, and that fails on text."""


@pytest.fixture
def log(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("raw", partitions=2, schema=SCHEMA)
    with log.producer(acks="all") as producer:
        for number, body in enumerate(BODIES):
            producer.send("raw", {"id": number, "body": body}, partition=number % 2)
    return log


def run(flow: ms.Flow, log: EmbeddedLog, **settings: Any) -> None:
    flow.run(broker=log.path, until=CAUGHT_UP, **settings)


def test_an_expression_that_fails_names_the_records_offset(spark: SparkSession, log: EmbeddedLog) -> None:
    flow = ms.Flow("computed")
    flow.read("raw", SCHEMA).where("id >= 2").with_column("n", FAILS, name="number").write("numbers")
    with pytest.raises(RecordFailed) as failed:
        run(flow, log)
    assert "the step 'number' cannot handle a record" in failed.value.what
    assert "'x'" in failed.value.what
    where = failed.value.where or ""
    assert "topic raw, partition 0, offset 1; " in where
    assert __file__ in where
    assert "org.apache" not in str(failed.value)
    assert ".dead of 'number'" in (failed.value.next_step or "")
    spark.udf.register("thrice", lambda x: x * 3, "int")  # the session of the query is not the active one
    assert ms.Flow("after").read("raw", SCHEMA).select(n="thrice(id)").schema.names == ("n",)


def test_a_map_that_fails_names_the_records_offset_and_the_users_line(spark: SparkSession, log: EmbeddedLog) -> None:
    flow = ms.Flow("mapped")
    flow.read("raw", SCHEMA).map(lambda row: {"n": int(row["body"])}, "n int", name="number").write("numbers")
    with pytest.raises(RecordFailed, match="the step 'number' cannot handle a record: number: ValueError") as failed:
        run(flow, log)
    position, _, line = (failed.value.where or "").partition("; ")
    assert position in ("topic raw, partition 0, offset 1", "topic raw, partition 0, offset 2")
    assert line.startswith(f"{__file__}:")


@pytest.mark.more
def test_a_function_that_fails_makes_dead_letters_and_the_rest_passes(spark: SparkSession, log: EmbeddedLog) -> None:
    from pyspark.sql import functions as sf

    @sf.udf("int")
    def number(text: str) -> int:
        return int(text)

    flow = ms.Flow("computed")
    numbers = flow.read("raw", SCHEMA).select("id", n=number("body"), name="number")
    numbers.write("numbers")
    numbers.dead.write("dead")
    numbers.group_by().agg(total=ms.sum("n")).write("totals")
    run(flow, log)
    assert sorted(row["n"] for row in read(log, "numbers")) == [1, 2, 4, 6]
    letters = sorted(read(log, "dead"), key=lambda row: row["offset"])
    assert [(row["topic"], row["partition"], row["offset"]) for row in letters] == [("raw", 0, 1), ("raw", 0, 2)]
    assert "number: ValueError: invalid literal for int()" in letters[0]["reason"]
    assert letters[0]["value"] == b"{'id': 2, 'body': 'x'}"
    assert read(log, "totals")[-1]["total"] == 13


@pytest.mark.more
def test_several_parts_and_batches_each_have_their_dead_letters(spark: SparkSession, log: EmbeddedLog) -> None:
    """A part behind another one only gets what the first lets through."""
    flow = ms.Flow("computed")
    first = flow.read("raw", SCHEMA).with_column("n", FAILS, name="first")
    second = first.map(lambda row: row).where("1 / (n - 4 + cast(xxhash64(id) % 1 as int)) > -1", name="second")
    second.write("numbers")
    first.dead.union(second.dead).write("dead")
    run(flow, log, batch_rows=2)
    assert sorted(row["n"] for row in read(log, "numbers")) == [1, 2, 6]
    letters = sorted((row["partition"], row["offset"], row["reason"].split(":")[0]) for row in read(log, "dead"))
    assert letters == [(0, 1, "first"), (0, 2, "first"), (1, 1, "second")]


@pytest.mark.more
def test_a_function_of_a_dataframe_has_dead_letters(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    def build(rows: ms.Stream) -> dict[str, ms.Stream]:
        made = rows.spark(lambda df: df.select("id", sf.expr("int(body)").alias("n"), sf.xxhash64("id").alias("h")))
        return {"made": made.select("id", "n"), "dead": made.dead.select("reason", text="cast(value as string)")}

    rows = [{"id": number, "body": body} for number, body in enumerate(BODIES)]
    (first, second) = play(build, [Add(rows[:4]), Add(rows[4:])], schema=SCHEMA, on="spark")
    assert [row["n"] for row in first["made"]] == [1, 2, 4]
    assert [row["text"] for row in first["dead"]] == ["{'id': 2, 'body': 'x'}"]
    assert [row["n"] for row in second["made"]] == [6]
    assert "'five'" in second["dead"][0]["reason"]


def test_dead_letters_behind_state_or_a_dataframe_are_refused(spark: SparkSession) -> None:
    flow = ms.Flow("computed")
    counted = flow.read("raw", SCHEMA).group_by("id").agg(n=ms.count())
    for stream in (counted, flow.read(spark.range(3))):
        with pytest.raises(InvalidPlan, match="has no dead letters: it runs in Spark's own engine") as refused:
            _ = stream.with_column("h", "xxhash64(id)").dead
        assert __file__ in (refused.value.where or "")
