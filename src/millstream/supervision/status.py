"""How jobs are doing: what the store knows, with the progress that running jobs write into their folders."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from millstream.jobs.job_progress import read_progress
from millstream.supervision.store import JobRecord, Observed
from millstream.supervision.supervisor import Supervisor, described

PROGRESS = ("rows", "lag", "rows_per_s", "watermark", "late", "dead", "waits_for", "batch")
RUNS_SHOWN = 10


class Status:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def listed(self) -> list[dict[str, Any]]:
        return [{**described(job), **self._progress(job)} for job in self._supervisor.store.jobs()]

    def shown(self, name: str) -> dict[str, Any]:
        """One job, with its newest runs and its processes."""
        job = self._supervisor.store.job(name)
        runs = self._supervisor.store.runs(name, RUNS_SHOWN)
        return {
            **described(job),
            **self._progress(job),
            "processes": self._supervisor.drivers.processes(name, job.runs),
            "last_runs": [asdict(run) for run in runs],
        }

    def _progress(self, job: JobRecord) -> dict[str, Any]:
        live = read_progress(self._supervisor.folder_of(job)) if job.observed is Observed.RUNNING else {}
        return {name: live.get(name) for name in PROGRESS}
