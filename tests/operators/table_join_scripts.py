"""Joins with tables: after every bundle, what was sent adds up to what DuckDB makes of all rows at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from millstream.local import Flowing, Local, bundle_of, flowing_of
from millstream.operators.clock import Clock
from millstream.operators.stateful import EVERY_INPUT, SENT, stateful
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node
from millstream.plan.table_nodes import LookupJoin, TableJoin
from millstream.plan.time.bundles import BEGINNING, Bundle, Row
from millstream.reference import Reference
from millstream.state.run_files import Runs
from properties import examples

from .matched_joins import with_matching

CHECKED = examples(500)
FEWER = examples(100)
Change = tuple[dict[str, Any], int | None, int]
"""A row, its time, its weight."""

hows = st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])
lookups = st.sampled_from(["inner", "left", "semi", "anti"])
ons: st.SearchStrategy[Any] = st.sampled_from(["k", ("k", "m"), {"k": "j"}, {"k": "k", "a": "j"}])
CONDITIONS = {
    None: "true",
    "a < j": "l.a < r.j",
    "c = 'p' or a = 0": "r.c = 'p' or l.a = 0",
    "m || c <> 'xp'": "l.m || r.c <> 'xp'",
    "k + a > j": "l.k + l.a > r.j",
}
"""What pairs must satisfy, and the same as SQL over both sides."""
conditions = st.sampled_from([None, None, *CONDITIONS])
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
        st.lists(st.lists(st.tuples(rows, times, st.integers(0, 2)), max_size=4), min_size=3, max_size=3)
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


def nodes(on: Any, how: str, as_of: str | None = None, condition: str | None = None) -> list[Node]:
    """Two inputs and a join of them."""
    said = f"{on} {how} {as_of} {condition}"
    if said not in made:
        flow = Flow("f")
        left = flow.read("left", LEFT, changes=as_of is None)
        right = flow.read("right", RIGHT, changes=True)

        def join(how: Any, condition: str | None) -> Node:
            if as_of is None:
                return left.to_table("k").join(right.to_table("k"), on=on, how=how, condition=condition).node
            joined = left.join(right.to_table("k"), on=on, how=how, as_of="now", condition=condition).node
            assert isinstance(joined, LookupJoin)
            return replace(joined, at_event_time=as_of == "event_time")

        made[said] = [left.node, right.node, join(how, condition)]
        matched[made[said][-1]] = with_matching(flow, made[said][-1], join("inner", None))
    return made[said]


made: dict[str, list[Node]] = {}
"""Plans are values: each is made once."""
matched: dict[Node, Node | None] = {}
"""By join with a condition, the same with a step before it that evaluates the condition."""


class OnRuns:
    """Runs one join on state as Spark keeps it."""

    def __init__(self, joined: Node, folder: Path) -> None:
        step = stateful(joined)
        assert step is not None
        self.step_, self.joined, self.count = step, joined, 0
        self.runs = Runs(folder, step.keys, step.tables())
        self.runs.open(None, lambda: iter(()))

    def step(self, sources: dict[Node, Bundle]) -> list[Row]:
        step, fed = self.step_, {}
        for side, (name, node) in enumerate(zip(EVERY_INPUT, self.joined.inputs, strict=False)):
            fed[name] = step.fed(flowing_of(node, sources[node]).rows, self.count, side)
            self.count += len(fed[name])
        about = sources[self.joined.inputs[0]]
        clock = Clock(about.watermark_before, about.watermark, 0, 0)
        held = self.runs.held(step.asked(fed), (clock.watermark_before, 0), (clock.watermark, 0))
        changes, sent = step.step(held, fed, clock)
        self.runs.apply(changes, step.marks(clock))
        return bundle_of(self.joined, Flowing(sent[SENT], clock)).rows


def stepped(
    inputs: Sequence[Node],
    observed: Sequence[Node],
    bundles: Sequence[Any],
    watermarks: Sequence[int] = (),
    folder: Path | None = None,
) -> Iterator[list[Bundle]]:
    """What the nodes send in each step: the same on all engines."""
    local, reference = Local(list(observed)), Reference(list(observed))
    twin = matched.get(observed[0])
    with_pairs = None if twin is None else Local([twin])
    on_runs = [OnRuns(node, folder / str(number)) for number, node in enumerate((observed[0], twin)) if node and folder]
    before = BEGINNING
    for number, came in enumerate(bundles):
        now = watermarks[number] if watermarks else before
        sources: dict[Node, Bundle] = {}
        for node, rows in zip(inputs, came, strict=True):
            sources[node] = Bundle([Row(*change) for change in rows], before, now, 0, 0)
        found, right = local.step(sources), reference.step(sources)
        for node in observed:
            one, other = found[node], right[node]
            assert counted(one.rows) == counted(other.rows), f"step {number}"
            assert (one.watermark_before, one.watermark) == (other.watermark_before, other.watermark)
            weights = [row.weight for row in one.rows]
            assert set(weights) <= {-1, 1}
            if isinstance(node, TableJoin):
                assert weights == sorted(weights)
        if with_pairs is not None and twin is not None:
            sent = with_pairs.step(sources)
            one, plain = sent[twin], right[observed[0]]
            sources |= {given: sent[given] for given in twin.inputs}
            assert counted(one.rows) == counted(plain.rows), f"step {number}, with pairs from another step"
            assert (one.watermark_before, one.watermark) == (plain.watermark_before, plain.watermark)
        for each in on_runs:
            assert counted(each.step(sources)) == counted(right[observed[0]].rows), f"step {number}"
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


def join_by_duckdb(
    left: list[list[Change]],
    right: list[list[Change]],
    on: Any,
    how: str,
    condition: str | None,
    points: list[tuple[int, int, int]],
) -> list[Counter[Any]]:
    """The join of the tables at each point: as they were after a bundle, as of a time."""
    tables_of(
        lefts=("btwkma", rows_of(left, "kma")), rights=("btwkmjc", rows_of(right, "kmjc")), points=("nbt", points)
    )
    net = (
        "SELECT n, {0}, sum(w) AS w FROM points p JOIN {1} x ON x.b <= p.b AND x.t <= p.t "
        "GROUP BY ALL HAVING sum(w) > 0"
    )
    equal = " AND ".join(
        ["l.n = r.n", *(f"l.{one} = r.{other}" for one, other in pairs_of(on)), f"({CONDITIONS[condition]})"]
    )
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


streams = st.lists(st.lists(st.tuples(left_rows, times, st.just(1)), max_size=4), min_size=3, max_size=3)
watermarks = st.lists(st.integers(0, 6), min_size=3, max_size=3)
