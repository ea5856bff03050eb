"""Two tables joined give what DuckDB gives, after each bundle and at any earlier time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.plan.flow import Flow
from millstream.plan.table_nodes import LookupJoin
from millstream.plan.time.bundles import BEGINNING, END, Row
from properties import examples

from .table_join_scripts import (
    CHECKED,
    LEFT,
    RIGHT,
    Change,
    added,
    changes,
    conditions,
    hows,
    join_by_duckdb,
    left_rows,
    nodes,
    ons,
    right_rows,
    stepped,
    watermarks,
)


@CHECKED
@given(
    hows,
    ons,
    conditions,
    changes(left_rows),
    changes(right_rows),
    watermarks,
    st.lists(st.integers(0, 16), max_size=3),
)
def test_a_join_of_tables(
    how: str,
    on: Any,
    condition: str | None,
    left: list[list[Change]],
    right: list[list[Change]],
    moves: list[int],
    later: list[int],
) -> None:
    """Goal: after every bundle, what was sent is the join of the tables, now and as of any time since the watermark."""
    *inputs, joined = nodes(on, how, condition=condition)
    marks = [sum(moves[: number + 1]) - 2 for number in range(len(moves))]
    asked = [(number, after) for number in range(len(left)) for after in (*later, END)]
    points = [
        (place, number, min(END, after + (marks[number - 1] if number else -4)))
        for place, (number, after) in enumerate(asked)
    ]
    expected = join_by_duckdb(left, right, on, how, condition, points)
    sent: list[Row] = []
    for number, (step,) in enumerate(stepped(inputs, [joined], list(zip(left, right, strict=True)), marks)):
        sent += step.rows
        for place, bundle, time in points:
            if bundle == number:
                assert added(Counter(), as_of(sent, time)) == expected[place], f"step {number} as of {time}"


def as_of(rows: Sequence[Row], time: int) -> list[Row]:
    return [row for row in rows if row.time is None or row.time <= time]


@examples(50)
@given(hows, ons, changes(left_rows), changes(right_rows), st.data())
def test_lookups_in_a_join_of_tables_do_not_depend_on_the_order_of_arrival(
    how: str, on: Any, left: list[list[Change]], right: list[list[Change]], data: st.DataObject
) -> None:
    flow = Flow("f")
    asking = flow.read("asking", "k int, asked int")
    tables = [flow.read(name, said, changes=True) for name, said in (("left", LEFT), ("right", RIGHT))]
    table = tables[0].to_table("k").join(tables[1].to_table("k"), on=on, how=how)
    joined = asking.join(table, on="k", how="left", as_of="now").node
    assert isinstance(joined, LookupJoin)
    joined = replace(joined, at_event_time=True)
    inputs = [asking.node, *(table.node for table in tables)]
    questions = [({"k": key, "asked": time}, time, 1) for key in (1, 2) for time in range(-4, 14)]
    came = [(side, change) for side, bundles in enumerate((left, right)) for bundle in bundles for change in bundle]
    totals = []
    for order in (came, data.draw(st.permutations(came))):
        cut = data.draw(st.integers(0, len(order)))
        bundles = [
            [questions if number == 0 else [], *([change for of, change in part if of == side] for side in (0, 1))]
            for number, part in enumerate((order[:cut], order[cut:], []))
        ]
        total: Counter[Any] = Counter()
        for (sent,) in stepped(inputs, [joined], bundles, [BEGINNING, BEGINNING, END]):
            total = added(total, sent.rows)
        totals.append(total)
    assert totals[0] == totals[1]
    assert len({values[:2] for values in totals[0]}) == len(questions)
