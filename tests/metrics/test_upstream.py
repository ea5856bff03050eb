"""What a job inherits from the jobs that write its topics."""

from __future__ import annotations

from millstream.metrics.samples import Metrics, Sample, StepPlan
from millstream.metrics.upstream import Upstream, upstream_of


def job(reads: str, writes: str, lag_s: float) -> Metrics:
    plan = (StepPlan("in", "source", "", topic=reads), StepPlan("out", "output", "", ("in",), topic=writes))
    return Metrics(0.0, plan, samples=(Sample(1.0, lag_records=int(lag_s), lag_s=lag_s),))


def test_the_jobs_before_a_job() -> None:
    known = {"c": job("clean", "totals", 1.0), "a": job("raw", "parsed", 5.0), "b": job("parsed", "clean", 2.0)}
    assert upstream_of("c", known) == [Upstream("b", "clean", 2, 2.0), Upstream("a", "parsed", 5, 5.0)]
    assert upstream_of("a", known) == []
    assert upstream_of("unknown", known) == []


def test_topics_that_form_a_loop() -> None:
    known = {"a": job("x", "y", 1.0), "b": job("y", "x", 2.0)}
    assert [each.job for each in upstream_of("a", known)] == ["b"]
