"""What each aggregate gives for nulls, ties, no rows and retractions, on every runner."""

from __future__ import annotations

import math
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Add, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = "key string, n int, x double, at timestamp"
EVERY: dict[str, Any] = {
    "avg": ms.avg("n"),
    "median": ms.median("n"),
    "percentile": ms.percentile("n", 0.9),
    "percentiles": ms.percentile("n", [0, 0.25, 1]),
    "variance": ms.variance("n"),
    "var_pop": ms.var_pop("n"),
    "stddev_pop": ms.stddev_pop("n"),
    "count_if": ms.count_if("n > 1"),
    "any": ms.any("n > 3"),
    "all": ms.all("n > 0"),
    "max_by": ms.max_by("x", "n"),
    "min_by": ms.min_by("x", "n"),
    "collect_set": ms.collect_set("n"),
    "mode": ms.mode("n"),
}
NOTHING = {**dict.fromkeys(EVERY), "count_if": 0, "collect_set": []}


def add(*rows: tuple[Any, Any], second: int = 0) -> Add:
    """Rows of one key as (n, x)."""
    return Add([{"key": "a", "n": n, "x": x, "at": t(second + at)} for at, (n, x) in enumerate(rows)])


def run(build: Any, *steps: Any) -> list[Any]:
    return play(build, list(steps), schema=SCHEMA, event_time="at")


def made(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in EVERY}


VALUES = [(4, 0.5), (None, 9.0), (1, None), (2, 1.5), (4, 2.5), (1, 3.5)]
EXPECTED: dict[str, Any] = {
    "avg": 2.4,
    "median": 2.0,
    "percentile": 4.0,
    "percentiles": [1.0, 1.0, 4.0],
    "variance": pytest.approx(2.3),
    "var_pop": pytest.approx(1.84),
    "stddev_pop": pytest.approx(math.sqrt(1.84)),
    "count_if": 3,
    "any": True,
    "all": True,
    "max_by": 0.5,  # of two rows with n = 4, the first to arrive
    "min_by": None,  # the value may be null, the order may not
    "collect_set": [4, 1, 2],
    "mode": 4,  # of two that are as frequent, the first to arrive
}


@pytest.mark.on_spark("more")
def test_every_aggregate_in_a_window_in_a_table_and_row_by_row() -> None:
    def build(rows: Any) -> Any:
        windowed = rows.key_by("key").window(ms.fixed("1 minute"))
        return {
            "window": windowed.agg(**EVERY),
            "table": rows.group_by("key").agg(**EVERY).changes(),
            "each": windowed.trigger(ms.each()).agg(**EVERY),
        }

    out = run(build, add(*VALUES[:3]), add(*VALUES[3:], second=3), Watermark(None))
    assert made(out[2]["window"][0]) == EXPECTED
    assert made(out[1]["table"][-1]) == EXPECTED
    assert made(out[1]["each"][-1]) == EXPECTED
    assert [row["max_by"] for step in out for row in step["each"]] == [0.5] * 6
    assert [row["min_by"] for step in out for row in step["each"]] == [0.5, 0.5, None, None, None, None]


def test_nulls_alone_are_no_values() -> None:
    out = run(lambda rows: rows.group_by("key").agg(**EVERY).changes(), add((None, None), (None, 1.0)))
    assert made(out[0][-1]) == NOTHING


@pytest.mark.on_spark("more")
def test_a_single_value() -> None:
    out = run(lambda rows: rows.group_by("key").agg(**EVERY).changes(), add((3, 1.0)))
    found = made(out[0][-1])
    assert (found["variance"], found["var_pop"], found["stddev_pop"]) == (None, 0.0, 0.0)
    assert (found["median"], found["percentiles"]) == (3.0, [3.0, 3.0, 3.0])


@pytest.mark.on_spark("more")
def test_rows_that_a_table_retracts_no_longer_count() -> None:
    """Goal: an aggregate over a table forgets rows that went. Method: newer rows replace older ones."""

    def build(rows: Any) -> Any:
        return rows.to_table(key="x").group_by("key").agg(**EVERY).changes()

    out = run(build, add((9, 1.0), (5, 2.0), (-5, 3.0)), add((1, 1.0), (1, 2.0), (2, 3.0), second=3))
    assert made(out[1][-1]) == {
        "avg": pytest.approx(4 / 3),
        "median": 1.0,
        "percentile": pytest.approx(1.8),
        "percentiles": [1.0, 1.0, 2.0],
        "variance": pytest.approx(1 / 3),
        "var_pop": pytest.approx(2 / 9),
        "stddev_pop": pytest.approx(math.sqrt(2 / 9)),
        "count_if": 1,
        "any": False,
        "all": True,
        "max_by": 3.0,
        "min_by": 1.0,
        "collect_set": [1, 2],
        "mode": 1,
    }


def test_nan_is_larger_than_any_number() -> None:
    def build(rows: Any) -> Any:
        made = {
            "most": ms.max_by("n", "x"),
            "least": ms.min_by("n", "x"),
            "edges": ms.percentile("x", [0, 1]),
            "usual": ms.mode("x"),
            "high": ms.max("x"),
            "low": ms.min("x"),
            "best": ms.top("n", 2, by="x"),
        }
        each = rows.window(ms.fixed("1 minute")).trigger(ms.each())
        return {"table": rows.group_by("key").agg(**made).changes(), "each": each.agg(**made)}

    out = run(build, add((1, 5.0), (2, math.nan), (3, 4.0)), add((4, math.nan), second=3))
    for row in (out[1]["table"][-1], out[1]["each"][-1]):
        assert (row["most"], row["least"], row["edges"][0], row["low"]) == (2, 3, 4.0, 4.0)
        assert all(map(math.isnan, (row["edges"][1], row["usual"], row["high"])))
        assert row["best"] == [2, 4]
    assert [math.isnan(row["high"]) for row in out[0]["each"]] == [False, True, True]


@pytest.mark.on_spark("more")
def test_an_aggregate_may_be_called_every() -> None:
    rows = [{"k": "a", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 2}]

    def build(stream: Any) -> Any:
        return stream.group_by("k").agg(every=ms.bool_and("n > 1")).where("every")

    (out,) = play(build, [Add(rows)], schema="k string, n int")
    assert [(row["k"], row["every"]) for row in out] == [("b", True)]


def test_sql_names_mean_the_same() -> None:
    assert ms.avg("n") == ms.mean("n")
    assert ms.std("n") == ms.stddev_samp("n") == ms.stddev("n")
    assert ms.var_samp("n") == ms.variance("n")
    assert ms.some("n > 1") == ms.bool_or("n > 1") == ms.any("n > 1")
    assert ms.bool_and("n > 1") == ms.all("n > 1")
    assert ms.collect_list("n") == ms.collect("n")
    assert ms.count_distinct("n") == ms.distinct_count("n")
    assert ms.median("n") == ms.percentile("n", 0.5)


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: ms.percentile("n", 95), "a fraction from 0 to 1, or a list of them, not 95"),
        (lambda: ms.percentile("n", []), "a fraction from 0 to 1"),
        (lambda: ms.percentile("n", "0.5"), "a fraction from 0 to 1"),  # type: ignore[arg-type]
        (lambda: ms.max_by("n", 1), "by takes a column or a Spark SQL expression"),  # type: ignore[arg-type]
        (lambda: _table().agg(a=ms.any("n")), "any needs a condition, which is true or false, but 'n' is int"),
        (lambda: _table().agg(a=ms.median("key")), "percentile needs a number, but 'key' is string"),
        (lambda: _table().agg(a=ms.max_by("n", "array(n)")), "max_by needs an orderable type"),
    ],
)
def test_a_mistake_is_refused(build: Any, what: str) -> None:
    with pytest.raises(ms.errors.InvalidAggregate, match=what.replace("(", r"\(")):
        build()


def _table() -> Any:
    return ms.Flow("f").read("in", SCHEMA, event_time="at").group_by("key")
