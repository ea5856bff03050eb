"""Joins with tables: after every bundle, what was sent adds up to what DuckDB makes of all rows at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.local import Local
from millstream.operators import elementwise
from millstream.operators.accumulators import TIME, WEIGHT
from millstream.operators.lookup_join import TABLE, WAITING, LookupJoinStep
from millstream.operators.stateful import INPUTS, SENT, stateful
from millstream.operators.table_join import TableJoinStep
from millstream.operators.windowed import Clock, Frames
from millstream.plan.bundles import BEGINNING, END, Bundle, Row
from millstream.plan.flow import Flow
from millstream.plan.late import late_columns
from millstream.plan.nodes import Late, Node
from millstream.plan.table_nodes import LookupJoin
from millstream.records import Schema
from millstream.reference import Reference

EXAMPLES = 20_000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 500
CHECKED = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
Change = tuple[dict[str, Any], int | None, int]
"""A row, its time, its weight."""

hows = st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])
lookups = st.sampled_from(["inner", "left", "semi", "anti"])
ons: st.SearchStrategy[Any] = st.sampled_from(["k", ("k", "m"), {"k": "j"}, {"k": "k", "a": "j"}])
LEFT = "k int, m string, a int"
RIGHT = "k bigint, m string, j int, c string"
numbers, words = st.sampled_from([1, 2, 2, None]), st.sampled_from(["x", "y", None])
left_rows = st.builds(lambda k, m, a: {"k": k, "m": m, "a": a}, numbers, words, st.integers(0, 1))
right_rows = st.builds(
    lambda k, m, j, c: {"k": k, "m": m, "j": j, "c": c}, numbers, words, numbers, st.sampled_from(["p", "q"])
)
times = st.none() | st.integers(-3, 12)


@st.composite
def changes(draw: st.DrawFn, rows: Any) -> list[list[Change]]:
    """The changes of a table, bundle by bundle: only what is there is taken back, and not from before it came."""
    there: list[Change] = []
    bundles: list[list[Change]] = []
    for added in draw(
        st.lists(st.lists(st.tuples(rows, times, st.integers(0, 2)), max_size=4), min_size=4, max_size=4)
    ):
        bundle: list[Change] = []
        for row, time, luck in added:
            if there and luck == 0:
                values, since, _ = there.pop(len(there) // 2)
                until = since if time is None or (since is not None and time < since) else time
                bundle.append((values, until, -1))
            else:
                there.append((row, time, 1))
                bundle.append(there[-1])
        bundles.append(bundle)
    return bundles


def nodes(on: Any, how: str, as_of: str | None = None) -> list[Node]:
    """Two inputs and a join of them."""
    flow = Flow("f")
    left = flow.read("left", LEFT, changes=as_of is None)
    right = flow.read("right", RIGHT, changes=True)
    if as_of is None:
        joined = left.to_table("k").join(right.to_table("k"), on=on, how=how).node
    else:
        joined = left.join(right.to_table("k"), on=on, how=how, as_of="now").node
        assert isinstance(joined, LookupJoin)
        joined = replace(joined, at_event_time=as_of == "event_time")
    return [left.node, right.node, joined]


def stepped(
    inputs: Sequence[Node], observed: Sequence[Node], bundles: Sequence[Any], watermarks: Sequence[int] = ()
) -> Iterator[list[Bundle]]:
    """What the nodes send in each step, on both engines the same."""
    local, reference = Local(list(observed)), Reference(list(observed))
    before = BEGINNING
    for number, given in enumerate(bundles):
        now = watermarks[number] if watermarks else before
        sent = {}
        for node, rows in zip(inputs, given, strict=True):
            sent[node] = Bundle([Row(*change) for change in rows], before, now, 0, 0)
        found, right = local.step(sent), reference.step(sent)
        for node in observed:
            one, other = found[node], right[node]
            assert counted(one.rows) == counted(other.rows), f"step {number}"
            assert [one.watermark_before, one.watermark] == [other.watermark_before, other.watermark]
            assert all(abs(row.weight) == 1 for row in one.rows)
            assert [row.weight for row in one.rows if node.is_changing] == sorted(
                row.weight for row in one.rows if node.is_changing
            )
        yield [found[node] for node in observed]
        before = now


def counted(rows: Sequence[Row]) -> Counter[Any]:
    return Counter((tuple(row.values.items()), row.time, row.weight) for row in rows)


# ---------------------------------------------------------------- what DuckDB makes of it

db = duckdb.connect()
db.execute("SET threads = 1")


def tables_of(**named: tuple[str, list[tuple[Any, ...]]]) -> None:
    """Makes tables of rows, each with its columns by letter."""
    for name, (columns, rows) in named.items():
        arrays = [pa.array([row[place] for row in rows], TYPES[column]) for place, column in enumerate(columns)]
        db.register(name, pa.table(arrays, names=list(columns)))


TYPES = {
    **dict.fromkeys("nbtwkja", pa.int64()),
    **dict.fromkeys("mc", pa.string()),
}


def rows_of(bundles: Sequence[list[Change]], names: str) -> list[tuple[Any, ...]]:
    return [
        (number, BEGINNING if time is None else time, weight, *(values[name] for name in names))
        for number, bundle in enumerate(bundles)
        for values, time, weight in bundle
    ]


def pairs_of(on: Any) -> list[tuple[str, str]]:
    return list(on.items()) if isinstance(on, dict) else [(on, on)] if isinstance(on, str) else [(o, o) for o in on]


def given_columns(on: Any, how: str) -> list[str]:
    """Each column that is given, as SQL over `l` and `r`."""
    shared = {one for one, other in pairs_of(on) if one == other}
    left = [f"coalesce(l.{name}, r.{name})" if name in shared else f"l.{name}" for name in ("k", "m", "a")]
    right = [f"r.{name}" for name in ("k", "m", "j", "c") if name not in shared]
    return [f"l.{name}" for name in ("k", "m", "a")] if how in ("semi", "anti") else left + right


def joined_anew(
    left: list[list[Change]], right: list[list[Change]], on: Any, how: str, points: list[tuple[int, int, int]]
) -> list[Counter[Any]]:
    """The join of the tables at each point: as they were after a bundle, as of a time."""
    tables_of(
        lefts=("btwkma", rows_of(left, "kma")), rights=("btwkmjc", rows_of(right, "kmjc")), points=("nbt", points)
    )
    net = "SELECT n, {0}, sum(w) AS w FROM points p JOIN {1} x ON x.b <= p.b AND x.t <= p.t GROUP BY ALL HAVING sum(w) > 0"
    equal = " AND ".join(["l.n = r.n", *(f"l.{one} = r.{other}" for one, other in pairs_of(on))])
    columns = given_columns(on, how)
    weight = "l.w" if how in ("semi", "anti") else "coalesce(l.w, 1) * coalesce(r.w, 1)"
    number = "l.n" if how in ("semi", "anti") else "coalesce(l.n, r.n)"
    made = db.execute(
        f"WITH l AS ({net.format('k, m, a', 'lefts')}), r AS ({net.format('k, m, j, c', 'rights')}) "
        f"SELECT {number}, {weight}, {', '.join(columns)} FROM l {how} JOIN r ON {equal}"
    ).fetchall()
    found: list[Counter[Any]] = [Counter() for _ in points]
    for point, weighed, *values in made:
        found[point][tuple(values)] += int(weighed)
    return found


def added(total: Counter[Any], rows: Sequence[Row]) -> Counter[Any]:
    for row in rows:
        total[tuple(row.values.values())] += row.weight
    return Counter({values: weight for values, weight in total.items() if weight})


# ---------------------------------------------------------------- two tables


@CHECKED
@given(hows, ons, changes(left_rows), changes(right_rows))
def test_a_join_of_tables(how: str, on: Any, left: list[list[Change]], right: list[list[Change]]) -> None:
    *inputs, joined = nodes(on, how)
    expected = joined_anew(left, right, on, how, [(number, number, END) for number in range(len(left))])
    total: Counter[Any] = Counter()
    for number, (sent,) in enumerate(stepped(inputs, [joined], list(zip(left, right, strict=True)))):
        total = added(total, sent.rows)
        assert total == expected[number], f"step {number}"


@CHECKED
@given(hows, ons, st.data())
def test_a_join_of_tables_as_of_a_time(how: str, on: Any, data: st.DataObject) -> None:
    """Goal: as of any time, the join is that of the tables then. Method: rows that are there once, in order of time."""
    moments, sides = iter(range(10_000)), []
    for rows in (left_rows, right_rows):
        there: list[Any] = []
        bundles: list[list[Any]] = [[] for _ in range(4)]
        for bundle in bundles:
            for _ in range(data.draw(st.integers(0, 4))):
                row = data.draw(rows)
                bundle.append((row, -1 if row in there else 1))
                there = [other for other in there if other != row] if row in there else [*there, row]
        sides.append(bundles)
    made: list[list[list[Change]]] = [[], []]
    for number in range(4):
        order = data.draw(st.permutations([0] * len(sides[0][number]) + [1] * len(sides[1][number])))
        left_over = [iter(sides[0][number]), iter(sides[1][number])]
        made[0].append([])
        made[1].append([])
        for side in order:
            row, weight = next(left_over[side])
            made[side][-1].append((row, next(moments), weight))
    last = next(moments)
    *inputs, joined = nodes(on, how)
    expected = joined_anew(*made, on, how, [(time, 99, time) for time in range(last)])
    sent = [row for (step,) in stepped(inputs, [joined], list(zip(*made, strict=True))) for row in step.rows]
    for time in range(last):
        assert added(Counter(), [row for row in sent if row.time is not None and row.time <= time]) == expected[time]


# ---------------------------------------------------------------- a stream and a table

streams = st.lists(st.lists(st.tuples(left_rows, times, st.just(1)), max_size=4), min_size=4, max_size=4)
watermarks = st.lists(st.integers(0, 6), min_size=4, max_size=4)


def looked_up(
    stream: list[tuple[int, int, Change]], right: list[list[Change]], on: Any, how: str
) -> list[Counter[Any]]:
    """What is sent in each step, given for each row when it is sent and as of when the table is asked."""
    rows = [
        (place, step, time, values_weight[2], *values_weight[0].values())
        for place, (step, time, values_weight) in enumerate(stream)
    ]
    tables_of(l=("nbtwkma", rows), changes=("btwkmjc", rows_of(right, "kmjc")))
    equal = " AND ".join(f"l.{one} = x.{other}" for one, other in pairs_of(on))
    held = (
        "SELECT l.n, x.k, x.m, x.j, x.c, sum(x.w) AS w FROM l JOIN changes x ON x.b <= l.b AND x.t <= l.t "
        f"AND {equal} GROUP BY ALL HAVING sum(x.w) > 0"
    )
    weight = "l.w" if how in ("semi", "anti") else "l.w * coalesce(r.w, 1)"
    shared = given_columns(on, how)
    made = db.execute(f"WITH r AS ({held}) SELECT l.b, {weight}, {', '.join(shared)} FROM l {how} JOIN r USING (n)")
    found: list[Counter[Any]] = [Counter() for _ in range(len(right))]
    for step, weighed, *values in made.fetchall():
        found[step][tuple(values)] += int(weighed)
    return found


@CHECKED
@given(lookups, ons, streams, changes(right_rows))
def test_a_stream_and_a_table_as_it_is_now(
    how: str, on: Any, stream: list[list[Change]], right: list[list[Change]]
) -> None:
    *inputs, joined = nodes(on, how, "now")
    asked = [(number, END, row) for number, bundle in enumerate(stream) for row in bundle]
    expected = looked_up(asked, right, on, how)
    for number, (sent,) in enumerate(stepped(inputs, [joined], list(zip(stream, right, strict=True)))):
        assert added(Counter(), sent.rows) == expected[number], f"step {number}"


@CHECKED
@given(lookups, ons, streams, changes(right_rows), watermarks, st.booleans())
def test_a_stream_and_a_table_as_it_was(
    how: str, on: Any, stream: list[list[Change]], right: list[list[Change]], moves: list[int], ends: bool
) -> None:
    *inputs, joined = nodes(on, how, "event_time")
    marks = [sum(moves[: number + 1]) - 2 for number in range(len(moves))]
    marks[-1] = END if ends else marks[-1]
    asked, lost = [], Counter[Any]()
    for number, bundle in enumerate(stream):
        before = marks[number - 1] if number else BEGINNING
        for values, time, weight in bundle:
            if time is None or time < before:
                lost[number, time, values["k"], values["m"], values["a"]] += 1
            elif (step := next((place for place in range(number, 4) if marks[place] > time), None)) is not None:
                asked.append((step, time, (values, time, weight)))
    expected = looked_up(asked, right, on, how)
    columns = late_columns(joined)
    assert columns is not None
    observed = [joined, Late("late", Schema.from_arrow(columns), (joined,), None)]
    steps = stepped(inputs, observed, list(zip(stream, right, strict=True)), marks)
    for number, (sent, too_late) in enumerate(steps):
        assert added(Counter(), sent.rows) == expected[number], f"step {number}"
        for row in too_late.rows:
            said = row.values
            assert (said["side"], said["reason"]) == ("left", "no event time" if row.time is None else "expired")
            assert {said["c"], said.get("j")} == {None}
            lost[number, row.time, said["k"], said["m"], said["a"]] -= 1
    assert not any(lost.values())
