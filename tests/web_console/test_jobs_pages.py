"""Jobs in a real browser: listed, shown, started and stopped; what a job prints is text, whatever it prints."""

from __future__ import annotations

import io
import json
import re
import time
import zipfile
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.test_savepoints import made_job
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Desired, Observed
from supervision.test_supervisor import FLOW as COPIES
from waiting import until

from .axe import violations
from .conftest import Console
from .flows import HTML, planned_in
from .pictures import picture
from .test_time_plane import flow_of
from .test_topics_pages import filled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FAILING = f"""
import sys
print({HTML!r})
sys.exit("error: no pump answers: {HTML.replace('"', "'").replace("'", "")}")
"""


def submit(console: Console, name: str, file: str = "/nowhere/flow.py", observed: Observed = Observed.STOPPED) -> None:
    console.supervisor.store.add(JobSpecification(name, file, name, restarts_max=0), "ann", observed, None)


def log_of_another_run(file: Path, page: Page) -> None:
    """The log follows the newest run, and earlier ones can be chosen."""
    file.write_text("print('the second run')")
    page.get_by_role("button", name="Start", exact=True).click()
    log = page.get_by_label("Log", exact=True)
    log.filter(has_text="the second run").wait_for()
    page.get_by_label("Run").select_option("1")
    log.filter(has_text="<script>").wait_for()
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("link", name="Log of run 2").click()
    log.filter(has_text="the second run").wait_for()
    file.write_text("import time\nprint('the third run', flush=True)\ntime.sleep(600)")
    page.get_by_role("button", name="Restart").click()
    page.get_by_label("Run").select_option("3")
    log.filter(has_text="the third run").wait_for()


@pytest.mark.more
def test_a_failing_job_in_the_browser(console: Console, page: Page) -> None:
    file = console.log.parent / "flow.py"
    file.write_text(FAILING)
    submit(console, "pumps", str(file))
    page.get_by_role("link", name="pumps").wait_for()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Bundle for support").click()
    with zipfile.ZipFile(saved.value.path()) as made:
        assert "jobs/pumps/job.json" in made.namelist()
    page.get_by_role("link", name="pumps").click()
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_text("failed", exact=True).wait_for()
    page.get_by_role("alert").filter(has_text="it failed").wait_for()
    picture(page, "job")
    assert violations(page) == []
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("row", name=re.compile("start")).wait_for()
    page.get_by_role("link", name="Errors").click()
    page.get_by_role("region", name="By error").get_by_role("row", name=re.compile("no pump answers.* 1 ")).wait_for()
    page.get_by_role("region", name="Failed runs").get_by_role("button", name="1", exact=True).click()
    page.get_by_role("region", name="Error", exact=True).get_by_text("no pump answers").wait_for()
    picture(page, "errors")
    assert violations(page) == []
    page.get_by_role("link", name="Log", exact=True).click()
    page.get_by_label("Log", exact=True).filter(has_text="<script>").wait_for()
    log_of_another_run(file, page)
    assert "taken over" not in page.title()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token of the supervisor").wait_for()
    picture(page, "login")
    assert violations(page) == []


@pytest.mark.more
def test_savepoints_upgrades_state_and_alerts_in_the_browser(console: Console, page: Page) -> None:
    """The files of the job are made by hand, as those of tests of upgrades: no Spark is needed."""
    made_job(console.log, "a")
    planned_in(console, flow_of(COPIES.format(name="a")))
    file, other = console.log.parent / "flow.py", console.log.parent / "other.py"
    for path in (file, other):
        path.write_text(COPIES.format(name="a"))
    job = JobSpecification("a", str(file), "a", folder=str(console.log.parent), alerts=("lag_seconds > 60",))
    console.supervisor.store.add(job, "ann", Observed.STOPPED, None)
    console.supervisor.store.update("a", desired=Desired.STOPPED)
    page.set_default_timeout(120_000)  # some answers are those of processes
    page.goto(f"{console.url}/console/#/jobs/a/savepoints")
    page.get_by_label("Name, if you like").fill("friday")
    page.get_by_role("button", name="Take a savepoint").click()
    page.get_by_text("Took friday, of batch 2").wait_for()
    page.get_by_role("row", name="friday").get_by_role("button", name="Restore").click()
    page.get_by_text("Restored friday; the state before is in").wait_for()
    picture(page, "savepoints")
    assert violations(page) == []
    friday = page.get_by_role("rowheader", name="friday", exact=True)
    page.get_by_role("row").filter(has=friday).get_by_role("button", name="Remove").click()
    friday.wait_for(state="detached")
    page.get_by_role("link", name="Upgrades").click()
    page.get_by_label("File of the new flow").fill(str(other))
    page.get_by_role("button", name="Check").click()
    page.get_by_text("No step keeps state.").wait_for()
    page.get_by_role("button", name="Upgrade", exact=True).click()
    page.get_by_role("row", name=re.compile("done.*other.py")).wait_for()
    page.get_by_role("button", name="Go back").click()
    page.get_by_role("row", name=re.compile("went back.*other.py")).wait_for()
    picture(page, "upgrades")
    assert violations(page) == []
    page.get_by_role("link", name="State").click()
    page.get_by_text("No step of the flow keeps state.").wait_for()
    sent = console.log.parent / "sent"
    settings = console.log.parent / "supervisor" / "alerts.toml"
    settings.write_text(f'[targets.ops]\nkind = "command"\narguments = ["sh", "-c", "cat > {sent}"]\n')
    settings.chmod(0o600)
    page.get_by_role("link", name="Alerts").click()
    page.get_by_role("row", name="lag_seconds > 60").wait_for()
    page.get_by_role("button", name="Send a test message").click()
    until(sent.exists, "the target got the message")


@pytest.mark.more
def test_a_thousand_jobs_in_the_browser(console: Console, page: Page) -> None:
    with console.supervisor.store.transaction():
        for number in range(1000):
            submit(console, f"job-{number:04}")
    page.get_by_text("1,000 of 1,000 jobs").wait_for()
    picture(page, "jobs")
    assert violations(page) == []
    page.get_by_label("Search").fill("job-0999")
    page.get_by_text("1 of 1,000 jobs").wait_for()
    assert page.get_by_role("link", name="job-").count() == 1


def test_a_thousand_jobs_are_answered_quickly(console: Console) -> None:
    with console.supervisor.store.transaction():
        for number in range(1000):
            submit(console, f"job-{number:04}")
    session = console.logged_in()
    started = time.perf_counter()
    status, _, jobs = console.ask("GET", "/v1/jobs", **session)
    print(f"1,000 jobs: {1000 * (time.perf_counter() - started):.0f} ms")
    assert (status, len(jobs)) == (200, 1000)


def test_a_bundle_has_no_secrets_and_no_records(console: Console) -> None:
    filled(console)
    made_job(console.log, "pumps")
    params = {"password": "correct horse", "city": "Ulm"}
    job = JobSpecification("pumps", "/nowhere/flow.py", "pumps", params)
    console.supervisor.store.add(job, "ann", Observed.STOPPED, None)
    console.supervisor.store.begin_run("pumps", "start")
    log = console.supervisor.drivers.folder / "pumps" / "runs" / "1" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("connects with correct horse to Ulm\n")
    connection = HTTPConnection("127.0.0.1", console.port)
    connection.request("GET", "/v1/bundle", headers={"Cookie": console.logged_in()["Cookie"]})
    with zipfile.ZipFile(io.BytesIO(connection.getresponse().read())) as made:
        files = {name: made.read(name).decode() for name in made.namelist()}
    connection.close()
    assert {"machine.json", "alerts.json", "audit.json", "jobs/pumps/job.json", "jobs/pumps/metrics.json"} <= set(files)
    assert files["jobs/pumps/runs/1.log"] == "connects with (hidden) to Ulm\n"
    assert json.loads(files["jobs/pumps/job.json"])["params"] == {"password": "(hidden)", "city": "Ulm"}
    assert not any("correct horse" in text or "user 42" in text for text in files.values())


@pytest.mark.more
def test_a_link_works_once(console: Console, browser: Browser) -> None:
    link = console.door.link()
    for is_first in (True, False):
        context = browser.new_context()
        opened = context.new_page()
        opened.goto(link)
        if is_first:
            opened.get_by_role("heading", name="Jobs").wait_for()
        else:
            opened.get_by_text("this link was used, or is too old").wait_for()
        assert "code=" not in opened.url
        context.close()


@pytest.mark.more
def test_on_a_phone_and_by_keyboard(console: Console, page: Page) -> None:
    submit(console, "pumps")
    page.set_viewport_size({"width": 390, "height": 800})
    page.get_by_role("link", name="pumps").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="pumps").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
