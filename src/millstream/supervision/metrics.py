"""The state and progress of all jobs for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

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


class _Collector:
    def __init__(self, jobs: list[dict[str, Any]]) -> None:
        self._jobs = jobs

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

    def _family(self, family: Any, column: str) -> Metric:
        for job in self._jobs:
            if job[column] is not None:
                family.add_metric([job["name"]], float(job[column]))
        found: Metric = family
        return found


def exposed(status: Status) -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(status.listed()))
    return bytes(generate_latest(registry))


def _delay_s(watermark: str | None) -> float | None:
    try:
        reached = datetime.strptime(watermark or "", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:  # not known yet, or the end of time
        return None
    return (datetime.now(UTC) - reached).total_seconds()
