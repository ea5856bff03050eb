"""A console beside a job that runs without a supervisor: it shows the page of its link, and changes nothing."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import millstream as ms
from millstream.plan.shown import dashboards
from millstream.web_console.beside import console_beside
from provenance.recorded import SCHEMA, record

from .flows import write_plan_of
from .test_time_plane import BATCHES, FLOW, flow_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DASHBOARD = """
ms.dashboard("teams", ms.panel("plane", "Windows"), ms.panel("table", "Scores", "scores", columns=["team"]))
"""


@pytest.fixture
def recorded_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a job that runs on the log beside it."""
    monkeypatch.setattr(dashboards, "_built", {})
    file = tmp_path / "flow.py"
    file.write_text(FLOW + DASHBOARD)
    with ms.connect(tmp_path / "log") as log:
        log.create_topic("scores", partitions=1, schema=SCHEMA)
    record(tmp_path / "log", "totals", "scores", "scores", BATCHES)
    write_plan_of(tmp_path / "log" / "jobs" / "totals", flow_of(FLOW + DASHBOARD))
    return file


def asked(
    link: str, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = HTTPConnection(urlsplit(link).netloc)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def test_it_shows_and_changes_nothing(recorded_job: Path) -> None:
    with console_beside(recorded_job, "totals", recorded_job.parent / "log") as door:
        link = door.link("/dashboards/teams")
        address, _, code = link.partition("#code=")
        code, _, page = code.partition("/")
        assert page == "dashboards/teams"
        _, headers, text = asked(link, "POST", "/console/login", json.dumps({"code": code}))
        session = {"Cookie": headers["set-cookie"].partition(";")[0], "X_Millstream_Csrf": json.loads(text)["csrf"]}
        assert json.loads(asked(link, "GET", "/v1/jobs/totals", **session)[2])["state"] == "running"
        assert json.loads(asked(link, "GET", "/console/session", **session)[2])["acts"] is False
        for path in ("/v1/jobs/totals/stop", "/v1/topics/scores/records", "/v1/jobs"):
            status, _, text = asked(link, "POST", path, "{}", **session)
            assert (status, json.loads(text)["error"]["what"]) == (403, "this console only shows its job")
    with pytest.raises(ConnectionRefusedError):
        asked(address, "GET", "/console/")
    assert [each.name for each in recorded_job.parent.iterdir()].count("supervisor") == 0


@pytest.mark.more
def test_a_link_to_a_dashboard_with_a_plane(recorded_job: Path, browser: Browser) -> None:
    with console_beside(recorded_job, "totals", recorded_job.parent / "log") as door:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(door.link("/dashboards/teams"))
        page.get_by_role("heading", name="teams").wait_for()
        page.get_by_text("batch 5: 9 rows, 9 drawn, 1 late").wait_for()
        page.get_by_role("cell", name="blue").first.wait_for()
        page.goto(f"{door.link().partition('#')[0]}#/jobs/totals")
        silent = page.get_by_role("region", name="Why is nothing coming out?")
        silent.get_by_text("has measured nothing yet").wait_for()
        assert page.get_by_role("button", name="Delete…").count() == 0
        page.get_by_role("heading", name="totals").wait_for()
        assert page.get_by_role("button", name="Stop").count() == 0
        context.close()
