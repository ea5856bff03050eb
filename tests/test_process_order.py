"""The rules of `process` in order of event time as small transcripts, each played on every runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Add, Clock, Watermark
from times import START, t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = "key string, n int, at timestamp"


def add(*rows: tuple[Any, ...]) -> Add:
    """Rows as (n, seconds) of key "a", or (key, n, seconds)."""
    full = [row if len(row) == 3 else ("a", *row) for row in rows]
    return Add([{"key": k, "n": n, "at": None if s is None else t(s)} for k, n, s in full])


def run(function: Callable[..., Any], on_timer: Any, *steps: Any, **options: Any) -> list[Any]:
    def build(rows: Any) -> Any:
        made = rows.key_by("key").process(function, "said string", on_timer=on_timer, name="step", **options)
        return {"sent": made, "dead": made.dead, "late": made.late}

    return play(build, list(steps), schema=SCHEMA, event_time="at")


def said(steps: Sequence[Any]) -> list[list[Any]]:
    return [[row["said"] for row in step["sent"]] for step in steps]


def seconds(time: datetime | None) -> str:
    return "-" if time is None else "end" if time.year == 9999 else f"{(time - START).total_seconds():g}"


def gives(row: dict[str, Any], key: Any) -> dict[str, Any]:
    return {"said": f"{key['key']}{row['n']}"}


def gives_and_waits(row: dict[str, Any], key: Any) -> dict[str, Any]:
    """Tells of the row, and moves a timer to ten seconds after it."""
    key.at_event_time(row["at"] + timedelta(seconds=10), "silent")
    return gives(row, key)


def fired(tag: str, time: datetime, key: Any) -> dict[str, Any]:
    return {"said": f"{key['key']} {tag} {seconds(time)}"}


@pytest.mark.on_spark("more")
def test_rows_wait_for_the_watermark_and_come_by_event_time() -> None:
    out = run(
        gives_and_waits,
        fired,
        add((3, 30), (1, 10), ("b", 5, 12)),
        add((2, 15), (4, 60)),
        Watermark(t(29)),
        Watermark(t(30)),
        Watermark(None),
    )
    assert said(out) == [
        [],
        [],
        ["a1", "b5", "a2", "b silent 22", "a silent 25"],
        ["a3"],
        ["a silent 40", "a4", "a silent 70"],
    ]


def test_rows_of_the_same_time_come_as_they_arrived() -> None:
    out = run(gives, fired, add((3, 5), (1, 5)), add((2, 5)), Watermark(t(5)), add((4, 5)), Watermark(None))
    assert said(out) == [[], [], ["a3", "a1", "a2"], ["a4"], []]


def test_a_timer_comes_before_a_row_of_the_same_time() -> None:
    out = run(gives_and_waits, fired, add((1, 0), (2, 10)), Watermark(t(10)), Watermark(None))
    assert said(out) == [[], ["a1", "a silent 10", "a2"], ["a silent 20"]]


def test_timers_of_the_same_time_fire_by_key_then_as_they_were_set() -> None:
    def sets(row: dict[str, Any], key: Any) -> None:
        key.at_event_time(START + timedelta(seconds=20), str(row["n"]))

    out = run(sets, fired, add(("b", 1, 1), ("a", 3, 2), ("a", 2, 3), ("a", 3, 4)), Watermark(t(20)))
    assert said(out)[1] == ["a 2 20", "a 3 20", "b 1 20"]


def test_a_timer_set_in_the_past_fires_right_after_the_row() -> None:
    def past(row: dict[str, Any], key: Any) -> dict[str, Any]:
        key.at_event_time(row["at"] - timedelta(seconds=9))
        return gives(row, key)

    out = run(past, fired, add((1, 1), (2, 2)), Watermark(t(5)))
    assert said(out)[1] == ["a1", "a  -8", "a2", "a  -7"]


def test_a_timer_that_a_timer_sets_takes_its_turn_among_the_rows() -> None:
    def starts(row: dict[str, Any], key: Any) -> dict[str, Any]:
        if row["n"] == 0:
            key.at_event_time(row["at"] + timedelta(seconds=4), "tick")
        return gives(row, key)

    def again(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        if time < START + timedelta(seconds=12):
            key.at_event_time(time + timedelta(seconds=4), tag)
        return fired(tag, time, key)

    out = run(starts, again, add((2, 9), (0, 0), (1, 5)), Watermark(None))
    assert said(out)[1] == ["a0", "a tick 4", "a1", "a tick 8", "a2", "a tick 12"]


@pytest.mark.on_spark("more")
def test_rows_behind_the_watermark_are_late() -> None:
    out = run(
        gives_and_waits,
        fired,
        Watermark(t(10)),
        add((1, 9.9), (2, 10), ("b", 3, None), (4, 12)),
        Watermark(None),
        add((5, 99)),
    )
    assert said(out) == [[], ["a2"], ["a4", "a silent 22"], []]
    assert [[(row["key"], row["n"], row["reason"]) for row in step["late"]] for step in out] == [
        [],
        [("a", 1, "expired"), ("b", 3, "no event time")],
        [],
        [("a", 5, "expired")],
    ]
    assert list(out[1]["late"][0]) == ["key", "n", "at", "reason"]


def test_the_key_sees_the_time_that_has_been_reached() -> None:
    def tells(row: dict[str, Any], key: Any) -> dict[str, Any]:
        key.at_event_time(row["at"] + timedelta(seconds=3))
        return {"said": f"{seconds(key.event_time)} {seconds(key.watermark)} {key.is_late} {seconds(key.now)}"}

    def timer(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        return {"said": f"timer {seconds(key.event_time)} {seconds(key.watermark)} {key.is_late}"}

    out = run(tells, timer, Clock(t(7)), add((1, 1), (2, 5)), Watermark(t(100)), add((3, 200)), Watermark(None))
    assert said(out) == [
        [],
        [],
        ["1 1 False 7", "timer 4 4 False", "5 5 False 7", "timer 8 8 False"],
        [],
        ["200 200 False 7", "timer 203 end False"],
    ]


@pytest.mark.on_spark("more")
def test_timers_in_processing_time_fire_after_the_rows_that_are_ready() -> None:
    """They run from when the row is processed, which is when the watermark has reached it."""

    def both(row: dict[str, Any], key: Any) -> dict[str, Any]:
        key.at_processing_time(key.now + timedelta(seconds=5), "clock")
        key.at_event_time(row["at"] + timedelta(seconds=1), "event")
        return gives(row, key)

    out = run(
        both,
        fired,
        Clock(t(0)),
        add((1, 50)),
        Clock(t(30)),
        Watermark(t(50)),
        Clock(t(34)),
        Clock(t(35)),
        Watermark(t(51)),
    )
    assert said(out) == [[], [], [], ["a1"], [], ["a clock 35"], ["a event 51"]]


def test_a_row_that_fails_leaves_no_trace_and_dead_letters_are_in_order() -> None:
    def fails(row: dict[str, Any], key: Any) -> Iterator[dict[str, Any]]:
        key.state["n"] = key.state.get("n", 0) + 1
        key.at_event_time(row["at"] + timedelta(seconds=1), str(row["n"]))
        yield {"said": f"{row['n']} {key.state['n']}"}
        if row["n"] == 2:
            raise ValueError("two")
        if row["n"] == 3:
            yield {"said": 3}

    def timer(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        if tag == "1":
            raise ValueError("one")
        return fired(tag, time, key)

    out = run(fails, timer, add((3, 30), (2, 20), (1, 10), (4, 40)), Watermark(None))
    assert said(out)[1] == ["1 1", "a 3 31", "4 3", "a 4 41"]
    assert [row["reason"] for row in out[1]["dead"]] == [
        "step: timer '1': ValueError: one",
        "step: ValueError: two",
        "step: ValueError: column 'said': expected string, found 3 (int)",
    ]


def test_without_timers_rows_come_in_order_where_it_is_asked_for() -> None:
    out = run(gives, None, add((2, 20), (1, 10)), Watermark(t(15)), Watermark(None), order="event_time")
    assert said(out) == [[], ["a1"], ["a2"]]


def test_results_are_not_late_in_the_windows_behind() -> None:
    def build(rows: Any) -> Any:
        made = rows.key_by("key").process(
            lambda row, key: {"n": row["n"]}, "n int", on_timer=lambda *_: None, order="event_time"
        )
        return made.window(ms.fixed("10 seconds")).agg(ns=ms.collect("n"))

    steps = [add((2, 12), (1, 3)), Watermark(t(5)), add((3, 6)), Watermark(t(40))]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    assert [[row["ns"] for row in step] for step in out] == [[], [], [], [[1, 3], [2]]]


@pytest.mark.on_spark("more")
def test_a_replay_gives_what_the_live_run_gave() -> None:
    """All rows at once, or each with its watermark: the silence is found, and the device is back."""

    def watched(row: dict[str, Any], key: Any) -> Iterator[dict[str, Any]]:
        if key.state.pop("silent", False):
            yield {"said": f"back {seconds(row['at'])}"}
        key.at_event_time(row["at"] + timedelta(seconds=10), "silent")

    def silent(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        key.state["silent"] = True
        return {"said": f"silent {seconds(time)}"}

    rows = [(1, 0), (2, 4), (3, 30), (4, 33)]
    live = [step for row in rows for step in (add(row), Watermark(t(row[1] - 2)))]
    expected = ["silent 14", "back 30", "silent 43"]
    for steps in ([*live, Watermark(None)], [add(*rows), Watermark(None)]):
        assert [each for step in said(run(watched, silent, *steps)) for each in step] == expected


def test_a_key_without_state_keeps_its_waiting_row_when_a_clock_timer_fires() -> None:
    """The timer fires without rows of its key, and leaves no state; the row that waits is still called later."""

    def function(row: Any, key: Any) -> Any:
        if row["n"] == 1:
            key.at_processing_time(t(5), "tick")
        else:
            key.state["seen"] = row["n"]
        return {"says": str(row["n"])}

    def build(rows: Any) -> Any:
        timers = {"on_timer": lambda tag, time, key: {"says": tag}, "order": "event_time"}
        return rows.key_by("key").process(function, "says string", **timers)

    def add(n: int, second: int) -> Add:
        return Add([{"key": "a", "n": n, "at": t(second)}])

    steps = [add(1, 1), Watermark(t(1)), add(2, 10), Clock(t(100)), Watermark(t(20)), add(3, 30), Watermark(t(40))]
    out = play(build, steps, schema="key string, n int, at timestamp", event_time="at")
    assert [row["says"] for step in out for row in step] == ["1", "tick", "2", "3"]
