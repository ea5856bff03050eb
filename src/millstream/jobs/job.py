"""A job: a flow that runs as one Spark query, in either mode. The `Job` object watches and stops it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from millstream.jobs.asked.current_state import CurrentState
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.measuring.job_progress import Progress
from millstream.jobs.shown.job_view import whole_page
from millstream.jobs.shown.recent_rows import RecentRows
from millstream.jobs.shown.showing import show
from millstream.metrics.history import read_metrics
from millstream.metrics.samples import as_document
from millstream.plan.nodes import Write
from millstream.records import duration
from millstream.user_lines import AtUsersLine

POLL_S = 0.1
"""How often to check whether a job is still running."""


class Job(ABC):
    """A flow that is running or has run: its `name`, its `progress`, and how it ended.

    `progress` has the number of the last `batch`, `rows_read`, `rows_late`, `rows_dead`, rows `written` by output, and
    the `watermark`. `interrupted`, `terminated` and `gave_up` tell why it ended.
    """

    def __init__(
        self, name: str, folder: JobFolder, progress: Progress, query: StreamingQuery, closing: ExitStack
    ) -> None:
        """`closing` closes what the job holds: its lock, its sinks, its broker."""
        self.name = name
        self.folder = folder
        self.progress = progress
        self._query = query
        self._closing = closing
        self.recent: RecentRows | None = None
        """The newest rows of each output, if they pass through this process."""
        self.current_state: CurrentState | None = None
        """What its steps hold now, if they keep state."""
        self.interrupted = False
        """Whether Ctrl-C ended it."""
        self.terminated = False
        """Whether SIGTERM ended it."""
        self.gave_up = False
        """Whether it was stopped in the middle of a batch."""

    @property
    def promise(self) -> str:
        """A weaker guarantee than exactly once, as text; empty where results are written exactly once."""
        return ""

    @property
    def is_running(self) -> bool:
        return self._query.isActive

    @property
    def state(self) -> str:
        """ "running", "failed" or "ended"."""
        if self.is_running:
            return "running"
        return "ended" if self._query.exception() is None else "failed"

    @property
    @abstractmethod
    def outputs(self) -> tuple[Write, ...]:
        """What it writes."""

    def show(self, *, refresh_s: float = 0.5) -> None:
        """Shows progress and the newest rows, updated in place: in the cell of a notebook, or on a terminal.

        It returns when the job has ended, or on Ctrl-C (in a notebook: interrupt), and then the job continues. It
        raises the error that the job failed with.
        """
        show(self, refresh_s)

    def _repr_html_(self) -> str:
        """In a notebook: its progress, newest rows and plan at this moment."""
        return whole_page(self)

    @abstractmethod
    def lag(self) -> int:
        """The number of rows in topics that have not been read yet."""

    def metrics(self, *, last: str | timedelta | None = None, step: str | None = None) -> dict[str, Any]:
        """The metrics of each step at this moment; with `last`, such as "10 minutes", also those of that time.

        `docs/metrics.md` lists them. With `step`, only those of one step.
        """
        with AtUsersLine():
            since = None if last is None else time.time() - duration(last, what="last").total_seconds()
        self._take_sample()
        found = read_metrics(self.folder.path, since=since, step=step)
        return {} if found is None else as_document(found, self.name, step)

    def _take_sample(self) -> None:
        """Makes the newest metrics those of this moment."""
        return

    def batch_times(self) -> list[float]:
        """The durations, in seconds, of the last batches that had rows."""
        recent = [progress for progress in self._query.recentProgress if progress["numInputRows"] > 0]
        return [progress["durationMs"]["triggerExecution"] / 1000 for progress in recent]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the job to end, and returns whether it did. Raises the error that the job failed with."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._query.isActive:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        self._finish()
        return True

    @abstractmethod
    def stop(self, grace_s: float | None = None, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Stops after the current batch, which is abandoned after `grace_s` seconds and repeated by the next run."""

    @abstractmethod
    def _finish(self) -> None:
        """Closes what the job holds, and raises the error that its query failed with."""
