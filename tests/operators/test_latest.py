"""The latest row of each key is what DuckDB finds among all rows that came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local
from millstream.plan.time.bundles import END, Bundle
from millstream.reference.tables import frozen

from .table_scripts import CHECKED, FEWER, NOW, ROW, Plan, bundles, held, rows_of

LATEST = {
    "by values": (Plan(lambda s: s.to_table(key="k")), "id is null and v is null and tags is null"),
    "by condition": (Plan(lambda s: s.to_table(key="k", deleted="v = 0")), "coalesce(v = 0, false)"),
    "by two keys": (Plan(lambda s: s.to_table(key=("k", "v"), deleted="tags is null")), "tags is null"),
}
LATEST_BY_ARRIVAL = Plan(lambda s: s.to_table(key="k", deleted="v = 0"), timed=False)


@CHECKED
@given(st.sampled_from(sorted(LATEST)), bundles, st.integers(0, 12))
def test_latest_is_the_newest_row_of_each_key_at_any_time(kind: str, script: list[Any], then: int) -> None:
    plan, deleted = LATEST[kind]
    keys = "k, v" if kind == "by two keys" else "k"
    seen = plan.played(script, ids=kind == "by condition")
    seen.mark_late()
    found: Counter[Any] = Counter()
    for step, rows in enumerate(seen.sent):
        for row in rows:
            assert row.time is not None
            for later in range(step, len(seen.sent)):
                for moment in (then, NOW) if row.time <= then else (NOW,):
                    found[later, moment, *frozen([row.values[name] for name in ROW])] += row.weight
    # A deletion without event time has that of the newest row before it.
    # Rows that came too late are older than what is known: to the table as it is now they make no difference.
    before = f"(partition by step, {keys} order by n rows between unbounded preceding and 1 preceding)"
    sql = f"""
        , timed as (
            select * replace (if(t is null and ({deleted}), max(t) over before, t) as t)
            from came window before as {before}
        )
        select step, moment, id, k, v, tags from (
            select * from timed join (select unnest([{then}, {NOW}]) as moment) on t <= moment
            where not late or moment = {NOW}
            qualify row_number() over (partition by step, moment, {keys} order by t desc, n desc) = 1
        ) where not ({deleted})"""
    assert {key: n for key, n in found.items() if n} == Counter(map(frozen, seen.query(sql)))


FORGETFUL = {
    span: Plan(
        lambda s, span=span: s.to_table(key="k", deleted="v = 0", forget_deleted_after=timedelta(microseconds=span))
    )
    for span in (0, 2)
}


@CHECKED
@given(st.sampled_from(sorted(FORGETFUL)), bundles)
def test_deletions_are_forgotten_at_the_same_time_by_both_runners(span: int, script: list[Any]) -> None:
    FORGETFUL[span].played(script)


def values_of(build: Callable[[Any], Any], schema: str, source: Any = "rows", event_time: str | None = None) -> Any:
    return build(ms.Flow("values").read(source, schema, event_time)).to_table("k").node.values


def test_a_tombstone_is_known_by_the_values_of_a_row() -> None:
    """Neither the event time is one, by whatever name, nor what a topic knows of each record."""
    schema = "k string, v int, at timestamp, timestamp timestamp, partition int, offset bigint, topic string"

    def select(stream: Any) -> Any:
        return stream.select("k", "v", seen="at", later="at + interval 1 day", place="offset", twice="offset * 2")

    assert values_of(lambda s: s, schema) == ("v", "at")
    assert values_of(lambda s: s, schema, event_time="at") == ("v",)
    assert values_of(lambda s: s, schema, ms.files("x", format="json")) == tuple(schema_names(schema))[1:]
    assert values_of(lambda s: s, "k string, timestamp bigint, offset string, topic int") == (
        "timestamp",
        "offset",
        "topic",
    )
    assert values_of(select, schema, event_time="at") == ("v", "later", "twice")
    assert values_of(select, schema) == ("v", "seen", "later", "twice")
    assert values_of(lambda s: select(s).union(select(s)), schema, event_time="at") == ("v", "later", "twice")
    joined = values_of(
        lambda s: select(s).join(select(s), on="k", within=("0 seconds", "1 hour")), schema, event_time="at"
    )
    assert joined == ("v", "later", "twice", "v_right", "later_right", "twice_right")


def schema_names(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


@FEWER
@given(bundles)
def test_latest_by_arrival_is_the_last_row_of_each_key(script: list[Any]) -> None:
    sql = """
        select step, k, v, tags from (
            select * from came qualify row_number() over (partition by step, k order by n desc) = 1
        ) where v is distinct from 0"""
    LATEST_BY_ARRIVAL.played(script).expect(sql, "k", "v", "tags")


def test_latest_keeps_one_version_before_the_watermark() -> None:
    plan, _ = LATEST["by values"]
    local = Local([plan.node])
    local.step({plan.read: Bundle(rows_of(("a", 1), ("a", 3), ("a", 5), ("b", 2)), 0, 0, 0, 0)})
    assert held(local, plan.node) == {"versions": 4}
    local.step({plan.read: Bundle([], 0, 5, 0, 0)})  # no row comes for "a", and what it needs no more still goes
    assert held(local, plan.node) == {"versions": 3}
    local.step({plan.read: Bundle([], 5, END, 0, 0)})
    assert held(local, plan.node) == {"versions": 2}
