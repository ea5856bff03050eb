"""A plan in which many ways lead from one step to another is walked once, not once for every way."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import millstream as ms
from millstream.jobs.versions.kept_steps import described
from millstream.plan.walking import in_order
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.testing import Add, Watermark, play

DIAMONDS = 30
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def stacked(stream: Any) -> Any:
    """30 times, the stream is parted in two and united again: 2**30 ways lead through it."""
    for _ in range(DIAMONDS):
        stream = stream.where("v % 2 = 0").union(stream.where("v % 2 = 1"))
    return stream


def counted(stream: Any) -> Any:
    return stacked(stream).key_by("k").window(ms.fixed("1 minute")).agg(n=ms.count())


@pytest.mark.parametrize("on", ["reference", "local"])
def test_stacked_diamonds_are_played(on: str) -> None:
    rows = [{"k": "a", "v": number, "at": NOON} for number in range(5)]
    schema = "k string, v long, at timestamp"
    out = play(counted, [Add(rows), Watermark(None)], schema=schema, event_time="at", on=on)
    assert [row["n"] for row in out[1]] == [5]


def test_stacked_diamonds_are_explained_and_laid_out() -> None:
    flow = ms.Flow("diamonds")
    stream = flow.read("input", "k string, v long, at timestamp", "at")
    counted(stream).write("counts")
    assert flow.explain().count("union") >= DIAMONDS
    physical_plan = PhysicalPlan(tuple(flow.outputs), 4)
    assert len(physical_plan.order) == 3 * DIAMONDS + 3
    assert len(physical_plan.stages) == 1
    assert physical_plan.reading


def test_stacked_diamonds_of_a_table_are_described_for_the_job_folder() -> None:
    flow = ms.Flow("diamonds")
    stream = stacked(flow.read("input", "k string, v long, weight int, at timestamp", "at", changes=True))
    stream.group_by("k").agg(n=ms.count()).write("counts")
    assert len(str(described(PhysicalPlan(tuple(flow.outputs), 4), {}))) < 100_000


def test_every_step_stands_after_its_inputs() -> None:
    flow = ms.Flow("order")
    stream = flow.read("input", "k string, v long, at timestamp", "at")
    order = in_order([stacked(stream).node, stream.node])
    assert order[0] is stream.node
    assert all(order.index(given) < number for number, node in enumerate(order) for given in node.inputs)
    assert len(order) == len(set(order))
