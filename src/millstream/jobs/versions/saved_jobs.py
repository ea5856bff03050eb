"""Savepoints and state of the jobs in one folder: what the command line and the supervisor share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millstream.errors import InvalidInput, NotFound
from millstream.jobs.job_folder import JobFolder, is_job
from millstream.jobs.versions.restoring import restore
from millstream.jobs.versions.savepoints import Savepoints, savepoints_folder
from millstream.user_lines import what_exists


class SavedJobs:
    """Answers are plain documents, as they go over HTTP."""

    def __init__(self, jobs: Path, folder_of: Callable[[str], Path | None] = lambda _: None) -> None:
        """`folder_of` knows the folders of jobs that have another one than that of their name."""
        self._jobs = jobs
        self._folder_of = folder_of
        self.all = Savepoints(savepoints_folder(jobs))

    def savepoint(
        self, job: str, name: str | None = None, *, why: str = "requested", code: Path | None = None
    ) -> dict[str, Any]:
        return self.all.take(self.existing(job), name, why=why, code=code).document()

    def savepoints(self, job: str | None = None) -> list[dict[str, Any]]:
        return [each.document() for each in self.all.list(job)]

    def remove_savepoint(self, name: str) -> dict[str, Any]:
        return self.all.remove(name).document()

    def restore(self, name: str, into: str | None = None) -> dict[str, Any]:
        """Restores a savepoint into its own job or another one, neither of which may run."""
        savepoint = self.all.get(name)
        job = self.job(into or savepoint.job)
        with job.held():
            before: list[str] = []

            def save() -> None:
                if job.newest_batches()[1] >= 0:
                    before.append(self.all.take(job, why=f"before '{name}' was restored").name)

            done = restore(self.all, name, job, save)
        return {**asdict(done), "savepoint": name, "before": next(iter(before), None)}

    def state(self, job: str, step: str, key: Mapping[str, str] | None = None, batches: int = 0) -> dict[str, Any]:
        """The rows that a step of a job keeps, and what each of its newest batches changed.

        It starts a Spark session, which reads the checkpoint.
        """
        from millstream.jobs.versions.state_rows import state_of

        return state_of(self.existing(job), step, key or {}, batches)

    def job(self, name: str) -> JobFolder:
        """The folder of a job, which need not exist yet."""
        if "/" in name or name.startswith(".") or not name:
            raise InvalidInput(f"{name!r} cannot be the name of a job", next_step="use letters, digits and _.-")
        return JobFolder(self._folder_of(name) or self._jobs / name, name)

    def existing(self, name: str) -> JobFolder:
        """The folder of a job that has run."""
        known = self._folder_of(name) or self._jobs / name
        if not is_job(known):
            others = (
                sorted(entry.name for entry in self._jobs.iterdir() if is_job(entry)) if self._jobs.is_dir() else []
            )
            raise NotFound(f"there is no job '{name}' that has run", next_step=what_exists(name, others, kind="jobs"))
        return self.job(name)
