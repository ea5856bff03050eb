"""The columnar operators send, step by step, what the reference sends, for random flows and scripts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local
from millstream.plan.bundles import BEGINNING, END, Bundle, Row, micros
from millstream.plan.triggers import Trigger
from millstream.plan.windows import Everything, Window
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


# ---------------------------------------------------------------- record at a time

tags = st.sampled_from(["x", "y"])
after_a_while = st.integers(-10, 40).map(lambda n: timedelta(seconds=n))
actions = st.one_of(
    st.tuples(st.just("value"), tags),
    st.tuples(st.just("list"), tags),
    st.tuples(st.just("map"), tags),
    st.tuples(st.just("event"), tags, after_a_while),
    st.tuples(st.just("event"), tags, after_a_while),
    st.tuples(st.just("clock"), tags, after_a_while),
    st.tuples(st.just("cancel"), tags),
    st.sampled_from([("forget",), ("empty",), ("clear",), ("misfit",)]),
)
programs = st.lists(
    st.builds(
        lambda made, end: [("give",), *made, *end],  # what is held is always to be seen
        st.lists(actions, min_size=1, max_size=3),
        st.sampled_from([[], [], [("fail",)]]),
    ),
    min_size=1,
    max_size=3,
)


def done(
    action: tuple[Any, ...], key: Any, value: Any, time: datetime | None, *, shows_time: bool = True
) -> list[dict[str, Any]]:
    """Does one thing that a user's function may do."""
    kind, *rest = action
    if kind == "value":
        key.state[rest[0]] = (key.state.get(rest[0]), value)[-1:]
    elif kind == "list":
        key.list(rest[0]).append(value)
    elif kind == "map":
        key.map(rest[0])[value] = time
    elif kind == "event":
        key.at_event_time((time or EPOCH) + rest[1], rest[0])
    elif kind == "clock":
        key.at_processing_time(key.now + rest[1], rest[0])
    elif kind == "cancel":
        key.cancel(rest[0])
    elif kind == "forget":
        key.state.clear()
    elif kind == "empty":
        key.list("x").clear()
        key.map("x").clear()
    elif kind == "clear":
        key.clear()
    elif kind == "fail":
        raise ValueError(f"{value} is not welcome")
    else:
        times = f"{key.watermark} {key.now} {key.is_late}" if shows_time else f"{key.event_time} {key.is_late}"
        held = f"{key} {value} {key.state} {key.list('x')} {key.map('x')} {times}"
        return [{"held": held if kind == "give" else 5, "values": key.list("y"), "seen": key.event_time}]
    return []


MADE = "held string, values array<long>, seen timestamp"


def functions(on_rows: list[Any], on_timers: list[Any], *, shows_time: bool = True) -> tuple[Any, Any]:
    """A function of rows and one of timers that do what the programs say."""

    def function(row: dict[str, Any], key: Any) -> Any:
        for action in on_rows[(row["v"] or 0) % len(on_rows)]:
            yield from done(action, key, row["v"], row["at"], shows_time=shows_time)

    def on_timer(tag: str, time: datetime, key: Any) -> Any:
        for action in on_timers[len(tag) % len(on_timers)]:
            if action[0] in ("event", "clock"):
                if len(tag) < 4:  # or it might never end
                    yield from done((action[0], f"{tag}{action[1]}", action[2]), key, tag, time)
            else:
                yield from done(action, key, tag, time, shows_time=shows_time)

    return function, on_timer


@FEWER
@given(programs, programs, st.booleans(), st.booleans(), st.sampled_from(sorted(KEYS)), scripts())
def test_a_function_of_rows_and_keys(
    on_rows: list[Any], on_timers: list[Any], in_order: bool, named_time: bool, key_type: str, steps: list[Any]
) -> None:
    def build(stream: Any) -> Any:
        timed = {"event_time": "seen"} if named_time else {}
        function, on_timer = functions(on_rows, on_timers)
        order: Any = "event_time" if in_order else "arrival"
        made = stream.key_by("k").process(function, MADE, on_timer=on_timer, order=order, **timed)
        panes = made.window(ms.fixed("10 seconds")).agg(n=ms.count())
        late = {"too_late": made.late} if in_order else {}
        return {"made": made, "dead": made.dead, "panes": panes, "late": panes.late, **late}

    check(build, steps, (key_type, "long"))


without_clock = programs.map(lambda made: [[action for action in program if action[0] != "clock"] for program in made])


@FEWER
@given(
    without_clock,
    without_clock,
    st.lists(st.tuples(rows, st.integers(0, 6), st.integers(0, 10)), max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
    st.lists(st.integers(0, 12), max_size=4),
    st.booleans(),
)
def test_results_in_order_of_event_time_do_not_depend_on_the_bundles(
    on_rows: list[Any],
    on_timers: list[Any],
    moving: list[tuple[dict[str, Any], int, int]],
    one_cut: list[int],
    other_cut: list[int],
    ends_apart: bool,
) -> None:
    """Rows are at most ten seconds behind the newest one, as `bounded("10 seconds")` promises."""
    stream = ms.Flow("cut").read("input", "k string, v long, x double, at timestamp", "at")
    function, on_timer = functions(on_rows, on_timers, shows_time=False)
    made = stream.key_by("k").process(function, MADE, on_timer=on_timer, order="event_time")
    newest, timed = 0, []
    for row, step, behind in moving:
        newest += step
        timed.append({"k": row["k"], "v": row["v"], "x": row["x"], "at": at(newest - behind)})
    sent = [
        played(runner([made.node, made.dead.node, made.late.node]), stream, timed, cut, ends_apart=apart)
        for runner in (Reference, Local)
        for cut, apart in ((one_cut, ends_apart), (other_cut, not ends_apart))
    ]
    assert all(found == sent[0] for found in sent)
    assert not sent[0][2]


def played(
    runner: Any, stream: Any, timed: list[dict[str, Any]], cut: list[int], *, ends_apart: bool
) -> list[list[dict[str, Any]]]:
    """What a run sends in all, with its rows cut into bundles; the end of the input may be a bundle of its own."""
    edges = sorted({0, len(timed), *(edge for edge in cut if edge < len(timed))})
    bundles = [timed[start:end] for start, end in pairwise(edges)] + ([[]] if ends_apart or not timed else [])
    watermark, sent, outputs = BEGINNING, [], list(runner.order)
    for number, bundle in enumerate(bundles):
        seen = [micros(row["at"]) - 10_000_000 for row in bundle]
        after = END if number == len(bundles) - 1 else max([watermark, *seen])
        given = [Row(row, micros(row["at"])) for row in bundle]
        sent.append(runner.step({stream.node: Bundle(given, watermark, after, 0, 0)}))
        watermark = after
    return [[row.values for step in sent for row in step[node].rows] for node in outputs[1:]]
