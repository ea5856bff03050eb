"""Goal: savepoints, changes of a flow and rehearsals neither lose nor repeat a row of a queue, or are refused before.

Method: jobs on Spark with a log on disk, restored and changed while rows wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.connectors.topic import taken
from millstream.errors import InvalidInput, JobChanged
from millstream.jobs.versions.rehearsal import rehearsed
from millstream.jobs.versions.saved_jobs import SavedJobs
from millstream.jobs.versions.upgrading import compared
from millstream.log import EmbeddedLog
from millstream.plan.flow import Flow
from millstream.spark.query.physical_plan import PhysicalPlan
from waiting import until

from .support import CAUGHT_UP

pytestmark = pytest.mark.more
SCHEMA = "n int, level int"


@pytest.fixture
def log(tmp_path: Path, spark: SparkSession) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("rows", schema=SCHEMA)
        yield opened


@pytest.fixture
def saved(log: EmbeddedLog) -> SavedJobs:
    return SavedJobs(Path(log.path) / "jobs")


def put(log: EmbeddedLog, *numbers: int, topic: str = "rows") -> None:
    with log.producer() as producer:
        for n in numbers:
            producer.send(topic, {"n": n, "level": n % 3})


def got(log: EmbeddedLog, topic: str) -> list[int]:
    if topic not in log.topics():
        return []
    with log.consumer(topic) as consumer:
        return [record.value["n"] for record in consumer.until_caught_up()]


def inner(queue: bool = True, **limits: Any) -> Flow:
    flow = ms.Flow("job")
    rows = flow.read("rows", SCHEMA, name="rows")
    (rows.queue("slow", **{"at_once": 4, **limits}) if queue else rows).write("out", name="out")
    return flow


def by_priority(source: Any = None) -> Flow:
    flow = ms.Flow("job")
    rows = flow.read(source or ms.queue("rows", priority="level"), SCHEMA, name="rows")
    rows.group_by("level").agg(total=ms.sum("n"), name="totals").write("totals", name="totals.out")
    rows.write("out", name="out", partitions=1)
    return flow


def run(log: EmbeddedLog, flow: Flow, **more: Any) -> None:
    flow.run(broker=log.path, until=CAUGHT_UP, progress="none", **more)


def left_waiting(log: EmbeddedLog, flow: Flow) -> None:
    """Runs a flow until rows wait in its queue, and stops it."""
    job = flow.start(broker=log.path, progress="none")
    until(lambda: len(got(log, "out")) >= 1, "rows to pass")
    job.stop()
    assert len(got(log, "out")) < len(got(log, "job.slow"))


@pytest.mark.parametrize("limits", [{}, {"priority": "level"}])
def test_a_savepoint_of_an_inner_queue(log: EmbeddedLog, saved: SavedJobs, limits: dict[str, Any]) -> None:
    put(log, *range(10))
    run(log, inner(**limits))
    saved.savepoint("job", "early")
    put(log, *range(10, 30))
    run(log, inner(**limits))
    assert saved.restore("early")["records"] == 40  # of both sources
    put(log, *range(30, 40))
    run(log, inner(**limits))
    assert sorted(got(log, "out")) == sorted(got(log, "job.slow")) == list(range(40))


def test_a_savepoint_of_a_queue_with_priorities(log: EmbeddedLog, saved: SavedJobs) -> None:
    """The state after it is rebuilt of the same rows, and what comes later is read as well."""
    put(log, *range(10))
    run(log, by_priority(), batch_rows=3)
    saved.savepoint("job", "early")
    put(log, *range(10, 30))
    run(log, by_priority(), batch_rows=3)
    assert saved.restore("early")["records"] == 20
    put(log, *range(30, 40))
    run(log, by_priority(), batch_rows=3)
    assert sorted(got(log, "out")) == list(range(40))
    with log.consumer("totals") as consumer:
        totals = {record.value["level"]: record.value["total"] for record in consumer.until_caught_up()}
    assert totals == {level: sum(range(level, 40, 3)) for level in range(3)}


def test_an_order_that_is_not_listed_any_more_is_not_restored(
    log: EmbeddedLog, saved: SavedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(log, *range(4))
    run(log, by_priority())
    saved.savepoint("job", "early")
    put(log, *range(4, 12))
    run(log, by_priority())
    monkeypatch.setattr(taken, "RANGES_MAX", 1)
    taken.TakenRecords(saved.job("job").path / "sources" / "rows").add([])
    before = saved.job("job").newest_batches()
    with pytest.raises(InvalidInput, match="since the savepoint 'early' is not listed any more"):
        saved.restore("early")
    assert saved.job("job").newest_batches() == before


def test_a_queue_in_which_rows_wait_is_not_removed(log: EmbeddedLog, saved: SavedJobs) -> None:
    put(log, *range(200))
    left_waiting(log, inner())
    before = saved.job("job").newest_batches()
    with pytest.raises(JobChanged, match=r"no queue 'slow' any more, in which \d+ records wait"):
        run(log, inner(queue=False))
    plan = compared(saved.job("job"), PhysicalPlan(inner(queue=False).check(), 1), {})
    assert plan.dropped == ["slow"]
    assert "slow.in" not in plan.description.written  # who accepts that is not asked again
    assert not compared(saved.job("job"), PhysicalPlan(inner(at_once=50).check(), 1), {}).dropped
    assert saved.job("job").newest_batches() == before
    run(log, inner(at_once=50))
    run(log, inner(queue=False))  # it is empty
    put(log, 200)
    run(log, inner(queue=False))
    assert sorted(got(log, "out")) == list(range(201))


def test_a_queue_gets_a_priority_and_keeps_it(log: EmbeddedLog, saved: SavedJobs) -> None:
    put(log, *range(10))
    run(log, by_priority("rows"))
    put(log, *range(10, 20))
    run(log, by_priority(), batch_rows=3)
    for source in ("rows", ms.queue("rows", at_most=100)):
        with pytest.raises(JobChanged, match="'rows' was read by priority"):
            run(log, by_priority(source))
        with pytest.raises(JobChanged, match="'rows' was read by priority"):
            compared(saved.job("job"), PhysicalPlan(by_priority(source).check(), 1), {})
    put(log, *range(20, 30))
    run(log, by_priority(ms.queue("rows", priority="0")))
    assert sorted(got(log, "out")) == list(range(30))


def rehearse(log: EmbeddedLog, saved: SavedJobs, old: Flow, new: Flow) -> dict[str, Any]:
    return rehearsed(saved.all, "job", old, new, broker=str(log.path), last=timedelta(hours=1), mapping={})


def test_what_a_rehearsal_cannot_repeat_is_refused(log: EmbeddedLog, saved: SavedJobs) -> None:
    with pytest.raises(InvalidInput, match="has a queue inside, 'slow', and a rehearsal writes nothing"):
        rehearse(log, saved, inner(queue=False), inner())
    with pytest.raises(InvalidInput, match="'rows' is read by priority"):
        rehearse(log, saved, by_priority(), by_priority("rows"))
    assert list(log.topics()) == ["rows"]


def test_a_rehearsal_is_no_reader_of_a_queue(log: EmbeddedLog, saved: SavedJobs) -> None:
    """Its writers would take rows for read that the job has not read yet."""

    def flow() -> Flow:
        made = ms.Flow("job")
        made.read(ms.queue("rows", at_most=100, when_full="wait"), SCHEMA, name="rows").write("out", name="out")
        return made

    put(log, *range(10))
    run(log, flow())
    saved.savepoint("job", "early")
    put(log, *range(10, 15))
    (output,) = rehearse(log, saved, flow(), flow())["outputs"]
    assert output["counts"]["same"] == 5
    assert log.describe_group("queue.rows.job.rows").lag == 5
