"""Tables and streams made of one input are what SQL makes of all rows so far, after every bundle.

Goal: latest, distinct, take and top are right whatever comes, in whatever order. Method: random bundles go through the
columnar step and through the reference, which must send the same; what was sent adds up to what DuckDB computes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local
from millstream.operators import distinct
from millstream.operators.distinct import DistinctStep
from millstream.operators.stateful import INPUTS, LATE, SENT
from millstream.operators.windowed import Clock
from millstream.plan.bundles import BEGINNING, END, Bundle, Row
from millstream.plan.nodes import Node
from millstream.reference import Reference
from millstream.reference.tables import frozen

EXAMPLES = 20_000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 500
CHECKED = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
FEWER = settings(CHECKED, max_examples=EXAMPLES // 5)

SCHEMA = "id int, k string, v int, tags array<int>, at timestamp"
ARROW = pa.schema(
    {
        "n": pa.int64(),
        "id": pa.int32(),
        "k": pa.string(),
        "v": pa.int32(),
        "tags": pa.list_(pa.int32()),
        "t": pa.int64(),
        "w": pa.int64(),
        "watermark": pa.int64(),
        "late": pa.bool_(),
    }
)
ROW = ("id", "k", "v", "tags")
NOW = 1_000
duck = duckdb.connect(config={"threads": 1})

# ---------------------------------------------------------------- what comes

values = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "a", "b", None]),
        "v": st.sampled_from([None, 0, 1, 2, 3]),
        "tags": st.sampled_from([None, [], [1], [1, 2]]),
    }
)
times = st.sampled_from([*range(12), *range(12), None])
added = st.tuples(values, times)
moves = st.sampled_from([0, 0, 2, 5])
bundles = st.lists(st.tuples(st.lists(added, max_size=5), moves), min_size=1, max_size=4)
with_rows_back = st.lists(
    st.tuples(st.lists(st.one_of(added, added, st.integers(0, 9)), max_size=5), moves), min_size=1, max_size=4
)
"""A number takes back one of the rows that are there."""


@dataclass
class Seen:
    """All rows that came, and all that was sent for them."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    sent: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """What SQL makes of the rows that came."""
        came = pa.Table.from_pylist(self.rows, schema=ARROW)
        duck.register("came", came)
        return duck.execute(sql).fetchall()

    def mark_late(self) -> None:
        """Says of each row whether it was late. Of equal rows it is the last: what is late once stays so."""
        late = Counter((frozen([row.values[name] for name in ROW]), row.time) for row in self.late)
        for row in reversed(self.rows):
            same = frozen([row[name] for name in ROW]), row["t"]
            row["late"] = late[same] > 0
            late[same] -= 1

    def expect(self, sql: str, *columns: str) -> None:
        """What was sent adds up to what SQL says is there."""
        found: Counter[Any] = Counter()
        for row in self.sent:
            found[frozen([row.values[name] for name in columns])] += row.weight
        assert {key: n for key, n in found.items() if n} == Counter(map(frozen, self.query(sql)))


class Plan:
    """A step between a source and nothing, built once and run often."""

    def __init__(self, build: Callable[[Any], Any], *, changes: bool = False, timed: bool = True) -> None:
        flow = ms.Flow("tables")
        stream = flow.read("rows", SCHEMA, "at" if timed else None, changes=changes)
        made = build(stream)
        self.read, self.node, self.changes, self.timed = stream.node, made.node, changes, timed
        self.late: Node | None = made.late.node if made.node.keys and _has_late(made) else None

    def played(self, script: list[Any], *, ids: bool = False) -> Iterator[Seen]:
        """Feeds both runners bundle by bundle, and gives all that was seen after each.

        The column of the event time stays empty, so that rows at different times can be equal.
        """
        observed = [self.node] if self.late is None else [self.node, self.late]
        local, reference = Local(observed), Reference(observed)
        seen, present, watermark = Seen(), list[dict[str, Any]](), 0
        for events, move in script:
            rows: list[Row] = []
            for event in events:
                weight = 1
                if isinstance(event, int):
                    if not present:
                        continue
                    row, time, weight = present.pop(event % len(present)), event, -1
                else:
                    row, time = event
                    present.append(row)
                number = len(seen.rows)
                row = {"id": number if ids else None, "k": row["k"], "v": row["v"], "tags": row["tags"], "at": None}
                time = time if self.timed else None
                rows.append(Row(row, time, weight))
                seen.rows.append({**row, "n": number, "t": time, "w": weight, "watermark": watermark, "late": False})
            bundle = Bundle(rows, watermark, watermark + move, 0, 0)
            watermark += move
            here, there = local.step({self.read: bundle}), reference.step({self.read: bundle})
            for node in observed:
                assert counted(here[node].rows) == counted(there[node].rows)
            seen.sent += here[self.node].rows
            if self.late is not None:
                seen.late += here[self.late].rows
            yield seen


def _has_late(made: Any) -> bool:
    return getattr(made.node, "by_time", False) or getattr(made.node, "within", None) is not None


def counted(rows: list[Row]) -> Counter[Any]:
    return Counter(
        (frozen({name: row.values[name] for name in sorted(row.values)}), row.time, row.weight) for row in rows
    )


# ---------------------------------------------------------------- latest

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
    for seen in plan.played(script, ids=kind == "by condition"):
        seen.mark_late()
        found: Counter[Any] = Counter()
        for row in seen.sent:
            for moment in (then, NOW):
                if row.time <= moment:
                    found[moment, *frozen([row.values[name] for name in ROW])] += row.weight
        # Rows that came too late are older than what is known: to the table as it is now they make no difference.
        sql = f"""
            select moment, id, k, v, tags from (
                select * from came join (select unnest([{then}, {NOW}]) as moment) on t <= moment
                where not late or moment = {NOW}
                qualify row_number() over (partition by moment, {keys} order by t desc, n desc) = 1
            ) where not ({deleted})"""
        assert {key: n for key, n in found.items() if n} == Counter(map(frozen, seen.query(sql)))


@FEWER
@given(bundles)
def test_latest_by_arrival_is_the_last_row_of_each_key(script: list[Any]) -> None:
    for seen in LATEST_BY_ARRIVAL.played(script):
        seen.expect(
            """select k, v, tags from (
                select * from came qualify row_number() over (partition by k order by n desc) = 1
            ) where v is distinct from 0""",
            "k",
            "v",
            "tags",
        )


# ---------------------------------------------------------------- distinct

DISTINCT = Plan(lambda s: s.distinct("k", "v"))
DISTINCT_OF_TABLE = Plan(lambda s: s.distinct("k"), changes=True)
DISTINCT_ROWS_OF_TABLE = Plan(lambda s: s.select("k", "v").distinct(), changes=True)
WITHIN = {micros: Plan(lambda s, d=micros: s.distinct("k", within=timedelta(microseconds=d))) for micros in (1, 3, 5)}


@CHECKED
@given(bundles)
def test_distinct_sends_the_first_row_of_each_key(script: list[Any]) -> None:
    for seen in DISTINCT.played(script, ids=True):
        seen.expect("select id from came qualify row_number() over (partition by k, v order by n) = 1", "id")


@CHECKED
@given(st.sampled_from(sorted(WITHIN)), bundles)
def test_distinct_within_a_time_sends_rows_unlike_those_before(span: int, script: list[Any]) -> None:
    """Which rows are sent is said by two rules, in order of arrival: so SQL may use those sent to check each."""
    for seen in WITHIN[span].played(script, ids=True):
        sent = [row.values["id"] for row in seen.sent]
        seen.expect(
            f"""
            with in_time as (from came where t >= watermark), sent as (from came where id in {[-1, *sent]})
            select id from in_time as row where not exists (
                from sent where sent.n < row.n and sent.k is not distinct from row.k and abs(sent.t - row.t) < {span}
            )""",
            "id",
        )
        late = seen.query(
            "select id, if(t is null, 'no event time', 'expired') from came where t is null or t < watermark"
        )
        assert Counter((row.values["id"], row.values["reason"]) for row in seen.late) == Counter(late)


@CHECKED
@given(with_rows_back)
def test_distinct_of_a_table_is_its_smallest_row_of_each_key(script: list[Any]) -> None:
    for seen in DISTINCT_OF_TABLE.played(script):
        seen.expect(
            """select k, v, tags from came group by k, v, tags having sum(w) > 0
            qualify row_number() over (partition by k order by v nulls last, tags nulls last) = 1""",
            "k",
            "v",
            "tags",
        )


@FEWER
@given(with_rows_back)
def test_distinct_of_all_columns_of_a_table(script: list[Any]) -> None:
    for seen in DISTINCT_ROWS_OF_TABLE.played(script):
        seen.expect("select k, v from came group by all having sum(w) > 0", "k", "v")


@FEWER
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), max_size=60), st.integers(1, 9), st.integers(0, 3))
def test_distinct_within_is_the_same_in_rounds_and_gone_through(rows: list[Any], span: int, rounds: int) -> None:
    """Goal: rows of many spans in one step, as when old data is read. Method: fewer rounds than the rows need."""
    plan = Plan(lambda s: s.distinct("k", within=timedelta(microseconds=span)))
    step = DistinctStep(plan.node)  # type: ignore[arg-type]
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


# ---------------------------------------------------------------- take

TAKE = {(2, "k"): Plan(lambda s: s.take(2, per="k")), (3, ""): Plan(lambda s: s.take(3))}


@CHECKED
@given(st.sampled_from(sorted(TAKE)), bundles)
def test_take_sends_the_first_rows(taken: tuple[int, str], script: list[Any]) -> None:
    count, key = taken
    per = f"partition by {key}" if key else ""
    for seen in TAKE[taken].played(script, ids=True):
        seen.expect(f"select id from came qualify row_number() over ({per} order by n) <= {count}", "id")


# ---------------------------------------------------------------- top

TOPS = [(2, "k", ("v desc",)), (3, "", ("v % 2", "v desc")), (1, "k", ("k desc", "v"))]
TOP = {
    (changes, number, rank): Plan(
        lambda s, t=top, r=rank: s.top(t[0], by=t[2], per=t[1] or (), rank="place" if r else None), changes=changes
    )
    for changes in (False, True)
    for number, top in enumerate(TOPS)
    for rank in (False, True)
}


@CHECKED
@given(st.sampled_from(sorted(TOP)), with_rows_back)
def test_top_is_the_first_rows_of_each_group(which: tuple[bool, int, bool], script: list[Any]) -> None:
    changes, number, rank = which
    count, key, by = TOPS[number]
    order = ", ".join(f"{part} nulls last" for part in (*by, "k", "v", "tags"))
    per = f"partition by {key}" if key else ""
    place = ", place" if rank else ""
    if not changes:
        script = [([event for event in events if not isinstance(event, int)], move) for events, move in script]
    for seen in TOP[which].played(script):
        seen.expect(
            f"""
            with there as (select k, v, tags, sum(w)::bigint as w from came group by all having sum(w) > 0),
            each_ as (select k, v, tags, unnest(range(w)) from there)
            select k, v, tags{place} from (
                select *, row_number() over ({per} order by {order}) as place from each_
            ) where place <= {count}""",
            *("k", "v", "tags"),
            *(["place"] if rank else []),
        )
        assert all(abs(row.weight) == 1 for row in seen.sent)


# ---------------------------------------------------------------- values of every kind

KINDS: dict[str, tuple[str, list[Any]]] = {
    "double": ("double", [1.5, -2.0, float("nan"), float("inf"), None]),
    "decimal": ("decimal(9,2)", [Decimal("1.10"), Decimal("-3.00"), None]),
    "text": ("string", ["", "a", "ä", "\U0001f600", "\uffee", None]),
    "binary": ("binary", [b"", b"a", b"\xff", None]),
    "struct": (
        "struct<x: int, y: array<double>>",
        [{"x": None, "y": [1.0]}, {"x": 1, "y": None}, {"x": 1, "y": []}, None],
    ),
    "list": ("array<int>", [[1, None], [1], [None], [], [1, 2], None]),
    "map": ("map<string, int>", [{"a": 1}, {"b": None}, {"a": 1, "b": 2}, {}, None]),
}
OVER_KINDS: dict[str, Callable[[Any], Any]] = {
    "latest": lambda s: s.to_table(key="k"),
    "distinct": lambda s: s.distinct("k"),
    "top": lambda s: s.top(2, by="k", rank="place"),
}


@FEWER
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(OVER_KINDS)), st.data())
def test_rows_with_values_of_every_kind(kind: str, operator: str, data: st.DataObject) -> None:
    """Rows are compared and ordered by columns of any type alike in both runners."""
    text, choices = KINDS[kind]
    changes = operator != "latest"
    stream = ms.Flow("kinds").read("rows", f"k int, value {text}, at timestamp", "at", changes=changes)
    made = OVER_KINDS[operator](stream)
    local, reference = Local([made.node]), Reference([made.node])
    present: list[dict[str, Any]] = []
    for _ in range(3):
        rows = []
        for value in data.draw(st.lists(st.sampled_from(choices), max_size=4)):
            present.append({"k": data.draw(st.integers(1, 2)), "value": value, "at": None})
            rows.append(Row(present[-1], len(present)))
        if changes and present and data.draw(st.booleans()):
            rows.append(Row(present.pop(0), 0, -1))
        bundle = Bundle(rows, BEGINNING, BEGINNING, 0, 0)
        here, there = local.step({stream.node: bundle}), reference.step({stream.node: bundle})
        assert counted(here[made.node].rows) == counted(there[made.node].rows)


# ---------------------------------------------------------------- what is held


def held(local: Local, node: Node) -> dict[str, int]:
    return {name: len(store) for name, store in local._states[node]._stores.items()}


def rows_of(*pairs: tuple[str, int]) -> list[Row]:
    return [Row({"id": None, "k": k, "v": time, "tags": None, "at": None}, time) for k, time in pairs]


def test_latest_holds_one_version_behind_the_watermark() -> None:
    plan, _ = LATEST["by values"]
    local = Local([plan.node])
    local.step({plan.read: Bundle(rows_of(("a", 1), ("a", 3), ("a", 5), ("b", 2)), 0, 0, 0, 0)})
    assert held(local, plan.node) == {"versions": 4}
    local.step({plan.read: Bundle([], 0, 5, 0, 0)})  # no row comes for "a", and what it needs no more still goes
    assert held(local, plan.node) == {"versions": 3}
    local.step({plan.read: Bundle([], 5, END, 0, 0)})
    assert held(local, plan.node) == {"versions": 2}


def test_distinct_within_forgets_what_nothing_can_be_like() -> None:
    plan = WITHIN[3]
    local = Local([plan.node])
    local.step({plan.read: Bundle(rows_of(("a", 1), ("a", 4), ("b", 2)), 0, 0, 0, 0)})
    assert held(local, plan.node) == {"keys": 3}
    local.step({plan.read: Bundle([], 0, 5, 0, 0)})
    assert held(local, plan.node) == {"keys": 1}


def test_top_holds_no_more_rows_than_it_shows_unless_they_may_be_taken_back() -> None:
    rows = rows_of(*(("a", time) for time in range(9)))
    for changes, kept in ((False, 2), (True, 9)):
        plan = TOP[changes, 0, False]
        local = Local([plan.node])
        local.step({plan.read: Bundle(rows, 0, 0, 0, 0)})
        assert held(local, plan.node) == {"rows": kept, "groups": 1}


def test_a_group_without_rows_is_forgotten_when_its_time_has_passed() -> None:
    plan = TOP[True, 0, False]
    local = Local([plan.node])
    (row,) = rows_of(("a", 7))
    local.step({plan.read: Bundle([row, Row(row.values, 7, -1)], 0, 0, 0, 0)})
    assert held(local, plan.node) == {"rows": 0, "groups": 1}
    local.step({plan.read: Bundle([], 0, 7, 0, 0)})
    assert held(local, plan.node) == {"rows": 0, "groups": 0}
