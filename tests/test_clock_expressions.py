"""`current_timestamp()` is the processing time of the batch, on every runner; and in expressions for Spark alone."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidExpression, InvalidPlan
from millstream.testing import Add, Clock, play

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NIGHT = datetime(2026, 2, 1, 3, tzinfo=UTC)
STEPS = [Clock(NOON), Add([{"id": 1, "at": NOON}, {"id": 2, "at": NIGHT}]), Clock(NIGHT), Add([{"id": 3, "at": NOON}])]


def ages(rows: ms.Stream) -> ms.Stream:
    past = rows.where("at <= current_timestamp()")
    return past.select("id", seen="now()", day="current_date", text="date_format(current_timestamp(), 'yyyy')")


def newest(rows: ms.Stream) -> ms.Stream:
    return rows.group_by().agg(seen=ms.max("now()"))


def played(flow: Any, on: str) -> list[dict[str, Any]]:
    out = play(flow, STEPS, schema="id int, at timestamp", event_time="at", on=on)
    return [dict(row) for step in out for row in step]


@pytest.mark.parametrize("runner", ["reference", "local", "spark"])
def test_the_clock_of_the_batch(runner: str) -> None:
    assert [tuple(row.values()) for row in played(ages, runner)] == [
        (1, NOON, date(2026, 1, 31), "2026"),
        (3, NIGHT, date(2026, 2, 1), "2026"),
    ]


@pytest.mark.parametrize("runner", ["reference", "local"])
def test_in_an_argument_of_an_aggregate(runner: str) -> None:
    seen = [(row["weight"], row["seen"]) for row in played(lambda rows: newest(rows).changes(), runner)]
    assert seen == [(1, NOON), (-1, NOON), (1, NIGHT)]


@pytest.mark.parametrize("runner", ["reference", "local"])
def test_in_an_order_and_a_deletion(runner: str) -> None:
    def longest_ago(rows: ms.Stream) -> ms.Stream:
        return rows.top(1, by="unix_micros(now()) - unix_micros(at) desc")

    assert [row["id"] for row in played(longest_ago, runner) if row.get("weight", 1) > 0] == [1, 3]
    kept = played(lambda rows: rows.to_table("id", deleted="at < now()"), runner)
    assert [(row["id"], set(row)) for row in kept] == [(1, {"id", "at"}), (2, {"id", "at"})]


def test_in_an_expression_for_spark_alone(spark: Any) -> None:
    out = played(lambda rows: rows.select("id", seen="array_max(transform(array(at), x -> now()))"), "spark")
    assert [(row["id"], row["seen"]) for row in out] == [(1, NOON), (2, NOON), (3, NIGHT)]


@pytest.mark.parametrize("runner", ["reference", "local"])
def test_functions_of_the_clock_and_the_zone(runner: str) -> None:
    out = played(lambda rows: rows.select(seen="unix_timestamp()", zone="current_timezone()"), runner)
    assert [(row["seen"], row["zone"]) for row in out] == [(NOON.timestamp(), "UTC")] * 2 + [(NIGHT.timestamp(), "UTC")]


def test_in_what_is_written_for_spark(spark: Any) -> None:
    """A Column and a function of a DataFrame read the clock of the batch, too."""
    from pyspark.sql import functions as sf

    def flow(rows: Any) -> ms.Stream:
        made = rows.where(sf.col("at") <= sf.current_timestamp()).select(
            "id", sf.now().alias("seen"), day=sf.current_date(), text="current_date", local=sf.localtimestamp()
        )
        later = made.spark(lambda df: df.withColumn("age", sf.unix_timestamp() - sf.unix_timestamp("seen")))
        return later.where("localtimestamp() = local")

    assert [tuple(row.values()) for row in played(flow, "spark")] == [
        (1, NOON, date(2026, 1, 31), date(2026, 1, 31), NOON.replace(tzinfo=None), 0),
        (3, NIGHT, date(2026, 2, 1), date(2026, 2, 1), NIGHT.replace(tzinfo=None), 0),
    ]


def test_in_rows_that_are_made_of_it(spark: Any) -> None:
    from pyspark.sql import functions as sf

    hours = sf.sequence(sf.date_trunc("day", "at"), sf.now(), sf.expr("interval 3 hours"))

    def flow(rows: Any) -> ms.Stream:
        made = rows.where("id != 2").select("id", hour=sf.explode(hours)).where("hour = now()")
        return made.spark(lambda df: df.select("id", "hour", sf.posexplode(sf.array(sf.current_date()))))

    assert [tuple(row.values()) for row in played(flow, "spark")] == [
        (1, NOON, 0, date(2026, 1, 31)),
        (3, NIGHT, 0, date(2026, 2, 1)),
    ]


@pytest.mark.parametrize(
    "text", ["timestamp'now'", "cast('Today ' as date)", "at > 'tomorrow'", "to_date('yesterday')"]
)
def test_words_for_times_of_sparks_own_clock(spark: Any, text: str) -> None:
    from pyspark.sql import functions as sf

    rows = ms.Flow("words").read("t", "id int, at timestamp")
    for given in (text, sf.expr(text)):
        with pytest.raises(InvalidExpression, match="reads Spark's own clock, and results must be repeatable"):
            rows.select(x=given)


def test_a_clock_that_has_no_column(spark: Any) -> None:
    from pyspark.sql import functions as sf

    rows: Any = ms.Flow("words").read("t", "id int, at timestamp")
    with pytest.raises(InvalidExpression, match="reads Spark's own clock"):
        rows.select(x=sf.current_time().cast("string"))
    with pytest.raises(InvalidPlan, match="the function reads Spark's own clock"):
        rows.spark(lambda df: df.select(sf.current_time().cast("string").alias("x")))


def test_where_it_cannot_be_used() -> None:
    with pytest.raises(InvalidExpression, match=r"'now\(\)' uses the clock, so a row and its retraction would differ"):
        ms.Flow("tops").read("t", "id int").group_by("id").agg(n=ms.count()).top(1, by="now()")
    with pytest.raises(InvalidExpression, match="results must be repeatable"):
        ms.Flow("tops").read("t", "id int").with_column("x", "current_time()")
