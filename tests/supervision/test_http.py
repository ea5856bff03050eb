"""The supervisor's HTTP interface, by its own client and by requests that are wrong."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from jobs.test_savepoints import made_job
from millstream.errors import AlreadyExists, InvalidInput, JobRunning, NotFound, SourceUnavailable
from millstream.jobs.apps.flows import AppFlows
from millstream.metrics.history import History
from millstream.metrics.samples import PartitionSample, Sample, StepPlan, StepSample
from millstream.serving.access import Access, ListenAddress
from millstream.serving.connection import WaitingConnection
from millstream.serving.http import server
from millstream.supervision.client import Jobs
from millstream.supervision.http import MoreRoute, app
from millstream.supervision.specification import JobSpecification
from millstream.supervision.status import Status
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor
from waiting import until

TOKEN = "0123456789abcdef"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path, str(tmp_path / "log"), tmp_path / "log" / "jobs")
    yield made
    made.store.close()


@pytest.fixture
def port(supervisor: Supervisor) -> Iterator[int]:
    with served(supervisor) as found:
        yield found


@contextmanager
def served(supervisor: Supervisor, more: Sequence[MoreRoute] = ()) -> Iterator[int]:
    """The interface at a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as at:
        access = Access.at(ListenAddress.of("127.0.0.1", 0), token=TOKEN)
        running = server(app(supervisor, Status(supervisor), access, "ann", more=more), WaitingConnection)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        until(lambda: running.started, "the server has started")
        yield at.getsockname()[1]
        running.should_exit = True
        thread.join()


@pytest.fixture
def jobs(port: int) -> Jobs:
    return ms.supervisor(url=f"http://127.0.0.1:{port}", token=TOKEN)


def asked(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port)
    sent = {"Authorization": f"Bearer {TOKEN}", **headers}
    connection.request(method, path, body if body is None else str(body), sent)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_jobs_are_submitted_and_shown(jobs: Jobs, tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    reads = "import millstream as ms\nms.param('limit', 1)\nflow = ms.Flow('a')\n"
    flow.write_text(f"{reads}flow.read('in', schema='n int').write('out')\n")
    made = jobs.submit(flow, schedule="0 3 * * *", params={"limit": 3})
    assert (made["name"], made["state"], made["owner"]) == ("a", "scheduled", "ann")
    assert [each["name"] for each in jobs.list()] == ["a"]
    assert jobs.show("a")["params"] == {"limit": "3"}
    assert jobs.stop("a")["state"] == "stopped"
    assert jobs.runs("a") == []
    assert list(jobs.logs("a")) == []
    assert [each["action"] for each in jobs.audit()] == ["stop", "submit"]
    assert jobs.delete("a") == {"deleted": "a"}
    assert jobs.list() == []


def test_the_flows_of_an_app_are_shown(jobs: Jobs, supervisor: Supervisor, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    lines = ["import millstream as ms", "a, b = ms.Flow('a'), ms.Flow('b')"]
    lines += [f"{name}.read('in', schema='n int').write('out.{name}')" for name in ("a", "b")]
    file.write_text("\n".join([*lines, "both = ms.app([a, b], name='both')", ""]))
    assert jobs.submit(file, schedule="0 3 * * *")["flow"] == "both"
    assert jobs.show("both")["flows"] == []
    folder = supervisor.folder_of(supervisor.store.job("both"))
    folder.mkdir(parents=True)
    AppFlows(folder, ["a", "b"]).note_failure("b", "no luck")
    found = [(each["name"], each["state"], each["reason"]) for each in jobs.show("both")["flows"]]
    assert found == [("a", "running", None), ("b", "waiting", "no luck")]


def test_errors_arrive_as_they_were_raised(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no job 'a'"):
        jobs.show("a")
    with pytest.raises(NotFound, match="there is no file") as raised:
        jobs.submit(tmp_path / "flow.py")
    assert raised.value.next_step == "name a Python file that builds a flow"
    with pytest.raises(SourceUnavailable, match="does not answer"):
        ms.supervisor(url="http://127.0.0.1:1", token=TOKEN).list()
    with pytest.raises(InvalidInput, match="needs its token"):
        ms.supervisor(url="http://127.0.0.1:1")
    with pytest.raises(NotFound, match="no supervisor has run here"):
        ms.supervisor(tmp_path / "other")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/jobs",
        "/v1/jobs/a",
        "/v1/jobs/a/logs",
        "/v1/jobs/a/metrics",
        "/v1/jobs/a/why-silent",
        "/v1/audit",
        "/metrics",
        "/nowhere",
    ],
)
def test_every_route_needs_the_token(port: int, path: str) -> None:
    for token in ("", "Bearer wrong", f"Basic {TOKEN}"):
        status, document = asked(port, "GET", path, Authorization=token)
        assert (status, document["error"]["what"]) == (401, "a valid token is required")
    assert asked(port, "GET", path, Host="evil.example")[0] == 400
    assert asked(port, "GET", path, Origin="http://evil.example")[0] == 403


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/jobs", "{", 400),
        ("POST", "/v1/jobs", "[]", 400),
        ("POST", "/v1/jobs", "[" * 100_000, 400),
        ("POST", "/v1/jobs", '{"file": 3}', 400),
        ("POST", "/v1/jobs", '{"name": "' + "x" * (1 << 20) + '"}', 400),
        ("POST", "/v1/jobs/a/explode", None, 404),
        ("GET", "/v1/jobs/..%2F..%2Fetc", None, 404),
        ("GET", "/v1/jobs/a/logs?run=x", None, 400),
        ("GET", "/v1/jobs/a/metrics?since=yesterday", None, 400),
        ("GET", "/v1/jobs/a/metrics?since=nan", None, 400),
        ("GET", "/v1/jobs/a/metrics", None, 404),
        ("GET", "/v1/jobs/a/why-silent", None, 404),
        ("PUT", "/v1/jobs", None, 404),
    ],
)
def test_requests_that_are_wrong(port: int, method: str, path: str, body: str | None, status: int) -> None:
    found, document = asked(port, method, path, body)
    assert found == status
    assert document["error"]["what"]


def test_a_thousand_jobs_are_listed(supervisor: Supervisor, jobs: Jobs) -> None:
    with supervisor.store.transaction():
        for number in range(1000):
            job = JobSpecification(f"job-{number:04}", "/nowhere/flow.py", "a")
            supervisor.store.add(job, "ann", Observed.SCHEDULED, None)
    assert len(jobs.list()) == 1000


def test_metrics_for_prometheus(supervisor: Supervisor, port: int) -> None:
    supervisor.store.add(JobSpecification("scores", "/nowhere/flow.py", "scores"), "ann", Observed.RUNNING, None)
    folder = supervisor.jobs / "scores"
    folder.mkdir(parents=True)
    progress = {"rows": 120, "lag": 7, "rows_per_s": 40, "late": 2, "dead": 1, "batch": 3}
    (folder / "progress.json").write_text(json.dumps({**progress, "watermark": "2026-01-01 00:00:00"}))
    measured(folder)
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    lines = answer.read().decode().splitlines()
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'millstream_job_state{job="scores",state="running"} 1.0' in lines
    assert 'millstream_job_lag_records{job="scores"} 7.0' in lines
    assert 'millstream_job_rows_total{job="scores"} 120.0' in lines
    assert any(line.startswith('millstream_job_watermark_delay_seconds{job="scores"}') for line in lines)
    assert 'millstream_step_rows_in_total{job="scores",step="read"} 120.0' in lines
    assert 'millstream_step_lag_seconds{job="scores",step="read"} 2.5' in lines
    assert 'millstream_job_batch_seconds{job="scores",phase="process"} 0.5' in lines


def measured(folder: Path) -> None:
    """Metrics as a job writes them."""
    history = History(folder)
    history.begin_run(100.0, [StepPlan("read", "source", "read scores")])
    for at in (101.0, 102.0):
        step = StepSample(120, 120, lag_records=7, lag_s=2.5)
        history.add(Sample(at, 3, 120, lag_s=2.5, process_s=0.5, steps={"read": step}), [PartitionSample("read", "0")])
    history.close()


def test_metrics_of_a_job(supervisor: Supervisor, jobs: Jobs) -> None:
    supervisor.store.add(JobSpecification("scores", "/nowhere/flow.py", "scores"), "ann", Observed.RUNNING, None)
    assert jobs.metrics("scores")["samples"] == []
    folder = supervisor.jobs / "scores"
    folder.mkdir(parents=True)
    measured(folder)
    found = jobs.metrics("scores")
    assert [each["at"] for each in found["samples"]] == [102.0]
    assert found["samples"][0]["steps"]["read"]["lag_s"] == 2.5
    assert [each["name"] for each in found["plan"]] == ["read"]
    assert (found["upstream"], found["lag_inherited_s"]) == ([], None)
    assert jobs.metrics("scores", last="1 minute", step="read")["samples"] == []
    with pytest.raises(InvalidInput, match="no step 'write'"):
        jobs.metrics("scores", step="write")


def test_why_nothing_comes_out_of_a_job(supervisor: Supervisor, jobs: Jobs) -> None:
    supervisor.store.add(JobSpecification("scores", "/nowhere/flow.py", "scores"), "ann", Observed.FAILED, None)
    found = jobs.why_silent("scores")
    assert [(each["kind"], each["what"]) for each in found["findings"]] == [("not_running", "the job is failed")]


def test_savepoints_are_taken_and_restored(jobs: Jobs, supervisor: Supervisor) -> None:
    job = made_job(supervisor.jobs.parent)
    taken = jobs.savepoint("job", "early")
    assert (taken["name"], taken["batch"], taken["why"]) == ("early", 2, "requested")
    assert [each["name"] for each in jobs.savepoints("job")] == ["early"]
    with pytest.raises(AlreadyExists, match="already a savepoint 'early'"):
        jobs.savepoint("job", "early")
    assert jobs.restore("early", into="copy")["job"] == "copy"
    with pytest.raises(AlreadyExists, match="progress of its own"):
        jobs.restore("early", into="copy")
    with job.held(), pytest.raises(JobRunning):
        jobs.restore("early")
    jobs.remove_savepoint("early")
    assert jobs.savepoints() == []
    assert [each["action"] for each in jobs.audit()] == ["remove savepoint", "restore", "savepoint"]
    with pytest.raises(NotFound, match="no job 'jop'"):
        jobs.state("jop", "step", {"user": "a"})


def test_the_executors_of_a_job_on_a_cluster_are_shown(jobs: Jobs, supervisor: Supervisor) -> None:
    folder = supervisor.jobs / "a"
    folder.mkdir(parents=True)
    executor = {"id": "0", "host": "worker-1", "port": 1, "since": 1.0, "cores": 2, "tasks": 1, "task_s": 3.5}
    executor |= {"jvm_memory_bytes": 400_000_000, "python_memory_bytes": None}
    (folder / "executors.json").write_text(json.dumps([executor]))
    supervisor.store.add(JobSpecification("a", "/nowhere/flow.py", "a"), "ann", Observed.RUNNING, None)
    assert jobs.show("a")["executors"] == [executor]
    supervisor.store.update("a", observed=Observed.STOPPED)
    assert jobs.show("a")["executors"] == []
