"""The columnar operators send, step by step, what the reference sends, for random flows and scripts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local
from millstream.plan.time.bundles import BEGINNING, END, Bundle, Row, micros
from millstream.plan.time.triggers import Trigger
from millstream.plan.time.windows import Everything, Window
from millstream.reference import Reference
from millstream.testing import Add, Clock, Partition, Watermark, play
from properties import examples

pytestmark = pytest.mark.timeout(900)
CHECKED = examples(1_000)
SOME = examples(250)
FEWER = examples(100)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "int": ord,
    "boolean": "a".__eq__,
    "date": lambda k: date(2026, 1, ord(k) - 96),
    "timestamp": lambda k: at(ord(k)),
    "binary": str.encode,
}
NUMBERS: dict[str, Callable[[int], Any]] = {
    "long": int,
    "int": int,
    "smallint": int,
    "double": float,
    "decimal(9,2)": lambda v: Decimal(v).scaleb(-2),
}


def at(second: int) -> datetime:
    return EPOCH + timedelta(seconds=second)


def seconds(least: int, most: int) -> st.SearchStrategy[str]:
    return st.integers(least, most).map("{} seconds".format)


# ---------------------------------------------------------------- what a flow can say

times = st.sampled_from(["event", "event", "event", "processing"])
time_windows = st.one_of(
    st.builds(lambda size, time: ms.fixed(size, time=time), seconds(1, 30), times),
    st.builds(lambda size: ms.fixed(f"{size} seconds", offset=f"{size // 2} seconds"), st.integers(1, 30)),
    st.builds(lambda size, every, time: ms.sliding(size, every, time=time), seconds(1, 30), seconds(1, 15), times),
    st.builds(lambda gap, time: ms.sessions(gap, time=time), seconds(1, 12), times),
    st.builds(
        lambda unit, tz: ms.calendar(unit, tz=tz),
        st.sampled_from(["day", "week", "month", "quarter", "year"]),
        st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo"]),
    ),
)
windows: st.SearchStrategy[Window] = st.one_of(
    time_windows,
    time_windows,
    st.builds(lambda count, every: ms.rows(count, every=every), st.integers(1, 4), st.integers(1, 5)),
    st.builds(
        lambda threshold, slides: ms.delta_window("v", threshold, slides=slides), st.integers(1, 15), st.booleans()
    ),
    st.just(ms.closed_by("v % 5 = 0")),
    st.just(ms.everything()),
)


def allowed(build: Callable[..., Trigger], *parts: Any) -> Trigger:
    """A trigger that may be written; what makes no sense is replaced by one that does."""
    try:
        return build(*parts)
    except ms.MillstreamError:
        return ms.after_count(2)


simple = st.one_of(
    st.integers(1, 4).map(ms.after_count),
    seconds(0, 20).map(ms.after),
    seconds(1, 20).map(ms.every),
    st.just(ms.after_watermark()),
    st.just(ms.each()),
)
triggers: st.SearchStrategy[Trigger] = st.recursive(
    simple,
    lambda inner: st.one_of(
        inner.map(lambda part: allowed(ms.repeatedly, part)),
        st.builds(lambda early, late: allowed(ms.after_watermark, early, late), st.none() | inner, st.none() | inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: allowed(ms.first_of, *parts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: allowed(ms.all_of, *parts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: allowed(ms.in_order, *parts)),
        st.builds(lambda one, other: allowed(one.until, other), inner, inner),
    ),
    max_leaves=5,
) | st.just(ms.at_expiry())
inside_each = st.one_of(
    st.just(ms.each()),
    st.builds(lambda early, late: ms.after_watermark(early, late), st.none() | simple, st.just(ms.each())),
    st.builds(lambda early, late: ms.after_watermark(early, late), st.just(ms.each()), st.none() | simple),
    st.builds(lambda other: allowed(ms.first_of, ms.each(), other), simple),
    st.builds(lambda other: allowed(ms.all_of, other, ms.each()), simple),
    st.builds(lambda first: allowed(ms.in_order, first, ms.each()), simple),
    st.builds(lambda end: allowed(ms.each().until, end), simple),
    st.builds(lambda one: allowed(one.until, ms.each()), simple),
)
single_rows: st.SearchStrategy[Trigger] = st.one_of(
    inside_each,
    inside_each.map(lambda part: allowed(ms.repeatedly, part)),
    st.builds(lambda first, then: allowed(ms.in_order, first, then), simple, inside_each),
    st.builds(lambda one, other: allowed(ms.all_of, one, other), inside_each, triggers),
    st.builds(lambda one, other: allowed(ms.after_watermark, one, other), triggers, inside_each),
)
"""Triggers with `each` in every position."""
modes = st.sampled_from(["discarding", "accumulating", "retracting", "until_expiry"])
types = st.tuples(st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(NUMBERS)))

AGGREGATES = {
    "n": ms.count(),
    "total": ms.sum("v"),
    "share": ms.sum("x"),
    "low": ms.min("v"),
    "high": ms.max("x + v"),
    "middle": ms.mean("x"),
    "spread": ms.stddev("v"),
    "earliest": ms.first("v"),
    "latest": ms.last("x"),
    "values": ms.collect("v"),
    "different": ms.distinct_count("v"),
    "best": ms.top("v", 2),
    "best_by": ms.top("k", 2, by="x"),
    "many": ms.count_if("v > 5"),
    "one": ms.any("v > 15"),
    "every_one": ms.all("x > -5"),
    "of_most": ms.max_by("v", "x"),
    "of_least": ms.min_by("x", "v"),
    "set": ms.collect_set("v"),
    "usual": ms.mode("v"),
    "half": ms.median("x"),
    "some": ms.percentile("v", [0, 0.3, 0.95]),
    "about": ms.variance("v"),
    "about_all": ms.var_pop("x"),
    "own": ms.combine(list, lambda kept, v: [*kept, v], list.__add__, len, input="v", result="int"),
}
chosen_aggregates = st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=2, unique=True)


# ---------------------------------------------------------------- what happens to it

rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "v": st.none() | st.integers(0, 20),
        "x": st.none() | st.integers(-40, 40).map(lambda n: n / 4),
        "at": st.integers(-40, 120).map(at) | st.integers(0, 40).map(at),
    }
)
untimed = st.builds(lambda row: {**row, "at": None}, rows)


@st.composite
def scripts(draw: st.DrawFn, *, weights: bool = False) -> list[Any]:
    """Bundles, watermarks and clocks in any order, of one or of two source partitions."""
    partitions = draw(st.sampled_from([[None], [None], ["north", "south"]]))
    watermark, clock, steps, sent = -20, 0, [], []
    for kind in draw(st.lists(st.sampled_from(["add", "add", "add", "watermark", "clock"]), min_size=1, max_size=7)):
        step: Any
        if kind == "add":
            new = draw(st.lists(st.one_of(rows, rows, rows, rows, untimed), max_size=5))
            signs = [1] * len(new)
            if weights and sent:
                back = draw(st.lists(st.sampled_from(sent), max_size=2))
                new, signs = new + back, signs + [-1] * len(back)
            sent += new
            step = Add(new, weights=signs) if weights else Add(new)
        elif kind == "watermark":
            watermark += draw(st.integers(0, 40))
            step = Watermark(at(watermark))
        else:
            clock += draw(st.integers(0, 25))
            step = Clock(at(clock))
        partition = draw(st.sampled_from(partitions))
        steps.append(step if partition is None else Partition(partition, step))
    return [*steps, Watermark(None)] if draw(st.booleans()) else steps


def built(stream: Any, window: Window, options: dict[str, Any]) -> Any:
    said: dict[str, Any] = {"timestamp": options["timestamp"]}
    if window.has_end and not isinstance(window, Everything) and getattr(window, "time", "event") == "event":
        said["allowed_lateness"] = options["lateness"]
    keyed = stream.key_by("k") if options.get("keyed", True) else stream
    windowed = keyed.window(window, **said)
    if not window.slides:
        windowed = windowed.trigger(options["trigger"])
    if options["mode"] == "until_expiry":
        return windowed.retracting(until_expiry=window.has_end)
    return getattr(windowed, options["mode"])()


flows = st.fixed_dictionaries(
    {
        "trigger": triggers,
        "mode": modes,
        "lateness": st.sampled_from(["0 seconds", "0 seconds", "5 seconds", "60 seconds"]),
        "timestamp": st.sampled_from(["end_of_window", "earliest", "latest"]),
        "keyed": st.sampled_from([True, True, True, False]),
    }
)


def near(value: Any) -> Any:
    """Sums of floats depend on the order they are added in; everything else must be equal."""
    if isinstance(value, float):
        return value if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: near(part) for name, part in value.items()}
    return [near(part) for part in value] if isinstance(value, list) else value


def typed(steps: list[Any], key: str, number: str) -> list[Any]:
    """The same script with values of other types."""

    def changed(row: dict[str, Any]) -> dict[str, Any]:
        k, v = row["k"], row["v"]
        return {**row, "k": k if k is None else KEYS[key](k), "v": v if v is None else NUMBERS[number](v)}

    def step_of(step: Any) -> Any:
        if isinstance(step, Partition):
            return Partition(step.name, step_of(step.step))
        return replace(step, rows=[changed(row) for row in step.rows]) if isinstance(step, Add) else step

    return [step_of(step) for step in steps]


def check(
    build: Callable[..., Any],
    steps: list[Any],
    types: tuple[str, str] = ("string", "long"),
    *,
    runners: tuple[str, str] = ("reference", "local"),
) -> None:
    """The second runner sends what the first one does."""
    schema = f"k {types[0]}, v {types[1]}, x double, at timestamp"
    steps = typed(steps, *types)
    expected, sent = (play(build, steps, schema=schema, event_time="at", on=runner) for runner in runners)
    for number, (right, found) in enumerate(zip(expected, sent, strict=True)):
        for name in right:
            one, other = near(right[name]), near(found[name])
            if name == "late":
                one, other = sorted(one, key=str), sorted(other, key=str)
            assert other == one, f"step {number}, {name}"


@CHECKED
@given(windows, flows, chosen_aggregates, types, scripts())
def test_a_windowed_aggregation(
    window: Window, options: dict[str, Any], names: list[str], types: tuple[str, str], steps: list[Any]
) -> None:
    def build(stream: Any) -> Any:
        panes = built(stream, window, options).agg(**{name: AGGREGATES[name] for name in names})
        return {"panes": panes, "late": panes.late}

    check(build, steps, types)


@SOME
@given(windows, flows, single_rows, chosen_aggregates, types, scripts())
def test_rows_that_are_taken_one_by_one(
    window: Window,
    options: dict[str, Any],
    trigger: Trigger,
    names: list[str],
    types: tuple[str, str],
    steps: list[Any],
) -> None:
    options = {**options, "trigger": trigger}

    def build(stream: Any) -> Any:
        panes = built(stream, window, options).agg(**{name: AGGREGATES[name] for name in names})
        return {"panes": panes, "late": panes.late}

    check(build, steps, types)


@FEWER
@given(windows, flows, triggers | single_rows, st.lists(st.lists(rows, max_size=6), min_size=1, max_size=4), st.data())
def test_rows_watermark_and_clock_that_move_in_one_step(
    window: Window, options: dict[str, Any], trigger: Trigger, bundles: list[list[dict[str, Any]]], data: st.DataObject
) -> None:
    """As in a micro-batch. Rows taken one by one see the watermark as it was, and the clock as it is."""
    stream = ms.Flow("moving").read("input", "k string, v long, x double, at timestamp", "at")
    panes = built(stream, window, {**options, "trigger": trigger}).agg(n=ms.count(), total=ms.sum("v"))
    observed = [panes.node, panes.late.node]
    runners = [Reference(observed), Local(observed)]
    watermark, clock = BEGINNING, 0
    for bundle in [*bundles, []]:
        after = max(watermark, micros(at(data.draw(st.integers(-20, 100))))) if bundle else END
        now = clock + data.draw(st.integers(0, 25)) * 1_000_000
        sent = [Row(row, micros(row["at"])) for row in bundle]
        given = {stream.node: Bundle(sent, watermark, after, clock, now)}
        right, found = (runner.step(given) for runner in runners)
        for node, is_ordered in zip(observed, (True, False), strict=True):
            one, other = ([dict(sorted(row.values.items())) for row in sent[node].rows] for sent in (right, found))
            assert other == one if is_ordered else sorted(other, key=str) == sorted(one, key=str)
        watermark, clock = after, now


@FEWER
@given(windows, flows, chosen_aggregates, scripts(weights=True))
def test_retracted_rows(window: Window, options: dict[str, Any], names: list[str], steps: list[Any]) -> None:
    check(
        lambda stream: {"panes": built(stream, window, options).agg(**{name: AGGREGATES[name] for name in names})},
        steps,
    )


@FEWER
@given(time_windows, flows, time_windows, flows, scripts())
def test_one_aggregation_behind_another(
    window: Window, options: dict[str, Any], second: Window, more: dict[str, Any], steps: list[Any]
) -> None:
    more = {**more, "keyed": more["keyed"] and options["keyed"]}  # panes of a stream without keys have no key

    def build(stream: Any) -> Any:
        panes = built(stream, window, options).agg(total=ms.sum("v"), high=ms.max("v"))
        return {
            "panes": panes,
            "second": built(panes, second, more).agg(n=ms.count(), high=ms.max("total"), sums=ms.sum("high")),
        }

    check(build, steps)


@FEWER
@given(
    st.sampled_from([ms.fixed("10 seconds"), ms.sessions("8 seconds"), ms.calendar("day"), ms.everything()]),
    flows,
    scripts(),
)
def test_nothing_is_lost_and_refinements_add_up(window: Window, options: dict[str, Any], steps: list[Any]) -> None:
    """Every row is in a pane or late; the weighted panes of a retracting window add up to its last value."""
    options = {**options, "mode": "retracting"}

    def build(stream: Any) -> Any:
        panes = built(stream, window, options).agg(n=ms.count(), total=ms.sum("v"))
        return {"panes": panes, "late": panes.late}

    added = [row for step in steps for row in getattr(getattr(step, "step", step), "rows", [])]
    out = play(
        build, [*steps, Watermark(None)], schema="k string, v long, x double, at timestamp", event_time="at", on="local"
    )
    panes = [row for step in out for row in step["panes"]]
    late = [row for step in out for row in step["late"]]
    assert sum(row["weight"] * row["n"] for row in panes) + len(late) == len(added)
    in_panes = sum(row["weight"] * (row["total"] or 0) for row in panes)
    assert in_panes + sum(row["v"] or 0 for row in late) == sum(row["v"] or 0 for row in added)
