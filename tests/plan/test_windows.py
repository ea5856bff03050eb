"""A window is a value: equal if it says the same, readable, and refused at the user's line if it cannot exist."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.time import windows
from millstream.testing import Add, Watermark, play

MINUTE = timedelta(minutes=1)


def test_windows_are_values() -> None:
    assert ms.fixed("1 minute") == ms.fixed(MINUTE) == windows.Fixed(MINUTE)
    assert ms.sliding("1 hour", "1 minute") == windows.Sliding(timedelta(hours=1), MINUTE)
    assert ms.rows(3) == windows.Rows(3, 3)
    assert ms.rows(3, every=5) == windows.Rows(3, 5)
    assert ms.fixed("1 minute") != ms.fixed("1 minute", time="processing")
    assert len({ms.everything(), ms.everything()}) == 1


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (ms.fixed("90 seconds"), "fixed(1 minute 30 seconds)"),
        (ms.fixed("1 hour", offset="5 minutes"), "fixed(1 hour) offset 5 minutes"),
        (ms.fixed("1 hour", time="processing"), "fixed(1 hour) in processing time"),
        (ms.sliding("1 hour", "5 minutes"), "sliding(1 hour every 5 minutes)"),
        (ms.sessions("10 minutes"), "sessions(10 minutes)"),
        (ms.calendar("week", tz="Europe/Berlin"), "calendar(week, Europe/Berlin)"),
        (ms.rows(3), "rows(3)"),
        (ms.rows(3, every=1), "rows(3 every 1)"),
        (ms.delta_window("speed", 2.5), "delta_window(speed, 2.5)"),
        (ms.closed_by("kind = 'end'"), "closed_by(kind = 'end')"),
        (ms.everything(), "everything()"),
    ],
)
def test_a_window_says_what_it_is(window: windows.Window, said: str) -> None:
    assert str(window) == said


def test_which_windows_end_and_merge() -> None:
    some = (ms.fixed("1 s"), ms.everything(), ms.rows(1), ms.delta_window("x", 1), ms.closed_by("x"))
    assert [window.has_end for window in some] == [True, True, False, False, False]
    assert ms.sessions("1 s").merges
    assert not ms.fixed("1 s").merges


@pytest.mark.parametrize(
    ("mistake", "what", "next_step"),
    [
        (lambda: ms.fixed("0 seconds"), "size must be longer than 0", "1 minute"),
        (lambda: ms.fixed("-1 second"), "'-1 second' is negative", "zero or more"),
        (lambda: ms.fixed("soon"), "'soon' cannot be read", "90 seconds"),
        (lambda: ms.fixed(60), "the size must be text or a timedelta, not int", "90 seconds"),
        (lambda: ms.fixed("1 month"), "no fixed length", "calendar window"),
        (lambda: ms.fixed("1 minute", time="wall"), "time is 'event' or 'processing', not 'wall'", "processing"),
        (lambda: ms.sliding("1 minute", "0 s"), "every must be longer than 0", ""),
        (lambda: ms.sessions("0 s"), "gap must be longer than 0", ""),
        (lambda: ms.calendar("moth"), "no calendar window 'moth'", "did you mean 'month'?"),
        (lambda: ms.calendar(3), "no calendar window 3", "day, week, month, quarter, year"),
        (lambda: ms.calendar("day", tz="berlin"), "no time zone 'berlin'", "Europe/Berlin"),
        (lambda: ms.calendar("day", tz=3), "no time zone 3", ""),
        (lambda: ms.rows(0), "count must be a positive integer, not 0", "rows(100"),
        (lambda: ms.rows(True), "count must be a positive integer", ""),
        (lambda: ms.rows(2.5), "count must be a positive integer", ""),
        (lambda: ms.rows(3, every=-1), "every must be a positive integer", ""),
        (lambda: ms.delta_window("x", 0), "a threshold must be a positive number, not 0", "delta_window("),
        (lambda: ms.delta_window("x", float("nan")), "a threshold must be a positive number", ""),
        (lambda: ms.delta_window("x", float("inf")), "a threshold must be a positive number", ""),
        (lambda: ms.delta_window("x", "1"), "a threshold must be a positive number", ""),
        (lambda: ms.delta_window("", 1), "delta_window takes a column as text", "delta_window("),
        (lambda: ms.closed_by(None), "closed_by takes a condition as text", "closed_by("),
    ],
)
def test_a_window_that_cannot_exist_is_refused(mistake: Callable[[], Any], what: str, next_step: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        mistake()
    assert what in refused.value.what
    assert next_step in (refused.value.next_step or "")
    assert (refused.value.where or "").startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("window", "same"),
    [
        (ms.fixed("1 day", offset="-8 hours"), ms.fixed("1 day", offset="16 hours")),
        (ms.fixed("1 minute", offset="1 minute"), ms.fixed("1 minute")),
        (ms.fixed("1 minute", offset="-90 seconds"), ms.fixed("1 minute", offset="30 seconds")),
        (ms.fixed("1 minute", offset=timedelta(seconds=-1)), ms.fixed("1 minute", offset="59 seconds")),
        (ms.sliding("1 hour", "1 minute", offset="150 seconds"), ms.sliding("1 hour", "1 minute", offset="30 seconds")),
    ],
)
def test_an_offset_is_taken_modulo_the_period(window: windows.Window, same: windows.Window) -> None:
    assert window == same


@pytest.mark.parametrize("on", ["reference", "local"])
def test_days_that_start_ahead_of_utc(on: str) -> None:
    """Eight hours ahead a day begins at 16:00 UTC of the day before."""
    at = datetime(2026, 1, 31, 15, 59, tzinfo=UTC)
    out = play(
        lambda rows: rows.window(ms.fixed("1 day", offset="-8 hours")).agg(n=ms.count()),
        [Add([{"at": at}, {"at": at + timedelta(minutes=1)}]), Watermark(None)],
        schema="at timestamp",
        event_time="at",
        on=on,
    )
    assert [row["window"]["start"] for row in out[1]] == [
        datetime(2026, 1, 30, 16, tzinfo=UTC),
        datetime(2026, 1, 31, 16, tzinfo=UTC),
    ]
