"""Upgrades by the supervisor, with real driver processes. The files of the job are made by hand: no Spark is needed."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from jobs.test_savepoints import complete, made_job
from millstream.errors import InvalidInput, JobChanged
from millstream.jobs.job_folder import JobFolder
from millstream.log.storage.disk import write_document
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor
from millstream.supervision.upgrades import LAG_RECORDS_MIN, LAG_TIMES, UpgradeRequest
from waiting import until

from .test_supervisor import FAILS, FLOW, SLEEPS, USER, seen, started, submit, supervisor

__all__ = ["supervisor"]


def flow_file(folder: Path, name: str, before: str = "") -> str:
    path = folder / f"{name}.py"
    path.write_text(before + FLOW.format(name="a"))
    return str(path)


def request(file: str, watch: str | None = None) -> UpgradeRequest:
    return UpgradeRequest(file, {}, watch=watch)


def phase(supervisor: Supervisor, wanted: str) -> dict[str, object]:
    """Looks until the newest upgrade is in a phase."""

    def found() -> bool:
        supervisor.look()
        return bool(supervisor.upgrades.listed("a")[0]["phase"] == wanted)

    until(found, f"the upgrade is {wanted}")
    return supervisor.upgrades.listed("a")[0]


@pytest.mark.more
def test_an_upgrade_and_back_again(supervisor: Supervisor, tmp_path: Path) -> None:
    old, new = flow_file(tmp_path, "old", SLEEPS), flow_file(tmp_path, "new", SLEEPS)
    job = made_job(supervisor.jobs.parent, "a")
    submit(supervisor, old)
    seen(supervisor, "a", Observed.RUNNING)
    with pytest.raises(InvalidInput, match="was never upgraded"):
        supervisor.rollback("a", USER)
    begun = supervisor.upgrade("a", USER, request(new))
    assert begun["phase"] == "stopping"
    with pytest.raises(InvalidInput, match="under way"):
        supervisor.upgrades.upgrade("a", USER, new, {}, allow_dropped=False, watch=None)
    other = started(tmp_path)  # as if the first one had been killed
    phase(other, "done")
    assert other.store.job("a").specification.file == new
    assert [each["why"] for each in other.saved.savepoints("a")] == ["before an upgrade"]
    other.store.close()
    assert seen(supervisor, "a", Observed.RUNNING).runs == 2
    complete(job, 3)
    Path(old).write_text("edited meanwhile")
    supervisor.rollback("a", USER)
    phase(supervisor, "went back")
    restored = Path(supervisor.store.job("a").specification.file)
    assert restored.name == "flow.py"
    assert restored.read_text().startswith(SLEEPS)
    assert job.newest_batches() == (2, 2), "the batch after it is repeated"
    assert seen(supervisor, "a", Observed.RUNNING).runs == 3
    actions = [each["action"] for each in supervisor.store.audit()]
    assert actions == ["rollback", "upgrade", "submit"]


@pytest.mark.more
def test_a_watched_upgrade_that_fails_goes_back(supervisor: Supervisor, tmp_path: Path) -> None:
    old, new = flow_file(tmp_path, "old", SLEEPS), flow_file(tmp_path, "new", FAILS)
    made_job(supervisor.jobs.parent, "a")
    submit(supervisor, old)
    seen(supervisor, "a", Observed.RUNNING)
    supervisor.upgrade("a", USER, request(new, "10 minutes"))
    upgrade = phase(supervisor, "went back")
    assert "no luck" in str(upgrade["reason"])
    assert supervisor.store.job("a").specification.file == old
    seen(supervisor, "a", Observed.RUNNING)


@pytest.mark.more
@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (10, LAG_RECORDS_MIN + 1, "went back"),
        (10, LAG_RECORDS_MIN - 1, "done"),
        (LAG_RECORDS_MIN, int(LAG_TIMES * LAG_RECORDS_MIN) + 1, "went back"),
        (LAG_RECORDS_MIN, LAG_RECORDS_MIN + 1, "done"),
        (10, None, "went back"),
    ],
    ids=["behind", "near", "twice as far behind", "as before", "silent"],
)
def test_a_watched_upgrade_that_falls_behind_goes_back(
    supervisor: Supervisor, tmp_path: Path, before: int, after: int | None, wanted: str
) -> None:
    """The lag is what the job's process writes into its folder while it runs."""
    old, new = flow_file(tmp_path, "old", SLEEPS), flow_file(tmp_path, "new", SLEEPS)
    job = made_job(supervisor.jobs.parent, "a")
    submit(supervisor, old)
    seen(supervisor, "a", Observed.RUNNING)
    reports(job, before)
    supervisor.upgrade("a", USER, request(new, "1 second"))
    phase(supervisor, "watching")
    if after is not None:
        reports(job, after)
    upgrade = phase(supervisor, wanted)
    assert supervisor.store.job("a").specification.file == (new if wanted == "done" else old)
    seen(supervisor, "a", Observed.RUNNING)
    if wanted == "went back":
        behind = f"it falls behind: {after:,} records, and {before:,} before" if after else None
        assert upgrade["reason"] == (behind or "it has not reported any progress")


def reports(job: JobFolder, lag: int) -> None:
    write_document(job.path / "progress.json", {"lag": lag, "at": time.time()})


@pytest.mark.more
def test_an_upgrade_that_is_refused_changes_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    old = flow_file(tmp_path, "old", SLEEPS)
    stateful = tmp_path / "stateful.py"
    reads = "flow.read('in', 'n int').distinct('n').write('out')"
    stateful.write_text(f"import millstream as ms\nflow = ms.Flow('a')\n{reads}\n")
    made_job(supervisor.jobs.parent, "a")
    submit(supervisor, old)
    seen(supervisor, "a", Observed.RUNNING)
    with pytest.raises(JobChanged, match="Spark cannot add one to its checkpoint"):
        supervisor.upgrade("a", USER, request(str(stateful)))
    with pytest.raises(InvalidInput, match="cannot be read from"):
        supervisor.upgrade("a", USER, request(old, "10"))
    assert supervisor.upgrades.listed("a") == []
    assert supervisor.saved.savepoints() == []
    assert seen(supervisor, "a", Observed.RUNNING).runs == 1


@pytest.mark.more
def test_a_savepoint_of_another_flow_is_refused(supervisor: Supervisor, tmp_path: Path) -> None:
    """The savepoint has a step with state, which the flow of the job does not have; nothing is restored."""
    job = made_job(supervisor.jobs.parent, "counted")
    step = {"does": "count", "stage": "0", "place": "0", "since": "0", "from": "read", "way": ""}
    description = job.description()
    assert description is not None
    write_document(job.path / "job.json", asdict(replace(description, steps={"agg": step})))
    supervisor.savepoint("counted", USER, "early")
    submit(supervisor, flow_file(tmp_path, "flow"))
    with pytest.raises(JobChanged, match="'a' does not fit the savepoint 'early' of 'counted': agg") as raised:
        supervisor.restore("early", USER, into="a")
    assert "submit the flow of 'counted'" in str(raised.value)
    assert not (supervisor.jobs / "a" / "job.json").exists()
    assert supervisor.restore("early", USER, into="another")["job"] == "another"
