"""Joins on expressions, as small transcripts, each played on every runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidExpression, InvalidPlan
from millstream.testing import Add, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = {"clicks": "user string, n int, at timestamp", "views": "name string, n int, at timestamp"}
CLICKS = Add([{"user": "Ann", "n": 1, "at": t(1)}, {"user": "bob", "n": 2, "at": t(2)}], to="clicks")
VIEWS = Add([{"name": "ANN", "n": 11, "at": t(1)}, {"name": "eve", "n": 12, "at": t(2)}], to="views")
NEAR = ("-1 minute", "1 minute")


def joined(build: Callable[..., Any], *steps: Any) -> list[list[tuple[Any, ...]]]:
    """Of each step, the columns of the rows without their times."""
    given = list(steps) or [CLICKS, VIEWS, Watermark(None)]
    out = play(build, given, schema=SCHEMA, event_time={"clicks": "at", "views": "at"})
    shown = [[tuple(v for k, v in row.items() if not k.startswith(("at", "weight"))) for row in step] for step in out]
    return [sorted(step, key=str) for step in shown]


@pytest.mark.on_spark("more")
def test_streams_on_different_expressions_of_each_side() -> None:
    on = {"lower(user)": "lower(name)"}
    pairs = joined(lambda clicks, views: clicks.join(views, on=on, how="full", within=NEAR))
    assert pairs == [[], [("Ann", 1, "ANN", 11)], [("bob", 2, None, None), (None, None, "eve", 12)]]


def test_the_same_expression_of_both_sides_beside_a_column() -> None:
    def flow(clicks: ms.Stream, views: ms.Stream) -> ms.Stream:
        return clicks.join(views.rename({"name": "user"}), on=["lower(user)", "n % 10"], how="left", within=NEAR)

    assert joined(flow)[1:] == [[("Ann", 1, "ANN", 11)], [("bob", 2, None, None)]]


def test_in_windows_and_a_column_with_an_expression() -> None:
    def flow(clicks: ms.Stream, views: ms.Stream) -> ms.Stream:
        pairs = clicks.window(ms.fixed("1 minute")).join(views, on=[("n + 10", "n")])
        return pairs.select("user", "name")

    assert joined(flow)[2] == [("Ann", "ANN"), ("bob", "eve")]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("left", [("Ann", 1, None, None), ("bob", 2, "eve", 12)]),
        ("semi", [("bob", 2)]),
        ("anti", [("Ann", 1)]),
    ],
)
def test_a_condition_on_one_side_is_a_key_that_may_be_null(how: Any, expected: list[tuple[Any, ...]]) -> None:
    on = {"case when n > 1 then n + 10 end": "case when name != 'ANN' then n end"}

    def near(clicks: ms.Stream, views: ms.Stream) -> ms.Stream:
        return clicks.join(views, on=on, how=how, within=NEAR)

    def tables(clicks: ms.Stream, views: ms.Stream) -> ms.Stream:
        return clicks.to_table(key="user").join(views.to_table(key="name"), on=on, how=how)

    for flow in (near, tables):
        steps = joined(flow, VIEWS, CLICKS, Watermark(None))
        assert sorted((row for step in steps for row in step), key=str) == expected


@pytest.mark.on_spark("more")
def test_tables_and_their_changes() -> None:
    def flow(clicks: ms.Stream, views: ms.Stream) -> ms.Stream:
        return clicks.to_table(key="user").join(views.to_table(key="name"), on={"lower(user)": "lower(name)"})

    again = Add([{"user": "Ann", "n": 5, "at": t(3)}], to="clicks")
    assert joined(flow, CLICKS, VIEWS, again) == [
        [],
        [("Ann", 1, "ANN", 11)],
        [("Ann", 1, "ANN", 11), ("Ann", 5, "ANN", 11)],
    ]


def test_a_stream_and_a_table_as_of_now() -> None:
    def flow(clicks: ms.Stream, views: ms.Stream) -> ms.Stream:
        return clicks.join(views.to_table(key="name"), on={"upper(user)": "name"}, as_of="now", how="left")

    assert joined(flow, VIEWS, CLICKS)[1] == [("Ann", 1, "ANN", 11), ("bob", 2, None, None)]


@pytest.mark.on_spark("more")
def test_a_lookup_table_is_computed_once() -> None:
    def flow(clicks: ms.Stream, views: ms.Stream) -> ms.Stream:
        codes = clicks.flow.table([{"code": " 1", "what": "one"}], "code string, what string")
        return clicks.join(codes, on={"n": "cast(trim(code) as int)"}, how="left").select("user", "what")

    assert joined(flow, CLICKS) == [[("Ann", "one"), ("bob", None)]]


def test_late_rows_have_the_columns_of_both_sides_alone() -> None:
    flow = ms.Flow("late")
    clicks = flow.read("clicks", SCHEMA["clicks"], event_time="at")
    views = flow.read("views", SCHEMA["views"], event_time="at")
    pairs = clicks.join(views, on={"lower(user)": "lower(name)"}, within=NEAR)
    assert pairs.schema.names == ("user", "n", "at", "name", "n_right", "at_right")
    assert pairs.late.schema.names == (*pairs.schema.names, "side", "reason")
    assert "inner join on lower(user) = lower(name) within" in pairs.explain()


@pytest.mark.parametrize(
    ("on", "error", "what", "next_step"),
    [
        ("uper(user)", InvalidExpression, "there is no function uper", "did you mean 'upper'?"),
        ({"lower(usr)": "name"}, InvalidExpression, "there is no column 'usr'", "did you mean 'user'?"),
        ("clicks.n = views.n", InvalidExpression, "there is no column 'clicks'", "on= is not a condition"),
        ({"lower(user)": "n"}, InvalidPlan, "'lower(user)' is string and 'n' is int", "cast one"),
        ({"explode(array(n))": "n"}, InvalidPlan, "makes several rows of one, which on= cannot", "in a select"),
    ],
)
def test_mistakes_name_the_users_line(on: Any, error: type[Exception], what: str, next_step: str) -> None:
    flow = ms.Flow("wrong")
    clicks = flow.read("clicks", SCHEMA["clicks"], event_time="at")
    views = flow.read("views", SCHEMA["views"], event_time="at")
    with pytest.raises(error) as refused:
        clicks.join(views, on=on, within=NEAR)
    assert what in refused.value.what  # type: ignore[attr-defined]
    assert next_step in refused.value.next_step  # type: ignore[attr-defined]
    assert __file__ in refused.value.where  # type: ignore[attr-defined]
