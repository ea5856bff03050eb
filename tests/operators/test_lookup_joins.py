"""A stream joined with a table, as it is now or as it was, and with static rows, gives what DuckDB gives."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.plan.flow import Flow
from millstream.plan.nodes import Late
from millstream.plan.table_nodes import SideJoin
from millstream.plan.time.bundles import BEGINNING, END
from millstream.plan.time.late import late_columns
from millstream.records import Schema

from .matched_joins import with_matching
from .table_join_scripts import (
    CHECKED,
    CONDITIONS,
    FEWER,
    LEFT,
    RIGHT,
    Change,
    added,
    changes,
    conditions,
    db,
    given_columns,
    left_rows,
    lookups,
    matched,
    nodes,
    ons,
    pairs_of,
    right_rows,
    rows_of,
    stepped,
    streams,
    tables_of,
    watermarks,
)

# ---------------------------------------------------------------- a stream and a table


def looked_up(
    stream: list[tuple[int, int, Change]], right: list[list[Change]], on: Any, how: str, condition: str | None
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
        f"AND {equal} AND ({CONDITIONS[condition].replace('r.', 'x.')}) GROUP BY ALL HAVING sum(x.w) > 0"
    )
    weight = "l.w" if how in ("semi", "anti") else "l.w * coalesce(r.w, 1)"
    shared = given_columns(on, how)
    made = db.execute(f"WITH r AS ({held}) SELECT l.b, {weight}, {', '.join(shared)} FROM l {how} JOIN r USING (n)")
    found: list[Counter[Any]] = [Counter() for _ in range(len(right))]
    for step, weighed, *values in made.fetchall():
        found[step][tuple(values)] += int(weighed)
    return found


@CHECKED
@given(lookups, ons, conditions, streams, changes(right_rows))
def test_a_stream_and_a_table_as_it_is_now(
    how: str, on: Any, condition: str | None, stream: list[list[Change]], right: list[list[Change]]
) -> None:
    *inputs, joined = nodes(on, how, "now", condition)
    asked = [(number, END, row) for number, bundle in enumerate(stream) for row in bundle]
    expected = looked_up(asked, right, on, how, condition)
    for number, (sent,) in enumerate(stepped(inputs, [joined], list(zip(stream, right, strict=True)))):
        assert added(Counter(), sent.rows) == expected[number], f"step {number}"


@CHECKED
@given(lookups, ons, conditions, streams, changes(right_rows), watermarks, st.booleans())
def test_a_stream_and_a_table_as_it_was(
    how: str,
    on: Any,
    condition: str | None,
    stream: list[list[Change]],
    right: list[list[Change]],
    moves: list[int],
    ends: bool,
) -> None:
    *inputs, joined = nodes(on, how, "event_time", condition)
    marks = [sum(moves[: number + 1]) - 2 for number in range(len(moves))]
    marks[-1] = END if ends else marks[-1]
    asked, lost = [], Counter[Any]()
    for number, bundle in enumerate(stream):
        before = marks[number - 1] if number else BEGINNING
        for values, time, weight in bundle:
            if time is None or time < before:
                lost[number, time, values["k"], values["m"], values["a"]] += 1
            elif (
                step := next((place for place in range(number, len(marks)) if marks[place] > time), None)
            ) is not None:
                asked.append((step, time, (values, time, weight)))
    expected = looked_up(asked, right, on, how, condition)
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


@FEWER
@given(
    st.sampled_from([None, "now", "event_time"]),
    lookups,
    ons,
    conditions,
    streams,
    changes(left_rows),
    changes(right_rows),
    watermarks,
)
def test_state_as_spark_keeps_it(
    as_of: str | None,
    how: str,
    on: Any,
    condition: str | None,
    stream: list[list[Change]],
    left: list[list[Change]],
    right: list[list[Change]],
    moves: list[int],
) -> None:
    marks = [sum(moves[: number + 1]) - 2 for number in range(len(moves))]
    *inputs, joined = nodes(on, "full" if how == "left" and not as_of else how, as_of, condition)
    with tempfile.TemporaryDirectory() as folder:
        bundles = list(zip(stream if as_of else left, right, strict=True))
        assert len(list(stepped(inputs, [joined], bundles, marks, Path(folder)))) == len(bundles)


# ---------------------------------------------------------------- a stream and static rows


@CHECKED
@given(lookups, ons, conditions, st.lists(left_rows, max_size=6), st.lists(right_rows, max_size=6))
def test_a_stream_and_static_rows(how: str, on: Any, condition: str | None, rows: list[Any], side: list[Any]) -> None:
    flow = Flow("f")
    stream = flow.read("left", LEFT)
    table = flow.table(side, RIGHT)
    joined = stream.join(table, on=on, how=how, condition=condition).node
    matched[joined] = with_matching(flow, joined, stream.join(table, on=on).node)
    total: Counter[Any] = Counter()
    bundles = [[(row, number, 1) for row in part] for number, part in enumerate((rows[:2], rows[2:]))]
    for (sent,) in stepped([stream.node], [joined], [[bundle] for bundle in bundles]):
        total = added(total, sent.rows)
        assert {row.time for row in sent.rows} <= {0, 1}
    asked: list[Any] = [(0, END, (row, 0, 1)) for row in rows]
    static: list[Change] = [(row, None, 1) for row in side]
    (expected,) = looked_up(asked, [static], on, how, condition)
    assert total == expected


def test_static_rows_travel_with_the_step() -> None:
    flow = Flow("f")
    joined = flow.read("left", LEFT).join(flow.table([{"k": 1, "c": "p"}], "k int, c string"), on="k").node
    assert isinstance(joined, SideJoin)
    frame = elementwise.frame_of([{"k": 1, "m": "x", "a": 2, TIME: 5, WEIGHT: -1}], joined.inputs[0])
    frame = frame.with_columns(pl.lit(9, pl.Int64).alias(elementwise.OFFSET))
    node = pickle.loads(pickle.dumps(joined))
    for each in (joined, joined, node):
        made = elementwise.row_by_row(each, frame, now=0)
        assert made.rows() == [(1, "x", 2, "p", 5, -1, 9)]
        assert made.columns == ["k", "m", "a", "c", TIME, WEIGHT, elementwise.OFFSET]
