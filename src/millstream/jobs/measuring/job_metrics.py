"""The metrics of a running job: added up once per batch from the reports of its tasks, never row by row."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.metrics.samples import PartitionSample, Sample, StepPlan, StepSample, is_idle
from millstream.plan.nodes import Dead, Late, Node, Read, Write
from millstream.plan.time.bundles import BEGINNING, END
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.task_messages import Report, RowsReport, SourceReport, StepReport

MICROS = 1_000_000


@dataclass(frozen=True)
class Phases:
    """Where the time of a batch went, in seconds."""

    total: float = 0.0
    wait: float = 0.0
    plan: float = 0.0
    process: float = 0.0
    write: float = 0.0

    @property
    def other(self) -> float:
        return max(0.0, self.total - self.wait - self.plan - self.process - self.write)


@dataclass(frozen=True)
class Reached:
    """The lowest watermarks over the key groups of a step, and what they hold."""

    watermark: int = END
    passed_on: int = END
    rows: int = 0
    size_bytes: int = 0


class JobMetrics:
    """What is known of each step and partition. A batch adds to it, and a sampler reads it now and then."""

    def __init__(self, physical_plan: PhysicalPlan) -> None:
        self._physical_plan = physical_plan
        self._lock = threading.Lock()
        self._plan = {each.name: each for each in plan_of(physical_plan)}
        self._rows_out: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._late: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self._reached: dict[str, Reached] = {}
        self._partitions: dict[tuple[str, str], PartitionSample] = {}
        self._batches: list[Phases] = []
        self._last = Phases()
        self._rows_read = 0
        self._before: Sample | None = None

    @property
    def plan(self) -> list[StepPlan]:
        return list(self._plan.values())

    def change(self, physical_plan: PhysicalPlan) -> None:
        """The batches that are observed from now on have this plan. Steps that stay go on counting."""
        with self._lock:
            self._physical_plan = physical_plan
            self._plan = {each.name: each for each in plan_of(physical_plan)}
            self._reached = {name: each for name, each in self._reached.items() if name in self._plan}
            self._partitions = {place: each for place, each in self._partitions.items() if place[0] in self._plan}

    def remember(self, partitions: Iterable[PartitionSample]) -> None:
        """Continues with the partitions of sources that earlier runs knew."""
        with self._lock:
            found = {(each.source, each.partition): each for each in partitions if each.source in self._plan}
            self._partitions = found | self._partitions

    def observe(self, reports: Sequence[Report], now: float) -> None:
        """Adds the reports of a batch."""
        with self._lock:
            reached: dict[str, Reached] = {}
            for report in reports:
                match report:
                    case RowsReport():
                        for step, rows in report.rows.items():
                            self._rows_out[step] = self._rows_out.get(step, 0) + rows
                    case SourceReport(source=source):
                        self._rows_out[source] = self._rows_out.get(source, 0) + report.rows
                        self._rows_read += report.rows
                        self._dropped[source] = report.dropped or self._dropped.get(source, 0)
                        self._observe_partitions(report, now)
                    case StepReport(step=step):
                        self._late[step] = self._late.get(step, 0) + report.late
                        reached[step] = _lowest(reached.get(step, Reached()), report)
            self._reached |= reached

    def refused(self, output: str, rows: int) -> None:
        """Counts rows that a sink rejected."""
        with self._lock:
            self._refused[output] = self._refused.get(output, 0) + rows

    def ended(self, phases: Phases) -> None:
        """A batch has ended."""
        with self._lock:
            self._last = phases
            self._batches.append(phases)

    def _observe_partitions(self, report: SourceReport, now: float) -> None:
        for name in report.partitions.keys() | report.ends.keys():
            place = report.source, name
            before = self._partitions.get(place, PartitionSample(report.source, name, seen_at=now))
            offset, implied = report.ends.get(name, before.offset), report.partitions.get(name)
            watermark = _seconds(implied)
            has_moved = watermark is not None and (before.watermark is None or watermark > before.watermark)
            has_grown = offset is not None and before.offset is not None and offset > before.offset
            self._partitions[place] = replace(
                before,
                offset=offset,
                watermark=watermark if has_moved else before.watermark,
                moved_at=now if has_moved else before.moved_at,
                active_at=now if has_grown or watermark is not None else before.active_at,
            )

    # ------------------------------------------------------------ read by the sampler, and by events

    def counts(self, written: Mapping[str, int]) -> dict[str, StepSample]:
        """The rows of each step since the start of the run."""
        made: dict[str, StepSample] = {}
        with self._lock:
            for node in self._physical_plan.order:
                made[node.name] = self._counted(node, made, written)
        return made

    def offsets(self) -> dict[tuple[str, str], int]:
        """By source and partition, the next offset to read."""
        with self._lock:
            return {place: each.offset for place, each in self._partitions.items() if each.offset is not None}

    def sample(
        self,
        now: float,
        *,
        batch: int,
        written: Mapping[str, int],
        waits_for: str | None,
        ends: Mapping[tuple[str, str], int] | None,
        waiting_since: Mapping[tuple[str, str], float],
    ) -> tuple[Sample, list[PartitionSample]]:
        """Everything at one moment. `ends` are those of the topics' partitions; None: the broker does not answer."""
        with self._lock:
            partitions = self._with_lag(now, ends or {}, waiting_since)
            steps = self._steps(now, written, partitions, knows_lag=ends is not None)
            ended, self._batches = self._batches, []
            sample = self._sample(now, batch, waits_for, steps, ended)
            self._before = sample
            return sample, partitions

    def _with_lag(
        self, now: float, ends: Mapping[tuple[str, str], int], waiting_since: Mapping[tuple[str, str], float]
    ) -> list[PartitionSample]:
        for place, end in ends.items():
            if place[0] not in self._plan:
                continue  # asked for before the plan changed
            before = self._partitions.get(place, PartitionSample(*place, seen_at=now))
            since = waiting_since.get(place)
            self._partitions[place] = replace(before, end=end, lag_s=0.0 if since is None else max(0.0, now - since))
        return list(self._partitions.values())

    def _steps(
        self, now: float, written: Mapping[str, int], partitions: Sequence[PartitionSample], *, knows_lag: bool
    ) -> dict[str, StepSample]:
        made: dict[str, StepSample] = {}
        for node in self._physical_plan.order:
            own = [each for each in partitions if each.source == node.name]
            sample = self._counted(node, made, written)
            if isinstance(node, Read):
                sample = self._of_source(sample, node, own, now, knows_lag=knows_lag)
            elif node.name in self._reached:
                sample = _of_stateful(sample, self._reached[node.name], now)
            else:
                delays = [made[given.name].delay_s for given in node.inputs]
                known = [delay for delay in delays if delay is not None]
                if known:
                    delay = max(known)
                    sample = replace(sample, delay_s=delay, delay_own_s=0.0, delay_inherited_s=delay)
            made[node.name] = self._with_rate(node.name, sample, now)
        return made

    def _counted(self, node: Node, made: Mapping[str, StepSample], written: Mapping[str, int]) -> StepSample:
        given = [made[each.name].rows_out for each in node.inputs]
        rows_in = None if None in given else sum(each or 0 for each in given)
        rows_out: int | None = self._rows_out.get(node.name, 0)
        if isinstance(node, Write):
            rows_out = written.get(node.name, 0)
        elif isinstance(node, Read | Late | Dead):
            if isinstance(node, Dead) and isinstance(node.inputs[0], Write):
                rows_out = self._refused.get(node.inputs[0].name, 0)
            rows_in = rows_out
        elif any(node in part.steps and node is not part.last for part in self._physical_plan.spark_parts):
            rows_out = None
        dead = [
            self._rows_out.get(each.name, 0)
            for each in self._physical_plan.order
            if isinstance(each, Dead) and each.inputs[0] is node
        ]
        rows_dead = self._refused.get(node.name, 0) if isinstance(node, Write) else max(dead, default=0)
        dropped = self._dropped.get(node.name, 0)
        return StepSample(rows_in, rows_out, self._late.get(node.name, 0), rows_dead, rows_dropped=dropped)

    def _of_source(
        self, sample: StepSample, node: Read, partitions: Sequence[PartitionSample], now: float, *, knows_lag: bool
    ) -> StepSample:
        plan = self._plan[node.name]
        watermark = None
        if plan.has_watermark and partitions:
            awaited = [each for each in partitions if not is_idle(each, plan, now)]
            reached = [each.watermark for each in awaited or partitions]
            found = [each for each in reached if each is not None]
            watermark = min(found) if len(found) == len(reached) else None
        delay = None if watermark is None else now - watermark
        lags = [max(0, each.end - (each.offset or 0)) for each in partitions if each.end is not None]
        counts = knows_lag and node.source.counts_lag
        return replace(
            sample,
            watermark=watermark,
            delay_s=delay,
            delay_own_s=delay,
            delay_inherited_s=None if delay is None else 0.0,
            lag_records=sum(lags) if counts else None,
            lag_s=max((each.lag_s or 0.0 for each in partitions), default=0.0) if counts else None,
        )

    def _with_rate(self, name: str, sample: StepSample, now: float) -> StepSample:
        before = self._before
        if before is None or name not in before.steps or now <= before.at:
            return sample
        earlier = before.steps[name].rows_in
        if earlier is None or sample.rows_in is None:
            return sample
        return replace(sample, rows_per_s=(sample.rows_in - earlier) / (now - before.at))

    def _sample(
        self, now: float, batch: int, waits_for: str | None, steps: dict[str, StepSample], ended: Sequence[Phases]
    ) -> Sample:
        before, last = self._before, self._last
        watermarks = [_seconds(each.watermark) for each in self._reached.values()]
        known = [each for each in watermarks if each is not None]
        watermark = min(known) if known and len(known) == len(watermarks) else None
        lags = [each.lag_records for each in steps.values() if each.lag_records is not None]
        lags_s = [each.lag_s for each in steps.values() if each.lag_s is not None]
        lag_records = sum(lags) if lags else None
        rate = None
        if before is not None and now > before.at:
            rate = (self._rows_read - before.rows) / (now - before.at)
        return Sample(
            at=now,
            batch=batch,
            rows=self._rows_read,
            rows_late=sum(each.rows_late for each in steps.values()),
            rows_dead=sum(each.rows_dead for each in steps.values()),
            rows_per_s=rate,
            lag_records=lag_records,
            lag_s=max(lags_s, default=None),
            watermark=watermark,
            delay_s=None if watermark is None else now - watermark,
            batch_s=last.total,
            wait_s=last.wait,
            plan_s=last.plan,
            process_s=last.process,
            write_s=last.write,
            other_s=last.other,
            busy=self._busy(ended, lag_records, waits_for),
            waits_for=waits_for,
            steps=steps,
        )

    def _busy(self, ended: Sequence[Phases], lag_records: int | None, waits_for: str | None) -> float | None:
        total = sum(each.total for each in ended)
        if total > 0:
            return max(0.0, min(1.0, 1 - sum(each.wait for each in ended) / total))
        if lag_records == 0 and waits_for is None:
            return 0.0  # a job without steps that keep state makes no batch while there are no rows
        return None if self._before is None else self._before.busy


def plan_of(physical_plan: PhysicalPlan) -> list[StepPlan]:
    """The steps of a plan, in an order in which inputs come first."""
    made = []
    for node in physical_plan.order:
        timed = physical_plan.timing.get(node) if isinstance(node, Read) else None
        watermark = None if timed is None else timed.watermark
        made.append(
            StepPlan(
                node.name,
                kind_of_step(node),
                node.label,
                tuple(given.name for given in node.inputs),
                has_watermark=watermark is not None,
                idle_s=None if watermark is None or watermark.idle is None else watermark.idle.total_seconds(),
                drops_late=node.keeps_state and not physical_plan.takes_late(node),
                topic=topic_of_step(node),
            )
        )
    return made


def kind_of_step(node: Node) -> str:
    match node:
        case Read():
            return "source"
        case Write():
            return "output"
        case Late():
            return "late"
        case Dead():
            return "dead"
    return "stateful" if node.keeps_state else "step"


def topic_of_step(node: Node) -> str | None:
    endpoint = node.source if isinstance(node, Read) else node.sink if isinstance(node, Write) else None
    topic: str | None = getattr(endpoint, "broker_topic", None)  # a Spark DataFrame is no topic
    return topic


def _lowest(before: Reached, report: StepReport) -> Reached:
    passed_on = report.watermark if report.passed_on is None else report.passed_on
    return Reached(
        min(before.watermark, report.watermark),
        min(before.passed_on, passed_on),
        before.rows + report.rows,
        before.size_bytes + report.size_bytes,
    )


def _of_stateful(sample: StepSample, reached: Reached, now: float) -> StepSample:
    watermark, passed_on = _seconds(reached.watermark), _seconds(reached.passed_on)
    delay = None if passed_on is None else now - passed_on
    own = None if watermark is None or passed_on is None else max(0.0, watermark - passed_on)
    return replace(
        sample,
        watermark=watermark,
        delay_s=delay,
        delay_own_s=own,
        delay_inherited_s=None if watermark is None else now - watermark,
        state_rows=reached.rows,
        state_bytes=reached.size_bytes,
    )


def _seconds(micros: int | None) -> float | None:
    return None if micros is None or micros <= BEGINNING or micros >= END else micros / MICROS
