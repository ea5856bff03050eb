"""The rules of tables that one stream makes, as small transcripts, each played on every runner."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.plan.captured_rows import captured_rows
from millstream.testing import Add, Watermark
from times import START, t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = "key string, n int, at timestamp"


def add(*rows: tuple[str | None, int | None, float | None], weights: list[int] | None = None) -> Add:
    """Rows as (key, n, seconds)."""
    return Add([{"key": k, "n": n, "at": None if s is None else t(s)} for k, n, s in rows], weights=weights)


def run(build: Callable[[Any], Any], *steps: Any) -> list[list[str]]:
    """What each step sent, as text and in order: rows that came (+) and went (-)."""
    out = play(build, list(steps), schema=SCHEMA, event_time="at")
    return [sorted(said(row) for row in step) for step in out]


def said(row: dict[str, Any]) -> str:
    """A row such as +a5, from 10 seconds on +a5@10 if it is a change, with what else it has behind it."""
    sign = "-" if row.get("weight", 1) < 0 else "+"
    since = f"@{(row['event_time'] - START).total_seconds():g}" if "event_time" in row else ""
    more = [str(row[name]) for name in ("place", "reason") if name in row]
    return " ".join([f"{sign}{row['key']}{'' if row['n'] is None else row['n']}{since}", *more])


# ---------------------------------------------------------------- the latest row of each key


def test_the_newest_row_of_each_key_is_the_table() -> None:
    out = run(
        lambda rows: rows.to_table(key="key"),
        add(("a", 1, 0), ("b", 2, 0)),
        add(("a", 3, 5), ("b", 4, -5)),
        add(("a", 5, 5)),
    )
    assert out == [["+a1", "+b2"], ["+a3", "-a1"], ["+a5", "-a3"]]


@pytest.mark.on_spark
def test_a_truncation_deletes_all_keys() -> None:
    """Goal: also those of other key groups, and of rows that come later, but are older; nothing that is newer."""
    letters = "abcdefgh"
    out = run(
        lambda rows: captured_rows(rows, ["key"], "n = 0", "n = -1", ["n"]).changes(),
        add(*((letter, 1, 0) for letter in letters)),
        add(("a", 2, 5), (None, -1, 5), ("b", -2, 5), ("c", 2, 6)),
        add(("i", 1, 1), ("d", 3, 5)),
        Watermark(t(10)),
        add(("i", 1, 4), ("e", 4, 11), ("c", 0, 12)),
    )
    assert out == [
        [f"+{letter}1@0" for letter in letters],
        ["+a2@5", "+c2@6", *(f"-{letter}1@5" for letter in letters)],
        ["+d3@5", "+i1@1", "-i1@5"],
        [],
        ["+e4@11", "-c2@12"],
    ]


@pytest.mark.on_spark("more")
def test_a_row_between_two_versions_puts_history_right() -> None:
    out = run(
        lambda rows: rows.to_table(key="key").changes(),
        add(("a", 1, 2), ("a", 3, 10)),
        add(("a", 2, 5)),
        add(("a", 0, 1)),
    )
    assert out == [
        ["+a1@2", "+a3@10", "-a1@10"],
        ["+a1@10", "+a2@5", "-a1@5", "-a2@10"],
        ["+a0@1", "-a0@2"],
    ]


def test_an_unchanged_row_changes_nothing() -> None:
    out = run(
        lambda rows: rows.select("key", "n").to_table(key="key").changes(),
        add(("a", 1, 2)),
        add(("a", 1, 5)),
        add(("a", 1, 5), ("a", 2, 7)),
        add(("a", 2, 4)),
    )
    assert out == [["+a1@2"], [], ["+a2@7", "-a1@7"], ["+a1@5", "+a2@4", "-a1@4", "-a2@5"]]


def test_a_row_without_values_deletes_its_key() -> None:
    out = run(
        lambda rows: rows.to_table(key="key").changes(),
        add(("a", 1, 2)),
        add(("a", None, 5)),
        add(("a", None, 6)),
        add(("a", 2, 8), ("a", 3, 4)),
    )
    assert out == [["+a1@2"], ["-a1@5"], [], ["+a1@5", "+a2@8", "+a3@4", "-a1@4", "-a3@5"]]


def test_a_condition_says_which_rows_delete() -> None:
    out = run(
        lambda rows: rows.to_table(key="key", deleted="n < 0"), add(("a", 1, 2)), add(("a", None, 3)), add(("a", -1, 4))
    )
    assert out == [["+a1"], ["+a", "-a1"], ["-a"]]


def test_a_row_older_than_what_the_watermark_has_passed_is_late() -> None:
    def build(rows: Any) -> Any:
        return rows.to_table(key="key").late

    out = run(
        build,
        add(("a", 1, 2), ("a", 2, 5)),
        Watermark(t(5)),
        add(("a", 3, 1), ("a", 4, 2), ("a", 5, None)),
        Watermark(t(6)),
        add(("a", 6, 3), ("a", 7, 5), ("b", 8, 0)),
    )
    assert out == [[], [], ["+a3 expired", "+a5 no event time"], [], ["+a6 expired"]]


@pytest.mark.on_spark("more")
def test_a_deletion_is_forgotten_when_the_watermark_is_far_enough_past_it() -> None:
    def build(rows: Any) -> Any:
        table = rows.to_table(key="key", forget_deleted_after="10 seconds")
        return {"changes": table.changes(), "late": table.late}

    steps = [
        add(("a", 1, 2), ("a", None, 5), ("b", 2, 5), ("c", None, 5)),
        Watermark(t(15)),
        add(("a", 3, 4), ("b", 4, 4)),  # remembered: ten seconds are not over yet
        add(("c", 5, 20), ("c", None, 30)),
        Watermark(t(16)),
        add(("a", 6, 4), ("b", 7, 4), ("c", 8, 6)),
    ]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    assert [sorted(said(row) for row in step["changes"]) for step in out] == [
        ["+a1@2", "+b2@5", "-a1@5"],
        [],
        [],
        ["+c5@20", "-c5@30"],
        [],
        ["+a6@4", "+c8@6", "-c8@20"],
    ]
    assert [sorted(said(row) for row in step["late"]) for step in out] == [
        [],
        [],
        ["+a3 expired", "+b4 expired"],
        [],
        [],
        ["+b7 expired"],
    ]


def test_a_deletion_without_event_time_deletes_the_newest_version() -> None:
    def build(rows: Any) -> Any:
        table = rows.to_table(key="key")
        return {"changes": table.changes(), "late": table.late}

    steps = [
        add(("a", 1, 2), ("a", 2, 5), ("b", 3, 4), ("b", None, None), ("c", None, None)),
        add(("a", None, None), ("a", 4, 3)),
        Watermark(t(60)),
        add(("a", None, None), ("a", 5, 4), ("b", 6, 4), ("c", 7, None)),
        add(("b", None, None), ("b", 8, 4), ("b", None, None), ("b", 9, 70), ("c", None, None)),
    ]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    assert [sorted(said(row) for row in step["changes"]) for step in out] == [
        ["+a1@2", "+a2@5", "-a1@5"],
        ["+a1@5", "+a4@3", "-a1@3", "-a2@5", "-a4@5"],
        [],
        ["+b6@4"],
        ["+b9@70", "-b6@4"],
    ]
    assert [[said(row) for row in sorted(step["late"], key=said)] for step in out] == [
        [],
        [],
        [],
        ["+a5 expired", "+c7 no event time"],
        [],
    ]


def test_a_tombstone_has_an_event_time_by_whatever_name() -> None:
    out = play(
        lambda rows: rows.where("key <> ''").select("key", "n", seen="at").with_column("then", "seen").to_table("key"),
        [add(("a", 1, 2)), add(("a", None, 5))],
        schema=SCHEMA,
        event_time="at",
    )
    assert [[said(row) for row in step] for step in out] == [["+a1"], ["-a1"]]


def test_a_table_as_of_a_time_has_rows_without_event_time() -> None:
    out = run(
        lambda rows: rows.top(1, by="n desc").as_of(t(9)), add(("a", 1, None)), add(("b", 2, 5)), add(("c", 3, 10))
    )
    assert out == [["+a1"], ["+b2", "-a1"], []]


def test_a_late_row_does_not_bring_a_deleted_key_back() -> None:
    out = run(
        lambda rows: rows.to_table(key="key"),
        add(("a", 1, 2), ("a", None, 5)),
        Watermark(t(60)),
        add(("a", 2, 4), ("b", 3, 4)),
        add(("a", 4, 6)),
    )
    assert out == [[], [], ["+b3"], ["+a4"]]


def test_without_event_time_the_last_row_to_come_counts() -> None:
    out = play(
        lambda rows: rows.to_table(key="key"),
        [
            Add([{"key": "a", "n": 1}, {"key": "a", "n": 2}]),
            Add([{"key": "a", "n": 1}]),
            Add([{"key": "a", "n": None}]),
        ],
        schema="key string, n int",
    )
    assert [[said(row) for row in step] for step in out] == [["+a2"], ["-a2", "+a1"], ["-a1"]]


# ---------------------------------------------------------------- all rows


@pytest.mark.on_spark("more")
def test_without_a_key_every_row_is_in_the_table() -> None:
    def build(rows: Any) -> Any:
        table = rows.select("key", "n").to_table()
        return {"table": table, "changes": table.changes(), "counts": table.group_by("key").agg(n=ms.count())}

    steps = [add(("a", 1, 5), ("a", 1, 2), ("b", None, 3)), Watermark(t(60)), add(("a", 1, 2), ("a", 2, None))]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    assert [sorted((row["key"], row["n"], row.get("weight", 1)) for row in step["table"]) for step in out] == [
        [("a", 1, 2), ("b", None, 1)],
        [],
        [("a", 1, 1), ("a", 2, 1)],
    ]
    since = [[(row["key"], row["n"], row["weight"], row["event_time"]) for row in step["changes"]] for step in out]
    assert [sorted(step, key=str) for step in since] == [
        [("a", 1, 1, t(2)), ("a", 1, 1, t(5)), ("b", None, 1, t(3))],
        [],
        [("a", 1, 1, t(2)), ("a", 2, 1, None)],
    ]
    assert [sorted(said(row) for row in step["counts"]) for step in out] == [["+a2", "+b1"], [], ["+a4", "-a2"]]


def test_a_row_of_weight_minus_one_retracts_one_of_the_equal_rows() -> None:
    def build(rows: Any) -> Any:
        table = rows.select("key", "n").to_table()
        return {"table": table, "distinct": table.distinct(), "top": table.top(1, by="n desc")}

    steps = [
        add(("a", 1, 0), ("a", 1, 0), ("a", 2, 0), weights=[1, 1, 1]),
        add(("a", 1, 1), ("a", 2, 1), weights=[-1, -1]),
        add(("a", 1, 2), weights=[-1]),
    ]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    assert [sorted((row["n"], row.get("weight", 1)) for row in step["table"]) for step in out] == [
        [(1, 2), (2, 1)],
        [(1, -1), (2, -1)],
        [(1, -1)],
    ]
    assert [sorted(said(row) for row in step["distinct"]) for step in out] == [["+a1", "+a2"], ["-a2"], ["-a1"]]
    assert [sorted(said(row) for row in step["top"]) for step in out] == [["+a2"], ["+a1", "-a2"], ["-a1"]]


def test_all_rows_as_they_were() -> None:
    out = run(
        lambda rows: rows.select("key", "n").to_table().as_of(t(9)), add(("a", 1, 9), ("b", 2, 10)), add(("c", 3, None))
    )
    assert out == [["+a1"], ["+c3"]]


@pytest.mark.on_spark("more")
def test_all_rows_are_joined_by_a_foreign_key() -> None:
    """Rows of either side may come first, and a name that changes takes back each row that had it."""

    def build(orders: Any, names: Any) -> Any:
        return orders.select("key", "n").to_table().join(names.to_table("id").select("id", "name"), on={"n": "id"})

    def ordered(*rows: tuple[str, int]) -> Add:
        return Add([{"key": key, "n": n, "at": t(0)} for key, n in rows], to="orders")

    def named(identity: int, name: str, second: float) -> Add:
        return Add([{"id": identity, "name": name, "at": t(second)}], to="names")

    out = play(
        build,
        [ordered(("a", 1), ("a", 1)), named(1, "tea", 1), ordered(("b", 1), ("b", 2)), named(1, "coffee", 2)],
        schema={"orders": SCHEMA, "names": "id int, name string, at timestamp"},
        event_time={"orders": "at", "names": "at"},
    )
    assert [sorted((row["key"], row["name"], row.get("weight", 1)) for row in step) for step in out] == [
        [],
        [("a", "tea", 2)],
        [("b", "tea", 1)],
        [("a", "coffee", 2), ("a", "tea", -2), ("b", "coffee", 1), ("b", "tea", -1)],
    ]


def test_a_stream_looks_a_row_up_among_all_rows() -> None:
    def build(rows: Any) -> Any:
        table = rows.where("n > 10").select("key", m="n").to_table()
        return rows.where("n < 10").join(table, on="key", as_of="event_time").select("key", n="n * m")

    out = run(build, add(("a", 11, 1), ("a", 12, 5)), add(("a", 1, 3), ("a", 2, 6)), Watermark(t(60)))
    assert out == [[], [], ["+a11", "+a22", "+a24"]]


def test_panes_with_retractions_are_all_rows_without_a_key() -> None:
    def build(rows: Any) -> Any:
        panes = rows.key_by("key").window(ms.fixed("10 seconds")).trigger(ms.each()).retracting().agg(n=ms.count())
        return panes.select("key", "n", "weight").to_table()

    assert run(build, add(("a", 1, 1)), add(("a", 5, 2))) == [["+a1"], ["+a2", "-a1"]]


# ---------------------------------------------------------------- distinct


def test_distinct_sends_the_first_row_of_each_key() -> None:
    out = run(
        lambda rows: rows.distinct("key"), add(("a", 1, 5), ("a", 2, 0), ("b", 3, 0)), add(("b", 4, 0), ("c", 5, None))
    )
    assert out == [["+a1", "+b3"], ["+c5"]]


@pytest.mark.on_spark("more")
def test_distinct_within_a_time() -> None:
    def build(rows: Any) -> Any:
        made = rows.distinct("key", within="10 seconds")
        return {"rows": made, "late": made.late}

    steps = [
        add(("a", 1, 20), ("a", 2, 29), ("a", 3, 30), ("a", 4, 11), ("a", 5, 10)),
        Watermark(t(25)),
        add(("a", 6, 24), ("a", 7, 39), ("a", 8, 40), ("b", 9, None)),
    ]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    assert [sorted(said(row) for row in step["rows"]) for step in out] == [["+a1", "+a3", "+a5"], [], ["+a8"]]
    assert [sorted(said(row) for row in step["late"]) for step in out] == [[], [], ["+a6 expired", "+b9 no event time"]]


def test_distinct_of_a_table_lasts_as_long_as_there_is_a_row() -> None:
    out = run(
        lambda rows: rows.distinct("key"),
        add(("a", 2, 0), ("a", 3, 0), weights=[1, 1]),
        add(("a", 1, 0)),
        add(("a", 1, 0), ("a", 2, 0), weights=[-1, -1]),
        add(("a", 3, 0), weights=[-1]),
    )
    assert out == [["+a2"], ["+a1", "-a2"], ["+a3", "-a1"], ["-a3"]]


# ---------------------------------------------------------------- take and top


@pytest.mark.on_spark("more")
def test_take_per_key_in_order_of_arrival() -> None:
    out = run(
        lambda rows: rows.take(2, per="key"),
        add(("a", 1, 9), ("b", 2, 8), ("a", 3, 7), ("a", 4, 6)),
        add(("b", 5, 5), ("b", 6, 4), ("a", 7, 3)),
    )
    assert out == [["+a1", "+a3", "+b2"], ["+b5"]]


def test_take_of_the_whole_stream() -> None:
    out = run(lambda rows: rows.take(3), add(("a", 1, 9), ("b", 2, 8)), add(("c", 3, 7), ("d", 4, 6)), add(("e", 5, 5)))
    assert out == [["+a1", "+b2"], ["+c3"], []]


def test_top_of_a_stream_with_ranks() -> None:
    out = run(
        lambda rows: rows.top(2, by="n desc", rank="place"),
        add(("a", 1, 0), ("b", 2, 0)),
        add(("c", 3, 0)),
        add(("d", 2, 0), ("e", None, 0)),
    )
    assert out == [["+a1 2", "+b2 1"], ["+b2 2", "+c3 1", "-a1 2", "-b2 1"], []]


def test_top_per_key_breaks_ties_by_all_columns_and_has_nulls_last() -> None:
    out = run(
        lambda rows: rows.top(2, by="n % 2", per="key"),
        add(("a", None, 0), ("a", 3, 0), ("b", None, 0)),
        add(("a", 2, 0), ("a", 1, 0)),
    )
    assert out == [["+a", "+a3", "+b"], ["+a1", "+a2", "-a", "-a3"]]


@pytest.mark.on_spark("more")
def test_top_of_a_table_moves_up_when_a_row_is_retracted() -> None:
    out = run(
        lambda rows: rows.top(2, by="n desc"),
        add(("a", 1, 0), ("b", 2, 0), ("c", 3, 0), weights=[1, 1, 1]),
        add(("c", 3, 0), weights=[-1]),
        add(("b", 2, 0), ("a", 1, 0), weights=[1, -1]),
    )
    assert out == [["+b2", "+c3"], ["+a1", "-c3"], ["+b2", "-a1"]]


def test_top_with_ties_has_all_rows_equal_to_the_last() -> None:
    out = run(
        lambda rows: rows.top(2, by="n desc", rank="place", ties=True),
        add(("a", 1, 0), ("b", 1, 0), ("c", 2, 0)),
        add(("d", 2, 0), ("e", None, 0)),
        add(("f", 1, 0), ("g", 2, 0)),
    )
    assert out == [["+a1 2", "+b1 2", "+c2 1"], ["+d2 1", "-a1 2", "-b1 2"], ["+g2 1"]]


@pytest.mark.on_spark("more")
def test_top_with_ties_of_a_table_moves_up_when_a_row_is_retracted() -> None:
    out = run(
        lambda rows: rows.top(2, by="n desc", per="key", rank="place", ties=True),
        add(("a", 3, 0), ("a", 2, 0), ("a", 1, 0), ("a", 1, 1), ("b", 1, 0), weights=[1] * 5),
        add(("a", 3, 0), ("b", 1, 1), weights=[-1, 1]),
        add(("a", 2, 0), ("a", 1, 1), weights=[-1, -1]),
    )
    assert out == [
        ["+a2 2", "+a3 1", "+b1 1"],
        ["+a1 2", "+a1 2", "+a2 1", "+b1 1", "-a2 2", "-a3 1"],
        ["+a1 1", "-a1 2", "-a1 2", "-a2 1"],
    ]


def test_equal_rows_among_ties_are_there_as_often_as_they_came() -> None:
    def build(rows: Any) -> Any:
        return rows.select("key", "n").top(1, by="n", ties=True)

    steps = [add(("a", 1, 0), ("a", 1, 0), ("b", 1, 0), weights=[1, 1, 1]), add(("a", 1, 0), weights=[-1])]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    assert [sorted((row["key"], row.get("weight", 1)) for row in step) for step in out] == [
        [("a", 2), ("b", 1)],
        [("a", -1)],
    ]


def test_a_change_of_the_top_holds_from_the_newest_time_seen() -> None:
    out = run(lambda rows: rows.top(1, by="n").changes(), add(("a", 3, 5)), add(("b", 2, 3)), add(("c", 1, 9)))
    assert out == [["+a3@5"], ["+b2@5", "-a3@5"], ["+c1@9", "-b2@9"]]


def test_panes_with_retractions_are_rows_of_a_table() -> None:
    def build(stream: Any) -> Any:
        panes = stream.key_by("k").window(ms.fixed("10 seconds")).trigger(ms.each()).retracting().agg(total=ms.sum("v"))
        return panes.top(1, by="total desc").select("k", "total")

    rows = [{"k": k, "v": v, "at": START + timedelta(seconds=1)} for k, v in [("a", 1), ("b", 3), ("a", 1), ("a", 5)]]
    steps = play(
        build,
        [Add([row]) for row in rows],
        schema="k string, v int, at timestamp",
        event_time="at",
    )
    assert [[(row["k"], row["total"], row.get("weight", 1)) for row in step] for step in steps] == [
        [("a", 1, 1)],
        [("a", 1, -1), ("b", 3, 1)],
        [],
        [("b", 3, -1), ("a", 7, 1)],
    ]
