"""A join writes and holds no more than it needs: what did not change is not written again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import polars as pl

from millstream.local import Local, flowing_of
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.joins.lookup_join import TABLE, WAITING, LookupJoinStep
from millstream.operators.joins.table_join import TableJoinStep
from millstream.operators.stateful import INPUTS, SENT, stateful
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import BEGINNING, END, Bundle, Row
from millstream.reference import Reference

from .table_join_scripts import Change, nodes


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


def test_a_side_without_changes_is_not_rewritten() -> None:
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


def test_history_that_cannot_be_queried_is_folded() -> None:
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


def test_history_of_joined_tables_that_cannot_be_queried_is_folded() -> None:
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
