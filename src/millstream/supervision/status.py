"""How jobs are doing: what the store knows, with the progress that running jobs write into their folders."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millstream.jobs.apps.flows import read_flows
from millstream.jobs.measuring.executors import read_executors
from millstream.jobs.measuring.job_progress import read_progress
from millstream.metrics.history import read_metrics
from millstream.metrics.samples import Metrics, as_document
from millstream.metrics.silence import LOOK_BACK_S, why_silent
from millstream.metrics.upstream import upstream_of
from millstream.supervision.store import JobRecord, Observed
from millstream.supervision.supervisor import Supervisor, described

PROGRESS = ("rows", "lag", "rows_per_s", "watermark", "late", "dead", "waits_for", "batch")
RUNS_SHOWN = 10


class Status:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def listed(self) -> list[dict[str, Any]]:
        mask = self._supervisor.masking.now()
        return [mask.document({**described(job), **self._progress(job)}, ()) for job in self._supervisor.store.jobs()]

    def shown(self, name: str) -> dict[str, Any]:
        """One job, with its newest runs, its processes and executors, and the flows of an app."""
        job = self._supervisor.store.job(name)
        runs = self._supervisor.store.runs(name, RUNS_SHOWN)
        found = {
            **described(job),
            **self._progress(job),
            "processes": self._supervisor.drivers.processes(name, job.runs),
            "executors": self._executors(job),
            "last_runs": [asdict(run) for run in runs],
            "flows": read_flows(self._supervisor.folder_of(job)),
        }
        shown: dict[str, Any] = self._supervisor.masking.now().document(found, ())
        return shown

    def _executors(self, job: JobRecord) -> list[dict[str, Any]]:
        return read_executors(self._supervisor.folder_of(job)) if job.observed is Observed.RUNNING else []

    def folder_of(self, name: str) -> Path:
        return self._supervisor.folder_of(self._supervisor.store.job(name))

    def _progress(self, job: JobRecord) -> dict[str, Any]:
        live = read_progress(self._supervisor.folder_of(job)) if job.observed is Observed.RUNNING else {}
        return {name: live.get(name) for name in PROGRESS}

    def metrics(self, name: str, since: float | None = None, step: str | None = None) -> dict[str, Any]:
        """The metrics of a job from an instant on, by default the newest; an empty list if it has none yet."""
        job = self._supervisor.store.job(name)
        found = read_metrics(self._supervisor.folder_of(job), since=since, step=step) or Metrics(job.created)
        upstream = upstream_of(name, {**self.running_metrics(), name: found})
        inherited_s = max((each.lag_s for each in upstream if each.lag_s is not None), default=None)
        before = {"upstream": [asdict(each) for each in upstream], "lag_inherited_s": inherited_s}
        return {**as_document(found, name, step), **before}

    def why_silent(self, name: str) -> dict[str, Any]:
        """Why nothing comes out of a job."""
        job, now = self._supervisor.store.job(name), time.time()
        found = read_metrics(self._supervisor.folder_of(job), since=now - LOOK_BACK_S)
        return why_silent(name, found, job.observed.value, now, job.reason).document(name)

    def jobs(self) -> list[JobRecord]:
        return self._supervisor.store.jobs()

    def running_metrics(self) -> dict[str, Metrics]:
        """The newest metrics of each running job."""
        running = [job for job in self._supervisor.store.jobs() if job.observed is Observed.RUNNING]
        found = {job.name: read_metrics(self._supervisor.folder_of(job)) for job in running}
        return {name: metrics for name, metrics in found.items() if metrics is not None}
