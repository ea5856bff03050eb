"""A table of all rows of a stream, and what is made of it, is what SQL makes of a bag of rows.

Goal: a table without a key can do whatever tables can, whether or not its rows are taken back. Method: random bundles
go through the columnar steps and through the reference, which must send the same; what was sent adds up to what DuckDB
makes of all rows so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local
from millstream.plan.table_nodes import AllRows
from millstream.plan.time.bundles import Bundle, Row
from millstream.reference.tables import frozen
from properties import examples

from .table_scripts import Plan, Seen, with_rows_back

THEN = datetime(1970, 1, 1, microsecond=5, tzinfo=UTC)
THERE = ", there as (select step, k, v, tags, sum(w)::bigint as w from came group by all having sum(w) <> 0)"
SIDES = "there as one {} join there as two on one.step = two.step and one.v = two.v"
PLACED = "row_number() over (partition by step, k order by v desc nulls last, tags nulls last)"


def with_itself(table: Any, how: str) -> Any:
    """Rows with those of the same stream that have this `v`, which is no key: they are many to many."""
    other = table.select("tags", j="v", who="k")
    return table.select("k", "v").join(other, on={"v": "j"}, how=how)


# What is made of the table; its columns; and from `there`, what they are with how often.
MADE: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "rows": (lambda table: table, "k v tags", "select step, k, v, tags, w from there"),
    "some rows": (lambda table: table.where("v > 1").select("k"), "k", "select step, k, w from there where v > 1"),
    "as of": (
        lambda table: table.as_of(THEN),
        "k v tags",
        "select step, k, v, tags, sum(w) from came where coalesce(t <= 5, true) group by all",
    ),
    "changes": (lambda table: table.changes(), "k v tags weight", "select step, k, v, tags, w, 1 from came"),
    "groups": (
        lambda table: table.group_by("k").agg(n=ms.count(), total=ms.sum("v"), most=ms.max("v")),
        "k n total most",
        "select step, k, sum(w), sum(v * w), max(v), 1 from there group by step, k",
    ),
    "distinct": (
        lambda table: table.distinct("k", "v").select("k", "v"),
        "k v",
        "select distinct step, k, v, 1 from there",
    ),
    "top": (
        lambda table: table.select("k", "v", "tags").top(2, by="v desc", per="k"),
        "k v tags",
        f"""select step, k, v, tags, 1 from (select *, {PLACED} as place from (
            select step, k, v, tags, unnest(range(w)) from there)) where place <= 2""",
    ),
    "union": (
        lambda table: table.union(table.where("v > 1")),
        "k v tags",
        "select step, k, v, tags, w * if(v > 1, 2, 1) from there",
    ),
    "join": (
        lambda table: with_itself(table, "inner"),
        "k v who tags",
        f"select one.step, one.k, one.v, two.k, two.tags, one.w * two.w from {SIDES.format('')}",
    ),
    "left join": (
        lambda table: with_itself(table, "left"),
        "k v who tags",
        f"select one.step, one.k, one.v, two.k, two.tags, one.w * coalesce(two.w, 1) from {SIDES.format('left')}",
    ),
    "anti join": (
        lambda table: table.select("k", "v").join(table.where("tags is null").select(j="v"), on={"v": "j"}, how="anti"),
        "k v",
        """select step, k, v, w from there as one where not exists (
            from there as two where two.step = one.step and two.v = one.v and two.tags is null)""",
    ),
}
PLANS = {
    (made, changes): Plan(lambda stream, build=build: build(stream.to_table()), changes=changes)  # type: ignore[misc]
    for made, (build, _, _) in MADE.items()
    for changes in (False, True)
}


def only_new(script: list[Any]) -> list[Any]:
    """The script without rows that are taken back."""
    return [([event for event in events if not isinstance(event, int)], move) for events, move in script]


def added_up(seen: Seen, columns: list[str]) -> dict[Any, int]:
    """After each step, how often each row is there."""
    found: Counter[Any] = Counter()
    for step, rows in enumerate(seen.sent):
        for row in rows:
            for later in range(step, len(seen.sent)):
                found[later, *frozen([row.values[name] for name in columns])] += row.weight
    return {key: n for key, n in found.items() if n}


@examples(250)
@given(st.sampled_from(sorted(PLANS)), with_rows_back)
def test_what_is_made_of_all_rows_is_what_sql_makes_of_them(which: tuple[str, bool], script: list[Any]) -> None:
    made, changes = which
    _, columns, sql = MADE[made]
    seen = PLANS[which].played(script if changes else only_new(script))
    expected: Counter[Any] = Counter()
    for *values, n in seen.query(f"{THERE} {sql}"):
        expected[frozen(values)] += n
    assert added_up(seen, columns.split()) == {key: n for key, n in expected.items() if n}


@pytest.mark.parametrize("changes", [False, True])
def test_nothing_is_held_of_all_rows(changes: bool) -> None:
    """Goal: a row costs nothing once it has passed. Method: no state is kept, and what comes in goes out."""
    rows = ms.Flow("f").read("rows", "k int", changes=changes)
    table = rows.to_table()
    assert isinstance(table.node, AllRows)
    local = Local([table.node])
    assert local._states == {}
    came = [Row({"k": k}, time, 1) for k, time in [(1, 5), (1, 5), (2, None)]]
    (sent,) = (
        bundle for node, bundle in local.step({rows.node: Bundle(came, 0, 9, 0, 0)}).items() if node is table.node
    )
    assert sent.rows == came
    assert sent.watermark == 9
