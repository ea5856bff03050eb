"""The state and metrics of all jobs, and of the slots of watched databases, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from millstream.metrics.samples import METRICS, SLOT_METRICS, Metrics
from millstream.supervision.slots import WatchedDatabase
from millstream.supervision.status import Status
from millstream.supervision.store import Observed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGES = {
    "lag": ("millstream_job_lag_records", "Records of the sources that the job has not read yet."),
    "rows_per_s": ("millstream_job_rows_per_second", "Rows read per second in the last batch."),
    "batch": ("millstream_job_batch", "The number of the last batch."),
    "failures": ("millstream_job_failures", "Failed runs in a row."),
}
COUNTERS = {
    "rows": ("millstream_job_rows", "Rows read by the current run."),
    "late": ("millstream_job_late_rows", "Late rows in the current run."),
    "dead": ("millstream_job_dead_rows", "Rows and records that became dead letters in the current run."),
}
STEP_COUNTERS = {
    "rows_in": "millstream_step_rows_in",
    "rows_out": "millstream_step_rows_out",
    "rows_late": "millstream_step_late_rows",
    "rows_dead": "millstream_step_dead_rows",
    "rows_dropped": "millstream_step_dropped_rows",
}
STEP_GAUGES = {
    "rows_per_s": "millstream_step_rows_per_second",
    "watermark": "millstream_step_watermark_seconds",
    "delay_s": "millstream_step_delay_seconds",
    "delay_own_s": "millstream_step_delay_own_seconds",
    "delay_inherited_s": "millstream_step_delay_inherited_seconds",
    "lag_records": "millstream_step_lag_records",
    "lag_s": "millstream_step_lag_seconds",
    "state_rows": "millstream_step_state_rows",
    "state_bytes": "millstream_step_state_bytes",
}
SLOT_GAUGES = {metric: f"millstream_{metric}" for metric in SLOT_METRICS}
PHASES = ("wait", "plan", "process", "write", "other")


class _Collector:
    def __init__(
        self,
        jobs: list[dict[str, Any]],
        metrics: Mapping[str, Metrics],
        databases: Mapping[str, WatchedDatabase],
    ) -> None:
        self._jobs = jobs
        self._databases = databases
        self._newest = {job: found.newest for job, found in metrics.items() if found.newest is not None}

    def collect(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("millstream_job_state", "1 for the state that a job is in.", labels=["job", "state"])
        delays = GaugeMetricFamily(
            "millstream_job_watermark_delay_seconds", "How far the watermark is behind the clock.", labels=["job"]
        )
        for job in self._jobs:
            for state in Observed:
                states.add_metric([job["name"], state.value], float(job["state"] == state.value))
            if (delay := _delay_s(job["watermark"])) is not None:
                delays.add_metric([job["name"]], delay)
        yield states
        yield delays
        for column, (name, help) in GAUGES.items():
            yield self._family(GaugeMetricFamily(name, help, labels=["job"]), column)
        for column, (name, help) in COUNTERS.items():
            yield self._family(CounterMetricFamily(name, help, labels=["job"]), column)
        yield from self._of_batches()
        for column, name in STEP_COUNTERS.items():
            yield self._step_family(CounterMetricFamily(name, METRICS[column], labels=["job", "step"]), column)
        for column, name in STEP_GAUGES.items():
            yield self._step_family(GaugeMetricFamily(name, METRICS[column], labels=["job", "step"]), column)
        yield from self._of_slots()

    def _family(self, family: Any, column: str) -> Metric:
        for job in self._jobs:
            if job[column] is not None:
                family.add_metric([job["name"]], float(job[column]))
        found: Metric = family
        return found

    def _of_batches(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "millstream_job_lag_seconds", "How long the oldest record that was not read has waited.", labels=["job"]
        )
        busy = GaugeMetricFamily(
            "millstream_job_busy_ratio", "The share of time in which the job did not wait for rows.", labels=["job"]
        )
        phases = GaugeMetricFamily(
            "millstream_job_batch_seconds", "The time of the last batch, by phase.", labels=["job", "phase"]
        )
        for job, sample in self._newest.items():
            if sample.lag_s is not None:
                lag.add_metric([job], sample.lag_s)
            if sample.busy is not None:
                busy.add_metric([job], sample.busy)
            for phase in PHASES:
                phases.add_metric([job, phase], getattr(sample, f"{phase}_s"))
        yield from (lag, busy, phases)

    def _of_slots(self) -> Iterator[Metric]:
        answers = GaugeMetricFamily(
            "millstream_database_up", "1 if a watched database answers, else 0.", labels=["database"]
        )
        for name, database in self._databases.items():
            answers.add_metric([name], float(database.error is None))
        yield answers
        for metric, name in SLOT_GAUGES.items():
            family = GaugeMetricFamily(name, SLOT_METRICS[metric], labels=["database", "slot"])
            for slot in (each for database in self._databases.values() for each in database.slots):
                family.add_metric([slot.database, slot.slot], float(getattr(slot, metric)))
            yield family

    def _step_family(self, family: Any, column: str) -> Metric:
        for job, sample in self._newest.items():
            for step, values in sample.steps.items():
                if (value := getattr(values, column)) is not None:
                    family.add_metric([job, step], float(value))
        found: Metric = family
        return found


def exposed(status: Status, databases: Mapping[str, WatchedDatabase] | None = None) -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(status.listed(), status.running_metrics(), databases or {}))
    return bytes(generate_latest(registry))


def _delay_s(watermark: str | None) -> float | None:
    try:
        reached = datetime.strptime(watermark or "", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:  # not known yet, or the end of time
        return None
    return (datetime.now(UTC) - reached).total_seconds()
