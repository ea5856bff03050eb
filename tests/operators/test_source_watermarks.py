"""Watermarks that follow the rows: per partition, idle or not, merged by the minimum, never backwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Add, Clock, Partition, Watermark, play

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = "k string, v long, at timestamp, mark timestamp"


def at(second: float) -> datetime:
    return EPOCH + timedelta(seconds=second)


def add(*seconds: float, mark: float | None = None) -> Add:
    rows = [{"k": "a", "v": 1, "at": at(second), "mark": None} for second in seconds]
    if mark is not None:
        rows[-1]["mark"] = at(mark)
    return Add(rows)


def counts(steps: list[Any], watermark: Any, on: str) -> list[list[tuple[float, int]]]:
    """Window end and count of the panes each step sends."""
    out = play(
        lambda stream: stream.key_by("k").window(ms.fixed("10 seconds")).agg(n=ms.count()),
        steps,
        schema=SCHEMA,
        event_time="at",
        watermark=watermark,
        on=on,
    )
    return [[((row["window"]["end"] - EPOCH).total_seconds(), row["n"]) for row in step] for step in out]


@pytest.fixture(params=["reference", "local"])
def on(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_bounded_is_the_newest_time_less_the_delay(on: str) -> None:
    assert counts([add(1, 3), add(14), add(15)], ms.bounded("5 seconds"), on) == [[], [], [(10, 2)]]


def test_ascending_trusts_the_order(on: str) -> None:
    assert counts([add(1, 9), add(10)], ms.ascending(), on) == [[], [(10, 2)]]


def test_it_never_goes_back(on: str) -> None:
    """The second row is far behind; the window it would reopen is over."""
    assert counts([add(1), add(30), add(5), add(31)], ms.ascending(), on) == [[], [(10, 1)], [], []]


def test_punctuated_watermarks_come_from_a_column(on: str) -> None:
    steps = [add(1), add(50), add(2, mark=10), add(12)]
    assert counts(steps, ms.punctuated("mark"), on) == [[], [], [(10, 2)], []]


def test_a_function_of_the_rows(on: str) -> None:
    def every_second_row(rows: list[dict[str, Any]]) -> datetime | None:
        return rows[-1]["at"] if len(rows) > 1 else None

    assert counts([add(1), add(12), add(3, 12)], ms.custom(every_second_row), on) == [[], [], [(10, 2)]]


def test_the_slowest_partition_counts_and_a_silent_one_holds_it(on: str) -> None:
    steps = [
        Partition("north", add(1)),
        Partition("north", add(40)),
        Partition("south", add(2)),
        Partition("south", add(11)),
    ]
    assert counts(steps, ms.ascending(), on) == [[], [], [], [(10, 2)]]


def test_an_idle_partition_does_not_hold_it(on: str) -> None:
    """South is silent for its 30 seconds of processing time, then speaks again and is behind what was decided."""
    steps = [
        Partition("north", add(1)),
        Partition("south", add(2)),
        Clock(at(29)),
        Partition("north", add(25)),
        Clock(at(30)),
        Partition("south", add(3)),
        Partition("south", add(21)),
    ]
    expected: list[list[tuple[float, int]]] = [[], [], [], [], [(10, 2)], [], []]
    assert counts(steps, ms.ascending(idle="30 seconds"), on) == expected


def test_while_all_are_idle_it_stands_still(on: str) -> None:
    steps = [Partition("north", add(1)), Partition("south", add(12)), Clock(at(100)), Watermark(None)]
    assert counts(steps, ms.bounded("5 seconds", idle="30 seconds"), on) == [[], [], [], [(10, 1), (20, 1)]]


def test_the_watermark_of_several_sources_is_the_smallest(on: str) -> None:
    def build(left: Any, right: Any) -> Any:
        return left.union(right).key_by("k").window(ms.fixed("10 seconds")).agg(n=ms.count())

    def to(name: str, second: float) -> Add:
        return Add([{"k": "a", "at": at(second)}], to=name)

    out = play(
        build,
        [to("left", 1), to("left", 30), to("right", 2), to("right", 10)],
        schema={"left": "k string, at timestamp", "right": "k string, at timestamp"},
        event_time={"left": "at", "right": "at"},
        watermark=ms.ascending(),
        on=on,
    )
    assert [[row["n"] for row in step] for step in out] == [[], [], [], [2]]
