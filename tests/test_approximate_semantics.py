"""Approximate aggregates: small inputs are exact, sketches merge, and rows that cannot be forgotten are refused."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream import sketches
from millstream.errors import InvalidAggregate
from millstream.testing import Add, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
END = Watermark(None)
SCHEMA = "key string, user string, n int, at timestamp"
EVERY: dict[str, Any] = {
    "users": ms.approx_distinct("user"),
    "numbers": ms.approx_distinct("n", bounds=True),
    "median": ms.approx_quantiles("n", 0.5),
    "spread": ms.approx_quantiles("n", [0, 1], bounds=True),
    "top": ms.approx_top("user", 2),
    "anns": ms.approx_count("user", of="ann"),
}
ROWS: list[tuple[Any, Any]] = [("ann", 1), ("bob", 2), ("ann", 3), (None, None), ("cid", 3), ("ann", 9)]
EXPECTED = {
    "users": 3,
    "numbers": {"estimate": 4, "low": 4, "high": 5},
    "median": 3.0,
    "spread": [{"estimate": 1.0, "low": 1.0, "high": 1.0}, {"estimate": 9.0, "low": 9.0, "high": 9.0}],
    "top": [
        {"value": "ann", "estimate": 3, "low": 3, "high": 3},
        {"value": "bob", "estimate": 1, "low": 1, "high": 1},
    ],
    "anns": 3,
}


def add(rows: list[tuple[Any, Any]], second: int = 0) -> Add:
    return Add([{"key": "a", "user": user, "n": n, "at": t(second + at)} for at, (user, n) in enumerate(rows)])


def made(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in EVERY}


def run(build: Any, *steps: Any) -> Any:
    return play(build, list(steps), schema=SCHEMA, event_time="at")


@pytest.mark.on_spark("more")
def test_few_rows_are_exact_in_a_window_in_a_table_and_row_by_row() -> None:
    def build(rows: Any) -> Any:
        windowed = rows.key_by("key").window(ms.fixed("1 minute"))
        return {
            "window": windowed.agg(**EVERY),
            "table": rows.group_by("key").agg(**EVERY).changes(),
            "each": windowed.trigger(ms.each()).agg(**EVERY),
            "sessions": rows.key_by("key").window(ms.sessions("10 seconds")).agg(**EVERY),
        }

    out = run(build, add(ROWS[:3]), add(ROWS[3:], second=3), Watermark(None))
    assert made(out[2]["window"][0]) == EXPECTED
    assert made(out[2]["sessions"][0]) == EXPECTED
    assert made(out[1]["table"][-1]) == EXPECTED
    assert made(out[1]["each"][-1]) == EXPECTED
    assert [row["users"] for row in out[0]["each"]] == [1, 2, 2]


def test_aggregates_as_text_are_the_same_in_windows_and_groups() -> None:
    texts = {
        "users": "approx_count_distinct(user)",
        "numbers": "approx_distinct(n, bounds => true)",
        "median": "percentile_approx(n, 0.5, 100)",
        "spread": "approx_quantiles(n, array(0, 1), bounds => true)",
        "top": "approx_top(user, 2)",
        "anns": "approx_count(user, of => 'ann')",
    }

    def build(rows: Any) -> Any:
        return {
            "window": rows.key_by("key").window(ms.fixed("1 minute")).agg(**texts),
            "table": rows.group_by("key").agg(*(f"{text} as {name}" for name, text in texts.items())).changes(),
        }

    out = run(build, add(ROWS), END)
    assert made(out[1]["window"][0]) == EXPECTED
    assert made(out[0]["table"][-1]) == EXPECTED


def test_rows_without_values() -> None:
    out = run(lambda rows: rows.group_by("key").agg(**EVERY).changes(), add([(None, None)]))
    zero = {"estimate": 0, "low": 0, "high": 0}
    assert made(out[0][-1]) == {"users": 0, "numbers": zero, "median": None, "spread": None, "top": [], "anns": 0}


def test_sketches_are_values_that_merge() -> None:
    def build(rows: Any) -> Any:
        by_minute = rows.key_by("key").window(ms.fixed("1 minute"))
        packed = by_minute.agg(
            users=ms.approx_distinct("user", sketch=True),
            spread=ms.approx_quantiles("n", 0.5, sketch=True),
            top=ms.approx_top("user", 2, sketch=True),
            counts=ms.approx_count("user", sketch=True),
            members=ms.approx_set("user"),
        )
        hourly = packed.key_by("key").window(ms.fixed("1 hour"))
        return hourly.agg(
            users=ms.approx_distinct("users", of_sketches=True),
            median=ms.approx_quantiles("spread", 0.5, of_sketches=True),
            top=ms.approx_top("top", 2, of_sketches=True),
            anns=ms.approx_count("counts", of="ann", of_sketches=True),
            members=ms.approx_set("members", of_sketches=True),
        )

    out = run(build, add(ROWS[:3]), add(ROWS[3:], second=63), Watermark(None))
    row = out[2][0]
    assert {name: row[name] for name in ("users", "median", "top", "anns")} == {
        name: EXPECTED[name] for name in ("users", "median", "top", "anns")
    }
    assert sketches.set_size(row["members"]).estimate == 3


def test_what_the_sets_of_two_windows_have_in_common() -> None:
    def build(rows: Any) -> Any:
        sets = rows.key_by("key").window(ms.fixed("1 minute")).agg(users=ms.approx_set("user"))
        both = sets.key_by("key").window(ms.fixed("2 minutes"))
        return both.agg(
            stayed=ms.approx_intersection("users"),
            bounded=ms.approx_intersection("users", bounds=True),
            members=ms.approx_intersection("users", sketch=True),
            of_none=ms.approx_intersection("if(key = 'b', users, null)"),
        )

    out = run(build, add([("ann", 1), ("bob", 2), ("cid", 3)]), add([("bob", 1), ("dee", 2), ("ann", 3)], 61), END)
    (row,) = (row for step in out for row in step)
    assert (row["stayed"], row["of_none"]) == (2, None)
    assert row["bounded"] == {"estimate": 2, "low": 2, "high": 2}
    assert sketches.set_size(row["members"]).estimate == 2


def test_counts_by_value_forget_retracted_rows() -> None:
    def build(rows: Any) -> Any:
        latest = rows.to_table(key="n")
        return latest.group_by("key").agg(anns=ms.approx_count("user", of="ann")).changes()

    out = run(build, add([("ann", 1), ("ann", 2)]), add([("bob", 1)], second=5))
    assert [row["anns"] for row in out[1] if row["weight"] > 0] == [1]


def test_a_sketch_of_rows_that_may_be_retracted_is_refused() -> None:
    with pytest.raises(InvalidAggregate, match="users=approx_distinct\\(user\\) needs rows that are never retracted"):
        run(lambda rows: rows.to_table(key="n").group_by("key").agg(users=ms.approx_distinct("user")).changes())


@pytest.mark.parametrize(
    ("aggregate", "needed"),
    [
        (ms.approx_quantiles("user", 0.5), "a number"),
        (ms.approx_top("n", 3), "a string"),
        (ms.approx_count("n", of="x"), "the type of 'x'"),
        (ms.approx_distinct("user", of_sketches=True), "sketches"),
        (ms.approx_intersection("user"), "sketches"),
        (ms.approx_distinct("array(n)"), "a single value"),
    ],
)
def test_arguments_of_other_types_are_refused(aggregate: Any, needed: str) -> None:
    with pytest.raises(InvalidAggregate, match=needed):
        run(lambda rows: rows.group_by("key").agg(x=aggregate).changes())


@pytest.mark.parametrize(
    "build",
    [
        lambda: ms.approx_distinct("user", error=0.9),
        lambda: ms.approx_quantiles("n", 1.5),
        lambda: ms.approx_quantiles("n", []),
        lambda: ms.approx_top("user", 0),
        lambda: ms.approx_count("user"),
    ],
)
def test_bad_parameters_are_refused(build: Any) -> None:
    with pytest.raises(InvalidAggregate):
        build()
