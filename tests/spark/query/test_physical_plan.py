"""Which steps share a stage: those that do not wait for one another, and those that find all rows of a key in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

import millstream as ms
from jobs.support import per_user, scores
from millstream.errors import RecordFailed
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.spark.query.physical_plan import PhysicalPlan
from step_names import by_kind

ROWS = "user long, other long, small int, n int, at timestamp"


def doubled(row: dict[str, Any], key: Any) -> dict[str, Any]:
    return {"user": row["user"] * 2, "n": row["n"]}


def lookup(one: Any, two: Any) -> Any:
    return one.join(two.to_table(key="user").where("n > 0"), on="user", as_of="now")


def renamed(one: Any, two: Any) -> Any:
    profiles = two.to_table(key="user").select("n", who="user")
    return one.join(profiles, on={"user": "who"}, as_of="now")


def swapped(one: Any, two: Any) -> Any:
    profiles = two.to_table(key="user").select("n", user="other", other="user")
    return one.join(profiles, on="user", as_of="now")


def with_changed_keys(one: Any, two: Any) -> Any:
    return one.join(two.to_table(key="user").with_column("user", "user + 1"), on="user", as_of="now")


def of_narrow_keys(one: Any, two: Any) -> Any:
    return one.join(two.to_table(key="small"), on="small", as_of="now")


def on_a_foreign_key(one: Any, two: Any) -> Any:
    return one.to_table(key="user").join(two.to_table(key="other"), on="other", how="left")


def of_both_keys(one: Any, two: Any) -> Any:
    return one.to_table(key="user").join(two.group_by("user").agg(k=ms.count()), on="user").top(1, by="k", per="user")


def behind_a_function(one: Any, two: Any) -> Any:
    processed = one.key_by("user").process(doubled, schema="user long, n int")
    return processed.group_by("user").agg(k=ms.count())


def of_a_union(one: Any, two: Any) -> Any:
    return one.distinct("user").union(two.distinct("user")).group_by("user").agg(k=ms.count())


def of_all_rows(one: Any, two: Any) -> Any:
    return one.distinct("user").to_table().group_by("user").agg(k=ms.count())


def windows_of_windows(one: Any, two: Any) -> Any:
    panes = one.key_by("user").window(ms.fixed("1 second")).agg(k=ms.count())
    return panes.key_by("user").window(ms.fixed("1 minute")).agg(most=ms.max("k"))


@pytest.mark.parametrize(
    ("build", "stages"),
    [
        (lookup, [["to_table", "join"]]),
        (renamed, [["to_table", "join"]]),
        (swapped, [["to_table"], ["join"]]),
        (with_changed_keys, [["to_table"], ["join"]]),
        (of_narrow_keys, [["to_table"], ["join"]]),
        (on_a_foreign_key, [["to_table", "to_table"], ["join"]]),
        (of_both_keys, [["to_table", "group_by", "join", "top"]]),
        (behind_a_function, [["process"], ["group_by"]]),
        (of_a_union, [["distinct", "distinct"], ["group_by"]]),
        (of_all_rows, [["distinct", "group_by"]]),
        (windows_of_windows, [["agg", "agg"]]),
    ],
)
def test_steps_share_a_stage(build: Callable[[Any, Any], Any], stages: list[list[str]]) -> None:
    flow = ms.Flow("stages")
    one, two = (flow.read(name, ROWS, "at") for name in ("one", "two"))
    build(one, two).write("out")
    physical_plan = PhysicalPlan(tuple(flow.outputs), 4)
    assert [[by_kind(physical_plan.chain[number].name) for number in stage] for stage in physical_plan.stages] == stages


def in_spark_between(one: Any, two: Any) -> Any:
    counted = one.group_by("user").agg(k=ms.count()).changes()
    return counted.with_column("of", "format_number(user, 0)").group_by("of").agg(k=ms.sum("k"))


@pytest.mark.parametrize(
    ("build", "stages"),
    [
        (with_changed_keys, [["to_table", "join"]]),
        (on_a_foreign_key, [["to_table", "to_table", "join"]]),
        (behind_a_function, [["process", "group_by"]]),
        pytest.param(in_spark_between, [["group_by"], ["group_by"]], marks=pytest.mark.more),
    ],
)
def test_all_steps_share_the_only_key_group_unless_spark_runs_one_between(
    build: Callable[[Any, Any], Any], stages: list[list[str]]
) -> None:
    flow = ms.Flow("stages")
    one, two = (flow.read(name, ROWS, "at") for name in ("one", "two"))
    build(one, two).write("out")
    physical_plan = PhysicalPlan(tuple(flow.outputs), 1, one_stage=True)
    assert [[by_kind(physical_plan.chain[number].name) for number in stage] for stage in physical_plan.stages] == stages


def test_only_used_columns_of_all_rows_are_read() -> None:
    flow = ms.Flow("narrow")
    table = flow.read("one", ROWS, "at").to_table()
    table.where("n > 0").group_by("user").agg(k=ms.count()).write("out")
    physical_plan = PhysicalPlan(tuple(flow.outputs), 4)
    assert {name for schema in physical_plan.reading.values() for name in schema.names} == {"user", "n", "at"}


@pytest.mark.parametrize("format", ["svg", "mermaid"])
def test_a_physical_plan_is_drawn_without_text_behind_it(format: Any) -> None:
    flow = ms.Flow("drawn")
    panes = per_user(scores(flow).where("n > 0"))
    panes.write("totals")
    panes.late.write("late")
    said = by_kind(flow.explain(format, physical=True))
    assert "read_scores, then where" in said
    assert "shuffle by key group" in said
    if format == "svg":
        assert ElementTree.fromstring(said).tag.endswith("svg")
    else:
        assert said.count("-->") == 3


def _timed(flow: ms.Flow) -> ms.Stream:
    return flow.read("rows", "user string, n int, at timestamp", event_time="at")


def _untimed(flow: ms.Flow) -> ms.Stream:
    return flow.read("rows", "user string, n int")


@pytest.mark.parametrize(
    ("build", "needs"),
    [
        (lambda flow: _untimed(flow).where("n > 1"), False),
        (lambda flow: _untimed(flow).group_by("user").agg(n=ms.sum("n")), False),
        (lambda flow: _timed(flow).group_by("user").agg(n=ms.sum("n")), True),
        (lambda flow: _untimed(flow).key_by("user").process(lambda row, key: row, "user string"), True),
    ],
)
def test_only_results_that_depend_on_the_clock_need_batches_without_rows(
    build: Callable[[ms.Flow], Any], needs: bool
) -> None:
    flow = ms.Flow("idle")
    build(flow).write(ms.memory("out"))
    assert PhysicalPlan(flow.check(), groups=4).needs_ticks is needs


def test_steps_with_conditions_on_the_same_rows_send_what_each_does_alone() -> None:
    """One of them fails on a row: it is named, as it is alone."""
    frame = pl.DataFrame({"a": [1, 2, 3], "b": ["1", "2", "x"], TIME: [None] * 3, WEIGHT: [1] * 3})
    sent = {"sent": frame.cast({"a": pl.Int32, TIME: pl.Int64, WEIGHT: pl.Int32})}

    def made(*conditions: str) -> list[list[int]]:
        flow = ms.Flow("f")
        rows = flow.read("rows", "a int, b string")
        for number, condition in enumerate(conditions):
            rows.where(condition, name=f"kept-{number}").write(f"out-{number}")
        plan = PhysicalPlan(tuple(flow.check()), 1)
        found = plan.region(plan.sources[0]).run(sent, 0)
        return [found[output]["a"].to_list() for output in plan.outputs]

    assert made("a > 1", "a < 3") == [[2, 3], [1, 2]]
    with pytest.raises(RecordFailed, match="the step 'kept-2' cannot handle a record"):
        made("a > 1", "a < 3", "CAST(b AS INT) > 0")
