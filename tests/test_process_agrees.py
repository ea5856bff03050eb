"""A function with state and timers: the operator gives what the reference gives, for random programs and scripts."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local
from millstream.plan.time.bundles import BEGINNING, END, Bundle, Row, micros
from millstream.reference import Reference
from test_runners_agree import EPOCH, FEWER, KEYS, at, check, rows, scripts

pytestmark = pytest.mark.timeout(900)
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
