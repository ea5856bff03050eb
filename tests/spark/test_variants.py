"""Columns of type VARIANT, between steps that Spark's own engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import millstream as ms
from millstream.errors import InvalidPlan, NeedsSpark
from millstream.testing import Add, Watermark, play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id int, body string, at timestamp"
BODIES = {1: '{"user": "ann", "score": 5}', 2: '{"user": "bob", "score": 7}', 3: "broken", 4: '{"user": "ann"}'}
ROWS = [{"id": number, "body": body, "at": None} for number, body in BODIES.items()]


def parsed(stream: Any) -> Any:
    return stream.select("id", v="try_parse_json(body)")


@pytest.mark.more
def test_variants_pass_from_step_to_step(spark: SparkSession) -> None:
    def flow(stream: Any) -> Any:
        known = parsed(stream).where("v is not null").rename(v="w")
        scored = known.with_column("score", "variant_get(w, '$.score', 'int')").spark(lambda df: df.where("id < 4"))
        return scored.select("score", user="variant_get(w, '$.user', 'string')")

    (rows,) = play(flow, [Add(ROWS)], schema=SCHEMA, on="spark")
    assert [(row["user"], row["score"]) for row in rows] == [("ann", 5), ("bob", 7)]
    with pytest.raises(NeedsSpark, match="try_parse_json"):
        play(flow, [Add(ROWS)], schema=SCHEMA)


@pytest.mark.more
def test_an_argument_of_an_aggregate_may_use_one(spark: SparkSession) -> None:
    def flow(stream: Any) -> Any:
        users = stream.with_columns(v="try_parse_json(body)").with_column("user", "variant_get(v, '$.user', 'string')")
        return users.group_by("user").agg(total=ms.sum("variant_get(v, '$.score', 'int')"), n=ms.count())

    (rows, _) = play(flow, [Add(ROWS), Watermark(None)], schema=SCHEMA, event_time="at", on="spark")
    assert {(row["user"], row["total"], row["n"]) for row in rows} == {("ann", 5, 2), ("bob", 7, 1), (None, None, 1)}


@pytest.mark.more
def test_a_row_that_a_step_fails_on_shows_it_as_json(spark: SparkSession) -> None:
    def flow(stream: Any) -> Any:
        made = parsed(stream).select("id", n="variant_get(v, '$.user', 'int')", name="number")
        return {"made": made, "dead": made.dead}

    (out,) = play(flow, [Add(ROWS[1:3])], schema=SCHEMA, on="spark")
    assert [row["id"] for row in out["made"]] == [3]
    assert b'"user"' in out["dead"][0]["value"]


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda rows: rows.map(dict), "the column 'v' is a variant, which only where, select"),
        (lambda rows: rows.distinct("id"), "the column 'v' is a variant, which only where, select"),
        (lambda rows: rows.union(rows.where("id > 1")), "the column 'v' is a variant, which only where, select"),
        (lambda rows: rows.key_by("v"), "'v' is variant, which cannot be a key"),
        (
            lambda rows: rows.group_by("id").agg(n=ms.collect_list("v")),
            "'v' is a variant, which an aggregate cannot take",
        ),
        (lambda rows: rows.write(ms.memory("variants")), "the column 'v' is a variant, which only where, select"),
    ],
)
def test_a_step_that_cannot_have_one_is_refused_where_it_is_written(
    spark: SparkSession, build: Callable[[Any], Any], what: str
) -> None:
    rows = parsed(ms.Flow("f").read("rows", SCHEMA))
    with pytest.raises(InvalidPlan) as refused:
        build(rows)
    assert what in refused.value.what
    assert "variant_get(v" in (refused.value.next_step or "")
    assert __file__ in (refused.value.where or "")


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (parsed, "is a variant, which a result cannot have"),
        (
            lambda stream: (lambda rows: {"a": rows.select("id"), "b": rows.drop("v")})(parsed(stream)),
            "is used by two steps",
        ),
    ],
)
def test_one_that_would_leave_spark_is_refused(spark: SparkSession, build: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        play(build, [Add(ROWS)], schema=SCHEMA, on="spark")
    assert what in refused.value.what
    assert "variant_get(v" in (refused.value.next_step or "")
    assert __file__ in (refused.value.where or "")
