"""Aggregates without windows: after every bundle the table is what DuckDB makes of all rows that are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node
from millstream.plan.stream import Stream
from millstream.plan.time.bundles import BEGINNING, Bundle, Row, moment
from millstream.reference import Reference
from properties import examples

CHECKED = examples(500)
SCHEMA = "k string, v int, x double, at timestamp"
TYPES = pa.schema([("k", pa.string()), ("v", pa.int32()), ("x", pa.float64())])
connection = duckdb.connect(config={"threads": 1})

AGGREGATES = {
    "n": (ms.count(), "count(*)"),
    "total": (ms.sum("v"), "sum(v)::bigint"),
    "low": (ms.min("v"), "min(v)"),
    "high": (ms.max("v + 1"), "max(v + 1)"),
    "middle": (ms.mean("v"), "avg(v)"),
    "half": (ms.mean("x"), "avg(x)"),
    "kinds": (ms.distinct_count("v"), "count(distinct v)"),
    "some": (ms.count_if("v > 0"), "count(*) filter (v > 0)"),
    "one": (ms.any("v > 0"), "bool_or(v > 0)"),
    "each": (ms.all("v > 0"), "bool_and(v > 0)"),
    "center": (ms.median("v"), "median(v)::double"),
    "most": (ms.max_by("v", "v + 1"), "max_by(v, v + 1)"),
}

rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-3, 3), st.sampled_from([None, 0.5, 1.5])),
    max_size=5,
)
bundles = st.lists(st.tuples(rows, st.lists(st.integers(0, 30), max_size=4), st.integers(0, 20)), max_size=5)


def read(changing: bool) -> Stream:
    return Flow("test").read("rows", SCHEMA, "at", changes=changing)


@cache
def grouped(changing: bool, keyed: bool) -> tuple[Stream, Node]:
    stream = read(changing)
    aggregates: dict[str, Any] = {name: made for name, (made, _) in AGGREGATES.items()}
    table = stream.group_by(*(["k"] if keyed else [])).agg(**aggregates)
    return stream, table.node


@cache
def chained(changing: bool) -> tuple[Stream, Node]:
    stream = read(changing)
    highest = stream.group_by("k").agg(high=ms.max("v"), n=ms.count())
    table = highest.group_by("n").agg(groups=ms.count(), middle=ms.mean("high"), least=ms.min("high"))
    return stream, table.node


def steps(script: Any, *, changing: bool) -> list[Bundle]:
    """Rows that come, and, of those that are there, some that go."""
    there: list[tuple[Any, ...]] = []
    made, reached, number = [], BEGINNING, 0
    for come, leaving, watermark in script:
        sent = []
        for place in leaving if changing else []:
            if there:
                sent.append((there.pop(place % len(there)), -1))
        for row in come:
            there.append(row)
            sent.append((row, 1))
        before, reached = reached, max(reached, watermark)
        bundle = []
        for (k, v, x), weight in sent:
            number += 1
            bundle.append(Row({"k": k, "v": v, "x": x, "at": moment(number * 7 % 23)}, number * 7 % 23, weight))
        made.append(Bundle(bundle, before, reached, 0, 0))
    return made


def held(bag: Counter[str], sent: list[Row], names: Sequence[str]) -> None:
    for row in sent:
        bag[repr([_plain(row.values[name]) for name in names])] += row.weight
    for text in [text for text, weight in bag.items() if not weight]:
        del bag[text]


def _plain(value: Any) -> Any:
    return round(value, 9) if isinstance(value, float) else value


def expected(there: Counter[tuple[Any, ...]], sql: str) -> Counter[str]:
    listed = [dict(zip(("k", "v", "x"), row, strict=True)) for row, weight in there.items() for _ in range(weight)]
    connection.register("rows", pa.Table.from_pylist(listed, schema=TYPES))
    return Counter(repr([_plain(value) for value in row]) for row in connection.execute(sql).fetchall())


def check(stream: Stream, node: Node, script: list[Bundle], sql: str) -> None:
    local, reference = Local([node]), Reference([node])
    bags: list[Counter[str]] = [Counter(), Counter()]
    there: Counter[tuple[Any, ...]] = Counter()
    for bundle in script:
        for row in bundle.rows:
            there[row.values["k"], row.values["v"], row.values["x"]] += row.weight
        sent = [runner.step({stream.node: bundle})[node] for runner in (local, reference)]
        alike = [sorted(repr((row.weight, row.time, _texts(row))) for row in changes.rows) for changes in sent]
        assert alike[0] == alike[1]
        wanted = expected(+there, sql)
        for bag, changes in zip(bags, sent, strict=True):
            held(bag, changes.rows, node.schema.names)
            assert bag == wanted


def _texts(row: Row) -> list[tuple[str, Any]]:
    return [(name, _plain(value)) for name, value in row.values.items()]


@CHECKED
@given(bundles, st.booleans(), st.booleans())
def test_a_grouped_table_is_what_the_rows_add_up_to(script: Any, changing: bool, keyed: bool) -> None:
    what = ", ".join(f"{sql} as {name}" for name, (_, sql) in AGGREGATES.items())
    sql = f"select k, {what} from rows group by k" if keyed else f"select {what} from rows having count(*) > 0"
    check(*grouped(changing, keyed), steps(script, changing=changing), sql)


@CHECKED
@given(bundles, st.booleans())
def test_aggregates_of_aggregates_are_right(script: Any, changing: bool) -> None:
    """The average of maxima, and the count of counts."""
    sql = """select n, count(*), avg(high), min(high)
             from (select max(v) as high, count(*) as n from rows group by k) group by n"""
    check(*chained(changing), steps(script, changing=changing), sql)


def totals(build: Any, schema: str, script: list[list[tuple[dict[str, Any], int]]]) -> list[list[list[Any]]]:
    """What each runner holds after each bundle of weighted rows."""
    stream = Flow("test").read("rows", schema, changes=any(weight < 0 for rows in script for _, weight in rows))
    node = build(stream).node
    found: list[list[list[Any]]] = []
    for runner in (Local([node]), Reference([node])):
        bag: Counter[str] = Counter()
        found.append([])
        for given_ in script:
            bundle = Bundle([Row(values, None, weight) for values, weight in given_], BEGINNING, BEGINNING, 0, 0)
            held(bag, runner.step({stream.node: bundle})[node].rows, node.schema.names)
            found[-1].append(sorted(bag))
    return found


def test_a_sum_of_fractions_recovers_from_what_is_retracted() -> None:
    for kind, large in (("double", 1e17), ("float", 2.0**60), ("double", float("inf")), ("double", float("nan"))):
        script: list[Any] = [
            [({"k": "a", "x": 1.5}, 1), ({"k": "a", "x": None}, 1)],
            [({"k": "a", "x": large}, 1)],
            [({"k": "a", "x": large}, -1), ({"k": "a", "x": 2.0}, 1)],
            [({"k": "a", "x": 2.0}, -1), ({"k": "a", "x": 1.5}, -1)],
        ]
        for found in totals(lambda s: s.group_by("k").agg(n=ms.sum("x")), f"k string, x {kind}", script):
            assert found == [["['a', 1.5]"], [f"['a', {1.5 + large!r}]"], ["['a', 3.5]"], ["['a', None]"]]


def test_a_sum_of_narrow_fractions_is_wide() -> None:
    script = [[({"k": "a", "x": 2.0**24}, 1), ({"k": "a", "x": 1.0}, 1)], [({"k": "a", "x": 1.0}, 1)]]
    for found in totals(lambda s: s.group_by("k").agg(n=ms.sum("x")), "k string, x float", script):
        assert found == [["['a', 16777217.0]"], ["['a', 16777218.0]"]]


def test_keys_and_aggregates_of_any_name() -> None:
    for key, name in (("input", "key"), ("by", "key"), ("input", "group"), ("rows", "newest"), ("0", "key")):
        script: list[Any] = [[({key: "a", "v": 1}, 1), ({key: "a", "v": 3}, 1)]]
        made = {name: ms.sum("v"), "best": ms.top("v", 1, by="-v")}
        for found in totals(
            lambda s, key=key, made=made: s.group_by(key).agg(**made), f"`{key}` string, v int", script
        ):
            assert found == [["['a', 4, [1]]"]]


THINNED = {
    "kinds": ms.distinct_count("v"),
    "halves": ms.distinct_count("x"),
    "best": ms.top("v", 2),
    "least": ms.top("x", 1, by="-v"),
    "set": ms.collect_set("x"),
}


@CHECKED
@given(bundles, st.sets(st.sampled_from([*THINNED, "all"]), min_size=1), st.booleans())
def test_rows_that_make_no_difference_are_not_missed(script: Any, names: set[str], keyed: bool) -> None:
    stream = read(False)
    aggregates: dict[str, Any] = {name: made for name, made in THINNED.items() if name in names} | {"n": ms.count()}
    if "all" in names:  # needs every row
        aggregates["all"] = ms.collect("v")
    node = stream.group_by(*(["k"] if keyed else [])).agg(**aggregates).node
    local, reference = Local([node]), Reference([node])
    for bundle in steps(script, changing=False):
        sent = [runner.step({stream.node: bundle})[node].rows for runner in (local, reference)]
        alike = [sorted(repr((row.weight, row.time, _texts(row))) for row in rows_) for rows_ in sent]
        assert alike[0] == alike[1]


def test_rows_that_make_no_difference_are_not_kept() -> None:
    def kept(changing: bool, keyed: bool, **aggregates: Any) -> int:
        stream = read(changing)
        node = stream.group_by(*(["k"] if keyed else [])).agg(**aggregates).node
        local = Local([node])
        for start in range(0, 1000, 100):
            values = [{"k": "ab"[n % 2], "v": n % 10, "x": n / 2, "at": moment(n)} for n in range(start, start + 100)]
            rows_ = [Row(row, n + start) for n, row in enumerate(values)]
            local.step({stream.node: Bundle(rows_, BEGINNING, BEGINNING, 0, 0)})
        return sum(table.rows for name, table in local._states[node].tables.items() if name != "groups")

    assert kept(False, True, kinds=ms.distinct_count("v")) == 10  # five of each key
    assert kept(False, False, kinds=ms.distinct_count("v % 3")) == 3
    assert kept(False, True, best=ms.top("x", 3), total=ms.sum("x")) == 6
    assert kept(False, False, best=ms.top("v", 3, by="-x")) == 3
    assert kept(False, True, kinds=ms.distinct_count("v"), best=ms.top("x", 3)) == 16
    assert kept(False, True, none=ms.distinct_count("nullif(v, v)")) == 0
    assert kept(False, True, kinds=ms.distinct_count("v"), all=ms.collect("v")) == 1010
    assert kept(True, True, kinds=ms.distinct_count("v")) == 1000
    assert kept(False, True, total=ms.sum("x")) == 0


def test_every_aggregate_of_a_row_that_goes() -> None:
    stream = read(True)
    table = stream.group_by("k").agg(
        all=ms.collect("v"), best=ms.top("v", 2), last=ms.last("v"), first=ms.first("v"), spread=ms.stddev("v")
    )
    for runner in (Local([table.node]), Reference([table.node])):
        sent = []
        for values, weight in [((1, 5, 3), 1), ((5,), -1), ((1, 3), -1)]:
            rows_ = [Row({"k": "a", "v": v, "x": None, "at": moment(v)}, v, weight) for v in values]
            bundle = Bundle(rows_, BEGINNING, BEGINNING, 0, 0)
            sent.append(
                [
                    (row.weight, *list(row.values.values())[1:])
                    for row in runner.step({stream.node: bundle})[table.node].rows
                ]
            )
        assert sent == [
            [(1, [1, 5, 3], [5, 3], 5, 1, 2.0)],
            [(-1, [1, 5, 3], [5, 3], 5, 1, 2.0), (1, [1, 3], [3, 1], 3, 1, 2.0**0.5)],
            [(-1, [1, 3], [3, 1], 3, 1, 2.0**0.5)],
        ]
