"""What a running job shows on the terminal: what is starting, then how far it has come. Nothing if nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.plan.bundles import BEGINNING, END, moment
from millstream.terminal import escaped

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

    from millstream.spark.running import Job

LOOK_S = 0.25
LINE_S = 10.0


class Display:
    """Shows nothing."""

    def phase(self, text: str) -> None:
        """What is being done before the first batch."""

    def look(self, job: Job) -> None:
        """Called often while a job runs."""

    def close(self) -> None: ...


class Terminal(Display):
    """One line that is kept up to date."""

    def __init__(self, name: str) -> None:
        from rich.console import Console

        self._name = name
        self._begun = time.monotonic()
        self._status: Status = Console(stderr=True).status(_text(f"{name}: starting"))
        self._status.start()
        self._seen = 0.0

    def phase(self, text: str) -> None:
        self._status.update(_text(f"{self._name}: {text} ({time.monotonic() - self._begun:.0f} s)"))

    def look(self, job: Job) -> None:
        if time.monotonic() - self._seen < LOOK_S:
            return
        self._seen = time.monotonic()
        if job.progress.batch < 0:
            self.phase("starting the first batch")
        else:
            self._status.update(_text(said(job)))

    def close(self) -> None:
        self._status.stop()


def _text(content: str) -> Text:
    """Neither the terminal nor rich's markup finds anything to obey in it."""
    from rich.text import Text

    return Text(escaped(content))


class Lines(Display):
    """For a log: a line now and then."""

    def __init__(self) -> None:
        self._said_at = time.monotonic()
        self._batch = -1

    def look(self, job: Job) -> None:
        if time.monotonic() - self._said_at >= LINE_S and job.progress.batch != self._batch:
            self._said_at, self._batch = time.monotonic(), job.progress.batch
            print(said(job), file=sys.stderr, flush=True)


def said(job: Job) -> str:
    """How far a job has come, in one line."""
    progress = job.progress
    parts = [job.name, f"batch {progress.batch}", f"{progress.rows_read:,} rows"]
    if progress.batch_seconds > 0:
        parts.append(f"{progress.batch_rows / progress.batch_seconds:,.0f} rows/s")
    parts.append(f"lag {job.lag():,}")
    if progress.watermarks:
        parts.append(f"watermark {instant(min(progress.watermarks.values()))}")
    parts += [f"late {progress.rows_late:,}"] if progress.rows_late else []
    parts += [f"dead {progress.rows_dead:,}"] if progress.rows_dead else []
    parts += [f"waits for {progress.waits_for}"] if progress.waits_for else []
    parts += [job.promise] if job.promise else []
    return " · ".join(parts)


def instant(micros: int) -> str:
    if micros <= BEGINNING:
        return "not yet known"
    found = None if micros >= END else moment(micros)
    return "the end of time" if found is None else found.strftime("%Y-%m-%d %H:%M:%S")


@contextmanager
def watched(name: str, show: bool | None) -> Iterator[Display]:
    """A terminal gets a live line, a log a line now and then; `show=False` nothing."""
    wanted = sys.stderr.isatty() if show is None else show
    display: Display = Display()
    if wanted:
        display = Terminal(name) if sys.stderr.isatty() else Lines()
    try:
        yield display
    finally:
        display.close()
