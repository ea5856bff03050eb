"""The first rows of each group, with and without ties, are those that DuckDB finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.local import Local
from millstream.plan.time.bundles import Bundle, Row

from .table_scripts import CHECKED, Plan, held, rows_of, with_rows_back

TOPS = [(2, "k", ("v desc",)), (3, "", ("v % 2", "v desc")), (1, "k", ("k desc", "v")), (2, "", ("v / 2 - v / 2",))]


def top(number: int, *, changes: bool, rank: bool, ties: bool = False) -> Plan:
    count, key, by = TOPS[number]
    place = "place" if rank else None
    return Plan(lambda stream: stream.top(count, by=by, per=key or (), rank=place, ties=ties), changes=changes)


TOP = {
    (changes, number, rank): top(number, changes=changes, rank=rank)
    for changes in (False, True)
    for number in range(len(TOPS))
    for rank in (False, True)
}
TIES = {which: top(which[1], changes=which[0], rank=which[2], ties=True) for which in TOP}


def check_top(plan: Plan, which: tuple[bool, int, bool], script: list[Any], place_by: str, more: Sequence[str]) -> None:
    """What was sent adds up to the rows that SQL gives the first places, by a function and an order of its own."""
    changes, number, rank = which
    count, key, by = TOPS[number]
    order = ", ".join(f"{part} nulls last" for part in (*by, *more))
    per = f"step, {key}" if key else "step"
    place = ["place"] if rank else []
    if not changes:
        script = [([event for event in events if not isinstance(event, int)], move) for events, move in script]
    sql = f"""
        , there as (select step, k, v, tags, sum(w)::bigint as w from came group by all having sum(w) > 0),
        singly as (select step, k, v, tags, unnest(range(w)) from there)
        select {", ".join(["step", "k", "v", "tags", *place])} from (
            select *, {place_by} over (partition by {per} order by {order}) as place from singly
        ) where place <= {count}"""
    seen = plan.played(script)
    seen.expect(sql, "k", "v", "tags", *place)
    assert all(abs(row.weight) == 1 for rows in seen.sent for row in rows)


@CHECKED
@given(st.sampled_from(sorted(TOP)), with_rows_back)
def test_top_is_the_first_rows_of_each_group(which: tuple[bool, int, bool], script: list[Any]) -> None:
    check_top(TOP[which], which, script, "row_number()", ["k", "v", "tags"])


@CHECKED
@given(st.sampled_from(sorted(TIES)), with_rows_back)
def test_top_with_ties_is_the_rows_of_the_first_ranks(which: tuple[bool, int, bool], script: list[Any]) -> None:
    check_top(TIES[which], which, script, "rank()", [])


def test_top_keeps_only_the_rows_it_shows_unless_they_may_be_retracted() -> None:
    rows = rows_of(*(("a", time) for time in range(9)))
    for changes, kept in ((False, 2), (True, 9)):
        plan = TOP[changes, 0, False]
        local = Local([plan.node])
        local.step({plan.read: Bundle(rows, 0, 0, 0, 0)})
        assert held(local, plan.node) == {"rows": kept, "groups": 1}


def test_top_with_ties_holds_the_rows_of_its_ranks() -> None:
    rows = rows_of(*(("a", time // 3) for time in range(9)))
    plan = TIES[False, 0, False]
    local = Local([plan.node])
    ids = [Row({**row.values, "id": number}, row.time) for number, row in enumerate(rows)]
    local.step({plan.read: Bundle(ids, 0, 0, 0, 0)})
    assert held(local, plan.node) == {"rows": 3, "groups": 1}


def test_a_group_without_rows_is_forgotten_when_its_time_has_passed() -> None:
    plan = TOP[True, 0, False]
    local = Local([plan.node])
    (row,) = rows_of(("a", 7))
    local.step({plan.read: Bundle([row, Row(row.values, 7, -1)], 0, 0, 0, 0)})
    assert held(local, plan.node) == {"rows": 0, "groups": 1}
    local.step({plan.read: Bundle([], 0, 7, 0, 0)})
    assert held(local, plan.node) == {"rows": 0, "groups": 0}
