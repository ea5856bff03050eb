"""Brings what is wanted and what is seen together, job by job, again and again.

Each look at a job decides from the store and from the job's processes alone. So a supervisor that was killed goes on
where it was: jobs that run are found by their locks, and those that ended meanwhile by what their drivers wrote.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millstream import terminal
from millstream.errors import InvalidInput, JobRunning, MillstreamError, NotFound
from millstream.jobs.versions.saved_jobs import SavedJobs
from millstream.supervision.drivers import Drivers
from millstream.supervision.failures import ERROR, TAIL_BYTES, Failure, ending, failures_in, grouped
from millstream.supervision.hidden_values import HiddenValues
from millstream.supervision.masking import Masking
from millstream.supervision.schedules import Schedule
from millstream.supervision.specification import JobSpecification, Restart, check_name, option_of
from millstream.supervision.store import RUNS_KEPT, Desired, JobRecord, Observed, Run, Store
from millstream.supervision.upgrades import UpgradeRequest, Upgrades

LOOK_S = 0.25
KILL_AFTER_S = 60.0
"""How long a driver may take to stop: longer than the grace of a job, in which it completes its batch."""
HEALTHY_S = 600.0
"""A run that lasted this long ends a row of failures."""
BACK_OFF_S, BACK_OFF_S_MAX = 1.0, 60.0
MISSED_MAX = 100
FAILURES_SHOWN = 200
STATE_S_MAX = 300.0
RESTARTING = "restarting"
logger = terminal.logger("millstream.supervisor")


@dataclass(frozen=True)
class Limits:
    """Times that tests shorten."""

    kill_after_s: float = KILL_AFTER_S
    healthy_s: float = HEALTHY_S
    back_off_s: float = BACK_OFF_S
    back_off_s_max: float = BACK_OFF_S_MAX


class Supervisor:
    def __init__(
        self, folder: Path, log_address: str, jobs: Path, limits: Limits | None = None, *, masked: Sequence[str] = ()
    ) -> None:
        """`folder` is the supervisor's own; `jobs` has the folders of jobs. `masked` columns are never shown."""
        self.jobs = jobs
        self.store = Store(folder / "supervisor.db")
        self.drivers = Drivers(folder / "jobs", log_address)
        self.limits = limits or Limits()
        self.saved = SavedJobs(jobs, self._folder_if_known)
        self.masking = Masking(masked, jobs, lambda: map(self.folder_of, self.store.jobs()))
        self._lock = threading.RLock()
        self.upgrades = Upgrades(self, self._lock)
        self._wake = threading.Event()
        self._ends = False
        self._asked_to_stop: dict[tuple[str, int], float] = {}

    # ------------------------------------------------------------ what people ask for

    def submit(self, given: dict[str, Any], user: str) -> JobRecord:
        """Checks everything first: nothing is kept of a job that is refused."""
        named = dict(given)
        if named.get("name") is not None:
            check_name(str(named["name"]))
        JobSpecification.checked({**named, "name": named.get("name") or "unnamed"})
        flow = self.drivers.check(named, is_new=True)
        named |= {"flow": flow, "name": named.get("name") or flow}
        options = list(named.get("options", []))
        if named["name"] != flow and option_of(options, "--folder") is None:  # its own state, beside other jobs
            named["options"] = [*options, "--folder", str(self.jobs / named["name"])]
        specification = JobSpecification.checked(named)
        next_start, observed = time.time(), Observed.WAITING
        if specification.schedule is not None:
            next_start, observed = _next(specification, time.time()), Observed.SCHEDULED
        with self._lock, self.store.transaction():
            self.store.add(specification, user, observed, next_start)
            self.store.note(user, "submit", specification.name)
        self._wake.set()
        return self.store.job(specification.name)

    def start(self, name: str, user: str) -> JobRecord:
        """Starts a job again that has stopped, finished or failed; a scheduled one runs now."""
        with self._lock, self.store.transaction():
            job = self.store.job(name)
            self.store.note(user, "start", name)
            if job.observed not in (Observed.RUNNING, Observed.STOPPING):
                values = {"observed": Observed.WAITING, "next_start": time.time(), "failures": 0, "reason": None}
                self.store.update(name, desired=Desired.RUNNING, **values)
            elif job.desired is Desired.STOPPED:
                self.store.update(name, desired=Desired.RUNNING)
        self._wake.set()
        return self.store.job(name)

    def stop(self, name: str, user: str) -> JobRecord:
        with self._lock, self.store.transaction():
            job = self.store.job(name)
            self.store.note(user, "stop", name)
            self.store.update(name, desired=Desired.STOPPED)
            if job.observed in (Observed.WAITING, Observed.SCHEDULED):
                self.store.update(name, observed=Observed.STOPPED, next_start=None)
        self._wake.set()
        return self.store.job(name)

    def restart(self, name: str, user: str) -> JobRecord:
        """Stops the current run, if there is one; the job starts again when it has ended."""
        with self._lock, self.store.transaction():
            job = self.store.job(name)
            self.store.note(user, "restart", name)
            if job.observed in (Observed.RUNNING, Observed.STOPPING):
                self.store.update(name, desired=Desired.RUNNING, reason=RESTARTING, failures=0)
            else:
                self.start(name, user)
        self._wake.set()
        return self.store.job(name)

    def reload(self, name: str, user: str) -> dict[str, Any]:
        """Adds and removes flows of a running app, so that it has those of its file. The others go on meanwhile."""
        job = self.store.job(name)
        if job.observed is not Observed.RUNNING:
            raise InvalidInput(
                f"the job '{name}' does not run: it is {job.observed.value}",
                next_step=f"start it, with the flows that its file has then: millstream jobs start {name}",
            )
        self.upgrades.refuse_active(name)
        self.drivers.check(job.specification.document())  # a file that does not load changes nothing
        done = self.drivers.reload(name, job.runs)
        with self._lock:
            self.store.note(user, "reload", name)
            if not done["changed"]:
                self.drivers.note_code(name, job.runs, Path(job.specification.file))
        return {"name": name, **done}

    def upgrade(self, name: str, user: str, given: UpgradeRequest) -> dict[str, Any]:
        """Begins an upgrade; with `given.check`, only returns what it would do."""
        if given.check:
            return self.upgrades.compare(name, given.file, given.map)
        begun = self.upgrades.upgrade(
            name, user, given.file, given.map, allow_dropped=given.allow_dropped, watch=given.watch
        )
        self._wake.set()
        return begun

    def rollback(self, name: str, user: str) -> dict[str, Any]:
        with self._lock:
            begun = self.upgrades.rollback(name, user)
        self._wake.set()
        return begun

    def wish_to_run(self, name: str) -> None:
        """Lets a job run again from now on, or at its next time."""
        job = self.store.job(name)
        is_scheduled = job.specification.schedule is not None
        next_start = _next(job.specification, time.time()) if is_scheduled else time.time()
        values = {"next_start": next_start, "failures": 0, "reason": None, "desired": Desired.RUNNING}
        self.store.update(name, observed=Observed.SCHEDULED if is_scheduled else Observed.WAITING, **values)

    def delete(self, name: str, user: str) -> None:
        """Forgets a job that does not run. What it wrote and its state stay, as with `millstream jobs forget`."""
        with self._lock:
            job = self.store.job(name)
            if job.observed in (Observed.RUNNING, Observed.STOPPING) or self.drivers.is_running(name):
                raise JobRunning(
                    f"the job '{name}' is running", next_step=f"stop it first: millstream jobs stop {name}"
                )
            with self.store.transaction():
                self.store.note(user, "delete", name)
                self.store.remove(name)
            self.drivers.forget(name)

    def runs(self, name: str) -> list[Run]:
        self.store.job(name)
        return self.store.runs(name)

    def read_log(self, name: str, number: int | None, offset: int, at_most: int) -> tuple[bytes, int, int]:
        """Lines of the log of a run, by default the newest: the text, where to read on, and the run."""
        runs = self.runs(name)
        if number is None:
            number = runs[0].number if runs else 0
        is_complete = not any(run.number == number and run.ended is None for run in runs)
        text, after = self.drivers.read_log_lines(name, number, offset, at_most, is_complete=is_complete)
        return self._hidden(name).text(text.decode(errors="replace")).encode(), after, number

    def failures(self, name: str) -> dict[str, Any]:
        """The errors of a job: equal ones together, each of them, and what the current run has reported."""
        job, found = self.store.job(name), self.store.failures(name)
        is_running = job.observed in (Observed.RUNNING, Observed.STOPPING)
        current = failures_in(self._printed_last(name, job.runs)) if is_running else []
        return {
            "groups": grouped(found),
            "failures": [each.document() for each in found[:FAILURES_SHOWN]],
            "current": [asdict(each) for each in current],
        }

    def _printed_last(self, name: str, number: int) -> str:
        printed = self.drivers.read_log(name, number, -TAIL_BYTES, TAIL_BYTES)[0].decode(errors="replace")
        return self._hidden(name).text(printed)

    def _hidden(self, name: str) -> HiddenValues:
        return HiddenValues([self.store.job(name).specification])

    # ------------------------------------------------------------ savepoints

    def savepoint(self, name: str, user: str, savepoint: str | None = None, why: str = "requested") -> dict[str, Any]:
        """Takes a savepoint of a job, with its code if this supervisor runs it."""
        with self._lock:
            code = None
            with suppress(NotFound):  # a job of `millstream run`
                code = self.drivers.code_of(name, self.store.job(name).runs)
            taken = self.saved.savepoint(name, savepoint, why=why, code=code)
            self.store.note(user, "savepoint", name, taken["name"])
            return taken

    def restore(self, savepoint: str, user: str, into: str | None = None) -> dict[str, Any]:
        """Restores a savepoint into its own job, or into another one whose flow continues with all of its state."""
        if into is not None and into != self.saved.all.get(savepoint).job:
            self.upgrades.refuse_other_flow(savepoint, into)
        with self._lock:
            done = self.saved.restore(savepoint, into)
            self.store.note(user, "restore", done["job"], savepoint)
            return done

    def remove_savepoint(self, savepoint: str, user: str) -> dict[str, Any]:
        with self._lock:
            gone = self.saved.remove_savepoint(savepoint)
            self.store.note(user, "remove savepoint", gone["job"], savepoint)
            return gone

    def state(self, name: str, step: str, key: Mapping[str, str], batches: int = 0) -> dict[str, Any]:
        """The rows of a step, and what its newest batches changed. Spark reads them, in a process of its own."""
        given = {"file": self.saved.existing(name).path, "flow": name}
        return self.drivers.ask("--state", given, step, json.dumps(key), str(batches), timeout_s=STATE_S_MAX)

    def folder_of(self, job: JobRecord) -> Path:
        """The folder with the checkpoint of a job."""
        chosen = option_of(job.specification.options, "--folder")
        if chosen is not None:
            return Path(job.specification.folder) / chosen
        return self.jobs / (job.specification.flow or job.name)

    def _folder_if_known(self, name: str) -> Path | None:
        try:
            return self.folder_of(self.store.job(name))
        except NotFound:
            return None

    # ------------------------------------------------------------ what is done for it

    def run(self) -> None:
        """Looks at all jobs until `close`."""
        while not self._ends:
            self.look()
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def close(self) -> None:
        """Ends the supervisor. Its jobs go on."""
        self._ends = True
        self._wake.set()

    def look(self) -> None:
        """One look at every job."""
        upgrading = self.upgrades.active()
        for job in self.store.jobs():
            with self._lock:
                try:
                    if job.name in upgrading:
                        self.upgrades.watch(self.store.job(job.name))
                    self._look(job.name, is_upgrading=job.name in upgrading)
                except MillstreamError as error:  # a full disk, say: it is tried again
                    logger.warning("job '%s': %s", job.name, error)

    def _look(self, name: str, *, is_upgrading: bool) -> None:
        try:
            job = self.store.job(name)
        except MillstreamError:  # deleted meanwhile
            return
        newest = next(iter(self.store.runs(name, 1)), None)
        if self.drivers.is_running(name):
            self._running(job, newest)
        elif newest is not None and newest.ended is None:
            self._ended(job, newest)
        elif is_upgrading and job.desired is Desired.STOPPED:
            self.upgrades.proceed(job)
        elif job.desired is Desired.RUNNING and job.next_start is not None and job.next_start <= time.time():
            self._due(job)

    def _running(self, job: JobRecord, run: Run | None) -> None:
        number = job.runs if run is None else run.number
        if job.failures and run is not None and time.time() - run.started > self.limits.healthy_s:
            self.store.update(job.name, failures=0)
        asked = self._asked_to_stop.get((job.name, number))
        stops = job.desired is Desired.STOPPED or job.reason == RESTARTING
        if stops and asked is None:
            self._asked_to_stop[job.name, number] = time.monotonic()
            self.drivers.stop(job.name, number, kill=False)
        elif asked is not None and time.monotonic() - asked > self.limits.kill_after_s:
            self.drivers.stop(job.name, number, kill=True)
        observed = Observed.STOPPING if stops else Observed.RUNNING
        if job.observed is not observed:
            self.store.update(job.name, observed=observed)
        self._note_overlap(job)

    def _note_overlap(self, job: JobRecord) -> None:
        """A scheduled run that is due while the one before still runs does not take place."""
        if job.specification.schedule is None or job.next_start is None or job.next_start > time.time():
            return
        with self.store.transaction():
            self.store.note(job.owner, "skip", job.name, "the run before had not ended")
            self.store.update(job.name, next_start=_next(job.specification, time.time()))

    def _ended(self, job: JobRecord, run: Run) -> None:
        code = self.drivers.code(job.name, run.number)
        self._asked_to_stop.pop((job.name, run.number), None)
        stopped = job.desired is Desired.STOPPED or job.reason == RESTARTING
        error = self.drivers.error(job.name, run.number)
        reported = None if error is None else self._hidden(job.name).text(error)
        result = "stopped" if stopped else "finished" if code == 0 else reported or _killed(code)
        if code is None and reported is None and self._has_worked(job.name, run):
            job = replace(job, failures=0)
        with self.store.transaction():
            self.store.end_run(job.name, run.number, code, result)
            if not stopped and code != 0:
                self.store.add_failure(job.name, run.number, ending(self._printed_last(job.name, run.number), result))
            self.store.update(job.name, **self._after(job, code, stopped=stopped, result=result))
        self.drivers.forget_runs(job.name, run.number - RUNS_KEPT)

    def _has_worked(self, name: str, run: Run) -> bool:
        """Whether a run completed a batch. If it was killed then, that is not another failure in a row."""
        try:
            return self.saved.existing(name).has_completed_since(run.started)
        except (MillstreamError, OSError):
            return False

    def _after(self, job: JobRecord, code: int | None, *, stopped: bool, result: str) -> dict[str, Any]:
        """What becomes of a job whose run has ended."""
        specification, now = job.specification, time.time()
        if job.desired is Desired.STOPPED:
            return {"observed": Observed.STOPPED, "reason": None, "next_start": None, "failures": 0}
        if stopped:  # to be restarted
            return {"observed": Observed.WAITING, "reason": None, "next_start": now}
        if specification.schedule is not None:
            reason = None if code == 0 else result
            return {
                "observed": Observed.SCHEDULED,
                "reason": reason,
                "failures": 0,
                "next_start": _next(specification, now),
            }
        if code == 0 and specification.restart is not Restart.ALWAYS:
            done = {"desired": Desired.STOPPED, "observed": Observed.FINISHED}
            return {**done, "reason": None, "next_start": None, "failures": 0}
        failures = 0 if code == 0 else job.failures + 1
        if specification.restart is Restart.NEVER or failures > specification.restarts_max:
            tries = "" if failures <= 1 else f" {failures} times in a row, the last time"
            return {
                "desired": Desired.STOPPED,
                "observed": Observed.FAILED,
                "failures": failures,
                "reason": f"it failed{tries}: {result}",
                "next_start": None,
            }
        wait = min(self.limits.back_off_s * 2 ** max(failures - 1, 0), self.limits.back_off_s_max)
        return {"observed": Observed.WAITING, "reason": result, "next_start": now + wait, "failures": failures}

    def _due(self, job: JobRecord) -> None:
        why = "restart" if job.failures else "start"
        values: dict[str, Any] = {"observed": Observed.RUNNING, "reason": None}
        if job.observed is Observed.SCHEDULED:
            why = "schedule"
            self._note_missed(job)
        is_scheduled = job.specification.schedule is not None
        values["next_start"] = _next(job.specification, time.time()) if is_scheduled else None
        with self.store.transaction():
            number = self.store.begin_run(job.name, why)
            self.store.update(job.name, **values)
        try:
            started = self.drivers.start(job.specification, number)
        except MillstreamError as error:
            self._cannot_start(job, number, self._hidden(job.name).text(str(error)))
            return
        if not started:
            self.store.end_run(job.name, number, None, "it was already running")

    def _cannot_start(self, job: JobRecord, number: int, why: str) -> None:
        with self.store.transaction():
            self.store.end_run(job.name, number, None, why)
            self.store.add_failure(job.name, number, Failure(ERROR, why))
            self.store.update(job.name, **self._after(job, None, stopped=False, result=why))

    def _note_missed(self, job: JobRecord) -> None:
        """Runs that were due while no supervisor was there: they are listed, and the newest takes place now."""
        assert job.next_start is not None
        assert job.specification.schedule is not None
        schedule = Schedule(job.specification.schedule, job.specification.time_zone)
        first, now = datetime.fromtimestamp(job.next_start, UTC), datetime.now(UTC)
        missed = [first, *schedule.missed(first, now, MISSED_MAX)][:-1]
        for at in missed:
            self.store.note_missed(job.name, at.timestamp(), "missed: no supervisor was running")


def _killed(code: int | None) -> str:
    return "its process was killed" if code is None else f"it ended with exit code {code}"


def _next(specification: JobSpecification, now: float) -> float:
    assert specification.schedule is not None
    schedule = Schedule(specification.schedule, specification.time_zone)
    return schedule.after(datetime.fromtimestamp(now, UTC)).timestamp()


def described(job: JobRecord) -> dict[str, Any]:
    """A job as programs get it."""
    shown = job.specification.shown()
    return {
        **{name: shown.pop(name) for name in ("name", "file")},
        "state": job.observed.value,
        "wanted": job.desired.value,
        "reason": job.reason,
        "owner": job.owner,
        "created": job.created,
        "runs": job.runs,
        "failures": job.failures,
        "next_start": job.next_start,
        **shown,
    }
