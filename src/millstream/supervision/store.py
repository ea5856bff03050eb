"""What people want of jobs, and what was seen of them: one SQLite file.

Only the supervisor writes it. Every change is one transaction, so that a killed supervisor leaves no half of one.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from millstream.errors import AlreadyExists, DamagedState, NotFound
from millstream.private_files import PRIVATE
from millstream.sqlite_file import SqliteFile
from millstream.supervision.failures import FailedRun, Failure
from millstream.supervision.specification import JobSpecification
from millstream.user_lines import what_exists

RUNS_KEPT = 100
"""Per job; older ones are forgotten with their logs."""
FAILURES_KEPT = 1000
TABLES = """
create table if not exists jobs (
    name text primary key, owner text not null, specification text not null, created real not null,
    desired text not null, observed text not null, reason text, failures integer not null default 0,
    next_start real, runs integer not null default 0) strict;
create table if not exists runs (
    job text not null, number integer not null, why text not null, started real not null, ended real, code integer,
    result text, primary key (job, number)) strict;
create table if not exists upgrades (
    job text not null, number integer not null, phase text not null, document text not null,
    primary key (job, number)) strict;
create table if not exists failures (
    job text not null, run integer not null, at real not null, document text not null,
    primary key (job, run)) strict;
create table if not exists audit (
    number integer primary key, at real not null, user text not null, action text not null, job text,
    details text) strict;
"""


class Desired(Enum):
    RUNNING = "running"
    STOPPED = "stopped"


class Observed(Enum):
    """What the supervisor saw last."""

    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    """It ended by itself, without an error."""
    WAITING = "waiting"
    """It failed, and is started again later."""
    SCHEDULED = "scheduled"
    FAILED = "failed"
    """It failed, and is not started again."""


@dataclass(frozen=True)
class JobRecord:
    specification: JobSpecification
    owner: str
    created: float
    desired: Desired
    observed: Observed
    reason: str | None
    failures: int
    """In a row."""
    next_start: float | None
    runs: int

    @property
    def name(self) -> str:
        return self.specification.name


@dataclass(frozen=True)
class Run:
    number: int
    why: str
    started: float
    ended: float | None
    code: int | None
    """None while it runs, and if the process was killed."""
    result: str | None


class Store(SqliteFile):
    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path, TABLES, access=PRIVATE)
        except sqlite3.DatabaseError as error:
            raise DamagedState(
                f"the list of jobs cannot be read: {error}",
                where=str(path),
                next_step="restore the file from a copy, or move it away and submit the jobs again",
            ) from error

    # ------------------------------------------------------------ jobs

    def add(self, specification: JobSpecification, owner: str, observed: Observed, next_start: float | None) -> None:
        row = (
            specification.name,
            owner,
            json.dumps(specification.document()),
            time.time(),
            Desired.RUNNING.value,
            observed.value,
            next_start,
        )
        try:
            with self.transaction() as connection:
                connection.execute(
                    "insert into jobs (name, owner, specification, created, desired, observed, next_start)"
                    " values (?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
        except sqlite3.IntegrityError:
            raise AlreadyExists(
                f"there is already a job '{specification.name}'",
                next_step="choose another --name, or delete it: millstream jobs delete NAME",
            ) from None

    def jobs(self) -> list[JobRecord]:
        with self._lock:
            return [_job(row) for row in self._connection.execute(f"{_JOBS} order by name")]

    def job(self, name: str) -> JobRecord:
        with self._lock:
            row = self._connection.execute(f"{_JOBS} where name = ?", (name,)).fetchone()
            if row is None:
                known = [each[0] for each in self._connection.execute("select name from jobs order by name limit 100")]
                raise NotFound(f"the supervisor has no job '{name}'", next_step=what_exists(name, known, kind="jobs"))
        return _job(row)

    def update(self, name: str, **values: Any) -> None:
        """Changes columns of a job; enums are stored by their values."""
        kept = {column: value.value if isinstance(value, Enum) else value for column, value in values.items()}
        assignments = ", ".join(f"{column} = ?" for column in kept)
        with self.transaction() as connection:
            connection.execute(f"update jobs set {assignments} where name = ?", (*kept.values(), name))

    def remove(self, name: str) -> None:
        with self.transaction() as connection:
            connection.execute("delete from runs where job = ?", (name,))
            connection.execute("delete from upgrades where job = ?", (name,))
            connection.execute("delete from failures where job = ?", (name,))
            connection.execute("delete from jobs where name = ?", (name,))

    # ------------------------------------------------------------ runs

    def begin_run(self, name: str, why: str) -> int:
        """Records a new run before its process exists, so that no number is used twice."""
        with self.transaction() as connection:
            (number,) = connection.execute(
                "update jobs set runs = runs + 1 where name = ? returning runs", (name,)
            ).fetchone()
            connection.execute(
                "insert into runs (job, number, why, started) values (?, ?, ?, ?)", (name, number, why, time.time())
            )
            connection.execute("delete from runs where job = ? and number <= ?", (name, number - RUNS_KEPT))
        return int(number)

    def end_run(self, name: str, number: int, code: int | None, result: str) -> None:
        with self.transaction() as connection:
            connection.execute(
                "update runs set ended = ?, code = ?, result = ? where job = ? and number = ? and ended is null",
                (time.time(), code, result, name, number),
            )

    def note_missed(self, name: str, at: float, why: str) -> None:
        """A scheduled run that did not take place."""
        with self.transaction() as connection:
            number = self.begin_run(name, "schedule")
            connection.execute(
                "update runs set started = ?, ended = ?, result = ? where job = ? and number = ?",
                (at, at, why, name, number),
            )

    def runs(self, name: str, at_most: int = RUNS_KEPT) -> list[Run]:
        """The newest first."""
        with self._lock:
            rows = self._connection.execute(
                "select number, why, started, ended, code, result from runs where job = ? order by number desc limit ?",
                (name, at_most),
            )
            return [Run(*row) for row in rows]

    # ------------------------------------------------------------ failures

    def add_failure(self, name: str, run: int, failure: Failure) -> None:
        """Kept longer than the runs: what happens once a month is found again."""
        with self.transaction() as connection:
            row = (name, run, time.time(), json.dumps(asdict(failure)))
            connection.execute("insert or ignore into failures values (?, ?, ?, ?)", row)
            connection.execute(
                "delete from failures where job = ? and run not in"
                " (select run from failures where job = ? order by run desc limit ?)",
                (name, name, FAILURES_KEPT),
            )

    def failures(self, name: str) -> list[FailedRun]:
        """The newest first."""
        with self._lock:
            rows = self._connection.execute(
                "select run, at, document from failures where job = ? order by run desc", (name,)
            )
            return [FailedRun(run, at, Failure(**json.loads(document))) for run, at, document in rows]

    # ------------------------------------------------------------ upgrades

    def set_specification(self, name: str, specification: JobSpecification) -> None:
        with self.transaction() as connection:
            connection.execute(
                "update jobs set specification = ? where name = ?", (json.dumps(specification.document()), name)
            )

    def add_upgrade(self, name: str, document: dict[str, Any]) -> None:
        with self.transaction() as connection:
            connection.execute(
                "insert into upgrades select ?, coalesce(max(number), 0) + 1, ?, ? from upgrades where job = ?",
                (name, document["phase"], json.dumps(document), name),
            )

    def set_upgrade(self, name: str, document: dict[str, Any]) -> None:
        """Replaces the newest upgrade of a job."""
        with self.transaction() as connection:
            connection.execute(
                "update upgrades set phase = ?, document = ? where job = ?"
                " and number = (select max(number) from upgrades where job = ?)",
                (document["phase"], json.dumps(document), name, name),
            )

    def upgrades(self, name: str, at_most: int = RUNS_KEPT) -> list[dict[str, Any]]:
        """The newest first."""
        with self._lock:
            rows = self._connection.execute(
                "select document from upgrades where job = ? order by number desc limit ?", (name, at_most)
            )
            return [json.loads(document) for (document,) in rows]

    def jobs_with_upgrades(self, phases: list[str]) -> set[str]:
        """The jobs that have an upgrade in one of these phases."""
        marks = ", ".join("?" for _ in phases)
        with self._lock:
            rows = self._connection.execute(f"select distinct job from upgrades where phase in ({marks})", phases)
            return {job for (job,) in rows}

    # ------------------------------------------------------------ audit

    def note(self, user: str, action: str, job: str | None = None, details: str | None = None) -> None:
        with self.transaction() as connection:
            connection.execute(
                "insert into audit (at, user, action, job, details) values (?, ?, ?, ?, ?)",
                (time.time(), user, action, job, details),
            )

    def audit(self, at_most: int = 1000) -> list[dict[str, Any]]:
        """Who did what, the newest first."""
        with self._lock:
            rows = self._connection.execute(
                "select at, user, action, job, details from audit order by number desc limit ?", (at_most,)
            )
            return [dict(zip(("at", "user", "action", "job", "details"), row, strict=True)) for row in rows]


_JOBS = "select specification, owner, created, desired, observed, reason, failures, next_start, runs from jobs"


def _job(row: tuple[Any, ...]) -> JobRecord:
    specification, owner, created, desired, observed, *rest = row
    kept = JobSpecification.kept(json.loads(specification))
    return JobRecord(kept, owner, created, Desired(desired), Observed(observed), *rest)
