"""A row far ahead of the clock does not move the watermark, and is late with the reason `ahead`, on every runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.time.watermarks import Bounded
from millstream.testing import Add, Clock
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = "k string, n int, at timestamp"
STRATEGY = ms.bounded("10 seconds", ahead_at_most="1 hour")


def add(*rows: tuple[int, float | None], to: str | None = None) -> Add:
    return Add([{"k": "a", "n": n, "at": None if s is None else t(s)} for n, s in rows], to=to)


def in_windows(rows: Any) -> Any:
    return rows.key_by("k").window(ms.fixed("1 minute")).agg(ns=ms.collect("n"))


def in_sessions(rows: Any) -> Any:
    return rows.key_by("k").window(ms.sessions("1 minute")).trigger(ms.each()).agg(ns=ms.collect("n"))


def in_order(rows: Any) -> Any:
    return rows.key_by("k").process(lambda row, key: {"n": row["n"]}, "n int", order="event_time")


STEPS: dict[str, Callable[[Any], Any]] = {
    "windows": in_windows,
    "sessions": in_sessions,
    "to_table": lambda rows: rows.to_table(key="k"),
    "distinct": lambda rows: rows.distinct("n", within="1 minute"),
    "process": in_order,
}


@pytest.mark.on_spark("more")
def test_a_row_far_ahead_is_late_and_does_not_move_the_watermark() -> None:
    """Method: the late rows of every kind of step, in one flow."""

    def build(rows: Any) -> Any:
        return {name: made(rows).late for name, made in STEPS.items()}

    steps = [Clock(t(0)), add((1, 5), (2, 3601), (3, 90_000), (4, None)), add((5, 3600))]
    out = play(build, steps, schema=SCHEMA, event_time="at", watermark=STRATEGY)
    for name in STEPS:
        late = [[(each["n"], each["reason"]) for each in step[name]] for step in out]
        assert late == [[], [(2, "ahead"), (3, "ahead"), (4, "no event time")], []], name
        assert all(each.get("window") is None for each in out[1][name]), name


@pytest.mark.on_spark("more")
def test_windows_close_as_if_it_had_not_come() -> None:
    steps = [Clock(t(0)), add((1, 5), (2, 90_000)), add((3, 20), (4, 75)), Clock(t(90_000)), add((5, 90_010))]
    out = play(in_windows, steps, schema=SCHEMA, event_time="at", watermark=STRATEGY)
    assert [[each["ns"] for each in step] for step in out] == [[], [], [[1, 3]], [], [[4]]]


def test_the_clock_decides() -> None:
    """The same row is not ahead a day later."""
    steps = [Clock(t(86_400)), add((1, 5), (2, 90_000))]
    out = play(in_windows, steps, schema=SCHEMA, event_time="at", watermark=STRATEGY)
    assert [[each["ns"] for each in step] for step in out] == [[], [[1]]]


@pytest.mark.parametrize("kind", ["within", "windows", "as_of"])
def test_in_joins(kind: str) -> None:
    def build(left: Any, right: Any) -> Any:
        if kind == "within":
            made = left.join(right, on="k", within=("-1 hour", "1 hour"))
        elif kind == "windows":
            made = left.key_by("k").window(ms.fixed("1 hour")).join(right)
        else:
            made = left.join(right.to_table(key="k"), on="k", as_of="event_time")
        return {"made": made, "late": made.late}

    steps = [Clock(t(0)), add((1, 5), to="right"), add((2, 6), (3, 90_000), (4, None), to="left")]
    out = play(
        build,
        steps,
        schema={"left": SCHEMA, "right": SCHEMA},
        event_time={"left": "at", "right": "at"},
        watermark=STRATEGY,
    )
    late = [[(each["n"], each["side"], each["reason"]) for each in step["late"]] for step in out]
    assert late == [[], [], [(3, "left", "ahead"), (4, "left", "no event time")]]


def test_where_no_row_is_late_it_is_a_row_without_event_time() -> None:
    def build(rows: Any) -> Any:
        told = rows.key_by("k").process(lambda row, key: {"said": str(key.event_time)}, "said string")
        return {"told": told, "counted": rows.group_by("k").agg(n=ms.count()).changes()}

    out = play(build, [Clock(t(0)), add((1, 90_000))], schema=SCHEMA, event_time="at", watermark=STRATEGY)
    assert [each["said"] for each in out[1]["told"]] == ["None"]
    assert [(each["n"], each["event_time"]) for each in out[1]["counted"]] == [(1, None)]


@pytest.mark.on_spark("more")
def test_in_a_table_as_of_a_time_it_has_always_been_there() -> None:
    """As a row without event time: neither is late for a table that keeps every row."""

    def build(rows: Any) -> Any:
        return rows.to_table().as_of(t(60)).changes().select("n", "event_time")

    out = play(build, [Clock(t(0)), add((1, 5), (2, 90_000), (3, 75), (4, None))], schema=SCHEMA, event_time="at",
               watermark=STRATEGY)  # fmt: skip
    assert sorted((each["n"], each["event_time"] is None) for each in out[1]) == [(1, False), (2, True), (4, True)]


@pytest.mark.on_spark("more")
def test_where_event_time_is_set_after_parsing() -> None:
    def build(rows: Any) -> Any:
        made = in_windows(rows.with_column("then", "at").with_event_time("then", STRATEGY))
        return {"panes": made, "late": made.late}

    steps = [Clock(t(0)), add((1, 5), (2, 90_000)), add((3, 75))]
    out = play(build, steps, schema=SCHEMA)
    assert [[each["ns"] for each in step["panes"]] for step in out] == [[], [], [[1]]]
    assert [(each["n"], each["reason"]) for each in out[1]["late"]] == [(2, "ahead")]


@pytest.mark.transcripts("local")
def test_how_it_is_written_and_refused() -> None:
    assert str(STRATEGY) == "bounded(10 seconds, ahead_at_most=1 hour)"
    assert str(ms.bounded("0 seconds", ahead_at_most="1 hour")) == "bounded(0 seconds, ahead_at_most=1 hour)"
    assert isinstance(STRATEGY, Bounded)
    with pytest.raises(InvalidInput, match="ahead_at_most"):
        ms.bounded("10 seconds", ahead_at_most="soon")
