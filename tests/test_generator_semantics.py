"""Functions that make several rows of one, on every runner and as Spark itself does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millstream as ms
from millstream.errors import InvalidExpression, InvalidPlan, NeedsSpark
from millstream.testing import Add, Watermark
from times import t
from transcripts import play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id int, xs array<int>, m map<string, int>, ss array<struct<u: int, v: string>>, body string"
ROWS: list[dict[str, Any]] = [
    {"id": 1, "xs": [5, None], "m": {"a": 1, "b": 2}, "ss": [{"u": 1, "v": "x"}, None], "body": '{"user": "ann"}'},
    {"id": 2, "xs": [], "m": {}, "ss": [], "body": '{"user": {"name": "bob", "x.y": 1}, "x.y": [1]}'},
    {"id": 3, "xs": None, "m": None, "ss": None, "body": "bad"},
]
CALLS = [
    "explode(xs)",
    "explode_outer(xs) as x",
    "explode(transform(xs, x -> x + id)) as (x)",
    "explode(m) as (k, v)",
    "explode_outer(m)",
    "posexplode(xs) as (place, x)",
    "posexplode_outer(xs)",
    "posexplode(m)",
    "inline(ss)",
    "inline_outer(ss) as (a, b)",
    "stack(2, 'a, (', id, 'b', id * 2) as (name, value)",
    "json_tuple(body, 'user', 'x.y') as (user, xy)",
    "json_tuple(body, 'user')",
]


def selected(call: str, **how: Any) -> list[tuple[Any, ...]]:
    from millstream.testing import play as played

    (rows,) = played(lambda rows: rows.select("id", call), [Add(ROWS)], schema=SCHEMA, **how)
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize("call", CALLS)
def test_reference_and_local_agree(call: str) -> None:
    assert selected(call, on="reference") == selected(call, on="local")


def test_rows_and_names() -> None:
    assert selected("posexplode_outer(xs)") == [(1, 0, 5), (1, 1, None), (2, None, None), (3, None, None)]
    assert selected("inline(ss)") == [(1, 1, "x"), (1, None, None)]
    flow = ms.Flow("named")
    rows = flow.read("rows", SCHEMA)
    assert rows.select("*", "posexplode(xs)").schema.names == ("id", "xs", "m", "ss", "body", "pos", "col")
    assert rows.select("inline(ss) as (a, b)", n="id + 1").schema.names == ("a", "b", "n")


@pytest.mark.more
@pytest.mark.parametrize("call", CALLS)
def test_they_are_as_in_spark(spark: SparkSession, call: str) -> None:
    frame = spark.createDataFrame([tuple(row.values()) for row in ROWS], SCHEMA)
    made = frame.selectExpr("id", call)
    assert selected(call) == [tuple(row) for row in made.collect()]
    flow = ms.Flow("named")
    assert list(flow.read("rows", SCHEMA).select("id", call).schema.names) == made.columns


@pytest.mark.more
def test_in_sparks_own_engine_and_beside_it(spark: SparkSession) -> None:
    """An array that only Spark makes, and an explode with a translation between steps without one."""
    hashed = "posexplode(transform(xs, x -> xxhash64(x) is not null)) as (place, known)"
    assert selected(hashed, on="spark") == [(1, 0, True), (1, 1, True)]
    with pytest.raises(NeedsSpark, match="xxhash64"):
        selected(hashed, on="local")

    def between(rows: ms.Stream) -> ms.Stream:
        marked = rows.where("xxhash64(id) is not null").select("id", x="explode(xs)")
        return marked.with_column("h", "xxhash64(id) is not null")

    from millstream.testing import play as played

    (made,) = played(between, [Add(ROWS)], schema=SCHEMA, on="spark")
    assert [(row["id"], row["x"], row["h"]) for row in made] == [(1, 5, True), (1, None, True)]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("posexplode(xs) as (a, b, c)", "posexplode makes 2 columns, but 3 are named"),
        ("inline(xs)", "inline takes an array of structs"),
        ("stack(id, 1)", "stack takes a number of rows"),
        ("json_tuple(body, body)", "json_tuple takes a text and names"),
    ],
)
def test_mistakes_name_the_users_line(call: str, what: str) -> None:
    with pytest.raises((InvalidPlan, InvalidExpression)) as refused:
        ms.Flow("named").read("rows", SCHEMA).select("id", call)
    assert what in refused.value.what
    assert __file__ in (refused.value.where or "")


def test_one_function_that_makes_rows_in_a_select() -> None:
    rows = ms.Flow("named").read("rows", SCHEMA)
    for select in (
        lambda: rows.select("explode(xs)", "posexplode(m)"),
        lambda: rows.select(x="explode(xs)", y="explode(xs)"),
        lambda: rows.where("explode(array(true))"),
    ):
        with pytest.raises((InvalidPlan, InvalidExpression), match=r"makes rows|several rows"):
            select()


@pytest.mark.transcripts("reference", "local", "spark")
@pytest.mark.on_spark("more")
def test_made_rows_have_the_event_time_of_their_row() -> None:
    def build(rows: ms.Stream) -> ms.Stream:
        return rows.select(x="explode(xs)").key_by("x").window(ms.fixed("1 minute")).agg(n=ms.count())

    rows = [{"xs": [1, 2], "at": t(10)}, {"xs": [2], "at": t(20)}, {"xs": [2], "at": t(70)}, {"xs": [], "at": t(75)}]
    (_, closed) = play(build, [Add(rows), Watermark(t(60))], schema="xs array<int>, at timestamp", event_time="at")
    assert sorted((row["x"], row["n"]) for row in closed) == [(1, 1), (2, 2)]
