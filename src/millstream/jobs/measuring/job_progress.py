"""The progress of a job, shown by its own process and read by others from its folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from millstream.errors import MillstreamError
from millstream.plan.time.bundles import BEGINNING, END, moment

FILE = "progress.json"
WRITE_S = 1.0


@dataclass
class Progress:
    batch: int = -1
    rows_read: int = 0
    rows_late: int = 0
    rows_dead: int = 0
    batch_rows: int = 0
    batch_seconds: float = 0.0
    now: int = 0
    watermarks: dict[str, int] = field(default_factory=dict)
    """By step, the lowest over its key groups."""
    rows_held: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    waits_for: str | None = None
    """The sink that is down, and why."""
    waits_for_room: str | None = None
    """The queue that is full, and why."""

    @property
    def waits(self) -> str | None:
        """What the job waits for, and why."""
        return self.waits_for or self.waits_for_room

    @property
    def rows_per_s(self) -> float | None:
        return self.batch_rows / self.batch_seconds if self.batch_seconds > 0 else None

    @property
    def watermark(self) -> int | None:
        """The lowest over all steps; None for a flow without watermarks."""
        return min(self.watermarks.values(), default=None)

    @property
    def as_of(self) -> datetime | None:
        """When the newest batch began, by the clock of the job; None if none is known."""
        return moment(self.now) if self.now > 0 else None

    def document(self, job: str, lag: int) -> dict[str, Any]:
        """The progress as JSON, for programs."""
        rate = self.rows_per_s
        return {
            "job": job,
            "batch": self.batch,
            "as_of": None if self.as_of is None else self.as_of.isoformat(),
            "rows": self.rows_read,
            "rows_per_s": None if rate is None else round(rate),
            "lag": lag,
            "watermark": None if self.watermark is None else instant(self.watermark),
            "late": self.rows_late,
            "dead": self.rows_dead,
            "waits_for": self.waits,
        }


class ProgressFile:
    """Updated about once a second, for `millstream jobs list`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._written_at = float("-inf")

    def update(self, job: str, progress: Progress, lag: Callable[[], int]) -> None:
        """Called after each batch."""
        if time.monotonic() - self._written_at < WRITE_S:
            return
        with suppress(MillstreamError):  # the lag is unknown while a broker is unavailable
            self.write(job, progress, lag())

    def write(self, job: str, progress: Progress, lag: int) -> None:
        self._written_at = time.monotonic()
        draft = self._path.with_suffix(".tmp")
        with suppress(OSError):  # no batch fails because its progress cannot be written
            draft.write_text(json.dumps(progress.document(job, lag)))
            draft.replace(self._path)


def read_progress(folder: Path) -> dict[str, Any]:
    """The last progress that a job wrote; empty if there is none, or it cannot be read."""
    try:
        found = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def progress_written_at(folder: Path) -> float | None:
    """When a job last wrote its progress, in seconds since 1970; running jobs do about once a second."""
    try:
        return (folder / FILE).stat().st_mtime
    except OSError:
        return None


def instant(micros: int) -> str:
    if micros <= BEGINNING:
        return "not yet known"
    found = None if micros >= END else moment(micros)
    return "the end of time" if found is None else found.strftime("%Y-%m-%d %H:%M:%S")
