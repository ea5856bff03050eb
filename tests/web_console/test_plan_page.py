"""The plan of a job: as a document, and drawn in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from millstream.metrics.history import History
from millstream.metrics.samples import Sample, StepPlan, StepSample
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Desired, Observed
from waiting import until

from .axe import violations
from .conftest import Console
from .flows import planned, planned_in, pumps_flow
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
    processes = [step["process"] for step in plan["logical"]]
    assert processes == ["worker", "worker", "worker", "driver", "worker", "driver"]
    assert [stage["process"] for stage in plan["physical"]] == ["worker", "worker", "driver", "driver"]
    source, window, written, late = (stage["name"] for stage in plan["physical"])
    stages = [step["stages"] for step in plan["logical"]]
    assert stages == [[source], [source], [window], [written], [window], [late]]
    assert console.ask("GET", "/v1/jobs/other/plan", **session)[0] == 404
    (console.supervisor.jobs / "pumps" / "plan.json").write_text("{")
    assert console.ask("GET", "/v1/jobs/pumps/plan", **session)[0] == 404


def measured(console: Console, at: float, sent: int) -> None:
    """A sample of the job, as it writes them while it runs."""
    _, _, plan = console.ask("GET", "/v1/jobs/pumps/plan", **console.logged_in())
    source, _, window, *_ = (step["name"] for step in plan["logical"])
    steps = {
        source: StepSample(rows_in=sent, rows_out=sent, watermark=NOON, delay_own_s=1.0),
        window: StepSample(state_rows=7, watermark=NOON - 10, delay_own_s=4.0),
    }
    with closing(History(console.supervisor.jobs / "pumps")) as history:
        history.begin_run(NOON, [StepPlan(source, "source", source), StepPlan(window, "state", window)])
        history.add(Sample(at, steps=steps), [])


@contextmanager
def running(console: Console) -> Iterator[int]:
    """The job is a process that does nothing; its id."""
    ends = console.log.parent / "ends"
    file = console.log.parent / "flow.py"
    file.write_text(f"import os, time\nwhile not os.path.exists({str(ends)!r}):\n    time.sleep(0.05)\n")
    console.supervisor.store.add(JobSpecification("pumps", str(file), "pumps"), "ann", Observed.STOPPED, None)
    session = console.logged_in()
    assert console.ask("POST", "/v1/jobs/pumps/start", "{}", **session)[0] == 200

    def processes() -> Any:
        return console.ask("GET", "/v1/jobs/pumps", **session)[2]["processes"]

    yield until(processes, "the job has a process")[0]["pid"]
    console.supervisor.store.update("pumps", desired=Desired.STOPPED)
    ends.touch()
    until(lambda: not processes(), "the job has ended")


@pytest.mark.more
def test_the_plan_shows_the_process_of_each_step(console: Console, page: Page) -> None:
    with running(console) as pid:
        planned_in(console, pumps_flow())
        page.goto(f"{console.url}/console/#/jobs/pumps/plan")
        for view in ("Logical", "Physical"):
            boxes = page.get_by_role("region", name=view).get_by_role("button")
            boxes.filter(has_text="litres_per_minute").filter(has_text=f"in driver {pid}").wait_for()
            boxes.filter(has_text="readings").filter(has_text="in Python workers").first.wait_for()


@pytest.mark.more
def test_the_plan_shows_what_it_measures(console: Console, page: Page) -> None:
    planned(console, pumps_flow())
    measured(console, NOON + 60, 100)
    page.goto(f"{console.url}/console/#/jobs/pumps/plan")
    physical = page.get_by_role("region", name="Physical")
    physical.get_by_role("button", name="stage 1").filter(has_text="holds 7").wait_for()
    page.get_by_role("row", name="2026-01-31 12:00:00").wait_for()
    for view, steps in (("Logical", ("readings", "litres=sum")), ("Physical", ("readings", "stage 1"))):
        for step, reached, heat in zip(steps, ("12:00:00", "11:59:50"), (0.1125, 0.45), strict=True):
            box = page.get_by_role("region", name=view).get_by_role("button", name=step).first
            box.filter(has_text=f"watermark 2026-01-31 {reached}").wait_for()
            assert float(box.locator(".heat").evaluate("each => each.style.fillOpacity")) == heat
    colours = page.get_by_role("note", name="Colours")
    colours.get_by_text("no delay of its own to the largest, 4 s").wait_for()
    for kind in ("source", "row by row", "keeps state", "side output", "output"):
        assert kind in colours.inner_text()
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
    marked = page.locator(".node.chosen")
    assert [each.locator(".name").inner_html() for each in marked.all()][1:] == ["stage 1"]
    left, right = (page.get_by_role("region", name=each).bounding_box() for each in ("Logical", "Physical"))
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] < right["x"], "side by side"
    assert page.get_by_role("region", name="Physical").get_by_role("button").count() == 4
    picture(page, "plan")
    assert violations(page) == []
