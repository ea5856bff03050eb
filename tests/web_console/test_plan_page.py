"""The plan of a job: as a document, and drawn in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import Console
from .flows import planned, pumps_flow
from .pictures import picture

if TYPE_CHECKING:
    from playwright.sync_api import Page


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
    assert console.ask("GET", "/v1/jobs/other/plan", **session)[0] == 404
    (console.supervisor.jobs / "pumps" / "plan.json").write_text("{")
    assert console.ask("GET", "/v1/jobs/pumps/plan", **session)[0] == 404


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
