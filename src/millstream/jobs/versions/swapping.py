"""Replaces parts of a job's folder as one: a process that is killed in between leaves either the old or the new job.

The new parts are put into a folder that then gets its final name. From that moment the job is the new one: whichever
process opens the job next moves the rest of the parts into place.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from millstream.jobs.job_folder import JobFolder
from millstream.log.storage.disk import storage_errors, sync_folder
from millstream.private_files import make_folders

READY = "replacement"
DRAFT = ".replacement-"
GONE = ".replaced"
REMOVED = ".removed"
"""A part of this name in the new folder lists, one per line, what the job no longer has."""


def swap(job: JobFolder, fill: Callable[[Path], None], *, removed: tuple[str, ...] = ()) -> None:
    """Replaces the parts that `fill` writes into a folder, and removes others. The caller holds the job."""
    complete_swap(job)
    with storage_errors(job.path):
        for leftover in job.path.glob(f"{DRAFT}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        draft = make_folders(job.path / f"{DRAFT}{uuid.uuid4().hex}")
        fill(draft)
        (draft / REMOVED).write_text("\n".join(removed))
        draft.rename(job.path / READY)
        sync_folder(job.path)
    complete_swap(job)


def is_swapping(job: JobFolder) -> bool:
    return (job.path / READY).is_dir()


def complete_swap(job: JobFolder) -> None:
    """Moves the remaining parts into place, if there are any. The caller holds the job."""
    ready, gone = job.path / READY, job.path / GONE
    if not ready.is_dir():
        return
    with storage_errors(job.path):
        for name in (ready / REMOVED).read_text().splitlines():
            _put_away(job.path / name, gone)
        for part in sorted(ready.iterdir()):
            if part.name != REMOVED:
                _put_away(job.path / part.name, gone)
                part.rename(job.path / part.name)
        sync_folder(job.path)
        shutil.rmtree(gone, ignore_errors=True)
        (ready / REMOVED).unlink(missing_ok=True)
        ready.rmdir()


def _put_away(path: Path, gone: Path) -> None:
    if path.exists():
        gone.mkdir(exist_ok=True)
        path.rename(gone / f"{path.name}-{uuid.uuid4().hex}")
