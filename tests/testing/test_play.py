"""`play` runs a script step by step, and refuses what cannot be played at the line where the user wrote it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.testing import Add, Clock, Partition, Watermark, play

from .scores import SCHEMA, at, played, row, scored, totals


def sums(rows: list[dict[str, Any]]) -> list[int]:
    return [found["total"] for found in rows]


# ---------------------------------------------------------------- what is played


def test_each_step_gives_what_it_sent() -> None:
    out = played(totals, [scored(5, 0, 20), scored(4, 0, 40), Watermark(at(1)), Watermark(at(2))])
    assert [sums(rows) for rows in out] == [[], [], [9], []]


def test_a_watermark_that_goes_back_is_ignored() -> None:
    """Goal: the watermark never goes back. Method: a row for the window that ended before it is too late."""
    out = played(lambda scores: totals(scores).late, [Watermark(at(2)), Watermark(at(0)), scored(5, 0, 20)])
    assert [found["reason"] for found in out[2]] == ["expired"]


def test_the_clock_never_goes_back() -> None:
    late = ms.repeatedly(ms.after("10 seconds"))
    steps = [Clock(at(5)), Clock(at(1)), scored(5, 0), Clock(at(5, 9)), Clock(at(5, 10))]
    out = played(lambda scores: totals(scores, trigger=late), steps)
    assert [sums(rows) for rows in out] == [[], [], [], [], [5]]


def test_the_watermark_is_the_smallest_of_the_partitions_in_the_script() -> None:
    steps = [
        scored(5, 0),
        Partition("a", Watermark(at(3))),
        Partition("b", Watermark(at(1))),
        Partition("b", scored(4, 1)),
    ]
    steps += [Partition("b", Watermark(None))]
    assert [sums(rows) for rows in played(totals, steps)] == [[], [], [5], [], [4]]


def test_a_plain_watermark_moves_all_partitions() -> None:
    steps = [scored(5, 0), Partition("a", Watermark(at(3))), Watermark(at(1)), Partition("b", Watermark(at(1)))]
    assert [sums(rows) for rows in played(totals, steps)] == [[], [], [5], []]


def test_the_clock_is_one_for_all_partitions() -> None:
    trigger = ms.repeatedly(ms.after("10 seconds"))
    steps = [Clock(at(5)), Partition("a", scored(5, 0)), Partition("b", Clock(at(5, 10)))]
    assert sums(played(lambda scores: totals(scores, trigger=trigger), steps)[2]) == [5]


def test_rows_of_weight_minus_one_retract_rows() -> None:
    steps = [Add([row(5, 0), row(4, 0)]), Add([row(5, 0)], weights=[-1]), Watermark(at(1))]
    assert sums(played(totals, steps)[2]) == [4]


def test_a_retracted_row_has_its_weight_in_a_stream_without_panes() -> None:
    out = played(lambda scores: scores.where("score > 1"), [Add([row(5, 0), row(5, 0)], weights=[1, -1])])
    assert out == [[row(5, 0), row(5, 0) | {"weight": -1}]]


def test_several_streams_are_observed_by_name() -> None:
    def build(scores: Any) -> dict[str, Any]:
        panes = totals(scores)
        return {"panes": panes, "late": panes.late}

    out = played(build, [scored(5, 0), Watermark(at(1)), scored(4, 0)])
    assert [(len(step["panes"]), len(step["late"])) for step in out] == [(0, 0), (1, 0), (0, 1)]


def test_several_inputs_are_fed_by_name() -> None:
    def build(clicks: Any, views: Any) -> Any:
        return clicks.union(views).window(ms.fixed("1 minute")).agg(n=ms.count())

    steps = [Add([{"at": at(0)}], to="views"), Add([{"at": at(0)}], to="clicks"), Watermark(None)]
    kinds = {"clicks": "at timestamp", "views": "at timestamp"}
    out = play(build, steps, schema=kinds, event_time=dict.fromkeys(kinds, "at"), on="reference")
    assert [found["n"] for found in out[2]] == [2]


def test_times_of_any_zone_are_understood() -> None:
    zone = timezone(timedelta(hours=2))
    steps = [scored(5, 0), Watermark(datetime(2026, 1, 31, 14, 1, tzinfo=zone))]
    assert sums(played(totals, steps)[1]) == [5]


def test_local_sends_what_the_reference_sends() -> None:
    pytest.importorskip("millstream.local")
    trigger = ms.after_watermark(early=ms.after_count(1), late=ms.each())
    steps = [scored(5, 0), scored(4, 1), Watermark(at(1)), scored(3, 0, 30), Watermark(None)]

    def build(scores: Any) -> Any:
        return totals(scores, trigger=trigger, mode="retracting", allowed_lateness="1 hour")

    local = play(build, steps, schema=SCHEMA, event_time="at", on="local")
    assert local == played(build, steps)


# ---------------------------------------------------------------- what is refused


def nothing(scores: Any) -> None:
    return None


NAIVE = datetime(2026, 1, 31, 12)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "naive watermark": (lambda: Watermark(NAIVE), "time zone"),
    "naive clock": (lambda: Clock(NAIVE), "time zone"),
    "clock of nothing": (lambda: Clock(None), "Clock takes a datetime"),  # type: ignore[arg-type]
    "watermark of text": (lambda: Watermark("12:00"), "Watermark takes a datetime"),  # type: ignore[arg-type]
    "one row, not a list": (lambda: Add(row(5, 0)), "a list of rows, not a dict"),  # type: ignore[arg-type]
    "too few weights": (lambda: Add([row(5, 0)], weights=[]), "1 rows, but 0 weights"),
    "weight of two": (lambda: Add([row(5, 0)], weights=[2]), "a weight must be 1 or -1, not 2"),
    "partition in a partition": (
        lambda: Partition("a", Partition("b", Clock(at(0)))),  # type: ignore[arg-type]
        "partition 'a' contains partition 'b'",
    ),
    "partition of rows": (lambda: Partition("a", [row(5, 0)]), "partition 'a' contains"),  # type: ignore[arg-type]
    "nameless partition": (lambda: Partition("", Clock(at(0))), "a partition must have a name"),
    "row with a naive time": (
        lambda: played(totals, [Add([row(5, 0) | {"at": NAIVE}])]),
        "row 0 of step 0 does not fit",
    ),
    "row with text for a number": (
        lambda: played(totals, [Watermark(at(0)), Add([row(5, 0), row(5, 0) | {"score": "5"}])]),
        "row 1 of step 1 does not fit",
    ),
    "row with another column": (lambda: played(totals, [Add([{"goals": 5}])]), "no column 'goals'"),
    "row for no input": (lambda: played(totals, [Add([], to="scores")]), "there is no input 'scores'"),
    "step of another kind": (lambda: played(totals, [row(5, 0)]), "step 0 is a dict"),  # type: ignore[list-item]
    "a class for a step": (lambda: played(totals, [Watermark]), "step 0 is the class Watermark"),  # type: ignore[list-item]
    "one step, not a list": (lambda: played(totals, Clock(at(0))), "steps must be a list"),  # type: ignore[arg-type]
    "nothing returned": (lambda: played(nothing, []), "build returned nothing"),
    "rows returned": (lambda: played(lambda scores: [scores], []), "build returned a list"),
    "nothing in the dict": (lambda: played(lambda scores: {}, []), "an empty dict"),
    "a list in the dict": (lambda: played(lambda scores: {"a": [scores]}, []), "build returned a list as 'a'"),
    "keyed, not aggregated": (lambda: played(lambda scores: scores.key_by("team"), []), "build returned a Keyed"),
    "window, not aggregated": (
        lambda: played(lambda scores: scores.window(ms.everything()), []),
        "build returned a Windowed",
    ),
    "a stream of another flow": (
        lambda: played(lambda scores: ms.Flow("other").read("x", SCHEMA), []),
        "of flow 'other'",
    ),
    "build of two streams": (lambda: played(lambda clicks, views: clicks, []), "build takes (clicks, views)"),
    "build that is no function": (lambda: played("totals", []), "build is a str"),
    "no such engine": (lambda: play(totals, [], schema=SCHEMA, on="flink"), "there is no engine 'flink'"),
    "event time of an unknown input": (
        lambda: play(totals, [], schema={"scores": SCHEMA}, event_time={"clicks": "at"}, on="reference"),
        "event_time names 'clicks'",
    ),
    "event time for one of several": (
        lambda: play(totals, [], schema={"scores": SCHEMA}, event_time="at", on="reference"),
        "there are several inputs",
    ),
    "event times by name for one": (
        lambda: play(totals, [], schema=SCHEMA, event_time={"scores": "at"}, on="reference"),
        "event_time is a dict, but schema is not",
    ),
    "no inputs": (lambda: play(totals, [], schema={}, on="reference"), "schema names no input"),
    "which of two inputs": (
        lambda: play(
            lambda clicks, views: clicks, [Add([])], schema={"clicks": SCHEMA, "views": SCHEMA}, on="reference"
        ),
        "one of several inputs",
    ),
    "figure that is no SVG": (lambda: played(totals, [], draw="figure.png"), "a figure must be an SVG file"),
    "figure in no folder": (lambda: played(totals, [], draw="nowhere/figure.svg"), "there is no folder 'nowhere'"),
    "nothing to draw": (lambda: played(lambda scores: scores, [], draw="figure.svg"), "nothing to draw"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_played_is_refused_at_the_users_line(name: str) -> None:
    call, says = WRONG[name]
    with pytest.raises(InvalidInput) as refusal:
        call()
    assert says in refusal.value.what
    assert refusal.value.where is not None
    assert refusal.value.where.rsplit(":", 1)[0] in (__file__, totals.__code__.co_filename)


def test_a_row_that_does_not_fit_names_the_line_of_its_add() -> None:
    step = Add([{"goals": 5}])
    line = test_a_row_that_does_not_fit_names_the_line_of_its_add.__code__.co_firstlineno + 1
    with pytest.raises(InvalidInput) as refusal:
        played(totals, [step])
    assert refusal.value.where == f"{__file__}:{line}"


def test_steps_are_equal_by_what_they_say() -> None:
    assert Watermark(at(1)) == Watermark(at(1))
    assert repr(Partition("a", Watermark(None))) == "Partition(name='a', step=Watermark(to=None))"


# ---------------------------------------------------------------- rows that fail, and rows that are taken back


@pytest.mark.parametrize("on", ["reference", "local"])
def test_a_row_that_fails_stops_the_play_unless_its_dead_letter_is_taken(on: str) -> None:
    """As it stops a job: a test must not pass because its rows vanished."""

    def failing(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"n": 1 // row["score"]}]

    steps = [Add([row(1, 0), row(0, 0)])]
    with pytest.raises(ms.MillstreamError, match=r"the step 'input\.flat_map-.*ZeroDivisionError"):
        play(lambda scores: scores.flat_map(failing, "n int"), steps, schema=SCHEMA, event_time="at", on=on)

    def build(scores: Any) -> Any:
        made = scores.flat_map(failing, "n int")
        return {"made": made, "dead": made.dead}

    out = play(build, steps, schema=SCHEMA, event_time="at", on=on)
    assert out[0]["made"] == [{"n": 1}]
    assert "ZeroDivisionError" in out[0]["dead"][0]["reason"]


@pytest.mark.parametrize("on", ["reference", "local"])
def test_a_function_of_rows_and_keys_that_fails_stops_the_play(on: str) -> None:
    def failing(row: dict[str, Any], key: Any) -> list[dict[str, Any]]:
        return [{"n": 1 // row["score"]}]

    def build(scores: Any) -> Any:
        return scores.key_by("team").process(failing, "n int")

    with pytest.raises(ms.MillstreamError, match=r"cannot handle a record: .*ZeroDivisionError"):
        play(build, [Add([row(0, 0)])], schema=SCHEMA, event_time="at", on=on)


def test_weights_make_only_their_own_input_a_changing_one() -> None:
    found = {}

    def build(one: Any, other: Any) -> Any:
        found.update(one=one.node.is_changing, other=other.node.is_changing)
        return other

    schema = {"one": "n int", "other": "n int"}
    play(build, [Add([{"n": 1}], to="one", weights=[-1]), Add([{"n": 1}], to="other")], schema=schema)
    assert found == {"one": True, "other": False}
