"""Joins of two streams as small transcripts, each played on every runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Add, Clock, Watermark
from times import START, t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = {"clicks": "user string, page string, at timestamp", "views": "user string, ad string, at timestamp"}
EVENT_TIME = {"clicks": "at", "views": "at"}


def clicks(*rows: tuple[str | None, str, float | None], weights: list[int] | None = None) -> Add:
    """Rows as (user, page, seconds)."""
    made = [{"user": user, "page": page, "at": None if at is None else t(at)} for user, page, at in rows]
    return Add(made, to="clicks", weights=weights)


def views(*rows: tuple[str | None, str, float | None], weights: list[int] | None = None) -> Add:
    """Rows as (user, ad, seconds)."""
    made = [{"user": user, "ad": ad, "at": None if at is None else t(at)} for user, ad, at in rows]
    return Add(made, to="views", weights=weights)


def until(seconds: float) -> Watermark:
    return Watermark(t(seconds))


def run(build: Callable[..., Any], *steps: Any) -> list[Any]:
    return play(build, list(steps), schema=SCHEMA, event_time=EVENT_TIME)


def within(low: str, high: str, how: Any = "inner", **options: Any) -> Callable[..., Any]:
    """Clicks with the views of the same user: the time of the click minus that of the view lies between the two."""
    return lambda clicks, views: clicks.join(views, on="user", how=how, within=(low, high), **options)


def in_windows(window: Any, how: Any = "inner", **options: Any) -> Callable[..., Any]:
    return lambda clicks, views: clicks.window(window, **options).join(views, on="user", how=how)


def said(steps: list[Any]) -> list[list[tuple[Any, ...]]]:
    """Of each step, the user, the page and the ad of each row, and its weight if that is not 1."""
    names = ("user", "page", "ad", "weight")
    return [sorted((tuple(row[name] for name in names if name in row) for row in step), key=str) for step in steps]


# ---------------------------------------------------------------- near in time


@pytest.mark.on_spark("more")
def test_a_pair_is_sent_when_its_second_row_comes() -> None:
    out = run(
        within("0 seconds", "10 seconds"),
        views(("ann", "shoes", 0), ("bob", "hats", 0)),
        clicks(("ann", "/shoes", 10)),
        clicks(("ann", "/home", 11), ("bob", "/hats", 1)),
        clicks(("ann", "/boots", 30)),
        views(("ann", "boots", 25)),
    )
    assert said(out) == [
        [],
        [("ann", "/shoes", "shoes")],
        [("bob", "/hats", "hats")],
        [],
        [("ann", "/boots", "boots")],
    ]
    assert (out[1][0]["at"], out[1][0]["at_right"]) == (t(10), t(0))


def test_every_pair_of_a_key_is_sent_once() -> None:
    out = run(
        within("-5 seconds", "5 seconds"),
        clicks(("ann", "/1", 0), ("ann", "/2", 1)),
        views(("ann", "a", 2), ("ann", "b", 3)),
        views(("ann", "c", 6)),
    )
    assert said(out) == [
        [],
        [("ann", "/1", "a"), ("ann", "/1", "b"), ("ann", "/2", "a"), ("ann", "/2", "b")],
        [("ann", "/2", "c")],
    ]


def test_a_row_without_a_match_is_sent_when_none_can_come() -> None:
    """A click waits for views up to 2 seconds after it, a view for clicks up to 10 seconds after it."""
    out = run(
        within("-2 seconds", "10 seconds", how="full"),
        clicks(("ann", "/1", 5)),
        views(("bob", "hats", 0)),
        until(7),
        until(7.1),
        until(10),
        until(10.1),
    )
    assert said(out) == [[], [], [], [("ann", "/1", None)], [], [("bob", None, "hats")]]
    assert (out[3][0]["at"], out[3][0]["at_right"], out[5][0]["at"], out[5][0]["at_right"]) == (t(5), None, None, t(0))


@pytest.mark.parametrize(("how", "sent"), [("left", [("ann", "/1", None)]), ("anti", [("ann", "/1")])])
def test_a_row_that_had_a_match_is_not_emitted_alone(how: str, sent: list[Any]) -> None:
    build = within("0 seconds", "5 seconds", how=how)
    assert said(run(build, clicks(("ann", "/1", 5)), until(5), until(6)))[2] == sent
    matched = run(build, clicks(("ann", "/1", 5)), views(("ann", "x", 0)), until(6))
    assert said(matched) == [[], [("ann", "/1", "x")] if how == "left" else [], []]


def test_a_semi_join_sends_a_row_once() -> None:
    out = run(
        within("0 seconds", "5 seconds", how="semi"),
        clicks(("ann", "/1", 5), ("bob", "/2", 5)),
        views(("ann", "x", 1), ("ann", "y", 2)),
        views(("ann", "z", 3)),
        until(60),
    )
    assert said(out) == [[], [("ann", "/1")], [], []]


def test_rows_that_come_too_late_for_a_join() -> None:
    def build(clicks: Any, views: Any) -> Any:
        joined = clicks.join(views, on="user", within=("0 seconds", "10 seconds"), allowed_lateness="5 seconds")
        return {"joined": joined, "late": joined.late}

    out = run(
        build,
        views(("ann", "shoes", 0)),
        until(10),
        clicks(("ann", "/in time", 5), ("ann", "/late", 4.9)),
        views(("ann", "boots", None)),
    )
    assert said([step["joined"] for step in out]) == [[], [], [("ann", "/in time", "shoes")], []]
    assert [step["late"] for step in out[:2]] == [[], []]
    nothing = {"ad": None, "at_right": None}
    assert out[2]["late"] == [
        {"user": "ann", "page": "/late", "at": t(4.9), **nothing, "side": "left", "reason": "expired"}
    ]
    assert [(row["user"], row["ad"], row["side"], row["reason"]) for row in out[3]["late"]] == [
        ("ann", "boots", "right", "no event time")
    ]


def test_null_is_equal_to_nothing() -> None:
    out = run(within("-5 seconds", "5 seconds", how="full"), clicks((None, "/1", 0)), views((None, "x", 0)), until(60))
    assert said(out) == [[], [], [(None, "/1", None), (None, None, "x")]]


@pytest.mark.on_spark("more")
def test_a_pair_that_is_retracted() -> None:
    out = run(
        within("0 seconds", "10 seconds"),
        views(("ann", "shoes", 0)),
        clicks(("ann", "/1", 1), ("ann", "/2", 2)),
        views(("ann", "shoes", 0), weights=[-1]),
        views(("ann", "boots", 1)),
    )
    assert said(out) == [
        [],
        [("ann", "/1", "shoes"), ("ann", "/2", "shoes")],
        [("ann", "/1", "shoes", -1), ("ann", "/2", "shoes", -1)],
        [("ann", "/1", "boots"), ("ann", "/2", "boots")],
    ]


def test_a_semi_join_retracts_a_row_with_its_last_match() -> None:
    out = run(
        within("0 seconds", "10 seconds", how="semi"),
        clicks(("ann", "/1", 5)),
        views(("ann", "x", 1), ("ann", "y", 2)),
        views(("ann", "x", 1), weights=[-1]),
        views(("ann", "y", 2), weights=[-1]),
    )
    assert said(out) == [[], [("ann", "/1")], [], [("ann", "/1", -1)]]


def test_what_waits_for_a_match_is_in_time_for_the_window_after_it() -> None:
    """Goal: a join holds the watermark back for rows it may still send. Method: collect them per 10 seconds."""

    def build(clicks: Any, views: Any) -> Any:
        joined = clicks.join(views, on="user", how="left", within=("-30 seconds", "0 seconds"))
        panes = joined.window(ms.fixed("10 seconds")).agg(pages=ms.collect("page"))
        return {"panes": panes, "late": panes.late}

    out = run(build, clicks(("ann", "/1", 5)), until(20), until(35), until(35.1), Watermark(None))
    assert [[row["pages"] for row in step["panes"]] for step in out] == [[], [], [], [["/1"]], []]
    assert not any(step["late"] for step in out)


# ---------------------------------------------------------------- in the same window


def test_a_window_is_joined_once_when_it_is_over() -> None:
    out = run(
        in_windows(ms.fixed("10 seconds"), how="full"),
        clicks(("ann", "/1", 1), ("bob", "/2", 2), ("ann", "/3", 11)),
        views(("ann", "x", 9), ("eve", "y", 3)),
        until(9.9),
        until(10),
        until(20),
    )
    assert said(out)[:3] == [[], [], []]
    assert said(out)[3] == [("ann", "/1", "x"), ("bob", "/2", None), ("eve", None, "y")]
    assert said(out)[4] == [("ann", "/3", None)]
    assert {(row["window"]["start"], row["window"]["end"]) for row in out[3]} == {(t(0), t(10))}


def test_rows_are_joined_in_each_window_that_both_are_in() -> None:
    out = run(
        in_windows(ms.sliding("10 seconds", every="5 seconds")),
        clicks(("ann", "/1", 7)),
        views(("ann", "x", 9), ("ann", "y", 12)),
        Watermark(None),
    )
    found = [((row["window"]["start"] - START).total_seconds(), row["ad"]) for row in out[2]]
    assert sorted(found) == [(0, "x"), (5, "x"), (5, "y")]


@pytest.mark.on_spark("more")
def test_rows_of_one_session_whichever_side_they_come_from() -> None:
    out = run(
        in_windows(ms.sessions("10 seconds"), how="left"),
        clicks(("ann", "/1", 0), ("bob", "/2", 0)),
        views(("ann", "x", 20)),
        views(("ann", "between", 10)),
        until(29),
        until(30),
    )
    assert said(out) == [[], [], [], [("bob", "/2", None)], [("ann", "/1", "between"), ("ann", "/1", "x")]]
    assert out[4][0]["window"] == {"start": t(0), "end": t(30)}


def test_rows_within_a_session_are_of_it_however_far_apart() -> None:
    out = run(
        in_windows(ms.sessions("10 seconds")),
        clicks(("ann", "/1", 0), ("ann", "/2", 8), ("ann", "/3", 16)),
        views(("ann", "x", 2), ("ann", "y", 20)),
        until(30),
    )
    assert said(out)[:2] == [[], []]
    assert said(out)[2] == [("ann", page, ad) for page in ("/1", "/2", "/3") for ad in ("x", "y")]
    assert all(row["window"] == {"start": t(0), "end": t(30)} for row in out[2])


def test_a_session_does_not_shrink_when_a_row_is_retracted() -> None:
    out = run(
        in_windows(ms.sessions("10 seconds"), how="left"),
        views(("ann", "x", 8)),
        views(("ann", "x", 8), weights=[-1]),
        clicks(("ann", "/1", 16)),
        until(26),
    )
    assert said(out) == [[], [], [], [("ann", "/1", None)]]
    assert out[3][0]["window"] == {"start": t(8), "end": t(26)}


def test_rows_whose_window_is_over_are_late() -> None:
    def build(clicks: Any, views: Any) -> Any:
        joined = clicks.window(ms.fixed("10 seconds"), allowed_lateness="5 seconds").join(views, on="user", how="anti")
        return {"joined": joined, "late": joined.late}

    out = run(build, clicks(("ann", "/1", 1)), until(14), views(("ann", "x", 2)), until(15), clicks(("ann", "/2", 3)))
    assert [step["joined"] for step in out] == [[], [], [], [], []]
    assert [len(step["late"]) for step in out] == [0, 0, 0, 0, 1]
    [row] = out[4]["late"]
    assert (row["page"], row["ad"], row["side"], row["reason"]) == ("/2", None, "left", "expired")
    assert row["window"] == {"start": t(0), "end": t(10)}


def test_a_row_retracted_before_its_window_ends_leaves_no_trace() -> None:
    out = run(
        in_windows(ms.fixed("10 seconds"), how="left"),
        clicks(("ann", "/1", 1), ("ann", "/1", 1)),
        views(("ann", "x", 2), ("ann", "y", 2)),
        clicks(("ann", "/1", 1), weights=[-1]),
        views(("ann", "y", 2), weights=[-1]),
        until(10),
    )
    assert said(out) == [[], [], [], [], [("ann", "/1", "x")]]


def counted(joined: Any) -> Any:
    """How many pairs there are in windows of ten seconds, and which come too late for theirs."""
    panes = joined.window(ms.fixed("10 seconds")).agg(n=ms.count())
    return {"panes": panes, "late": panes.late}


def test_what_lateness_lets_in_is_not_late_for_the_next_step() -> None:
    build = within("-5 seconds", "5 seconds", allowed_lateness="20 seconds")
    steps = run(
        lambda clicks, views: counted(build(clicks, views)),
        clicks(("ann", "home", 3)),
        until(15),
        views(("ann", "shoes", 4)),
        until(40),
    )
    assert [[row["n"] for row in step["panes"]] for step in steps] == [[], [], [], [1]]
    assert not any(step["late"] for step in steps)


def test_a_table_as_of_now_is_not_waited_for() -> None:
    def build(clicks: Any, views: Any) -> Any:
        shown = views.to_table(key="user")
        return counted(clicks.join(shown, on="user", as_of="now").select("user", "at"))["panes"]

    steps = play(
        build,
        [views(("ann", "shoes", 1)), clicks(("ann", "home", 3)), clicks(("ann", "cart", 60))],
        schema=SCHEMA,
        event_time=EVENT_TIME,
        watermark=ms.ascending(),
    )
    assert [[row["n"] for row in step] for step in steps] == [[], [], [1]]


def test_a_silent_source_is_not_waited_for() -> None:
    def build(clicks: Any, views: Any) -> Any:
        shown = views.to_table(key="user")
        return clicks.join(shown, on="user", as_of="event_time")

    steps = play(
        build,
        [views(("ann", "shoes", 1)), clicks(("ann", "home", 3)), Clock(t(100)), clicks(("ann", "cart", 60))],
        schema=SCHEMA,
        event_time=EVENT_TIME,
        watermark=ms.bounded("0 seconds", idle="1 minute"),
    )
    assert said(steps) == [[], [], [], [("ann", "home", "shoes")]]
