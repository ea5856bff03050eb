"""A job stays in the mode it started in: each mode has its own checkpoint."""

from __future__ import annotations

from pathlib import Path

from millstream.errors import JobChanged
from millstream.jobs.job_folder import REAL_TIME_CHECKPOINT, JobFolder
from millstream.jobs.results.output_claims import START_OVER
from millstream.plan.run_settings import REAL_TIME


def refuse_after_real_time(folder: JobFolder) -> None:
    """A job in micro-batches cannot continue one that has run in real time."""
    if has_started(folder.path / REAL_TIME_CHECKPOINT):
        raise _other_mode(folder, "in real time", "in micro-batches")


def refuse_after_micro_batches(folder: JobFolder) -> None:
    """A job in real time cannot continue one that has run in micro-batches."""
    if has_started(folder.checkpoint):
        raise _other_mode(folder, "in micro-batches", f"with mode='{REAL_TIME}'")


def _other_mode(folder: JobFolder, before: str, now: str) -> JobChanged:
    return JobChanged(
        f"the job '{folder.job}' has run {before}, and its progress is recorded differently {now}",
        where=str(folder.path),
        next_step=(
            f"run it as before; or give the flow another name (and since=… to start where this one is); "
            f"or write all outputs from the start: {START_OVER}"
        ),
    )


def has_started(checkpoint: Path) -> bool:
    offsets = checkpoint / "offsets"
    return offsets.is_dir() and any(entry.name.isdigit() for entry in offsets.iterdir())
