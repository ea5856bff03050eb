"""The metrics of a job, from the reports of its tasks, and of a real run."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import InvalidInput, SinkUnavailable
from millstream.jobs.measuring.job_metrics import JobMetrics, Phases, plan_of
from millstream.jobs.measuring.topic_lag import Growth
from millstream.log import EmbeddedLog
from millstream.metrics.history import read_metrics
from millstream.metrics.silence import why_silent
from millstream.plan.time.bundles import BEGINNING
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.task_messages import RowsReport, SourceReport, StepReport
from waiting import until

from .support import CAUGHT_UP, per_user, put, scores

NOW = 1_000.0


def plan(**options: Any) -> PhysicalPlan:
    flow = ms.Flow("watched")
    panes = per_user(scores(flow, **options).where("n > 0", name="positive"))
    panes.write("totals", name="out")
    panes.late.write("late", name="late_out")
    return PhysicalPlan(flow.check(), 4)


def sampled(metrics: JobMetrics, now: float = NOW, **given: Any) -> Any:
    known = {"batch": 1, "written": {}, "waits_for": None, "ends": {}, "waiting_since": {}}
    return metrics.sample(now, **{**known, **given})


def test_rows_of_each_step() -> None:
    metrics = JobMetrics(plan())
    agg = next(each.name for each in metrics.plan if each.kind == "stateful")
    late = next(each.name for each in metrics.plan if each.kind == "late")
    for _ in range(2):
        reports = [SourceReport("read_scores", 5), SourceReport("read_scores", 5), RowsReport({"positive": 7})]
        metrics.observe([*reports, RowsReport({agg: 3, late: 2}), StepReport(agg, BEGINNING, 4, 2, 0)], NOW)
    sample, _ = sampled(metrics, written={"out": 6, "late_out": 4})
    shown = {name: (each.rows_in, each.rows_out, each.rows_late) for name, each in sample.steps.items()}
    assert shown["read_scores"] == (20, 20, 0)
    assert shown["positive"] == (20, 14, 0)
    assert shown[agg] == (14, 6, 4)
    assert shown["out"] == (6, 6, 0)
    assert shown["late_out"] == (4, 4, 0)
    assert (sample.rows, sample.rows_late, sample.rows_dead) == (20, 4, 0)
    metrics.observe([SourceReport("read_scores", 30)], NOW + 1)
    assert sampled(metrics, NOW + 2)[0].rows_per_s == 15


def test_the_delay_of_a_step_is_its_own_and_what_it_inherited() -> None:
    metrics = JobMetrics(plan())
    agg = next(each.name for each in metrics.plan if each.kind == "stateful")
    groups = [
        StepReport(agg, 990_000_000, 3, 0, 0, (), 970_000_000, 100),
        StepReport(agg, 995_000_000, 4, 0, 0, (), None, 50),
    ]
    metrics.observe([SourceReport("read_scores", 1, partitions={"0": 992_000_000}), *groups], NOW)
    steps = sampled(metrics)[0].steps
    step = steps[agg]
    assert (step.watermark, step.delay_s, step.delay_own_s, step.delay_inherited_s) == (990.0, 30.0, 20.0, 10.0)
    assert (step.state_rows, step.state_bytes) == (7, 150)
    assert (steps["read_scores"].watermark, steps["read_scores"].delay_s) == (992.0, 8.0)
    assert (steps["out"].delay_s, steps["out"].delay_own_s, steps["out"].delay_inherited_s) == (30.0, 0.0, 30.0)


def test_partitions() -> None:
    metrics = JobMetrics(plan(watermark=ms.bounded("0 seconds", idle="1 minute")))
    metrics.observe(
        [SourceReport("read_scores", 5, ends={"0": 5, "1": 0}, partitions={"0": 900_000_000, "1": None})], NOW
    )
    ends = {("read_scores", "0"): 8, ("read_scores", "1"): 0}
    sample, partitions = sampled(metrics, ends=ends, waiting_since={("read_scores", "0"): NOW - 4})
    first, second = sorted(partitions, key=lambda each: each.partition)
    assert (first.offset, first.end, first.watermark, first.moved_at, first.active_at, first.lag_s) == (
        5,
        8,
        900.0,
        NOW,
        NOW,
        4.0,
    )
    assert (second.active_at, second.watermark, second.lag_s) == (None, None, 0.0)
    source = sample.steps["read_scores"]
    assert (source.lag_records, source.lag_s, source.watermark) == (3, 4.0, None), "partition 1 holds the watermark"
    assert sampled(metrics, NOW + 59)[0].steps["read_scores"].watermark is None
    metrics.observe([SourceReport("read_scores", 1, ends={"0": 6, "1": 0}, partitions={"0": 910_000_000})], NOW + 59)
    assert sampled(metrics, NOW + 61)[0].steps["read_scores"].watermark == 910.0, "it is idle by now"
    assert sampled(metrics, NOW + 61, ends=None)[0].lag_records is None


def test_phases_of_a_batch() -> None:
    metrics = JobMetrics(plan())
    metrics.ended(Phases(2.0, 1.0, 0.1, 0.5, 0.25))
    metrics.ended(Phases(2.0, 0.0, 0.5, 0.75, 0.25))
    sample = sampled(metrics)[0]
    assert (sample.batch_s, sample.wait_s, sample.process_s, sample.other_s, sample.busy) == (2.0, 0.0, 0.75, 0.5, 0.75)
    assert sampled(metrics, NOW + 1, ends={("read_scores", "0"): 0})[0].busy == 0.0
    source, *_ = plan_of(plan())
    assert (source.has_watermark, source.topic) == (True, "scores")


def test_when_an_offset_was_passed() -> None:
    growth = Growth()
    for now, end in ((1.0, 10), (2.0, 10), (3.0, 20), (4.0, 30)):
        growth.observe(end, now)
    assert [growth.passed_at(offset) for offset in (0, 9, 10, 25, 30)] == [1.0, 1.0, 3.0, 4.0, None]


# ---------------------------------------------------------------- of real runs


@pytest.mark.more
def test_metrics_of_a_run(log: EmbeddedLog, spark: SparkSession) -> None:
    put(log, "scores", [("ann", 1, 0), ("bob", 2, 30), ("ann", 3, 2), ("ann", -3, 31)])
    flow = ms.Flow("watched")
    panes = per_user(scores(flow).where("n > 0", name="positive"))
    panes.write("totals", name="out")
    panes.late.write("late", name="late_out")
    job = flow.run(broker=log.path, until=CAUGHT_UP, batch_rows=2)
    found = job.metrics()
    steps = found["samples"][-1]["steps"]
    agg = next(each["name"] for each in found["plan"] if each["kind"] == "stateful")
    shown = {
        name: (steps[name]["rows_in"], steps[name]["rows_out"]) for name in ("read_scores", "positive", agg, "out")
    }
    assert shown == {"read_scores": (4, 4), "positive": (4, 3), agg: (3, 1), "out": (1, 1)}
    assert (steps[agg]["rows_late"], steps["late_out"]["rows_out"], steps[agg]["state_rows"]) == (1, 1, 1)
    assert steps[agg]["state_bytes"] > 0
    assert (steps["read_scores"]["lag_records"], steps["read_scores"]["lag_s"]) == (0, 0.0)
    assert found["samples"][-1]["process_s"] > 0
    assert [(each["partition"], each["offset"], each["end"]) for each in found["partitions"]] == [("0", 4, 4)]
    with pytest.raises(InvalidInput, match="no step 'nowhere'"):
        job.metrics(step="nowhere")
    assert list(job.metrics(step=agg, last="1 hour")["samples"][-1]["steps"]) == [agg]


@pytest.mark.more
def test_metrics_while_a_sink_is_down(log: EmbeddedLog, spark: SparkSession) -> None:
    """Goal: what waits is seen while it waits, with the time that records have waited."""
    put(log, "scores", [("ann", 1, 0)])
    down = [True]

    def write(rows: Any, batch: int) -> None:
        if down[0]:
            raise SinkUnavailable("nobody answers")

    flow = ms.Flow("waits")
    scores(flow).write(ms.foreach_batch(write), name="out")
    job = flow.start(broker=log.path)
    until(lambda: (found := read_metrics(job.folder.path)) and found.newest and found.newest.waits_for, "it waits")
    put(log, "scores", [("ann", 1, 0), ("ann", 2, 0)])
    waiting = until(lambda: (s := job.metrics()["samples"][-1])["lag_records"] == 2 and s, "two records wait")
    assert waiting["lag_s"] > 0
    assert "nobody answers" in waiting["waits_for"]
    found = why_silent("waits", read_metrics(job.folder.path, since=0.0), "running", waiting["at"])
    assert [each.kind for each in found.findings] == ["sink_down"]
    down[0] = False
    until(lambda: job.metrics()["samples"][-1]["steps"]["out"]["rows_out"] == 3, "all rows are written")
    assert job.metrics()["samples"][-1]["waits_for"] is None
    job.stop()


@pytest.mark.more
def test_no_metrics_if_they_are_not_wanted(log: EmbeddedLog, spark: SparkSession) -> None:
    put(log, "scores", [("ann", 1, 0)])
    flow = ms.Flow("plain")
    scores(flow).write("plain")
    job = flow.run(broker=log.path, until=CAUGHT_UP, metrics=False)
    assert job.metrics() == {}
    assert (job.folder.path / "progress.json").exists()
