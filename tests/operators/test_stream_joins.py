"""Joins of two streams, for random bundles: after each, local sends what the reference sends, and both what SQL gives.

The rules of time are repeated here, in a few lines and without state: which rows are late, and which windows
and rows are over. What is then to be sent DuckDB computes from all rows that were not late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local, LocalState, bundle_of, flowing_of
from millstream.operators.stateful import LATE, Stateful, stateful
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node
from millstream.plan.table_nodes import HOWS
from millstream.plan.time.bundles import BEGINNING, END, Bundle, Row, moment
from millstream.plan.time.windows import Calendar, Sessions, Window
from millstream.reference import OPERATORS
from properties import examples

from .matched_joins import with_matching

CHECKED = examples(500)
WATERMARKS = ("watermark_before", "watermark")
SECOND, HOUR = 1_000_000, 3_600_000_000
ONS: tuple[Any, ...] = ("k", ("k", "n"), {"n": "v", "k": "k"})
CONDITIONS = {
    None: "true",
    "v <= v_right": "l.v <= r.v",
    "v = 1 or v_right = 2": "l.v = 1 or r.v = 2",
    "n + v > v_right": "l.n + l.v > r.v",
}
"""What pairs must satisfy, and the same as SQL over both sides."""
INTERVALS = ((0, 5), (-4, 3), (2, 6), (-6, -2), (0, 0), (-40, 40))
DAY = 24 * HOUR
WINDOWS: dict[Window, tuple[int, ...]] = {
    ms.fixed("10 seconds", offset="3 seconds"): (10 * SECOND, 10 * SECOND, 3 * SECOND),
    ms.sliding("10 seconds", every="4 seconds"): (10 * SECOND, 4 * SECOND, 0),
    ms.sliding("2 seconds", every="5 seconds"): (2 * SECOND, 5 * SECOND, 0),
    ms.calendar("day", tz="Europe/Berlin"): (DAY, DAY, -HOUR),  # in the winter of 1970
    ms.sessions("4 seconds"): (4 * SECOND,),
}
"""Each with its size, how often one begins, and an offset; or with the gap."""


@dataclass(frozen=True)
class Plan:
    reads: tuple[Node, Node]
    joined: Any
    late: Node
    matched: Node | None
    """The same, with a step before it that evaluates its condition."""
    step: Stateful
    """It keeps nothing, so that all examples can have the same."""
    shared: tuple[str, ...]
    condition: str


@cache
def plan(join: Any, how: Any, on: int, condition: str | None, lateness: int, changing: tuple[bool, bool]) -> Plan:
    flow = Flow("test")
    left = flow.read("left", "k string, n int, v long, at timestamp", "at", changes=changing[0])
    right = flow.read("right", "k string, n long, v long, at timestamp", "at", changes=changing[1])
    late = f"{lateness} seconds"

    def made(how: Any, condition: str | None) -> Any:
        if isinstance(join, Window):
            return left.window(join, allowed_lateness=late).join(right, on=ONS[on], how=how, condition=condition)
        within = (timedelta(seconds=join[0]), timedelta(seconds=join[1]))
        return left.join(right, ONS[on], how, within=within, allowed_lateness=late, condition=condition)

    joined = made(how, condition)
    node = joined.node
    step = stateful(node)
    assert step is not None
    shared = tuple(one for one, other in node.on if one == other)
    return Plan(
        (left.node, right.node),
        node,
        joined.late.node,
        with_matching(flow, node, made("inner", None).node),
        step,
        shared,
        CONDITIONS[condition],
    )


# ---------------------------------------------------------------- what comes


@dataclass(frozen=True)
class Drawn:
    """A row that comes; its time is counted from where the watermark is."""

    k: str | None
    n: int | None
    v: int
    time: int | None
    retracts: int | None
    """Instead, an earlier row of that side is taken back, if one can be."""


@dataclass(frozen=True)
class Coming:
    """What one step brings: the rows of either side, how far the watermark moves, and which side is behind."""

    rows: tuple[list[Drawn], list[Drawn]]
    move: int | None
    """None is to the end of time."""
    slow: int | None


drawn = st.builds(
    Drawn,
    st.sampled_from(["a", "a", "a", "b", None]),
    st.sampled_from([1, 1, 1, 2, None]),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([*range(-7, 12), None]),
    st.none() | st.none() | st.integers(0, 5),
)
rows = st.lists(drawn, max_size=3)
moves = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 12, None])
comings = st.builds(Coming, st.tuples(rows, rows), moves, st.sampled_from([None, None, 0, 1]))
scripts = st.lists(comings, min_size=2, max_size=4)
changing = st.sampled_from([(False, False), (True, False), (False, True), (True, True)])
hows = st.sampled_from(HOWS)
ons = st.integers(0, len(ONS) - 1)
conditions = st.sampled_from([None, None, *CONDITIONS])


def bundles(made: Plan, script: Iterable[Coming], unit: int) -> list[dict[Node, Bundle]]:
    reached, origin, steps = BEGINNING, 0, []
    known: tuple[list[Row], list[Row]] = ([], [])
    marks = [BEGINNING, BEGINNING]
    for coming in script:
        origin = origin if reached == END else max(reached, 0)
        before = list(marks)
        if coming.move is None:
            reached = END
        elif coming.move:
            reached = END if reached == END else origin + coming.move * unit
        step = {}
        for side, node in enumerate(made.reads):
            marks[side] = marks[side] if side == coming.slow else reached
            given = [row_of(row, origin, unit, known[side] if node.is_changing else []) for row in coming.rows[side]]
            known[side].extend(row for row in given if row.weight > 0)
            step[node] = Bundle(given, before[side], marks[side], 0, 0)
        steps.append(step)
    return steps


def row_of(row: Drawn, origin: int, unit: int, earlier: list[Row]) -> Row:
    if earlier and row.retracts is not None:
        return replace(earlier[row.retracts % len(earlier)], weight=-1)
    at = None if row.time is None else origin + row.time * unit
    return Row({"k": row.k, "n": row.n, "v": row.v, "at": moment(at)}, at)


# ---------------------------------------------------------------- what SQL says of it

con = duckdb.connect(config={"threads": 1})
NUMBERS = ("id", "side", "same", "t", "w", "start", "stop", "n", "v")
TYPES = pa.schema([("key", pa.string()), *((name, pa.int64()) for name in NUMBERS)])
Answer = list[tuple[int | None, int | None, int, int | None, int]]
"""A row of the first input and one of the second, by number; time, window's start, and weight of what is sent."""


class Rows:
    """All rows that came in time, numbered; equal ones also have the number of the first."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.known: list[Row] = []
        self.table: list[dict[str, Any]] = []

    def add(self, row: Row, side: int) -> None:
        key = [row.values[pair[side]] for pair in self.plan.joined.on]
        same = next(
            (n for n, old in enumerate(self.known) if self.table[n]["side"] == side and _is_equal(old, row)),
            len(self.known),
        )
        said = {"id": len(self.known), "side": side, "same": same, "key": None if None in key else str(key)}
        self.table.append({**said, "t": row.time, "w": row.weight, "n": row.values["n"], "v": row.values["v"]})
        self.known.append(row)

    def forget(self, gone: set[int]) -> None:
        kept = [(row, said["side"]) for row, said in zip(self.known, self.table, strict=True) if said["id"] not in gone]
        self.known, self.table = [], []
        for row, side in kept:
            self.add(row, side)

    def values(self, left: int | None, right: int | None) -> dict[str, Any]:
        """The columns of both sides of a pair, as a join is to give them."""
        one, other = (None if number is None else self.known[number].values for number in (left, right))
        names = ("k", "n", "v", "at")
        found = {name: one[name] if one else None for name in names}
        for name in names:
            if name not in self.plan.shared:
                found[f"{name}_right"] = other[name] if other else None
            elif one is None and other:
                found[name] = other[name]
        return found


def _is_equal(row: Row, other: Row) -> bool:
    return row.values == other.values and row.time == other.time


def ask(query: str, table: list[dict[str, Any]]) -> list[Any]:
    rows = pa.Table.from_pylist(table, TYPES)  # noqa: F841  DuckDB finds it by its name
    return con.execute(query).fetchall()


def joined(how: str, meet: str, counts: str, time: str, over: Sequence[str] = ("true", "true")) -> str:
    """The join of the weighted rows `chosen`, with equal rows as one."""
    columns = "same, key, t, start, stop, n, v"
    sums = f"select {columns}, sum(w)::bigint w from chosen where side = {{}} group by all having sum(w) {{}}"
    met = "(select one.*, coalesce(sum(two.w), 0) met from {} one left join {} two on {} group by all)"
    left = met.format("l", "r", meet.replace("l.", "one.").replace("r.", "two."))
    right = met.format("r", "l", meet.replace("l.", "two.").replace("r.", "one."))
    of_left = f"same, null, {time.replace('r.', 'l.')}, start, w from {left} l"
    of_right = f"null, same, {time.replace('l.', 'r.')}, start, w from {right} r"
    parts = []
    if how not in ("semi", "anti"):
        parts.append(f"select l.same, r.same, {time}, l.start, l.w * r.w from l join r on {meet}")
    if how == "semi":
        parts.append(f"select {of_left} where met > 0")
    if how in ("left", "full", "anti"):
        parts.append(f"select {of_left} where met <= 0 and {over[0]}")
    if how in ("right", "full"):
        parts.append(f"select {of_right} where met <= 0 and {over[1]}")
    return f"l as ({sums.format(0, counts)}), r as ({sums.format(1, counts)}) " + " union all ".join(parts)


def near_in_time(known: Rows, watermark: int) -> Answer:
    """All that is to be sent up to now."""
    node = known.plan.joined
    low, high = (span // timedelta(microseconds=1) for span in (node.low, node.high))
    waits = [max(wait, 0) if given.is_changing else wait for wait, given in zip((-low, high), node.inputs, strict=True)]
    meet = f"l.key = r.key and l.t - r.t between {low} and {high} and ({known.plan.condition})"
    over = [f"t + {wait} < {watermark}" for wait in waits]
    return ask(f"with chosen as (from rows), {joined(node.how, meet, '<> 0', 'greatest(l.t, r.t)', over)}", known.table)


def placed(window: Window) -> str:
    """Rows and their windows."""
    size, *rest = WINDOWS[window]
    if rest:
        every, offset = rest
        last = f"t - ((t - {offset}) % {every} + {every}) % {every}"
        span = f"{last} - g.i * {every} as start, {last} - g.i * {every} + {size} as stop"
        return f"from (select rows.* replace ({span}) from rows, range({-(-size // every)}) g(i)) where stop > t"
    apart = f"key is null or t > lag(t) over (partition by key order by t, id) + {size}"
    islands = f"select *, if({apart}, 1, 0) fresh from rows"
    numbered = f"select *, sum(fresh) over (partition by key order by t, id) island from ({islands})"
    return (
        "select * exclude (island, fresh) replace (min(t) over same_island as start, "
        f"max(t) over same_island + {size} as stop) from ({numbered}) window same_island as (partition by key, island)"
    )


def in_windows(known: Rows, new: int, over_before: int, over: int) -> tuple[list[Any], set[int], Answer]:
    """Which rows are late for which windows, which are in one that is over, and what is to be sent in this step."""
    node = known.plan.joined
    chosen = f"chosen as (from placed where stop > {over_before} and stop <= {over})"
    meet = f"l.key = r.key and l.start = r.start and l.stop = r.stop and ({known.plan.condition})"
    sent = joined(node.how, meet, "> 0", "greatest(l.stop, r.stop) - 1")
    late = f"select id, null, stop, start, null from placed where id >= {new} and stop <= {over_before}"
    gone = f"select id, null, null, null, null from placed where stop <= {over}"
    found = ask(
        f"with placed as ({placed(node.window)}), {chosen}, {sent} union all {late} union all {gone}", known.table
    )
    return (
        [(row[0], row[3], row[2]) for row in found if row[4] is None and row[2] is not None],
        {row[0] for row in found if row[2] is None},
        [row for row in found if row[4] is not None],
    )


# ---------------------------------------------------------------- checking


def counted(rows: Iterable[Row]) -> Counter[Any]:
    """Rows as often as they stand there."""
    return Counter((repr(sorted(row.values.items())), row.time, row.weight) for row in rows)


def summed(rows: Iterable[Row]) -> dict[Any, int]:
    """Rows and their weights."""
    sums: Counter[Any] = Counter()
    for row in rows:
        sums[repr(sorted(row.values.items())), row.time] += row.weight
    return {row: weight for row, weight in sums.items() if weight}


def agreed(made: Plan, steps: list[dict[Node, Bundle]]) -> Iterator[tuple[dict[Node, Bundle], list[Row], list[Row]]]:
    """What is sent in each step and what is late, by both runners; what comes after sees the same watermark."""
    local, reference = LocalState(made.step, passes_on=True), OPERATORS[type(made.joined)](made.joined)
    matched = None if made.matched is None else Local([made.matched])
    for number, step in enumerate(steps):
        flowing = local.run([flowing_of(node, bundle) for node, bundle in step.items()])
        found, expected = bundle_of(made.joined, flowing), reference.step(list(step.values()))
        late = bundle_of(made.late, replace(flowing, rows=local.sent[LATE])).rows
        assert counted(found.rows) == counted(expected.rows), f"sent in step {number}"
        assert counted(late) == counted(reference.late), f"late in step {number}"
        assert found.watermark == expected.watermark, f"watermark of step {number}"
        assert all(abs(row.weight) == 1 for row in found.rows)
        if matched is not None and made.matched is not None:
            other = matched.step(step)[made.matched]
            assert counted(other.rows) == counted(expected.rows), f"sent in step {number}, with pairs from another step"
        yield step, found.rows, late


def given_as(made: Plan, known: Rows, answer: Answer) -> list[Row]:
    """What SQL answered, as rows of the join."""
    found = []
    for left, right, time, start, weight in answer:
        values = known.values(left, right)
        if start is not None:
            values["window"] = {"start": moment(start), "end": moment(time + 1)}
        found.append(Row({name: values[name] for name in made.joined.schema.names}, time, weight))
    return found


def late_row(made: Plan, row: Row, side: int, **said: Any) -> Row:
    known = Rows(made)
    known.add(row, side)
    values = known.values(None, 0) if side else known.values(0, None)
    return Row({**values, "side": ("left", "right")[side], **said}, row.time, row.weight)


@CHECKED
@given(st.sampled_from(INTERVALS), hows, ons, conditions, st.sampled_from([0, 0, 5]), changing, scripts)
def test_rows_near_in_time(
    interval: tuple[int, int],
    how: str,
    on: int,
    condition: str | None,
    lateness: int,
    changing: tuple[bool, bool],
    script: list[Coming],
) -> None:
    made = plan(interval, how, on, condition, lateness, changing)
    known, sent = Rows(made), []
    for step, rows, late in agreed(made, bundles(made, script, SECOND)):
        before, after = (min(getattr(bundle, when) for bundle in step.values()) for when in WATERMARKS)
        too_late = []
        for side, node in enumerate(made.reads):
            for row in step[node].rows:
                if row.time is None:
                    too_late.append(late_row(made, row, side, reason="no event time"))
                elif row.time < before - lateness * SECOND:
                    too_late.append(late_row(made, row, side, reason="expired"))
                else:
                    known.add(row, side)
        assert counted(late) == counted(too_late)
        sent += rows
        assert summed(sent) == summed(given_as(made, known, near_in_time(known, after - lateness * SECOND)))


@CHECKED
@given(st.sampled_from(list(WINDOWS)), hows, ons, conditions, st.sampled_from([0, 0, 5]), changing, scripts)
def test_rows_in_the_same_window(
    window: Window,
    how: str,
    on: int,
    condition: str | None,
    lateness: int,
    changing: tuple[bool, bool],
    script: list[Coming],
) -> None:
    made = plan(window, how, on, condition, lateness, changing)
    unit = 4 * HOUR if isinstance(window, Calendar) else SECOND
    known = Rows(made)
    for step, rows, late in agreed(made, bundles(made, script, unit)):
        before, after = (min(getattr(bundle, when) for bundle in step.values()) for when in WATERMARKS)
        too_late, new = [], len(known.known)
        for side, node in enumerate(made.reads):
            for row in step[node].rows:
                if row.time is None:
                    too_late.append(late_row(made, row, side, window=None, reason="no event time"))
                else:
                    known.add(row, side)
        expired, gone, answer = in_windows(known, new, before - lateness * SECOND, after - lateness * SECOND)
        for number, start, stop in expired:
            side, span = known.table[number]["side"], {"start": moment(start), "end": moment(stop)}
            too_late.append(late_row(made, known.known[number], side, window=span, reason="expired"))
        assert counted(late) == counted(too_late)
        assert summed(rows) == summed(given_as(made, known, answer))
        if isinstance(window, Sessions):  # what comes later does not touch a session that is over
            known.forget(gone)
