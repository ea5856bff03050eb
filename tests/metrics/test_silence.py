"""Why nothing comes out of a job: each cause is found from metrics alone, with what to do next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.metrics.samples import Metrics, PartitionSample, Sample, StepPlan, StepSample
from millstream.metrics.silence import Silence, why_silent

NOW = 100_000.0
SOURCE = StepPlan("read", "source", "read scores", has_watermark=True)
PLAN = (
    SOURCE,
    StepPlan("where", "step", "where n > 0", ("read",)),
    StepPlan("agg", "stateful", "sum", ("where",), drops_late=True),
    StepPlan("out", "output", "write totals", ("agg",)),
)
FLOWING = PartitionSample("read", "0", 10, 10, NOW - 10, NOW - 5, NOW - 5, NOW - 3600)
STEPS = {
    "read": StepSample(100, 100, lag_records=0, lag_s=0.0),
    "where": StepSample(100, 90),
    "agg": StepSample(90, 5, state_rows=3, watermark=NOW - 10),
    "out": StepSample(5, 5),
}


def asked(
    *partitions: PartitionSample,
    state: str = "running",
    plan: tuple[StepPlan, ...] = PLAN,
    before: dict[str, StepSample] | None = None,
    at: float = NOW - 1,
    waits_for: str | None = None,
    reason: str | None = None,
    **steps: StepSample,
) -> Silence:
    after = {**STEPS, **steps}
    first = Sample(NOW - 500, 1, steps=after if before is None else {**STEPS, **before})
    lag = after["read"]
    newest = Sample(at, 9, waits_for=waits_for, lag_records=lag.lag_records, lag_s=lag.lag_s, steps=after)
    metrics = Metrics(NOW - 3600, plan, partitions or (FLOWING,), (first, newest))
    return why_silent("scores", metrics, state, NOW, reason)


def kinds(found: Silence) -> list[str]:
    assert all(each.what and each.next_step for each in found.findings)
    return [each.kind for each in found.findings]


def test_a_job_that_writes_has_nothing_to_explain() -> None:
    found = asked(before={"out": StepSample(3, 3)})
    assert (found.is_silent, found.silent_since, found.findings) == (False, NOW - 1, ())


@pytest.mark.parametrize("state", ["stopped", "waiting", "scheduled", "failed", "finished"])
def test_a_job_that_does_not_run(state: str) -> None:
    found = asked(state=state, reason="no luck")
    assert kinds(found) == ["not_running"]
    assert found.findings[0].what == f"the job is {state}: no luck"


def test_a_job_that_is_starting() -> None:
    assert kinds(why_silent("scores", None, "running", NOW)) == ["no_metrics"]
    before = Metrics(NOW - 1, PLAN, (), (Sample(NOW - 100),))
    assert kinds(why_silent("scores", before, "running", NOW)) == ["no_metrics"], "they are of the run before"


def test_a_job_that_hangs() -> None:
    assert kinds(asked(at=NOW - 100, before={"out": StepSample(3, 3)})) == ["stalled"]


def test_a_sink_that_is_down() -> None:
    found = asked(waits_for="out: nobody answers")
    assert kinds(found) == ["sink_down"]
    assert (found.findings[0].step, found.findings[0].what) == ("out", "the sink of 'out' is down: nobody answers")


def test_nothing_in_the_input() -> None:
    empty = {"read": StepSample(0, 0, lag_records=0, lag_s=0.0), "where": StepSample(0, 0), "agg": StepSample(0, 0)}
    found = asked(PartitionSample("read", "0", 0, 0, seen_at=NOW - 100), **empty, before=empty, out=StepSample(0, 0))
    assert kinds(found) == ["empty_input"]
    quiet = replace(FLOWING, active_at=NOW - 400, moved_at=NOW - 400)
    assert kinds(asked(quiet)) == ["no_new_input", "still_watermark"]


def test_a_partition_without_rows_holds_the_watermark() -> None:
    silent = PartitionSample("read", "1", 0, 0, seen_at=NOW - 3000)
    found = asked(FLOWING, silent)
    assert kinds(found) == ["silent_partition"]
    assert (found.findings[0].partition, found.findings[0].since) == ("1", NOW - 3000)
    assert "idle='30 seconds'" in found.findings[0].next_step
    idle = (replace(SOURCE, idle_s=30.0), *PLAN[1:])
    assert kinds(asked(FLOWING, silent, plan=idle)) == [], "it no longer counts"
    just_now = replace(silent, seen_at=NOW - 10)
    assert "wait" in asked(FLOWING, just_now, plan=idle).findings[0].next_step


def test_a_partition_that_holds_the_watermark() -> None:
    behind = replace(FLOWING, partition="7", watermark=NOW - 900, moved_at=NOW - 800, active_at=NOW - 800)
    found = asked(FLOWING, behind)
    assert kinds(found) == ["held_watermark"]
    assert (found.findings[0].partition, found.findings[0].since) == ("7", NOW - 800)


def test_a_record_in_the_future_is_reported_even_if_rows_come() -> None:
    ahead = replace(FLOWING, watermark=NOW + 86_400)
    assert kinds(asked(ahead, before={"out": StepSample(3, 3)})) == ["future_record"]
    beyond = replace(FLOWING, watermark=1e13)
    assert "beyond the calendar" in asked(beyond).findings[0].what


@pytest.mark.parametrize(
    ("step", "sample", "kind"),
    [
        ("agg", StepSample(90, 5, 60), "all_late"),
        ("where", StepSample(160, 90, 0, 60), "all_dead"),
        ("where", StepSample(160, 90), "no_rows_after"),
        ("agg", StepSample(90, 5, state_rows=40), "waiting_windows"),
        ("agg", StepSample(90, 5, state_rows=0), "no_rows_after"),
    ],
)
def test_rows_that_stop_at_a_step(step: str, sample: StepSample, kind: str) -> None:
    """Method: before, the step had received 60 rows less, and sent as many as now."""
    earlier = {
        "where": StepSample(100, 90),
        "agg": StepSample(30, 5),
    }
    found = asked(before={step: earlier[step]}, **{step: sample})
    assert kinds(found) == [kind]
    assert found.findings[0].step == step


def test_what_spark_runs_as_one_step_is_not_blamed() -> None:
    unknown: Any = StepSample(None, None)
    assert kinds(asked(where=unknown, before={"where": unknown})) == []


def test_a_job_that_is_behind() -> None:
    assert kinds(asked(read=StepSample(100, 100, lag_records=500, lag_s=90.0))) == ["behind"]


def test_as_a_document() -> None:
    document = asked(waits_for="out: nobody answers").document("scores")
    assert (document["job"], document["state"], document["is_silent"]) == ("scores", "running", True)
    assert document["findings"][0]["kind"] == "sink_down"
