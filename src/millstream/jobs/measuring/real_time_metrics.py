"""The metrics of a job in real-time mode: what Spark reports every few seconds, with the rows of every step.

A sample is taken when Spark has reported. Its lag is then what was written since, not what was read since: the
progress is recorded only then.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from millstream import terminal
from millstream.errors import MillstreamError
from millstream.jobs.measuring.executors import ExecutorsFile
from millstream.jobs.measuring.job_metrics import kind_of_step, topic_of_step
from millstream.jobs.measuring.topic_lag import Growth
from millstream.jobs.real_time_plan import RealTimePlan
from millstream.metrics.history import History
from millstream.metrics.samples import PartitionSample, Sample, StepPlan, StepSample
from millstream.plan.nodes import Dead, Node, Read
from millstream.plan.walking import in_order
from millstream.spark.real_time.record_compiler import counted_rows
from millstream.spark.session.start import running

LOOK_S = 1.0
SAMPLE_S_MAX = 20.0
"""A sample is taken after that long even if Spark reports nothing."""
CLOSE_S = 10.0
Ends = Mapping[tuple[str, str], int]
"""By source and partition, the first offset that does not exist yet."""
logger = terminal.logger(__name__)


class RealTimeMetrics:
    def __init__(self, plan: RealTimePlan) -> None:
        self._order = in_order(plan.outputs)
        self._sources = {topic.name: node.name for node, topic in plan.sources.items()}
        self._names = [node.name for node in plan.sources]
        self._rows_read: dict[str, int] = {}
        self._rows_out: dict[str, int] = {}
        self._offsets: dict[tuple[str, str], int] = {}
        self._active: dict[tuple[str, str], tuple[int, float | None]] = {}
        """By source and partition, the offset of the last sample, and when it last grew."""
        self._grown: dict[tuple[str, str], Growth] = {}
        self._batch, self._batch_s = -1, 0.0
        self._before: Sample | None = None
        self.plan = [
            StepPlan(
                node.name,
                kind_of_step(node),
                node.label,
                tuple(given.name for given in node.inputs),
                topic=topic_of_step(node),
            )
            for node in self._order
        ]

    @property
    def has_news(self) -> bool:
        """Whether Spark has reported since the last sample."""
        return self._batch > (-1 if self._before is None else self._before.batch)

    def take(self, reported: Mapping[str, Any], offsets: Mapping[str, Mapping[str, int]]) -> None:
        """Adds what Spark reports of some seconds. `offsets` are those that each source has reached."""
        self._batch, self._batch_s = reported["batchId"], reported["batchDuration"] / 1000
        for name, source in zip(self._names, reported["sources"], strict=False):
            self._rows_read[name] = self._rows_read.get(name, 0) + source["numInputRows"]
        for place, count in counted_rows(reported["observedMetrics"] or {}).items():
            name = self._order[place].name
            self._rows_out[name] = self._rows_out.get(name, 0) + count
        self._offsets = {(source, name): end for source, own in offsets.items() for name, end in own.items()}

    def sample(self, now: float, ends: Ends) -> tuple[Sample, list[PartitionSample]]:
        partitions = [self._partition(now, place, end) for place, end in ends.items()]
        steps: dict[str, StepSample] = {}
        for node in self._order:
            own = [each for each in partitions if each.source == node.name]
            steps[node.name] = self._with_rate(node.name, self._step(node, steps, own), now)
        before, rows = self._before, sum(self._rows_read.values())
        lags = [each.lag_records for each in steps.values() if each.lag_records is not None]
        lags_s = [each.lag_s for each in steps.values() if each.lag_s is not None]
        made = Sample(
            at=now,
            batch=self._batch,
            rows=rows,
            rows_dead=sum(each.rows_dead for each in steps.values()),
            rows_per_s=None if before is None or now <= before.at else (rows - before.rows) / (now - before.at),
            lag_records=sum(lags) if lags else None,
            lag_s=max(lags_s, default=None),
            batch_s=self._batch_s,
            process_s=self._batch_s,
            steps=steps,
        )
        self._before = made
        return made, partitions

    def _partition(self, now: float, place: tuple[str, str], end: int) -> PartitionSample:
        growth, offset = self._grown.setdefault(place, Growth()), self._offsets.get(place)
        growth.observe(end, now)
        if offset is None:  # Spark has not reported yet
            return PartitionSample(*place, end=end, seen_at=now)
        before, active_at = self._active.get(place, (0, None))
        self._active[place] = offset, now if offset > before else active_at
        since = growth.passed_at(offset) if offset < end else None
        lag_s = 0.0 if since is None else max(0.0, now - since)
        return PartitionSample(
            *place, offset=offset, end=end, active_at=self._active[place][1], seen_at=now, lag_s=lag_s
        )

    def _step(self, node: Node, made: Mapping[str, StepSample], own: list[PartitionSample]) -> StepSample:
        dead = [
            self._rows_out.get(each.name, 0)
            for each in self._order
            if isinstance(each, Dead) and each.inputs[0] is node
        ]
        rows_out = self._rows_out.get(node.name, 0)
        found = StepSample(rows_out, rows_out, rows_dead=max(dead, default=0))
        if isinstance(node, Dead):
            return found
        if isinstance(node, Read):
            found = replace(found, rows_in=self._rows_read.get(node.name, 0))
            lags = [max(0, each.end - each.offset) for each in own if each.end is not None and each.offset is not None]
            lag_s = max((each.lag_s for each in own if each.lag_s is not None), default=None)
            return replace(found, lag_records=sum(lags) if lags else None, lag_s=lag_s)
        return replace(found, rows_in=sum(made[each.name].rows_out or 0 for each in node.inputs))

    def _with_rate(self, name: str, sample: StepSample, now: float) -> StepSample:
        before = self._before
        earlier = None if before is None else before.steps[name].rows_in
        if before is None or earlier is None or sample.rows_in is None or now <= before.at:
            return sample
        return replace(sample, rows_per_s=(sample.rows_in - earlier) / (now - before.at))


class RealTimeSampler:
    """A thread of the driver. No record waits because of it, and no run fails."""

    def __init__(self, folder: Path, metrics: RealTimeMetrics, ends: Callable[[], Ends], *, keeps: bool) -> None:
        """`keeps` is whether metrics are kept."""
        self._folder, self._metrics, self._ends = folder, metrics, ends
        self._executors = ExecutorsFile(folder, running)
        self._keeps = keeps
        self._history: History | None = None
        self._sampled_at = time.time()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, look: Callable[[], None]) -> None:
        """`look` takes what Spark has reported."""
        if self._keeps:
            try:
                self._history = History(self._folder)
                self._history.begin_run(time.time(), self._metrics.plan)
            except (OSError, sqlite3.Error) as error:
                logger.warning("the metrics of this run may be incomplete: %s", error)
        self._thread = threading.Thread(target=self._run, args=[look], name="millstream-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes a last sample."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            self._sample()
        if self._history is not None:
            self._history.close()

    def _run(self, look: Callable[[], None]) -> None:
        has_failed = False
        while not self._ended.wait(LOOK_S):
            try:
                look()
                self._executors.update()
                if self._metrics.has_news or time.time() - self._sampled_at > SAMPLE_S_MAX:
                    self._sample()
            except Exception:  # of Spark, say: the next sample may succeed
                if not has_failed and not self._ended.is_set():
                    logger.exception("the metrics of '%s' cannot be sampled", self._folder.name)
                has_failed = True

    def _sample(self) -> None:
        ends: Ends = {}
        with suppress(MillstreamError):  # the lag is unknown while a broker is unavailable
            ends = self._ends()
        self._sampled_at = time.time()
        sample, partitions = self._metrics.sample(self._sampled_at, ends)
        if self._history is not None:
            with suppress(sqlite3.Error):  # a full disk, say
                self._history.add(sample, partitions)
