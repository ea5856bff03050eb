"""The calendar has a first and a last instant: windows end there, and what is added to times does not go beyond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

import millstream as ms
from millstream.plan.time.windows import Window
from millstream.spark.query.physical_plan import event_times
from millstream.testing import Add, Clock, Watermark, play

FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)
SECOND = timedelta(seconds=1)
EDGES = [LAST, LAST - SECOND, LAST - timedelta(days=40), FIRST, FIRST + SECOND, FIRST + timedelta(days=40)]
WINDOWS = [
    ms.fixed("1 minute"),
    ms.fixed("7 hours", offset="-1 hour"),
    ms.fixed("3000000 days"),
    ms.sliding("10 minutes", "4 minutes"),
    ms.sliding("10 minutes", "5 minutes"),
    ms.sessions("1 hour"),
    ms.sessions("999999999 days"),
    ms.everything(),
    *(
        ms.calendar(unit, tz=tz)
        for unit in ("day", "week", "month", "quarter", "year")
        for tz in ("UTC", "Pacific/Kiritimati", "Pacific/Niue")
    ),
]
LATE = ms.after_watermark(early=ms.after("999999999 days"), late=ms.each())
STEPS = [
    Add([{"k": "a", "at": at} for at in EDGES]),
    Watermark(FIRST),
    Watermark(FIRST + timedelta(days=100)),
    Clock(LAST - timedelta(days=100)),
    Add([{"k": "a", "at": at} for at in EDGES]),
    Clock(LAST),
    Watermark(LAST - SECOND),
    Add([{"k": "a", "at": at} for at in EDGES]),
    Watermark(LAST),
    Watermark(None),
]


def played(build: Any, on: str, **options: Any) -> list[Any]:
    return play(build, STEPS, schema="k string, at timestamp", event_time="at", on=on, **options)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("lateness", ["0 seconds", "999999999 days"])
@pytest.mark.parametrize("trigger", [ms.repeatedly(ms.after_watermark()), LATE, ms.each()], ids=str)
def test_windows_at_the_edges_are_the_same_everywhere(window: Window, lateness: str, trigger: Any) -> None:
    said = {} if window == ms.everything() else {"allowed_lateness": lateness}

    def build(rows: Any) -> Any:
        panes = rows.key_by("k").window(window, **said).trigger(trigger).agg(n=ms.count(), times=ms.collect("at"))
        return {"panes": panes, "late": panes.late}

    right, found = (played(build, on) for on in ("reference", "local"))
    for one, other in zip(right, found, strict=True):
        assert other["panes"] == one["panes"]
        assert sorted(other["late"], key=str) == sorted(one["late"], key=str)
    panes = [row for step in right for row in step["panes"]]
    assert panes
    for row in panes:
        start, end = row["window"]["start"], row["window"]["end"]
        assert start is None or all(start <= at <= end for at in row["times"])


@pytest.mark.parametrize("on", ["reference", "local"])
def test_the_last_window_ends_with_the_last_instant(on: str) -> None:
    def build(rows: Any) -> Any:
        return rows.window(ms.fixed("1 minute")).agg(n=ms.count())

    steps = [Add([{"at": LAST}, {"at": LAST - SECOND}]), Watermark(LAST - SECOND), Watermark(LAST)]
    out = play(build, steps, schema="at timestamp", event_time="at", on=on)
    assert out[:2] == [[], []]
    [pane] = out[2]
    assert (pane["n"], pane["window"]["end"]) == (2, LAST)
    assert pane["event_time"] == LAST - timedelta(microseconds=1)


@pytest.mark.parametrize("delay", ["1 hour", "999999999 days"])
def test_a_watermark_before_the_first_instant(delay: str) -> None:
    """The bound reaches back beyond the beginning of the calendar, and a function that asks for it gets that time."""

    def given(row: dict[str, Any], key: Any) -> list[dict[str, Any]]:
        return [{"seen": str(key.watermark)}]

    def build(rows: Any) -> Any:
        return rows.key_by("k").process(given, "seen string")

    rows = [{"k": "a", "at": FIRST}]
    steps = [Add(rows), Add(rows)]
    options: dict[str, Any] = {"schema": "k string, at timestamp", "event_time": "at", "watermark": ms.bounded(delay)}
    right, found = (play(build, steps, on=on, **options) for on in ("reference", "local"))
    assert found == right


def test_joins_at_the_edges() -> None:
    def build(one: Any, other: Any) -> Any:
        return {
            "window": one.window(ms.sessions("999999999 days")).join(other, on="k"),
            "interval": one.join(other, on="k", within=("-999999999 days", "999999999 days")),
        }

    both = {"one": "k string, at timestamp", "other": "k string, at timestamp"}
    steps = [Add([{"k": "a", "at": at} for at in EDGES], to=name) for name in both] + [Watermark(None)]
    options: dict[str, Any] = {"schema": both, "event_time": {"one": "at", "other": "at"}}
    right, found = (play(build, steps, on=on, **options) for on in ("reference", "local"))
    for one, other in zip(right, found, strict=True):
        assert {name: sorted(rows, key=str) for name, rows in one.items()} == {
            name: sorted(rows, key=str) for name, rows in other.items()
        }


def test_a_time_out_of_range_is_not_an_event_time() -> None:
    """Files and DataFrames can hold the year 200000; a row of it must not move the watermark there."""
    stream = ms.Flow("far").read("rows", "at timestamp", "at")
    far = 200_000 * 365 * 86_400_000_000
    rows = pl.DataFrame({"at": pl.Series([0, far, -far, None]).cast(pl.Datetime("us", "UTC"))})
    assert event_times(rows, stream.node).to_list() == [0, None, None, None]
