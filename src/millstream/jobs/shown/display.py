"""The progress of a job on the terminal: its start-up phases, then its batches."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from millstream.errors import InvalidInput
from millstream.jobs.measuring.job_progress import instant
from millstream.terminal import escaped
from millstream.user_lines import users_line, what_exists

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

    from millstream.jobs.job import Job

REFRESH_S = 0.25
LINE_S = 10.0


class Display:
    """Shows nothing."""

    def phase(self, text: str) -> None:
        """Shows what the job is doing before its first batch."""

    def update(self, job: Job) -> None:
        """Called often while a job runs."""

    def close(self) -> None: ...


class Terminal(Display):
    """One status line, updated in place."""

    def __init__(self, name: str) -> None:
        from rich.console import Console

        self._name = name
        self._started_at = time.monotonic()
        self._status: Status = Console(stderr=True).status(_text(f"{name}: starting"))
        self._status.start()
        self._updated_at = 0.0

    def phase(self, text: str) -> None:
        self._status.update(_text(f"{self._name}: {text} ({time.monotonic() - self._started_at:.0f} s)"))

    def update(self, job: Job) -> None:
        if time.monotonic() - self._updated_at < REFRESH_S:
            return
        self._updated_at = time.monotonic()
        if job.progress.batch < 0:
            self.phase("starting the first batch")
        else:
            self._status.update(_text(in_one_line(job)))

    def close(self) -> None:
        self._status.stop()


def _text(content: str) -> Text:
    """Content that neither the terminal nor rich interprets."""
    from rich.text import Text

    return Text(escaped(content))


class Lines(Display):
    """For a log: start-up phases, then a line every ten seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown_at = time.monotonic()

    def phase(self, text: str) -> None:
        self._print(f"{self._name}: {text}")

    def update(self, job: Job) -> None:
        if time.monotonic() - self._shown_at >= LINE_S:
            self._shown_at = time.monotonic()
            self._show(job)

    def _show(self, job: Job) -> None:
        self._print(in_one_line(job))

    def _print(self, line: str) -> None:
        print(escaped(line), file=sys.stderr, flush=True)


class JsonLines(Lines):
    """The same for programs: each line is a JSON document."""

    def phase(self, text: str) -> None:
        self._print(json.dumps({"job": self._name, "phase": text}))

    def _show(self, job: Job) -> None:
        self._print(json.dumps(job.progress.document(job.name, job.lag())))


def in_one_line(job: Job) -> str:
    """The progress of a job."""
    progress = job.progress
    if progress.batch < 0:
        return f"{job.name}: starting the first batch"
    parts = [job.name, f"batch {progress.batch}", f"{progress.rows_read:,} rows"]
    if progress.rows_per_s is not None:
        parts.append(f"{progress.rows_per_s:,.0f} rows/s")
    parts.append(f"lag {job.lag():,}")
    if progress.watermark is not None:
        parts.append(f"watermark {instant(progress.watermark)}")
    parts += [f"late {progress.rows_late:,}"] if progress.rows_late else []
    parts += [f"dead {progress.rows_dead:,}"] if progress.rows_dead else []
    parts += [f"waiting for {progress.waits}"] if progress.waits else []
    parts += [job.promise] if job.promise else []
    return " · ".join(parts)


PROGRESS = ("auto", "terminal", "lines", "json", "none")


def display_of(name: str, progress: str | bool) -> Display:
    """Shows progress on stderr: "auto" or True is a status line on a terminal, otherwise lines; False is none."""
    if isinstance(progress, bool):
        progress = "auto" if progress else "none"
    if progress not in PROGRESS:
        raise InvalidInput(
            f"progress={progress!r} is unknown",
            where=users_line(),
            next_step=what_exists(progress, PROGRESS, kind="ways to show progress"),
        )
    chosen = ("terminal" if sys.stderr.isatty() else "lines") if progress == "auto" else progress
    return {"terminal": Terminal, "lines": Lines, "json": JsonLines}[chosen](name) if chosen != "none" else Display()


@contextmanager
def watched(name: str, progress: str | bool) -> Iterator[Display]:
    """A display for as long as a job is run."""
    display = display_of(name, progress)
    try:
        yield display
    finally:
        display.close()


def watch(job: Job, display: Display) -> None:
    """Shows the progress of a started job in the background, until it ends."""

    def show() -> None:
        try:
            with suppress(Exception):  # failing to show progress is no reason to disturb the job
                while job.is_running:
                    display.update(job)
                    time.sleep(REFRESH_S)
        finally:
            display.close()

    threading.Thread(target=show, name=f"millstream-progress-{job.name}", daemon=True).start()
