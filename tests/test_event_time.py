"""Event time that is computed: by an expression where a source is read, or by a step after it, on every runner."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidPlan
from millstream.testing import Add, Partition, Watermark
from times import START, t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = "n int, ts long, day string, hour string"
START_MS = round(START.timestamp() * 1000)


def add(*rows: tuple[int, float | None]) -> Add:
    """Rows as (n, seconds)."""
    return Add([row(n, seconds) for n, seconds in rows])


def row(n: int, seconds: float | None) -> dict[str, Any]:
    if seconds is None:
        return {"n": n, "ts": None, "day": None, "hour": None}
    at = t(seconds)
    return {"n": n, "ts": START_MS + round(seconds * 1000), "day": f"{at:%Y-%m-%d}", "hour": f"{at:%H:%M:%S}"}


def in_windows(rows: Any) -> Any:
    made = rows.window(ms.fixed("10 seconds")).agg(ns=ms.collect("n"))
    return {"panes": made, "late": made.late}


def ns(steps: list[Any]) -> list[Any]:
    return [[each["ns"] for each in step["panes"]] for step in steps]


@pytest.mark.on_spark("more")
@pytest.mark.parametrize("event_time", ["timestamp_millis(ts)", "to_timestamp(day || ' ' || hour)"])
def test_the_event_time_of_a_source_may_be_an_expression(event_time: str) -> None:
    steps = [add((1, 1), (2, 12), (3, None)), Watermark(t(10)), add((4, 3)), Watermark(None)]
    out = play(in_windows, steps, schema=SCHEMA, event_time=event_time)
    assert ns(out) == [[], [[1]], [], [[2]]]
    late = [[(each["n"], each["reason"]) for each in step["late"]] for step in out]
    assert late == [[(3, "no event time")], [], [(4, "expired")], []]


def test_the_watermark_of_such_a_source_follows_its_rows() -> None:
    steps = [add((1, 1), (2, 12)), add((3, 16)), add((4, 3), (5, 31))]
    out = play(in_windows, steps, schema=SCHEMA, event_time="timestamp_millis(ts)", watermark=ms.bounded("5 seconds"))
    assert ns(out) == [[], [[1]], [[2, 3]]]
    assert [each["n"] for each in out[2]["late"]] == [4]


def parsed(given: dict[str, Any]) -> dict[str, Any]:
    return {"n": given["n"], "at": None if given["ts"] is None else datetime.fromtimestamp(given["ts"] / 1000, UTC)}


UTC = START.tzinfo


def test_event_time_is_set_after_parsing() -> None:
    def build(rows: Any) -> Any:
        made = rows.map(parsed, "n int, at timestamp").where("n > 0").with_event_time("at")
        return in_windows(made)

    steps = [add((1, 1), (2, 12), (3, None), (0, 99)), Watermark(t(10)), Watermark(None)]
    out = play(build, steps, schema=SCHEMA)
    assert ns(out) == [[], [[1]], [[2]]]
    assert [each["reason"] for each in out[0]["late"]] == ["no event time"]


@pytest.mark.on_spark("more")
def test_each_partition_has_a_watermark_of_the_rows_after_the_step() -> None:
    def build(rows: Any) -> Any:
        timed = rows.where("n > 0").with_event_time("timestamp_millis(ts)", ms.bounded("1 second"))
        return in_windows(timed)

    steps = [
        Partition("north", add((1, 1), (2, 21), (0, 99))),
        Partition("south", add((3, 2))),
        Partition("south", add((4, 11.5))),
        Partition("south", add((5, 42), (0, 99))),
    ]
    assert ns(play(build, steps, schema=SCHEMA)) == [[], [], [[1, 3]], [[4]]]


def test_timers_and_order_follow_the_event_time_that_was_set() -> None:
    def gives(row: dict[str, Any], key: Any) -> dict[str, Any]:
        key.at_event_time(key.event_time + timedelta(seconds=5))
        return {"said": str(row["n"])}

    def fired(tag: str, time: datetime, key: Any) -> dict[str, Any]:
        return {"said": "timer"}

    def build(rows: Any) -> Any:
        timed = rows.with_column("key", "'a'").with_event_time("timestamp_millis(ts)")
        return timed.key_by("key").process(gives, "said string", on_timer=fired)

    out = play(build, [add((2, 9), (1, 3)), Watermark(t(9)), Watermark(None)], schema=SCHEMA)
    assert [[each["said"] for each in step] for step in out] == [[], ["1", "timer", "2"], ["timer"]]


# ---------------------------------------------------------------- what is refused


def read(**options: Any) -> Any:
    return ms.Flow("f").read("rows", SCHEMA, **options)


@pytest.mark.transcripts("local")
@pytest.mark.parametrize(
    ("event_time", "said"),
    [
        ("at", "there is no column 'at'"),
        ("ts", "event_time 'ts' is bigint, not a timestamp"),
        ("ts + 1", r"event_time 'ts \+ 1' is bigint, not a timestamp"),
        ("timestamp_millis(5)", "is the same for all rows"),
    ],
)
def test_what_is_no_event_time_is_refused(event_time: str, said: str) -> None:
    with pytest.raises(InvalidPlan, match=said) as refused:
        read(event_time=event_time)
    assert refused.value.where is not None
    assert refused.value.where.startswith(__file__)
    with pytest.raises(InvalidPlan, match=said):
        read().with_event_time(event_time)


@pytest.mark.transcripts("local")
def test_event_time_is_set_once_and_before_steps_with_state() -> None:
    with pytest.raises(InvalidPlan, match=r"already have an event time, timestamp_millis|already get an event time"):
        read(event_time="timestamp_millis(ts)").with_event_time("timestamp_millis(ts)")
    rows = read()
    rows.with_event_time("timestamp_millis(ts)")
    with pytest.raises(InvalidPlan, match="already get an event time, at"):
        rows.where("n > 0").with_event_time("timestamp_millis(ts)")
    with pytest.raises(InvalidPlan, match="comes before steps that keep state"):
        read().distinct("n").with_event_time("timestamp_millis(ts)")
    with pytest.raises(InvalidPlan, match="is not a watermark strategy"):
        read().with_event_time("timestamp_millis(ts)", "10 seconds")
