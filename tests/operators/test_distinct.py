"""Distinct rows, of a stream, within a time and of a table, are those that DuckDB finds."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.local import Local
from millstream.operators.clock import Clock
from millstream.operators.stateful import INPUTS, LATE, SENT
from millstream.operators.tables import distinct
from millstream.operators.tables.distinct import DistinctStep
from millstream.plan.time.bundles import BEGINNING, Bundle

from .table_scripts import CHECKED, FEWER, Plan, bundles, held, rows_of, with_rows_back

DISTINCT = Plan(lambda s: s.distinct("k", "v"))
DISTINCT_OF_TABLE = Plan(lambda s: s.distinct("k"), changes=True)
DISTINCT_ROWS_OF_TABLE = Plan(lambda s: s.select("k", "v").distinct(), changes=True)


def within(micros: int) -> Plan:
    return Plan(lambda stream: stream.distinct("k", within=timedelta(microseconds=micros)))


WITHIN = {micros: within(micros) for micros in (1, 3, 5)}


@CHECKED
@given(bundles)
def test_distinct_sends_the_first_row_of_each_key(script: list[Any]) -> None:
    sql = "select step, id from came qualify row_number() over (partition by step, k, v order by n) = 1"
    DISTINCT.played(script, ids=True).expect(sql, "id")


@CHECKED
@given(st.sampled_from(sorted(WITHIN)), bundles)
def test_distinct_within_a_time_emits_rows_that_differ_from_earlier_ones(span: int, script: list[Any]) -> None:
    """Which rows are sent is said by two rules, in order of arrival: so SQL may use those sent to check each."""
    seen = WITHIN[span].played(script, ids=True)
    sent = [row.values["id"] for rows in seen.sent for row in rows]
    like = f"sent.k is not distinct from row.k and abs(sent.t - row.t) < {span}"
    sql = f"""
        , sent as (from rows where id in {[-1, *sent]})
        select step, id from came as row where t >= watermark
        and not exists (from sent where sent.n < row.n and {like})"""
    seen.expect(sql, "id")
    late = "select id, if(t is null, 'no event time', 'expired') from rows where t is null or t < watermark"
    assert Counter((row.values["id"], row.values["reason"]) for row in seen.late) == Counter(seen.query(late))


@CHECKED
@given(with_rows_back)
def test_distinct_of_a_table_is_its_smallest_row_of_each_key(script: list[Any]) -> None:
    sql = """
        select step, k, v, tags from came group by step, k, v, tags having sum(w) > 0
        qualify row_number() over (partition by step, k order by v nulls last, tags nulls last) = 1"""
    DISTINCT_OF_TABLE.played(script).expect(sql, "k", "v", "tags")


@FEWER
@given(with_rows_back)
def test_distinct_of_all_columns_of_a_table(script: list[Any]) -> None:
    sql = "select step, k, v from came group by all having sum(w) > 0"
    DISTINCT_ROWS_OF_TABLE.played(script).expect(sql, "k", "v")


@CHECKED
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), min_size=12, max_size=24),
    st.integers(1, 9),
    st.integers(0, 2),
)
def test_distinct_within_is_the_same_in_rounds_and_row_by_row(rows: list[Any], span: int, rounds: int) -> None:
    """Goal: rows of many spans in one step, as when old data is read. Method: fewer rounds than the rows need."""
    step = DistinctStep(within(span).node)
    came = pl.DataFrame(
        {"id": range(len(rows)), "k": [str(k) for k, _ in rows], "__time": [time for _, time in rows]},
        schema={"id": pl.Int32, "k": pl.String, "__time": pl.Int64},
    ).with_columns(
        v=pl.lit(None, pl.Int32),
        tags=pl.lit(None, pl.List(pl.Int32)),
        at=pl.lit(None, pl.Datetime("us", "UTC")),
        __weight=pl.lit(1, pl.Int32),
    )
    clock = Clock(BEGINNING, BEGINNING, 0, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "ROUNDS", rounds)
        _, made = step.step(step.tables(), {INPUTS[0]: step.fed(came, 0)}, clock)
    sent: list[tuple[int, int]] = []
    expected = []
    for number, (k, time) in enumerate(rows):
        if not any(k == other and abs(time - then) < span for other, then in sent):
            sent.append((k, time))
            expected.append(number)
    assert made[SENT]["id"].to_list() == expected
    assert made[LATE].is_empty()


def test_distinct_within_forgets_rows_that_can_have_no_more_duplicates() -> None:
    plan = WITHIN[3]
    local = Local([plan.node])
    local.step({plan.read: Bundle(rows_of(("a", 1), ("a", 4), ("b", 2)), 0, 0, 0, 0)})
    assert held(local, plan.node) == {"keys": 3}
    local.step({plan.read: Bundle([], 0, 5, 0, 0)})
    assert held(local, plan.node) == {"keys": 1}
