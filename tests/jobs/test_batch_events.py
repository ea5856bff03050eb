"""The events of batches as the driver writes them, without Spark: what tasks report, and a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.measuring.batch_event import BatchEvent
from millstream.jobs.measuring.batch_events import TICKS_MAX, BatchEvents
from millstream.jobs.measuring.job_metrics import JobMetrics
from millstream.log import EmbeddedLog
from millstream.provenance.events import events_of
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.task_messages import Report, RowsReport, SourceReport


class Run:
    """A run of a flow that reads `scores` and writes what is positive."""

    def __init__(self, log: EmbeddedLog, identity: str = "run") -> None:
        flow = ms.Flow("copy")
        read = flow.read("scores", "score int", name="scores")
        read.where("score > 0", name="positive").write("copies", name="copied")
        self.log, self.folder = log, JobFolder(log.path / "jobs" / "copy", "copy")
        for name in ("offsets", "commits"):
            (self.folder.checkpoint / name).mkdir(parents=True, exist_ok=True)
        plan = PhysicalPlan(flow.check(), 4)
        self.metrics = JobMetrics(plan)
        self.events = BatchEvents(log, self.folder, identity, plan, self.metrics, counts_rows=True)
        self.written = 0

    def batch(self, number: int, start: int, end: int, kept: int = 0) -> None:
        """A batch of one task, which reads a range, and of which so many rows are written."""
        sources = {"scores": {"0": end}}
        ends = {"clock": 100 + number, "ended": False, "sources": sources, "done": {}}
        (self.folder.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(ends)}")
        (self.folder.checkpoint / "commits" / str(number)).write_text("v1\n{}")
        read = (("0", start, end),) if end > start else ()
        reports: list[tuple[int, Report]] = [(0, SourceReport("scores", end - start, read=read))]
        if kept:
            reports.append((0, RowsReport({"positive": kept, "copied": kept}, "scores")))
        self.metrics.observe([report for _, report in reports], 0.0)
        self.written += kept
        self.events.record(number, number, reports, {"copied": self.written}, {})

    def recorded(self) -> list[BatchEvent]:
        self.events.close()
        return list(events_of(self.log, self.folder))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        yield opened


def test_figures_are_those_of_one_batch(log: EmbeddedLog) -> None:
    run = Run(log)
    run.batch(0, 0, 5, kept=3)
    run.batch(1, 5, 9, kept=4)
    _, second = run.recorded()
    assert (second.starts, second.ends, second.clock) == ({"scores": {"0": 5}}, {"scores": {"0": 9}}, 101)
    positive = second.steps["positive"]
    assert (positive.kind, positive.rows_in, positive.rows_out) == ("step", 4, 4)
    assert (second.steps["copied"].rows_out, second.steps["copied"].target) == (4, "copies")
    [task] = second.tasks
    assert (task.step, task.task, task.rows, task.read) == ("scores", 0, 4, (("0", 5, 9),))
    assert task.rows_out == {"positive": 4, "copied": 4}


def test_idle_batches_are_part_of_the_next_event(log: EmbeddedLog) -> None:
    run = Run(log)
    run.batch(0, 0, 2, kept=1)
    for number in range(1, TICKS_MAX + 4):
        run.batch(number, 2, 2)
    run.batch(TICKS_MAX + 4, 2, 3, kept=1)
    run.batch(TICKS_MAX + 5, 3, 3)
    events = run.recorded()
    assert [(each.batch, len(each.ticks)) for each in events] == [
        (0, 0),
        (TICKS_MAX + 1, TICKS_MAX),
        (TICKS_MAX + 4, 2),
        (TICKS_MAX + 5, 0),
    ]
    assert events[1].ticks[0] == 101


def test_the_next_run_records_what_a_killed_one_has_lost(log: EmbeddedLog) -> None:
    """Method: the second run writes its events elsewhere, as if they were lost."""
    first = Run(log)
    first.batch(0, 0, 2, kept=1)
    assert len(first.recorded()) == 1
    killed = Run(log)
    killed.events.close()
    killed.batch(1, 2, 4, kept=1)
    killed.batch(2, 4, 5, kept=1)
    again = Run(log)
    again.batch(3, 5, 6, kept=1)
    found = again.recorded()
    assert [(each.batch, bool(each.steps)) for each in found] == [(0, True), (1, False), (2, False), (3, True)]
    assert [each.starts for each in found[1:]] == [{"scores": {"0": start}} for start in (2, 4, 5)]
