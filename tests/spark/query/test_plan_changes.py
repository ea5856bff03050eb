"""The planner gives each batch one plan: that of the query, or the newest one that was announced to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from jobs.support import SCHEMA, scores
from millstream.log import EmbeddedLog
from millstream.spark.query.batch_offsets import JobFeed
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.plan_changes import FOLDER, OF_BATCH, ChangedPlan, ChangingFeed, announce, next_name
from millstream.spark.query.state_runner import Shipment


def feed(log: EmbeddedLog, folder: Path, name: str, *flows: str) -> JobFeed:
    made = [ms.Flow(flow) for flow in flows]
    for flow in made:
        scores(flow).key_by("user").window(ms.fixed("10 seconds")).agg(n=ms.count()).write(flow.name)
    plan = PhysicalPlan(ms.app(made).check(), 2)
    return JobFeed(Shipment(name, plan, 1, "runs"), str(folder), str(log.path), 1, None, 0.05, {})


@pytest.fixture
def changing(log: EmbeddedLog, tmp_path: Path) -> ChangingFeed:
    log.create_topic("scores", schema=SCHEMA, partitions=1)
    return ChangingFeed(feed(log, tmp_path, "run", "one"))


def sources(end: dict[str, Any]) -> list[str]:
    return [name.partition(":")[0] for name in end["sources"]]


def test_the_next_batch_has_the_plan_that_was_announced(
    log: EmbeddedLog, tmp_path: Path, changing: ChangingFeed
) -> None:
    sent: list[str] = []
    first = changing.latest(changing.initial())
    assert OF_BATCH not in first
    name = next_name(changing.first.shipment)
    announce(ChangedPlan(feed(log, tmp_path, name, "one", "two"), {}), sent.append)
    assert sent == [str(tmp_path / FOLDER / name)]
    second = changing.latest(first)
    assert (second[OF_BATCH], sources(second)) == (name, ["one", "two"])
    assert [task.plan for task in changing.tasks(first, second)] == [name]
    assert [task.plan for task in changing.tasks(changing.initial(), first)] == [None], "planned before the change"
    removed = next_name(replace(changing.first.shipment, name=name))
    announce(ChangedPlan(feed(log, tmp_path, removed, "two"), {}), sent.append)
    third = changing.latest(second)
    assert third[OF_BATCH] == removed != name
    assert third["sources"] == second["sources"], "a flow that is away keeps its place"


def test_what_was_announced_to_an_earlier_query_does_not_count(
    log: EmbeddedLog, tmp_path: Path, changing: ChangingFeed
) -> None:
    announce(ChangedPlan(feed(log, tmp_path, "earlier.1", "one", "two"), {}), [].append)
    end = changing.latest({**changing.initial(), OF_BATCH: "earlier.1"})
    assert sources(end) == ["one"]
    assert OF_BATCH not in end
