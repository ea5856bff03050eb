"""Joins with tables: after every bundle, what was sent adds up to what DuckDB makes of all rows at once."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.local import Flowing, Local, bundle_of, flowing_of
from millstream.operators import elementwise
from millstream.operators.accumulators import TIME, WEIGHT
from millstream.operators.lookup_join import TABLE, WAITING, LookupJoinStep
from millstream.operators.stateful import INPUTS, SENT, stateful
from millstream.operators.table_join import TableJoinStep
from millstream.operators.windowed import Clock, Frames
from millstream.plan.bundles import BEGINNING, END, Bundle, Row
from millstream.plan.flow import Flow
from millstream.plan.late import late_columns
from millstream.plan.nodes import Late, Node
from millstream.plan.table_nodes import LookupJoin, SideJoin, TableJoin
from millstream.records import Schema
from millstream.reference import Reference
from millstream.state.runs import Runs
from soak import examples

CHECKED = examples(500)
FEWER = examples(100)
Change = tuple[dict[str, Any], int | None, int]
"""A row, its time, its weight."""

hows = st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])
lookups = st.sampled_from(["inner", "left", "semi", "anti"])
ons: st.SearchStrategy[Any] = st.sampled_from(["k", ("k", "m"), {"k": "j"}, {"k": "k", "a": "j"}])
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


def nodes(on: Any, how: str, as_of: str | None = None) -> list[Node]:
    """Two inputs and a join of them."""
    said = f"{on} {how} {as_of}"
    if said not in made:
        flow = Flow("f")
        left = flow.read("left", LEFT, changes=as_of is None)
        right = flow.read("right", RIGHT, changes=True)
        if as_of is None:
            joined = left.to_table("k").join(right.to_table("k"), on=on, how=how).node
        else:
            joined = left.join(right.to_table("k"), on=on, how=how, as_of="now").node
            assert isinstance(joined, LookupJoin)
            joined = replace(joined, at_event_time=as_of == "event_time")
        made[said] = [left.node, right.node, joined]
    return made[said]


made: dict[str, list[Node]] = {}
"""Plans are values: each is made once."""


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
        for side, (name, node) in enumerate(zip(INPUTS, self.joined.inputs, strict=True)):
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
    on_runs = OnRuns(observed[0], folder) if folder else None
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
        if on_runs:
            assert counted(on_runs.step(sources)) == counted(right[observed[0]].rows), f"step {number}"
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


def joined_anew(
    left: list[list[Change]], right: list[list[Change]], on: Any, how: str, points: list[tuple[int, int, int]]
) -> list[Counter[Any]]:
    """The join of the tables at each point: as they were after a bundle, as of a time."""
    tables_of(
        lefts=("btwkma", rows_of(left, "kma")), rights=("btwkmjc", rows_of(right, "kmjc")), points=("nbt", points)
    )
    net = (
        "SELECT n, {0}, sum(w) AS w FROM points p JOIN {1} x ON x.b <= p.b AND x.t <= p.t "
        "GROUP BY ALL HAVING sum(w) > 0"
    )
    equal = " AND ".join(["l.n = r.n", *(f"l.{one} = r.{other}" for one, other in pairs_of(on))])
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


# ---------------------------------------------------------------- two tables


streams = st.lists(st.lists(st.tuples(left_rows, times, st.just(1)), max_size=4), min_size=3, max_size=3)
watermarks = st.lists(st.integers(0, 6), min_size=3, max_size=3)


@CHECKED
@given(hows, ons, changes(left_rows), changes(right_rows), watermarks, st.lists(st.integers(0, 16), max_size=3))
def test_a_join_of_tables(
    how: str, on: Any, left: list[list[Change]], right: list[list[Change]], moves: list[int], later: list[int]
) -> None:
    """Goal: after every bundle, what was sent is the join of the tables, now and as of any time since the watermark."""
    *inputs, joined = nodes(on, how)
    marks = [sum(moves[: number + 1]) - 2 for number in range(len(moves))]
    asked = [(number, after) for number in range(len(left)) for after in (*later, END)]
    points = [
        (place, number, min(END, after + (marks[number - 1] if number else -4)))
        for place, (number, after) in enumerate(asked)
    ]
    expected = joined_anew(left, right, on, how, points)
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


# ---------------------------------------------------------------- a stream and a table


def looked_up(
    stream: list[tuple[int, int, Change]], right: list[list[Change]], on: Any, how: str
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
        f"AND {equal} GROUP BY ALL HAVING sum(x.w) > 0"
    )
    weight = "l.w" if how in ("semi", "anti") else "l.w * coalesce(r.w, 1)"
    shared = given_columns(on, how)
    made = db.execute(f"WITH r AS ({held}) SELECT l.b, {weight}, {', '.join(shared)} FROM l {how} JOIN r USING (n)")
    found: list[Counter[Any]] = [Counter() for _ in range(len(right))]
    for step, weighed, *values in made.fetchall():
        found[step][tuple(values)] += int(weighed)
    return found


@CHECKED
@given(lookups, ons, streams, changes(right_rows))
def test_a_stream_and_a_table_as_it_is_now(
    how: str, on: Any, stream: list[list[Change]], right: list[list[Change]]
) -> None:
    *inputs, joined = nodes(on, how, "now")
    asked = [(number, END, row) for number, bundle in enumerate(stream) for row in bundle]
    expected = looked_up(asked, right, on, how)
    for number, (sent,) in enumerate(stepped(inputs, [joined], list(zip(stream, right, strict=True)))):
        assert added(Counter(), sent.rows) == expected[number], f"step {number}"


@CHECKED
@given(lookups, ons, streams, changes(right_rows), watermarks, st.booleans())
def test_a_stream_and_a_table_as_it_was(
    how: str, on: Any, stream: list[list[Change]], right: list[list[Change]], moves: list[int], ends: bool
) -> None:
    *inputs, joined = nodes(on, how, "event_time")
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
    expected = looked_up(asked, right, on, how)
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
    streams,
    changes(left_rows),
    changes(right_rows),
    watermarks,
)
def test_state_as_spark_keeps_it(
    as_of: str | None,
    how: str,
    on: Any,
    stream: list[list[Change]],
    left: list[list[Change]],
    right: list[list[Change]],
    moves: list[int],
) -> None:
    marks = [sum(moves[: number + 1]) - 2 for number in range(len(moves))]
    *inputs, joined = nodes(on, "full" if how == "left" and not as_of else how, as_of)
    with tempfile.TemporaryDirectory() as folder:
        bundles = list(zip(stream if as_of else left, right, strict=True))
        assert len(list(stepped(inputs, [joined], bundles, marks, Path(folder)))) == len(bundles)


# ---------------------------------------------------------------- a stream and rows known beforehand


@CHECKED
@given(lookups, ons, st.lists(left_rows, max_size=6), st.lists(right_rows, max_size=6))
def test_a_stream_and_rows_known_beforehand(how: str, on: Any, rows: list[Any], side: list[Any]) -> None:
    flow = Flow("f")
    stream = flow.read("left", LEFT)
    joined = stream.join(flow.table(side, RIGHT), on=on, how=how).node
    total: Counter[Any] = Counter()
    bundles = [[(row, number, 1) for row in part] for number, part in enumerate((rows[:2], rows[2:]))]
    for (sent,) in stepped([stream.node], [joined], [[bundle] for bundle in bundles]):
        total = added(total, sent.rows)
        assert {row.time for row in sent.rows} <= {0, 1}
    (expected,) = looked_up([(0, END, (row, 0, 1)) for row in rows], [[(row, None, 1) for row in side]], on, how)
    assert total == expected


def test_rows_known_beforehand_travel_with_the_step() -> None:
    flow = Flow("f")
    joined = flow.read("left", LEFT).join(flow.table([{"k": 1, "c": "p"}], "k int, c string"), on="k").node
    assert isinstance(joined, SideJoin)
    frame = elementwise.frame_of([{"k": 1, "m": "x", "a": 2, TIME: 5, WEIGHT: -1}], joined.inputs[0])
    frame = frame.with_columns(pl.lit(9, pl.Int64).alias(elementwise.OFFSET))
    node = pickle.loads(pickle.dumps(joined))
    for each in (joined, joined, node):
        made = elementwise.row_by_row(each, frame)
        assert made.rows() == [(1, "x", 2, "p", 5, -1, 9)]
        assert made.columns == ["k", "m", "a", "c", TIME, WEIGHT, elementwise.OFFSET]


# ---------------------------------------------------------------- what a step costs


class Driver:
    """Plays bundles to one step, and gives it what is held of the keys that it asks for."""

    def __init__(self, joined: Node) -> None:
        step = stateful(joined)
        assert isinstance(step, TableJoinStep | LookupJoinStep)
        self.step, self.held = step, step.tables()

    def run(self, left: Sequence[Change], right: Sequence[Change], watermark: int = BEGINNING) -> tuple[Frames, Frames]:
        """The tables that it wants changed, and what it sends; nothing else may have been touched."""
        step = self.step
        fed = {
            name: step.fed(
                flowing_of(node, Bundle([Row(*each) for each in rows], BEGINNING, BEGINNING, 0, 0)).rows, 0, side
            )
            for side, (name, node, rows) in enumerate(zip(INPUTS, step.node.inputs, (left, right), strict=True))
        }
        asked = step.asked(fed)
        found = {
            name: table.join(asked[name].select(step.keys), on=step.keys, how="semi", nulls_equal=True)
            for name, table in self.held.items()
        }
        changes, sent = step.step(found, fed, Clock(BEGINNING, watermark, 0, 0))
        for name, rows in changes.items():
            assert rows.schema == step.tables()[name].schema
            rest = self.held[name].join(found[name].select(step.keys), on=step.keys, how="anti", nulls_equal=True)
            self.held[name] = pl.concat([rest, rows])
        return changes, sent


def rows_of_keys(keys: Sequence[int], side: str) -> list[Change]:
    more = {"a": 1} if side == "left" else {"j": 1, "c": "p"}
    return [({"k": key, "m": "x", **more}, key, 1) for key in keys]


def test_a_side_without_changes_is_not_written_again() -> None:
    for how in ("inner", "left", "right", "full", "semi", "anti"):
        driver = Driver(nodes("k", how)[-1])
        driver.run(rows_of_keys(range(100), "left"), rows_of_keys(range(50, 150), "right"))
        changes, _ = driver.run(rows_of_keys([60, 200], "left"), [])
        assert {name: len(rows) for name, rows in changes.items()} == {"left": 2}
        changes, _ = driver.run([], rows_of_keys([60], "right"))
        assert {name: len(rows) for name, rows in changes.items()} == {"right": 1}


def test_a_row_with_many_partners_is_only_joined_with_what_came() -> None:
    """Goal: a key that had rows and has some more does not touch the rows without columns of the other side."""
    driver = Driver(nodes("k", "semi")[-1])
    driver.run(rows_of_keys([1] * 50, "left"), rows_of_keys([1], "right"))
    _, sent = driver.run([], rows_of_keys([1, 1], "right"))
    assert sent[SENT].is_empty()
    assert driver.held["right"].select("key.0", TIME, WEIGHT).rows() == [(1, 1, 3)]
    _, sent = driver.run([], [(*change[:2], -1) for change in rows_of_keys([1, 1, 1], "right")])
    assert sent[SENT][WEIGHT].to_list() == [-1] * 50
    assert driver.held["right"].is_empty()


def test_a_lookup_now_writes_nothing_but_changes_of_the_table() -> None:
    driver = Driver(nodes("k", "left", "now")[-1])
    changes, _ = driver.run(rows_of_keys([1, 2], "left"), rows_of_keys([1], "right"))
    assert {name: len(rows) for name, rows in changes.items()} == {TABLE: 1}
    changes, sent = driver.run(rows_of_keys([1, 2, 3], "left"), [])
    assert changes == {}
    assert sorted(sent[SENT]["c"].to_list(), key=str) == [None, None, "p"]


def test_history_that_nobody_can_ask_for_is_folded() -> None:
    """Goal: state follows the rows of the table, not its changes. Method: a row replaced again and again."""
    left, right, joined = nodes("k", "inner", "event_time")
    local = Local([joined])
    state = local._states[joined]
    replaced: list[Row] = []
    for time in range(10):
        values = {"k": 1, "m": "x", "j": time, "c": "p"}
        taken = [Row(replaced[-1].values, time, -1)] if replaced else []
        replaced.append(Row(values, time))
        sources = {left: Bundle([], 0, 0, 0, 0), right: Bundle([*taken, replaced[-1]], 0, 0, 0, 0)}
        local.step(sources)
    assert state.tables[TABLE].rows == 19
    waits = Row({"k": 1, "m": "x", "a": 1}, 7)
    local.step({left: Bundle([waits], 0, 3, 0, 0), right: Bundle([], 0, 3, 0, 0)})
    assert (state.tables[TABLE].rows, state.tables[WAITING].rows) == (13, 1)
    sent = local.step({left: Bundle([], 3, 9, 0, 0), right: Bundle([], 3, 9, 0, 0)})
    assert [row.values["j"] for row in sent[joined].rows] == [7]
    assert (state.tables[TABLE].rows, state.tables[WAITING].rows) == (1, 0)


def test_history_of_joined_tables_that_nobody_can_ask_for_is_folded() -> None:
    """Goal: state follows the rows of the tables, also of keys that never come again. Method: a row moves on."""
    left, right, joined = nodes("k", "left")
    local = Local([joined])
    state = local._states[joined]

    def run(rows: list[Row], before: int, watermark: int) -> list[Row]:
        sources = {left: Bundle(rows, before, watermark, 0, 0), right: Bundle([], before, watermark, 0, 0)}
        return local.step(sources)[joined].rows

    moved = [{"k": key, "m": "x", "a": 1} for key in range(10)]
    run([Row(moved[0], 0)], -1, -1)
    for time in range(1, 10):
        run([Row(moved[time - 1], time, -1), Row(moved[time], time)], -1, -1)
    assert state.tables["left"].rows == 19
    assert run([], -1, 4) == []
    assert state.tables["left"].rows == 11
    assert run([Row(moved[6], 5, -1), Row(moved[6], 6)], 4, 5) != []
    assert run([], 5, END) == []
    assert state.tables["left"].rows == 1


def test_rows_may_have_columns_of_any_type() -> None:
    schema = "k {}, tags array<string>, of struct<a: int, b: array<int>>, x double, names map<string, int>"
    for kind, key in (("string", "a"), ("binary", b"a"), ("boolean", True), ("date", date(2026, 1, 1))):
        flow = Flow("f")
        left, right = (flow.read(name, schema.format(kind), changes=True) for name in ("left", "right"))
        joined = left.to_table("k").join(right.to_table("k"), on="k", how="full").node
        row = {"k": key, "tags": ["x", None], "of": {"a": 1, "b": [1]}, "x": float("nan"), "names": {"n": 1}}
        steps = [([(row, None, 1)], []), ([], [(row, None, 1)]), ([(row, None, -1)], []), ([], [(row, None, -1)])]
        engines = Local([joined]), Reference([joined])
        for number, came in enumerate(steps):
            sources = {
                node.node: Bundle([Row(*each) for each in rows], 0, 0, 0, 0)
                for node, rows in zip((left, right), came, strict=True)
            }
            for engine in engines:
                sent = engine.step(sources)[joined].rows
                assert [each.weight for each in sent] == [[1], [-1, 1], [-1, 1], [-1]][number]
                assert {each.values["k"] for each in sent} == {key}
