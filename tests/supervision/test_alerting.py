"""Alerts of the supervisor: rules on jobs fire once, are over once, and survive its restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alerts.receivers import http_server
from millstream.alerts.message import Message
from millstream.alerts.outbox import Outbox
from millstream.alerts.sender import FAILURES_REPORTED
from millstream.errors import InvalidInput, NotFound
from millstream.metrics.history import History
from millstream.metrics.samples import Sample, StepPlan, StepSample
from millstream.supervision.alerting import Alerting
from millstream.supervision.specification import JobSpecification
from millstream.supervision.status import Status
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor

FILE = """
[targets.got]
kind = "command"
arguments = ["sh", "-c", "cat >> {folder}/got"]

[[rules]]
when = "lag_seconds > 60 for 5 minutes"

[[rules]]
when = "state == failed"
quiet = "00:00-00:00"
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    (tmp_path / "alerts.toml").write_text(FILE.format(folder=tmp_path))
    made = Supervisor(tmp_path, str(tmp_path / "log"), tmp_path / "log" / "jobs")
    made.store.add(JobSpecification("scores", "/nowhere/flow.py", "scores"), "ann", Observed.RUNNING, None)
    (made.jobs / "scores").mkdir(parents=True)
    yield made
    made.store.close()


@pytest.fixture
def alerting(supervisor: Supervisor, tmp_path: Path) -> Iterator[Alerting]:
    made = Alerting(tmp_path, Status(supervisor))
    yield made
    made._outbox.close()


def measured(supervisor: Supervisor, lag_s: float) -> None:
    """The job writes a sample."""
    history = History(supervisor.jobs / "scores")
    history.begin_run(0.0, [StepPlan("read", "source", "read scores")])
    history.add(Sample(1.0, lag_s=lag_s, steps={"read": StepSample(lag_s=lag_s)}), [])
    history.close()


def look(alerting: Alerting, now: float) -> None:
    alerting.judge(now)
    alerting._sender.send_due(now + 60)


def got(folder: Path) -> list[Any]:
    path = folder / "got"
    sent = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(alert["kind"], alert["job"], alert["rule"]) for each in sent for alert in each["alerts"]]


def test_a_rule_fires_and_is_over(alerting: Alerting, supervisor: Supervisor, tmp_path: Path) -> None:
    rule = "lag_seconds > 60 for 5 minutes"
    measured(supervisor, 75.0)
    for now in (1000.0, 1200.0):
        look(alerting, now)
    assert got(tmp_path) == []
    assert [each["job"] for each in alerting.document()["active"]] == ["scores"]
    for now in (1300.0, 1400.0):
        look(alerting, now)
    assert got(tmp_path) == [("firing", "scores", rule)]
    again = Alerting(tmp_path, Status(supervisor))  # after a kill
    look(again, 1500.0)
    assert len(got(tmp_path)) == 1
    measured(supervisor, 3.0)
    look(again, 1600.0)
    look(again, 1700.0)
    assert got(tmp_path)[1:] == [("resolved", "scores", rule)]
    again._outbox.close()


def test_rules_of_a_job_and_quiet_hours(alerting: Alerting, supervisor: Supervisor, tmp_path: Path) -> None:
    own = JobSpecification("own", "/nowhere/flow.py", "own", alerts=("state == failed to got",))
    supervisor.store.add(own, "ann", Observed.FAILED, None)
    assert supervisor.store.job("own").specification.alerts == ("state == failed to got",)
    look(alerting, 1000.0)
    assert got(tmp_path) == [("firing", "own", "state == failed to got")], "that of the file waits for the day's end"
    assert alerting.document()["waiting"] == 1
    supervisor.store.remove("own")
    look(alerting, 1100.0)
    assert alerting.document()["active"] == []


def test_a_job_whose_own_alerts_fail(alerting: Alerting, supervisor: Supervisor, tmp_path: Path) -> None:
    folder = supervisor.jobs / "scores" / "sinks" / "hot"
    folder.mkdir(parents=True)
    outbox = Outbox(folder)
    outbox.put("1: email", Message("rows", "hot", "", 0.0), 0.0)
    for _ in range(FAILURES_REPORTED):
        outbox.failed("1: email", "nobody answers", 0.0, 0.0)
    for now in (1000.0, 1100.0):
        look(alerting, now)
    assert got(tmp_path) == [("sender", "scores", None)]
    outbox.sent("1: email", [])
    outbox.close()
    look(alerting, 1200.0)
    assert got(tmp_path)[1:] == [("resolved", "scores", None)]


def test_a_test_message(alerting: Alerting, tmp_path: Path) -> None:
    assert alerting.test("got") == [{"target": "got", "sent": True, "error": None}]
    assert got(tmp_path) == [("test", None, None)]
    with pytest.raises(NotFound, match="no target 'ops'"):
        alerting.test("ops")
    with http_server() as (requests, url):
        requests.status = 500
        (tmp_path / "alerts.toml").write_text(f"[targets.hook]\nkind = 'webhook'\nurl = '{url}'\n")
        (tmp_path / "alerts.toml").chmod(0o600)
        assert alerting.test() == [
            {"target": "hook", "sent": False, "error": "an alert was not sent: the receiver answers with status 500"}
        ]


def test_a_file_that_cannot_be_used_is_reported_and_the_settings_before_stay(
    alerting: Alerting, tmp_path: Path
) -> None:
    assert list(alerting.settings.targets) == ["got"]
    (tmp_path / "alerts.toml").write_text("[[rules]]\nwhen = 'nonsense'\n")
    found = alerting.document()
    assert "is not a rule" in found["error"]
    assert [each["name"] for each in found["targets"]] == ["got"]


def test_a_rule_that_is_none_is_refused_when_a_job_is_submitted(supervisor: Supervisor, tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text("")
    with pytest.raises(InvalidInput, match="no metric 'speed'"):
        JobSpecification.checked({"name": "a", "file": str(flow), "alerts": ["speed > 3"]})
    with pytest.raises(InvalidInput, match="list of rules"):
        JobSpecification.checked({"name": "a", "file": str(flow), "alerts": "lag_s > 3"})
