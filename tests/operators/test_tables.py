"""Tables and streams made of one input are what SQL makes of all rows so far, after every bundle.

Goal: latest, distinct, take and top are right whatever comes, in whatever order. Method: random bundles go through the
columnar step and through the reference, which must send the same; what was sent adds up to what DuckDB computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local, LocalState
from millstream.operators import distinct
from millstream.operators.distinct import DistinctStep
from millstream.operators.stateful import INPUTS, LATE, SENT
from millstream.operators.windowed import Clock
from millstream.plan.bundles import BEGINNING, END, Bundle, Row
from millstream.plan.nodes import Node
from millstream.reference import Reference
from millstream.reference.tables import frozen
from soak import examples

CHECKED = examples(500)
FEWER = examples(100)

SCHEMA = "id int, k string, v int, tags array<int>, at timestamp"
ARROW = pa.schema(
    {
        "first_step": pa.int64(),
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
    """All rows that came, and what was sent for them in each step."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    sent: list[list[Row]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """What SQL makes of the rows that came: `came` has those of each `step` and of all steps before it."""
        duck.register("rows", pa.Table.from_pylist(self.rows, schema=ARROW))
        steps = f"select unnest(range(first_step, {len(self.sent)})) as step, * from rows"
        return duck.execute(f"with came as ({steps}) {sql}").fetchall()

    def expect(self, sql: str, *columns: str) -> None:
        """After each step, what was sent so far adds up to what SQL says is there."""
        expected = Counter(map(frozen, self.query(sql)))
        found: Counter[Any] = Counter()
        for step, rows in enumerate(self.sent):
            for row in rows:
                for later in range(step, len(self.sent)):
                    found[later, *frozen([row.values[name] for name in columns])] += row.weight
        assert {key: n for key, n in found.items() if n} == expected

    def mark_late(self) -> None:
        """Says of each row whether it was late. Of equal rows it is the last: what is late once stays so."""
        late = Counter((frozen([row.values[name] for name in ROW]), row.time) for row in self.late)
        for row in reversed(self.rows):
            same = frozen([row[name] for name in ROW]), row["t"]
            row["late"] = late[same] > 0
            late[same] -= 1


class Plan:
    """A step between a source and nothing, built once and run often."""

    def __init__(self, build: Callable[[Any], Any], *, changes: bool = False, timed: bool = True) -> None:
        flow = ms.Flow("tables")
        stream = flow.read("rows", SCHEMA, "at" if timed else None, changes=changes)
        made = build(stream)
        self.read, self.node, self.changes, self.timed = stream.node, made.node, changes, timed
        self.late: Node | None = made.late.node if _has_late(made.node) else None
        self.observed = [self.node] if self.late is None else [self.node, self.late]
        self.local = Local(self.observed)

    def played(self, script: list[Any], *, ids: bool = False) -> Seen:
        """Feeds both runners bundle by bundle, and gives all that was seen.

        The column of the event time stays empty, so that rows at different times can be equal.
        """
        reference = Reference(self.observed)
        self.local._states = {n: LocalState(state._step, passes_on=False) for n, state in self.local._states.items()}
        seen, present, watermark = Seen(), list[dict[str, Any]](), 0
        for step, (events, move) in enumerate(script):
            rows: list[Row] = []
            for event in events:
                if isinstance(event, int) and not present:
                    continue
                if isinstance(event, int):
                    values, at, weight = present.pop(event % len(present)), event, -1
                else:
                    (values, at), weight = event, 1
                    present.append(values)
                number, time = len(seen.rows), at if self.timed else None
                row = {
                    "id": number if ids else None,
                    "k": values["k"],
                    "v": values["v"],
                    "tags": values["tags"],
                    "at": None,
                }
                rows.append(Row(row, time, weight))
                more = {"first_step": step, "n": number, "t": time, "w": weight, "watermark": watermark, "late": False}
                seen.rows.append({**row, **more})
            bundle = Bundle(rows, watermark, watermark + move, 0, 0)
            watermark += move
            here, there = self.local.step({self.read: bundle}), reference.step({self.read: bundle})
            for node in self.observed:
                assert counted(here[node].rows) == counted(there[node].rows)
            seen.sent.append(here[self.node].rows)
            if self.late is not None:
                seen.late += here[self.late].rows
        return seen


def _has_late(node: Any) -> bool:
    return getattr(node, "by_time", False) or getattr(node, "within", None) is not None


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


# ---------------------------------------------------------------- distinct

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
def test_distinct_within_a_time_sends_rows_unlike_those_before(span: int, script: list[Any]) -> None:
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
def test_distinct_within_is_the_same_in_rounds_and_gone_through(rows: list[Any], span: int, rounds: int) -> None:
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


# ---------------------------------------------------------------- take

TAKE = {(2, "k"): Plan(lambda s: s.take(2, per="k")), (3, ""): Plan(lambda s: s.take(3))}


@CHECKED
@given(st.sampled_from(sorted(TAKE)), bundles)
def test_take_sends_the_first_rows(taken: tuple[int, str], script: list[Any]) -> None:
    count, key = taken
    per = f"step, {key}" if key else "step"
    sql = f"select step, id from came qualify row_number() over (partition by {per} order by n) <= {count}"
    TAKE[taken].played(script, ids=True).expect(sql, "id")


# ---------------------------------------------------------------- top

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
    "ties": lambda s: s.top(2, by="k", rank="place", ties=True),
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
        goes: bool = data.draw(st.booleans())
        if changes and present and goes:
            rows.append(Row(present.pop(0), 0, -1))
        bundle = Bundle(rows, BEGINNING, BEGINNING, 0, 0)
        here, there = local.step({stream.node: bundle}), reference.step({stream.node: bundle})
        assert counted(here[made.node].rows) == counted(there[made.node].rows)


# ---------------------------------------------------------------- late rows of columns that are called like ours

SPAN = ("0 seconds", "1 hour")
LATE_OF: dict[str, Callable[[Any, Any, Any], Any]] = {
    "latest": lambda one, two, on: one.to_table(key=on),
    "distinct": lambda one, two, on: one.distinct(*on, within="1 day"),
    "lookup": lambda one, two, on: one.join(two.to_table(key=on), on=on, how="left", as_of="event_time"),
    "semi": lambda one, two, on: one.join(two.to_table(key=on), on=on, how="semi", as_of="event_time"),
    "interval": lambda one, two, on: one.join(two, on=on, within=SPAN),
    "window": lambda one, two, on: one.window(ms.fixed("1 second")).join(two, on=on),
}


@pytest.mark.parametrize("on", [("k",), ("side",), ("reason",), ("side", "reason")])
@pytest.mark.parametrize("kind", LATE_OF)
def test_what_is_said_of_a_late_row_takes_the_place_of_columns_of_that_name(kind: str, on: tuple[str, ...]) -> None:
    reason, given = ("string", "mine") if "reason" in on else ("array<int>", [1])
    flow = ms.Flow("late")
    one, two = (flow.read(name, f"side string, k int, reason {reason}, at timestamp", "at") for name in ("one", "two"))
    made = LATE_OF[kind](one, two, on)
    late = made.late.node
    both = [] if kind in ("latest", "distinct") else [name for name in one.schema.names if name not in on]
    said = {"latest": [], "distinct": [], "window": ["side", "window"]}.get(kind, ["side"])
    own = [name for name in one.schema.names if name not in (*said, "reason")]
    names = [*own, *(f"{name}_right" for name in both), *said, "reason"]
    assert list(late.schema.names) == names
    came = [Row({"side": "mine", "k": 1, "reason": given, "at": None}, time) for time in (9, None, 1)]
    runners = Local([late]), Reference([late])
    for number, (rows, before, after) in enumerate([(came[:1], 0, 5_000_000), (came[1:], 5_000_000, 5_000_000)]):
        bundle = Bundle(rows, before, after, 0, 0)
        here, there = (runner.step({one.node: bundle, two.node: bundle})[late].rows for runner in runners)
        assert counted(here) == counted(there)
        ours = [row.values for row in here if row.values.get("side") != "right"]
        assert sorted(row["reason"] for row in ours) == (["expired", "no event time"] if number else [])
        assert all(row["k"] == 1 for row in ours)
        assert all(row["side"] == ("left" if "side" in said else "mine") for row in ours)


@pytest.mark.parametrize("kinds", [("latest", "distinct"), ("lookup", "semi"), ("lookup", "interval")])
def test_late_rows_of_several_steps_as_one_stream(kinds: tuple[str, str]) -> None:
    """Each step gives the columns in the same order, whatever those of the user are called."""
    flow = ms.Flow("late")
    one, two = (flow.read(name, "reason array<int>, side string, k int, at timestamp", "at") for name in ("one", "two"))
    first, second = (LATE_OF[kind](one, two, ("k",)).late for kind in kinds)
    node = first.union(second).node
    rows = [Row({"reason": [1], "side": "mine", "k": 1, "at": None}, None)]
    bundle = Bundle(rows, 0, 0, 0, 0)
    for runner in (Local([node]), Reference([node])):
        sent = runner.step({one.node: bundle, two.node: bundle})[node].rows
        late = 3 if "interval" in kinds else 2  # there the other side's row is late too
        assert [row.values["reason"] for row in sent] == ["no event time"] * late


# ---------------------------------------------------------------- what is held


def held(local: Local, node: Node) -> dict[str, int]:
    return {name: table.rows for name, table in local._states[node].tables.items()}


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
