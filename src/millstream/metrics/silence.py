"""Why nothing comes out of a job: a pure function from its metrics to findings, the most likely cause first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from millstream.metrics.samples import Metrics, PartitionSample, Sample, StepPlan, StepSample, is_idle

LOOK_BACK_S = 600.0
"""Rows of this time count; a history of it is enough."""
QUIET_S = 60.0
"""A source or a partition without rows for this long is worth mentioning."""
STALE_S = 30.0
AHEAD_S = 60.0
FULL_QUEUE = "the queue '"
"""So begins why a job waits, if it waits for the reader of a queue."""


@dataclass(frozen=True)
class Finding:
    """A reason, and what to do about it."""

    kind: str
    """not_running, no_metrics, stalled, sink_down, queue_full, empty_input, no_new_input, future_record,
    silent_partition, held_watermark, still_watermark, all_late, all_dead, no_rows_after, waiting_windows or behind."""
    what: str
    next_step: str
    step: str | None = None
    partition: str | None = None
    since: float | None = None


@dataclass(frozen=True)
class Silence:
    """What is known of a job's output, and why there is none."""

    state: str
    silent_since: float | None
    """When rows were last written in the time that was looked at; None: not in this time."""
    is_silent: bool
    """Whether no row was written in the last minute."""
    findings: tuple[Finding, ...]

    def document(self, job: str) -> dict[str, Any]:
        return {"job": job, **asdict(self), "findings": [asdict(each) for each in self.findings]}


def why_silent(job: str, metrics: Metrics | None, state: str, now: float, reason: str | None = None) -> Silence:
    """`metrics` have the history of the last ten minutes; `state` and `reason` are those of the job."""
    if state != "running":
        return Silence(state, None, True, (_not_running(job, state, reason),))
    if metrics is None or metrics.newest is None or metrics.newest.at < metrics.run_started:
        what = f"the run of '{job}' has measured nothing yet: it is starting"
        return Silence(state, None, True, (Finding("no_metrics", what, f"wait, or look: millstream jobs logs {job}"),))
    looked_at = _Look(job, metrics, metrics.newest, _first(metrics), now)
    written_at = _written_at(metrics)
    is_silent = written_at is None or now - written_at > QUIET_S
    findings = tuple(looked_at.findings()) if is_silent else tuple(looked_at.urgent())
    return Silence(state, written_at, is_silent, findings)


def _not_running(job: str, state: str, reason: str | None) -> Finding:
    because = f": {reason}" if reason else ""
    next_steps = {
        "waiting": f"it starts again by itself; what failed: millstream jobs logs {job}",
        "scheduled": f"wait for its time, or run it now: millstream jobs start {job}",
        "failed": f"read its log, fix the cause, and start it: millstream jobs logs {job}",
    }
    default = f"start it: millstream jobs start {job}, or millstream run FILE"
    return Finding("not_running", f"the job is {state}{because}", next_steps.get(state, default))


def _first(metrics: Metrics) -> Sample | None:
    """The sample to compare the newest with: the oldest of the same run, if that is not the newest itself."""
    return next((each for each in metrics.samples[:-1] if each.at >= metrics.run_started), None)


def _written_at(metrics: Metrics) -> float | None:
    outputs = [each.name for each in metrics.plan if each.kind == "output"]
    found, before = None, None
    for sample in metrics.samples:
        if sample.at < metrics.run_started:
            continue
        rows = sum(sample.steps[name].rows_out or 0 for name in outputs if name in sample.steps)
        if before is not None and rows > before:
            found = sample.at
        before = rows
    return found


@dataclass(frozen=True)
class _Rows:
    into: int
    out: int
    late: int
    dead: int

    @classmethod
    def of(cls, sample: StepSample | None) -> _Rows | None:
        """None: unknown."""
        if sample is None or sample.rows_in is None or sample.rows_out is None:
            return None
        return cls(sample.rows_in, sample.rows_out, sample.rows_late, sample.rows_dead)

    def since(self, before: _Rows) -> _Rows:
        return _Rows(self.into - before.into, self.out - before.out, self.late - before.late, self.dead - before.dead)


@dataclass(frozen=True)
class _Look:
    job: str
    metrics: Metrics
    newest: Sample
    first: Sample | None
    now: float

    def findings(self) -> Iterator[Finding]:
        yield from self.urgent()
        if self.newest.waits_for is not None:
            return  # no batch is processed meanwhile, so nothing else can be concluded
        inputs = list(self._inputs())
        yield from inputs
        yield from self._watermarks()
        yield from self._steps()
        if not inputs and (self.newest.lag_s or 0) > QUIET_S:
            yield self._behind()

    def urgent(self) -> Iterator[Finding]:
        """What is wrong even if there is output."""
        if self.now - self.newest.at > STALE_S:
            yield Finding(
                "stalled",
                f"the job has measured nothing since {_time(self.newest.at)}: its process hangs, or its broker does "
                "not answer",
                f"look at its log: millstream jobs logs {self.job}; and restart it: millstream jobs restart {self.job}",
                since=self.newest.at,
            )
        if self.newest.waits_for is not None:
            step, _, why = self.newest.waits_for.partition(": ")
            if why.startswith(FULL_QUEUE):
                yield Finding(
                    "queue_full",
                    f"'{step}' waits for room: {why}",
                    "look at the job that reads the queue: is it running, and what holds it back? A reader that is "
                    "gone for good: millstream groups delete GROUP",
                    step=step,
                )
                return
            yield Finding(
                "sink_down",
                f"the sink of '{step}' is down: {why}",
                "bring it back: the job retries by itself, and nothing is lost",
                step=step,
            )
        for source in self._sources():
            yield from self._future_records(source)

    # ------------------------------------------------------------ input

    def _inputs(self) -> Iterator[Finding]:
        """Sources without anything to read."""
        for source in self._sources():
            partitions = self._partitions(source)
            sample = self.newest.steps.get(source.name)
            if sample is None or sample.lag_records is None or sample.lag_records > 0:
                continue
            if partitions and all(each.end == 0 for each in partitions):
                yield Finding(
                    "empty_input",
                    f"there is nothing in the input of '{source.name}' ({source.label})",
                    "check that it is the right topic, and that its producers run: millstream topics list",
                    step=source.name,
                )
                continue
            active = max((each.active_at for each in partitions if each.active_at is not None), default=None)
            if active is None or self.now - active > QUIET_S:
                when = "" if active is None else f" since {_time(active)}"
                yield Finding(
                    "no_new_input",
                    f"all records of '{source.name}' are read, and no new ones came{when}",
                    "check that its producers run; windows end when later records arrive",
                    step=source.name,
                    since=active,
                )

    # ------------------------------------------------------------ watermarks

    def _future_records(self, source: StepPlan) -> Iterator[Finding]:
        for each in self._partitions(source):
            if source.has_watermark and each.watermark is not None and each.watermark > self.now + AHEAD_S:
                yield Finding(
                    "future_record",
                    f"a record in partition {each.partition} of '{source.name}' has an event time in the future: the "
                    f"partition's watermark is {_time(each.watermark)}, so rows of the present are late",
                    "fix its producer, and ignore such records: watermark=ms.bounded(…, ahead_at_most='1 minute'); "
                    f"then start over: millstream jobs rebuild {self.job}",
                    step=source.name,
                    partition=each.partition,
                    since=each.moved_at,
                )

    def _watermarks(self) -> Iterator[Finding]:
        if not any(each.kind == "stateful" for each in self.metrics.plan):
            return
        for source in self._sources():
            partitions = self._partitions(source)
            if not source.has_watermark or not partitions:
                continue
            awaited = [each for each in partitions if not is_idle(each, source, self.now)]
            silent = [each for each in awaited if each.watermark is None]
            if silent and len(silent) < len(partitions):
                yield self._silent(source, silent)
            elif awaited and not silent:
                yield from self._held(source, awaited)

    def _silent(self, source: StepPlan, silent: Sequence[PartitionSample]) -> Finding:
        names = ", ".join(each.partition for each in silent[:5]) + (" and more" if len(silent) > 5 else "")
        first = silent[0]
        return Finding(
            "silent_partition",
            f"partition {names} of '{source.name}' sent no row with an event time, and the watermark waits for it",
            _idle_step(source),
            step=source.name,
            partition=first.partition,
            since=first.seen_at,
        )

    def _held(self, source: StepPlan, awaited: Sequence[PartitionSample]) -> Iterator[Finding]:
        """A partition that stands still while others move on, or all of them."""
        lowest = min(awaited, key=lambda each: each.watermark or 0.0)
        newest = max(awaited, key=lambda each: each.moved_at or 0.0)
        since = lowest.moved_at
        if since is None or self.now - since < QUIET_S or lowest.watermark is None:
            return
        shown = _time(lowest.watermark)
        if lowest is not newest and (newest.moved_at or 0.0) > since:
            yield Finding(
                "held_watermark",
                f"partition {lowest.partition} of '{source.name}' holds the watermark at {shown} since {_time(since)}",
                _idle_step(source),
                step=source.name,
                partition=lowest.partition,
                since=since,
            )
        else:
            yield Finding(
                "still_watermark",
                f"the watermark of '{source.name}' stands at {shown} since {_time(since)}: no later event time arrived",
                "windows end when later rows arrive; to see results earlier, use a trigger with early=ms.after(…)",
                step=source.name,
                since=since,
            )

    # ------------------------------------------------------------ steps

    def _steps(self) -> Iterator[Finding]:
        """The first steps that received rows and sent none."""
        blocked: set[str] = set()
        for step in self.metrics.plan:
            if step.kind not in ("step", "stateful") or any(given in blocked for given in step.inputs):
                blocked |= {step.name} if any(given in blocked for given in step.inputs) else set()
                continue
            rows = self._rows(step)
            if rows is not None and rows.into and not rows.out:
                blocked.add(step.name)
                yield self._of_step(step, rows)

    def _of_step(self, step: StepPlan, rows: _Rows) -> Finding:
        rows_in, late, dead = rows.into, rows.late, rows.dead
        sample = self.newest.steps[step.name]
        if late >= rows_in:
            return Finding(
                "all_late",
                f"all rows of '{step.name}' are late: {late:,} of {rows_in:,}"
                + (", and they are dropped" if step.drops_late else ""),
                "wait longer: a larger watermark delay or allowed_lateness; look at them with .late.write(…); "
                "and check for records in the future, which move the watermark ahead",
                step=step.name,
            )
        if dead >= rows_in:
            return Finding(
                "all_dead",
                f"'{step.name}' could handle none of {rows_in:,} rows: all are dead letters",
                "look at the reason that each of its dead letters has",
                step=step.name,
            )
        if step.kind == "stateful" and sample.state_rows:
            reached = "is not known yet" if sample.watermark is None else f"has reached {_time(sample.watermark)}"
            return Finding(
                "waiting_windows",
                f"'{step.name}' received {rows_in:,} rows and holds {sample.state_rows:,} of state; its watermark "
                f"{reached}, and nothing was due",
                "wait until the watermark passes the end of a window, or use a trigger with early=ms.after(…)",
                step=step.name,
            )
        return Finding(
            "no_rows_after",
            f"no rows come out of '{step.name}' ({step.label}): it received {rows_in:,}",
            "check its condition against the rows before it: take a preview of the flow, or write them to a topic",
            step=step.name,
        )

    def _behind(self) -> Finding:
        lag, waited = self.newest.lag_records or 0, self.newest.lag_s or 0.0
        return Finding(
            "behind",
            f"the job is behind: {lag:,} records wait, the oldest for {waited:,.0f} seconds",
            "wait, or give it more cores; millstream jobs metrics shows where the time of a batch goes",
        )

    # ------------------------------------------------------------ what is known

    def _sources(self) -> list[StepPlan]:
        return [each for each in self.metrics.plan if each.kind == "source"]

    def _partitions(self, source: StepPlan) -> list[PartitionSample]:
        return [each for each in self.metrics.partitions if each.source == source.name]

    def _rows(self, step: StepPlan) -> _Rows | None:
        """The rows of a step in the time that is looked at; if it received none then, those of the whole run."""
        whole = _Rows.of(self.newest.steps.get(step.name))
        before = _Rows.of(self.first.steps.get(step.name)) if self.first else None
        if whole is None or before is None or whole.into == before.into:
            return whole
        return whole.since(before)


def _idle_step(source: StepPlan) -> str:
    if source.idle_s is None:
        return "set a time after which a silent partition is ignored: watermark=ms.bounded(…, idle='30 seconds')"
    return f"wait: the partition is ignored after {source.idle_s:g} seconds without rows"


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError):
        return "a time beyond the calendar"
