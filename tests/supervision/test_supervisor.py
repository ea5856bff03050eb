"""The supervisor with real driver processes: files that fail, and files that are still loading, need no Spark."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.test_savepoints import complete, made_job
from millstream.errors import AlreadyExists, InvalidInput, JobRunning, MillstreamError, NotFound
from millstream.supervision.schedules import Schedule
from millstream.supervision.store import Desired, Observed
from millstream.supervision.supervisor import Limits, Supervisor
from waiting import until

USER = "ann"
FLOW = "import millstream as ms\nflow = ms.Flow('{name}')\nflow.read('in', schema='n int').write('out')\n"
# The first load is that of the check, the later ones are those of the job.
LOADED = "import pathlib\nseen = pathlib.Path(__file__).with_suffix('.seen')\nis_job = seen.exists()\nseen.touch()\n"
SLEEPS = LOADED + "import time\nif is_job: time.sleep(600)\n"
FAILS = LOADED + "if is_job: raise ValueError('no luck')\n"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = started(tmp_path)
    yield made
    for job in made.store.jobs():
        made.drivers.stop(job.name, job.runs, kill=True)
    made.store.close()


def started(folder: Path) -> Supervisor:
    home = folder / "supervisor"
    home.mkdir(exist_ok=True)
    limits = Limits(kill_after_s=30, back_off_s=0.01, back_off_s_max=0.05)
    return Supervisor(home, str(folder / "log"), folder / "log" / "jobs", limits)


def file(folder: Path, name: str, before: str = "") -> str:
    path = folder / f"{name}.py"
    path.write_text(before + FLOW.format(name=name))
    return str(path)


def submit(supervisor: Supervisor, file: str, **more: Any) -> Any:
    return supervisor.submit({"file": file, **more}, USER)


def seen(supervisor: Supervisor, name: str, state: Observed) -> Any:
    """Looks until a job is in a state."""

    def found() -> bool:
        supervisor.look()
        return supervisor.store.job(name).observed is state

    until(found, f"{name} is {state.value}")
    return supervisor.store.job(name)


def test_a_job_is_started_stopped_and_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", SLEEPS))
    seen(supervisor, "a", Observed.RUNNING)
    (driver,) = supervisor.drivers.processes("a", 1)
    assert (driver["kind"], driver["host"]) == ("driver", socket.gethostname())
    supervisor.stop("a", USER)
    job = seen(supervisor, "a", Observed.STOPPED)
    assert (job.desired, job.failures, job.reason) == (Desired.STOPPED, 0, None)
    supervisor.start("a", USER)
    assert seen(supervisor, "a", Observed.RUNNING).runs == 2
    assert [run.result for run in supervisor.runs("a")] == [None, "stopped"]
    assert [each["action"] for each in supervisor.store.audit()] == ["start", "stop", "submit"]


@pytest.mark.more
def test_a_restart_stops_the_run_and_starts_another(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", SLEEPS))
    seen(supervisor, "a", Observed.RUNNING)
    supervisor.restart("a", USER)
    until(lambda: supervisor.look() or supervisor.store.job("a").runs == 2, "the second run")
    job = seen(supervisor, "a", Observed.RUNNING)
    assert (job.runs, job.failures, supervisor.runs("a")[1].result) == (2, 0, "stopped")


@pytest.mark.more
def test_a_job_that_fails_is_restarted_and_then_given_up(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", FAILS), restarts_max=2)
    job = seen(supervisor, "a", Observed.FAILED)
    assert job.runs == 3
    assert job.reason.startswith("it failed 3 times in a row, the last time: ")
    assert "ValueError: no luck" in job.reason
    assert [(run.why, run.code) for run in supervisor.runs("a")] == [("restart", 2), ("restart", 2), ("start", 2)]
    assert "no luck" in supervisor.read_log("a", None, 0, 10_000)[0].decode()
    errors = supervisor.failures("a")
    assert [(group["times"], group["last_run"]) for group in errors["groups"]] == [(3, 3)]
    assert "ValueError: no luck" in errors["groups"][0]["what"]
    assert [each["run"] for each in errors["failures"]] == [3, 2, 1]


def test_a_killed_driver_is_replaced(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", SLEEPS))
    seen(supervisor, "a", Observed.RUNNING)
    driver = until(lambda: supervisor.drivers.driver("a", 1), "the driver")
    os.kill(driver.pid, signal.SIGKILL)
    until(lambda: supervisor.look() or supervisor.store.job("a").runs == 2, "the second run")
    assert supervisor.runs("a")[1].result == "its process was killed"


@pytest.mark.parametrize("has_worked", [True, False])
def test_kills_add_up_only_if_no_batch_was_completed(supervisor: Supervisor, tmp_path: Path, has_worked: bool) -> None:
    """The batch is made by hand: its time is that of the file that Spark writes when it is complete."""
    job = made_job(supervisor.jobs.parent, "a")
    submit(supervisor, file(tmp_path, "a", SLEEPS))
    for number in (1, 2):
        driver = until(lambda number=number: supervisor.look() or supervisor.drivers.driver("a", number), "the driver")
        if has_worked:
            until(lambda number=number: supervisor.runs("a")[0].number == number, "the run")
            complete(job, 10 + number)
        os.kill(driver.pid, signal.SIGKILL)
        until(lambda number=number: supervisor.look() or supervisor.store.job("a").runs > number, "the next run")
    assert supervisor.store.job("a").failures == (1 if has_worked else 2)


def test_another_supervisor_finds_the_jobs(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", SLEEPS))
    seen(supervisor, "a", Observed.RUNNING)
    before = until(lambda: supervisor.drivers.driver("a", 1), "the driver")
    other = started(tmp_path)
    other.look()
    job = other.store.job("a")
    assert (job.observed, job.runs, other.drivers.driver("a", 1)) == (Observed.RUNNING, 1, before)
    assert not other.drivers.start(job.specification, 2), "a job does not run twice"
    other.stop("a", USER)
    seen(other, "a", Observed.STOPPED)
    other.store.close()


@pytest.mark.more
def test_a_supervisor_that_died_before_the_driver_started(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", SLEEPS))
    supervisor.store.begin_run("a", "start")  # and then it was killed
    until(lambda: supervisor.look() or supervisor.store.job("a").runs == 2, "the second run")
    assert seen(supervisor, "a", Observed.RUNNING).runs == 2


@pytest.mark.parametrize(
    ("given", "kind", "what"),
    [
        ({"file": "/nowhere/flow.py"}, NotFound, "there is no file"),
        ({"file": "flow.py"}, InvalidInput, "not an absolute path"),
        ({"schedule": "0 0 31 2 *"}, InvalidInput, "'0 0 31 2 \\*' never comes"),
        ({"schedule": "0 0 32 2 *"}, InvalidInput, "'0 0 32 2 \\*' is not a cron expression"),
        ({"schedule": "daily"}, InvalidInput, "'daily' is not a cron expression"),
        ({"schedule": "0 3 * * *", "time_zone": "Mars"}, InvalidInput, "no time zone 'Mars'"),
        ({"name": "../x"}, InvalidInput, "cannot be the name"),
        ({"restart": "sometimes"}, InvalidInput, "restart='sometimes' is unknown"),
        ({"colour": "red"}, InvalidInput, "a job has no 'colour'"),
        ({"params": {"a b": "c"}}, InvalidInput, "cannot be the name of a parameter"),
        ({"options": ["--conf", "spark.my.password=x"]}, InvalidInput, "'spark.my.password' may be a secret"),
        ({"options": ["--conf=spark.my.token=x"]}, InvalidInput, "'spark.my.token' may be a secret"),
    ],
)
def test_a_job_that_is_refused_leaves_nothing(
    supervisor: Supervisor, tmp_path: Path, given: dict[str, Any], kind: type[MillstreamError], what: str
) -> None:
    with pytest.raises(kind, match=what):
        supervisor.submit({"file": file(tmp_path, "a"), **given}, USER)
    assert supervisor.store.jobs() == []
    assert supervisor.store.audit() == []


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        (["--master", "spark://127.0.0.1:9"], ""),
        (["--master=spark://127.0.0.1:9"], ""),
        ([], "flow.run(master='spark://127.0.0.1:9')\n"),
    ],
    ids=["option", "one text", "in the file"],
)
def test_a_master_that_is_away_is_refused(
    supervisor: Supervisor, tmp_path: Path, options: list[str], runs: str
) -> None:
    path = Path(file(tmp_path, "a"))
    path.write_text(path.read_text() + runs)
    with pytest.raises(InvalidInput, match="no Spark master answers at 'spark://") as raised:
        submit(supervisor, str(path), options=options)
    assert raised.value.next_step == "check that the cluster is up and its address is right"
    assert supervisor.store.jobs() == []
    assert supervisor.store.audit() == []
    assert not (tmp_path / "supervisor" / "jobs").exists()


def test_a_file_that_does_not_load_is_refused_with_its_line(supervisor: Supervisor, tmp_path: Path) -> None:
    path = file(tmp_path, "a", "1 / 0\n")
    with pytest.raises(InvalidInput, match="ZeroDivisionError") as raised:
        submit(supervisor, path)
    assert raised.value.where == f"{path}:1"
    assert supervisor.store.jobs() == []


@pytest.mark.more
def test_a_name_that_is_taken(supervisor: Supervisor, tmp_path: Path) -> None:
    path = file(tmp_path, "a", SLEEPS)
    submit(supervisor, path)
    (tmp_path / "a.seen").unlink()
    with pytest.raises(AlreadyExists, match="already a job 'a'"):
        submit(supervisor, path)
    (tmp_path / "a.seen").unlink()
    other = submit(supervisor, path, name="b")
    assert other.specification.options == ("--folder", str(tmp_path / "log" / "jobs" / "b"))


@pytest.mark.more
def test_a_running_job_is_not_deleted(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", SLEEPS))
    seen(supervisor, "a", Observed.RUNNING)
    with pytest.raises(JobRunning, match="is running"):
        supervisor.delete("a", USER)
    supervisor.stop("a", USER)
    seen(supervisor, "a", Observed.STOPPED)
    supervisor.delete("a", USER)
    assert supervisor.store.jobs() == []
    assert not (tmp_path / "supervisor" / "jobs" / "a").exists()
    with pytest.raises(NotFound, match="no job 'a'"):
        supervisor.start("a", USER)


# ---------------------------------------------------------------- schedules


@pytest.mark.more
def test_a_scheduled_job_waits_for_its_time(supervisor: Supervisor, tmp_path: Path) -> None:
    job = submit(supervisor, file(tmp_path, "a", FAILS), schedule="0 3 * * *")
    assert job.observed is Observed.SCHEDULED
    assert datetime.fromtimestamp(job.next_start, UTC).hour == 3
    supervisor.look()
    assert supervisor.runs("a") == []
    supervisor.start("a", USER)  # now
    until(lambda: supervisor.look() or supervisor.store.job("a").observed is Observed.SCHEDULED, "it has run")
    after = supervisor.store.job("a")
    assert after.next_start == job.next_start
    assert "no luck" in (after.reason or "")


@pytest.mark.more
def test_missed_runs_are_listed_and_the_newest_takes_place(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", FAILS), schedule="0 * * * *")
    now = datetime.now(UTC)
    hours_ago = now.timestamp() - 3 * 3600
    first = Schedule("0 * * * *").after(datetime.fromtimestamp(hours_ago, UTC))
    supervisor.store.update("a", next_start=first.timestamp())
    supervisor.look()
    runs = supervisor.runs("a")
    assert [run.why for run in runs] == ["schedule"] * 3
    assert [run.result for run in runs[1:]] == ["missed: no supervisor was running"] * 2


@pytest.mark.more
def test_runs_do_not_overlap(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", SLEEPS), schedule="0 3 * * *")
    supervisor.start("a", USER)
    seen(supervisor, "a", Observed.RUNNING)
    supervisor.store.update("a", next_start=time.time() - 1)
    supervisor.look()
    job = supervisor.store.job("a")
    assert (job.runs, job.observed) == (1, Observed.RUNNING)
    assert job.next_start > time.time()
    assert supervisor.store.audit()[0]["details"] == "the run before had not ended"


@pytest.mark.more
def test_secrets_are_not_shown(supervisor: Supervisor, tmp_path: Path) -> None:
    reads = "import millstream as ms\nms.param('api_token')\nms.param('region')\n"
    job = submit(supervisor, file(tmp_path, "a", reads), params={"api_token": "hunter2", "region": "north"})
    shown = job.specification.shown()
    assert shown["params"] == {"api_token": "(hidden)", "region": "north"}
    assert "hunter2" not in str(shown)


@pytest.mark.more
def test_a_parameter_that_the_file_does_not_read_is_refused(supervisor: Supervisor, tmp_path: Path) -> None:
    reads = "import millstream as ms\nms.param('factor', 2)\n"
    for before, step in ((reads, "did you mean 'factor'"), ("", "read it at the top of the file")):
        with pytest.raises(InvalidInput, match="reads no parameter 'factr'") as raised:
            submit(supervisor, file(tmp_path, "a", before), params={"factr": "3"})
        assert step in str(raised.value)
    assert supervisor.store.jobs() == []
