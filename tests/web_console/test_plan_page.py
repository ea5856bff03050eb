"""The plan of a job: as a document, and drawn in a real browser."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from millstream.metrics.history import History
from millstream.metrics.samples import Sample, StepPlan, StepSample

from .axe import violations
from .conftest import Console
from .flows import planned, pumps_flow
from .pictures import picture

if TYPE_CHECKING:
    from playwright.sync_api import Page

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()


def test_the_plan_is_answered_as_it_runs(console: Console) -> None:
    session = console.logged_in()
    planned(console, pumps_flow())
    status, _, plan = console.ask("GET", "/v1/jobs/pumps/plan", **session)
    assert status == 200
    assert [step["kind"] for step in plan["logical"]] == ["source", "step", "state", "sink", "side", "sink"]
    assert [step["name"] for step in plan["logical"] if step["windowed"]] == [plan["logical"][2]["name"]]
    assert [stage["kind"] for stage in plan["physical"]] == ["source", "state", "sink", "sink"]
    names = {stage["name"] for stage in plan["physical"]}
    assert all(given in names for stage in plan["physical"] for given in stage["inputs"])
    assert [stage["steps"] for stage in plan["physical"][:2]] == [[plan["logical"][place]["name"]] for place in (0, 2)]
    assert console.ask("GET", "/v1/jobs/other/plan", **session)[0] == 404
    (console.supervisor.jobs / "pumps" / "plan.json").write_text("{")
    assert console.ask("GET", "/v1/jobs/pumps/plan", **session)[0] == 404


def measured(console: Console, at: float, sent: int) -> None:
    """A sample of the job, as it writes them while it runs."""
    _, _, plan = console.ask("GET", "/v1/jobs/pumps/plan", **console.logged_in())
    source, _, window, *_ = (step["name"] for step in plan["logical"])
    steps = {source: StepSample(rows_in=sent, rows_out=sent, watermark=NOON), window: StepSample(state_rows=7)}
    with closing(History(console.supervisor.jobs / "pumps")) as history:
        history.begin_run(NOON, [StepPlan(source, "source", source), StepPlan(window, "state", window)])
        history.add(Sample(at, steps=steps), [])


@pytest.mark.more
def test_the_plan_shows_what_it_measures(console: Console, page: Page) -> None:
    planned(console, pumps_flow())
    measured(console, NOON + 60, 100)
    page.goto(f"{console.url}/console/#/jobs/pumps/plan")
    physical = page.get_by_role("region", name="Physical")
    physical.get_by_role("button", name="stage 1").filter(has_text="holds 7").wait_for()
    page.get_by_role("row", name="2026-01-31 12:00:00").wait_for()
    physical.get_by_text("100 rows", exact=True).wait_for()
    measured(console, NOON + 70, 350)
    physical.get_by_text("25 rows/s", exact=True).wait_for()
    picture(page, "plan-measured")
    assert violations(page) == []


@pytest.mark.more
def test_the_plan_is_drawn(console: Console, page: Page) -> None:
    planned(console, pumps_flow())
    page.get_by_role("link", name="pumps").click()
    page.get_by_role("link", name="Plan", exact=True).click()
    logical = page.get_by_role("region", name="Logical: as it was written")
    step = logical.get_by_role("button", name="litres=sum")
    step.click()
    page.get_by_role("link", name="Its time plane").wait_for()
    assert page.get_by_role("region", name="Physical").get_by_role("button").count() == 4
    picture(page, "plan")
