"""What a job reports by itself, from what its batches reported."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import millstream as ms
from millstream.jobs.shown.notices import STUCK_S, Notices
from millstream.plan.time.bundles import BEGINNING
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.task_messages import SourceReport, StepReport

from .support import scores


class Steady:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def notices(steady: Steady, *, takes_late: bool = False, **options: Any) -> Notices:
    flow = ms.Flow("totals")
    panes = scores(flow, **options).key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n"), name="agg")
    panes.write("out")
    if takes_late:
        panes.late.write("late")
    return Notices("totals", PhysicalPlan(flow.check(), 1), steady)


def batch(rows: int, **partitions: int | None) -> list[SourceReport]:
    return [SourceReport("read_scores", rows, partitions={name[1:]: found for name, found in partitions.items()})]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "millstream.job")
    return caplog


def test_dropped_rows_are_reported_once_with_what_to_do(said: pytest.LogCaptureFixture) -> None:
    found = notices(Steady())
    for late in (0, 3, 5):
        found.observe([StepReport("agg", BEGINNING, 0, late, 0)], {})
    (message,) = said.messages
    assert "'agg'" in message
    assert ".late.write" in message


def test_notes_of_a_step_are_reported_once(said: pytest.LogCaptureFixture) -> None:
    found = notices(Steady())
    for _ in range(2):
        found.observe([StepReport("agg", BEGINNING, 0, 0, 0, ("a row is missing",))], {})
    assert said.messages == ["totals: a row is missing"]


def test_late_rows_that_are_used_give_no_notice(said: pytest.LogCaptureFixture) -> None:
    notices(Steady(), takes_late=True).observe([StepReport("agg", BEGINNING, 0, 3, 0)], {})
    assert said.messages == []


def test_a_bounded_run_names_the_partition_that_held_everything_back(said: pytest.LogCaptureFixture) -> None:
    found = notices(Steady())
    found.observe(batch(100, p0=5_000_000, p1=None, p2=None), {"agg": BEGINNING})
    found.end({"agg": BEGINNING}, 100)
    (message,) = said.messages
    assert "partitions 1, 2" in message
    assert "idle=" in message


def test_a_bounded_run_that_closed_windows_gives_no_notice(said: pytest.LogCaptureFixture) -> None:
    found = notices(Steady())
    found.observe(batch(100, p0=5_000_000), {"agg": 5_000_000})
    found.end({"agg": 5_000_000}, 100)
    assert said.messages == []


def test_a_live_job_reports_a_watermark_that_stands_still_while_rows_come(said: pytest.LogCaptureFixture) -> None:
    steady = Steady()
    found = notices(steady)
    found.observe(batch(10, p0=1, p1=None), {"agg": BEGINNING})
    steady.now = STUCK_S - 1
    found.observe(batch(10, p0=2, p1=None), {"agg": BEGINNING})
    assert said.messages == []
    steady.now = STUCK_S
    found.observe(batch(0, p0=None, p1=None), {"agg": BEGINNING})
    assert said.messages == []
    found.observe(batch(10, p0=3, p1=None), {"agg": BEGINNING})
    (message,) = said.messages
    assert "partition 1 sent no row" in message


def test_a_note_of_the_planner_is_passed_on(said: pytest.LogCaptureFixture) -> None:
    notices(Steady()).observe([SourceReport("read_scores", 0, notes=("the machine's clock is 9 s behind: odd",))], {})
    assert said.messages == ["totals: the machine's clock is 9 s behind: odd"]
