"""Writes the metrics and the progress of a running job about once a second, also while a batch waits for its sink."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path

from millstream import terminal
from millstream.errors import MillstreamError
from millstream.jobs.measuring.executors import ExecutorsFile
from millstream.jobs.measuring.job_metrics import JobMetrics
from millstream.jobs.measuring.job_progress import Progress, ProgressFile
from millstream.jobs.measuring.topic_lag import TopicLag
from millstream.metrics.history import History
from millstream.spark.query.full_queues import waits_for_queue
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.session.start import running

SAMPLE_S = 1.0
CLOSE_S = 10.0
logger = terminal.logger(__name__)


class Sampler:
    """A thread of the driver. No batch fails or waits because of it."""

    def __init__(
        self,
        job: str,
        folder: Path,
        physical_plan: PhysicalPlan,
        progress: Progress,
        lag: TopicLag,
        *,
        keeps: bool = True,
    ) -> None:
        """`keeps` is whether metrics are kept; progress always is."""
        self._job = job
        self._progress = progress
        self._lag = lag
        self._file = ProgressFile(folder)
        self._executors = ExecutorsFile(folder, running)
        self._folder = folder
        self._keeps = keeps
        self._history: History | None = None
        self.metrics = JobMetrics(physical_plan)
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-metrics", daemon=True)
        self._began = time.time()

    def start(self) -> None:
        if self._keeps:
            self._open()
        self._thread.start()

    def _open(self) -> None:
        try:
            self._history = History(self._folder)
            self.metrics.remember(self._history.partitions())
            self._history.begin_run(self._began, self.metrics.plan)
        except (OSError, sqlite3.Error) as error:
            logger.warning("the metrics of this run may be incomplete: %s", error)

    def change(self, physical_plan: PhysicalPlan, lag: TopicLag) -> None:
        """The batches from now on have this plan."""
        self.metrics.change(physical_plan)
        self._lag = lag
        if self._history is not None:
            with suppress(sqlite3.Error):
                self._history.begin_run(self._began, self.metrics.plan)

    def close(self) -> None:
        """Takes a last sample."""
        self._ends.set()
        self._thread.join(CLOSE_S)
        try:
            self.sample()
        except Exception:  # the job's own result counts, not that of its last sample
            logger.exception("the last metrics of '%s' are missing", self._job)
        if self._history is not None:
            self._history.close()

    def sample(self) -> None:
        """Takes a sample now."""
        with self._lock:
            now, lag = time.time(), self._lag
            self._progress.waits_for_room = waits_for_queue(self._folder)
            ends, since = None, {}
            with suppress(MillstreamError):  # the lag is unknown while a broker is unavailable
                found = lag.ends()
                ends = {(source, name): end for source, own in found.items() for name, end in own.items()}
                since = self._waiting_since(lag, ends, now)
            sample, partitions = self.metrics.sample(
                now,
                batch=self._progress.batch,
                written=dict(self._progress.written),
                waits_for=self._progress.waits,
                ends=ends,
                waiting_since=since,
            )
            if ends is not None:
                self._file.write(self._job, self._progress, sample.lag_records or 0)
            if self._history is not None:
                with suppress(sqlite3.Error):  # a full disk, say: the next sample may succeed
                    self._history.add(sample, partitions)

    def _waiting_since(
        self, lag: TopicLag, ends: dict[tuple[str, str], int], now: float
    ) -> dict[tuple[str, str], float]:
        offsets = self.metrics.offsets()
        found = {place: lag.waiting_since(*place, offsets.get(place, 0), end, now) for place, end in ends.items()}
        return {place: since for place, since in found.items() if since is not None}

    def _run(self) -> None:
        has_failed = False
        while not self._ends.wait(SAMPLE_S):
            try:
                self.sample()
                self._executors.update()
            except Exception:  # of a source, say: the next sample may succeed
                if not has_failed:
                    logger.exception("the metrics of '%s' cannot be sampled", self._job)
                has_failed = True
