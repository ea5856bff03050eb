"""The rules of `process` in order of arrival as small transcripts, each played on every runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Add, Clock, Watermark
from times import START, t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local")
SCHEMA = "key string, n int, at timestamp"


def add(*rows: tuple[Any, ...]) -> Add:
    """Rows as (n, seconds) of key "a", or (key, n, seconds)."""
    full = [row if len(row) == 3 else ("a", *row) for row in rows]
    return Add([{"key": k, "n": n, "at": None if s is None else t(s)} for k, n, s in full])


def run(build: Callable[[Any], Any], *steps: Any) -> list[Any]:
    return play(build, list(steps), schema=SCHEMA, event_time="at")


def span(row: dict[str, Any]) -> tuple[float, float]:
    """A window, in seconds since START."""
    window = row["window"]
    return (window["start"] - START).total_seconds(), (window["end"] - START).total_seconds()


def processed(function: Callable[..., Any], on_timer: Any = None, schema: str = "said string", **options: Any) -> Any:
    options.setdefault("order", "arrival")

    def build(rows: Any) -> Any:
        made = rows.key_by("key").process(function, schema, on_timer=on_timer, name="step", **options)
        return {"sent": made, "dead": made.dead}

    return build


def said(steps: Sequence[Any]) -> list[list[Any]]:
    """Of each step, what its rows say."""
    return [[row["said"] for row in step["sent"]] for step in steps]


def fired(tag: str, time: datetime, key: Any) -> dict[str, Any]:
    return {"said": f"{key['key']} {tag} {(time - START).total_seconds():g}"}


def sets(row: dict[str, Any], key: Any) -> None:
    """A timer in event time, n seconds after the row, with the row's second as its tag."""
    key.at_event_time(row["at"] + timedelta(seconds=row["n"]), f"{(row['at'] - START).total_seconds():g}")


def test_process_keeps_values_lists_and_maps_by_key() -> None:
    def keeps(row: dict[str, Any], key: Any) -> dict[str, Any]:
        key.state["n"] = key.state.get("n", 0) + 1
        key.list("ns").append(row["n"])
        key.map("at")[row["n"]] = (row["at"] - START).total_seconds()
        return {"said": f"{key['key']} {key.state['n']} {key.list('ns')} {key.map('at')}"}

    out = run(processed(keeps), add(("a", 1, 0), ("b", 5, 1), ("a", 2, 2)), add(("b", 6, 3)))
    assert said(out) == [
        ["a 1 [1] {1: 0.0}", "b 1 [5] {5: 1.0}", "a 2 [1, 2] {1: 0.0, 2: 2.0}"],
        ["b 2 [5, 6] {5: 1.0, 6: 3.0}"],
    ]


def test_process_gives_one_row_several_or_none() -> None:
    def gives(row: dict[str, Any], key: Any) -> Any:
        made = {"said": str(row["n"])}
        return {0: None, 1: made, 2: [made, made], 3: (made for _ in range(3)), 4: []}[row["n"]]

    out = run(processed(gives), add(*((n, n) for n in range(5))))
    assert said(out) == [["1", "2", "2", "3", "3", "3"]]


def test_process_columns_left_out_are_null() -> None:
    out = run(processed(lambda row, key: {}), add((1, 0)))
    assert said(out) == [[None]]


def test_a_timer_in_event_time_fires_when_the_watermark_reaches_it() -> None:
    out = run(
        processed(sets, fired), add((5, 10)), Watermark(t(14.9)), Clock(t(100)), Watermark(t(15)), Watermark(None)
    )
    assert said(out) == [[], [], [], ["a 10 15"], []]


def test_a_timer_in_processing_time_fires_when_the_clock_reaches_it() -> None:
    def waits(row: dict[str, Any], key: Any) -> None:
        key.at_processing_time(key.now + timedelta(seconds=5), "w")

    out = run(
        processed(waits, fired), Clock(t(0)), add((1, 50)), Watermark(t(99)), Clock(t(4)), Clock(t(5)), Clock(t(9))
    )
    assert said(out) == [[], [], [], [], ["a w 5"], []]


def test_timers_fire_by_time_then_as_they_were_set_and_key_by_key() -> None:
    rows = add(("b", 1, 1), ("a", 9, 1), ("a", 3, 2), ("a", 2, 3), ("a", 1, 4))
    out = run(processed(sets, fired), rows, Watermark(t(20)))
    assert said(out)[1] == ["a 2 5", "a 3 5", "a 4 5", "a 1 10", "b 1 2"]


def test_timers_in_event_time_fire_before_those_in_processing_time() -> None:
    def both(row: dict[str, Any], key: Any) -> None:
        key.at_processing_time(t(-9), "clock")
        key.at_event_time(t(-5), "event")

    out = run(processed(both, fired), Clock(t(0)), Watermark(t(0)), add((1, 1)))
    assert said(out)[2] == ["a event -5", "a clock -9"]


def test_a_timer_set_in_the_past_fires_after_the_rows_of_the_bundle() -> None:
    def past(row: dict[str, Any], key: Any) -> dict[str, Any]:
        key.at_event_time(row["at"])
        return {"said": str(row["n"])}

    out = run(processed(past, fired), Watermark(t(5)), add((1, 1), (2, 2)))
    assert said(out) == [[], ["1", "2", "a  2"]]


def test_a_timer_that_a_timer_sets_fires_in_the_same_step_if_it_is_due() -> None:
    def again(tag: str, time: datetime, key: Any) -> Any:
        key.at_event_time(time + timedelta(seconds=4), tag)
        return fired(tag, time, key)

    out = run(processed(sets, again), add((1, 0)), Watermark(t(9)), Watermark(t(12)), Watermark(t(13)))
    assert said(out) == [[], ["a 0 1", "a 0 5", "a 0 9"], [], ["a 0 13"]]


def test_setting_a_timer_again_moves_it_and_kinds_are_apart() -> None:
    def moves(row: dict[str, Any], key: Any) -> None:
        key.at_event_time(t(row["n"]), "x")
        key.at_processing_time(t(50), "x")

    out = run(processed(moves, fired), add((3, 0), (9, 0)), Watermark(t(5)), Watermark(t(9)), Clock(t(50)))
    assert said(out) == [[], [], ["a x 9"], ["a x 50"]]


def test_a_cancelled_timer_does_not_fire() -> None:
    def cancels(row: dict[str, Any], key: Any) -> None:
        sets(row, key) if row["n"] else key.cancel("0")

    out = run(processed(cancels, fired), add(("a", 9, 0), ("b", 9, 0)), add(("a", 0, 1)), Watermark(None))
    assert said(out) == [[], [], ["b 0 9"]]


def test_clear_forgets_state_and_timers() -> None:
    def clears(row: dict[str, Any], key: Any) -> dict[str, Any]:
        if row["n"] == 0:
            key.clear()
        key.state["n"] = key.state.get("n", 0) + 1
        key.list("l").append(1)
        if row["n"] == 9:
            sets(row, key)
        return {"said": f"{key.state['n']} {len(key.list('l'))}"}

    out = run(processed(clears, fired), add((9, 0), (1, 1)), add((0, 2), (1, 3)), Watermark(None))
    assert said(out) == [["1 1", "2 2"], ["1 1", "2 2"], []]


def test_process_sees_the_watermark_before_the_bundle_and_timers_the_one_after() -> None:
    def tells(row: dict[str, Any], key: Any) -> dict[str, Any]:
        key.at_event_time(t(0))
        reached = None if key.watermark is None else (key.watermark - START).total_seconds()
        return {"said": f"{key.is_late} {reached} {(key.now - START).total_seconds():g} {key.event_time == row['at']}"}

    def after(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        return {"said": f"{key.is_late} {key.watermark} {key.event_time == time}"}

    out = run(processed(tells, after), Clock(t(7)), add((1, 1)), Watermark(t(5)), add((1, 4), (1, 5)), Watermark(None))
    assert said(out)[1:4] == [
        ["False None 7 True"],
        ["False 2026-01-01 00:00:05+00:00 True"],
        ["True 5.0 7 True", "False 5.0 7 True", "False 2026-01-01 00:00:05+00:00 True"],
    ]


def test_at_the_end_of_time_the_watermark_is_the_last_datetime() -> None:
    def tells(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        return {"said": str(key.watermark)}

    out = run(processed(sets, tells), add((1, 1)), Watermark(None))
    assert said(out)[1] == ["9999-12-31 23:59:59.999999+00:00"]


def test_rows_without_event_time_are_given_too() -> None:
    out = run(processed(lambda row, key: {"said": f"{key.event_time} {key.is_late}"}), Watermark(t(5)), add((1, None)))
    assert said(out)[1] == ["None False"]


def windowed_behind(function: Callable[..., Any], on_timer: Any = None, **options: Any) -> Callable[[Any], Any]:
    def build(rows: Any) -> Any:
        made = rows.key_by("key").process(
            function, "n int, seen timestamp", on_timer=on_timer, order="arrival", **options
        )
        return made.window(ms.fixed("10 seconds")).agg(ns=ms.collect("n"))

    return build


def test_what_process_sends_has_the_event_time_of_the_row() -> None:
    out = run(windowed_behind(lambda row, key: {"n": row["n"]}), add((1, 0), (2, 12)), Watermark(t(20)))
    assert [(row["ns"], span(row)) for row in out[1]] == [([1], (0, 10)), ([2], (10, 20))]


def test_what_process_sends_may_name_its_event_time() -> None:
    def moved(row: dict[str, Any], key: Any) -> dict[str, Any]:
        return {"n": row["n"], "seen": row["at"] + timedelta(seconds=10)}

    out = run(windowed_behind(moved, event_time="seen"), add((1, 0), (2, 12)), Watermark(t(30)))
    assert [(row["ns"], span(row)) for row in out[1]] == [([1], (10, 20)), ([2], (20, 30))]


def test_what_a_timer_sends_is_not_late_however_far_the_watermark_went() -> None:
    def later(row: dict[str, Any], key: Any) -> None:
        key.at_event_time(t(15))

    def sends(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        return {"n": 1}

    out = run(windowed_behind(later, sends), add((1, 0)), Watermark(t(40)), Watermark(t(41)))
    assert [[(row["ns"], span(row)) for row in step] for step in out] == [[], [([1], (10, 20))], []]


def test_what_a_timer_in_processing_time_sends_has_the_watermark_as_its_event_time() -> None:
    def waits(row: dict[str, Any], key: Any) -> None:
        key.at_processing_time(t(5))

    def sends(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        return {"n": 1}

    out = run(windowed_behind(waits, sends), add((1, 0)), Watermark(t(32)), Clock(t(5)), Watermark(None))
    assert [(row["ns"], span(row)) for row in out[3]] == [([1], (30, 40))]


def test_a_row_that_process_fails_on_is_dead_and_leaves_no_trace() -> None:
    def fails(row: dict[str, Any], key: Any) -> Any:
        key.state["n"] = key.state.get("n", 0) + 1
        key.list("l").append(row["n"])
        key.map("m")[row["n"]] = 1
        key.at_event_time(t(row["n"]), "x")
        yield {"said": f"{key.state['n']} {key.list('l')} {key.map('m')}"}
        if row["n"] % 2 == 0:
            key.clear()
            raise ValueError("even")

    out = run(processed(fails, fired), add((1, 0), (2, 1), (3, 2)), add((4, 3)), Watermark(t(9)))
    assert said(out) == [["1 [1] {1: 1}", "2 [1, 3] {1: 1, 3: 1}"], [], ["a x 3"]]
    (first,), (second,) = out[0]["dead"], out[1]["dead"]
    assert first["reason"] == second["reason"] == "step: ValueError: even"
    assert b"'n': 2" in first["value"]


def test_a_timer_that_fails_is_dead_with_its_tag_and_time_and_leaves_no_trace() -> None:
    def fails(tag: str, time: datetime, key: Any) -> Any:
        key.state["fired"] = True
        key.at_event_time(time + timedelta(seconds=1), tag)
        raise ValueError("no")

    def tells(row: dict[str, Any], key: Any) -> dict[str, Any]:
        sets(row, key)
        return {"said": str(key.state)}

    out = run(processed(tells, fails), add((5, 1)), Watermark(t(7)), add((90, 8)))
    assert said(out) == [["{}"], [], ["{}"]]
    (letter,) = out[1]["dead"]
    assert letter["reason"] == "step: timer '1': ValueError: no"
    for part in (b"'key': 'a'", b"'timer': '1'", b"datetime.datetime(2026, 1, 1, 0, 0, 6", b"'kind': 'event'"):
        assert part in letter["value"]


def test_a_row_whose_result_does_not_fit_sends_nothing_and_keeps_its_state() -> None:
    def wrong(row: dict[str, Any], key: Any) -> Any:
        key.state["n"] = key.state.get("n", 0) + 1
        yield {"said": str(key.state["n"])}
        if row["n"] == 2:
            yield {"said": 5}
            yield {"other": 1}

    out = run(processed(wrong), add((1, 0), (2, 1), (3, 2)))
    assert said(out) == [["1", "3"]]
    assert [row["reason"] for row in out[0]["dead"]] == [
        "step: ValueError: column 'said': expected string, found 5 (int)"
    ]


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (
            lambda key: key.at_event_time(t(1), "x"),
            "ValueError: a timer needs a callback: process(…, on_timer=…)",
        ),
        (lambda key: key["n"], "KeyError: \"'n' is not a key column; key columns: key\""),
        (lambda key: 5, "TypeError: 'int' object is not iterable"),
    ],
)
def test_what_a_function_may_not_do_kills_the_row(does: Callable[[Any], Any], reason: str) -> None:
    out = run(processed(lambda row, key: does(key)), add((1, 0)))
    assert [row["reason"] for row in out[0]["dead"]] == [f"step: {reason}"]


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (
            lambda key: key.at_event_time(datetime(2026, 1, 1)),
            "TypeError: a timer needs a datetime with a time zone",
        ),
        (lambda key: key.at_processing_time(timedelta(1)), "TypeError: a timer needs a datetime with a time zone"),
        (lambda key: key.at_event_time(t(1), 5), "TypeError: a timer's tag is a string, not 5"),
    ],
)
def test_a_timer_that_cannot_be_set_kills_the_row(does: Callable[[Any], Any], reason: str) -> None:
    out = run(processed(lambda row, key: does(key), fired), add((1, 0)))
    assert out[0]["dead"][0]["reason"].startswith(f"step: {reason}")


def test_a_timer_in_event_time_needs_rows_with_event_time() -> None:
    out = play(processed(sets, fired), [add((1, 0))], schema=SCHEMA)
    assert out[0]["dead"][0]["reason"].startswith("step: ValueError: the rows have no event time")


def test_timers_that_never_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("operators", "reference"):
        monkeypatch.setattr(f"millstream.{module}.process.FIRINGS_MAX", 20)

    def again(tag: str, time: datetime, key: Any) -> None:
        key.at_event_time(time + timedelta(days=1), tag)

    with pytest.raises(ms.MillstreamError, match="times in one step, the last one '0'"):
        run(processed(sets, again), add((1, 0)), Watermark(None))


def test_state_that_is_not_plain_is_refused() -> None:
    def keeps(row: dict[str, Any], key: Any) -> None:
        key.map("m")["x"] = object()

    with pytest.raises(ms.MillstreamError, match=r"the state of Key\(key='a'\) contains a object"):
        run(processed(keeps), add((1, 0)))
