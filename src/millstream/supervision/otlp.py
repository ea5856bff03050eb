"""The metrics of running jobs for OpenTelemetry: sent by OTLP over HTTP, under the names they have in Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from millstream.errors import InvalidInput
from millstream.metrics.samples import METRICS, SLOT_METRICS, Metrics, Sample, SlotSample
from millstream.supervision.metrics import SLOT_GAUGES, STEP_COUNTERS, STEP_GAUGES

PATH = "/v1/metrics"
SAME_READING_S = 1.0
"""All instruments are asked within moments, and see one reading."""


def check_address(address: str) -> str:
    """The address of a collector, with the path that OTLP defines."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"'{address}' is no address of a collector", next_step="for example http://localhost:4318")
    plain = address.rstrip("/")
    return plain if plain.endswith(PATH) else plain + PATH


class OtlpMetrics:
    """Sends metrics at the interval of OTEL_METRIC_EXPORT_INTERVAL, by default every minute, in a thread of its own.

    Headers, certificates and timeouts of the requests are set in the environment, as OpenTelemetry defines it.
    """

    def __init__(
        self,
        address: str,
        read: Callable[[], Mapping[str, Metrics]],
        slots: Callable[[], Iterable[SlotSample]] = tuple,
    ) -> None:
        """`read` gives the newest metrics of each running job, and `slots` those of watched databases."""
        endpoint = check_address(address)
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise InvalidInput(
                f"metrics for OpenTelemetry need the package {error.name}", next_step="pip install 'millstream[otel]'"
            ) from error
        self._read = read
        self._slots = slots
        self._newest: dict[str, Sample] = {}
        self._read_at = -SAME_READING_S
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint))
        resource = Resource.create({"service.name": "millstream"})
        self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("millstream")
        for column, name in STEP_COUNTERS.items():
            meter.create_observable_counter(name, [self._observing(column)], description=METRICS[column])
        for column, name in STEP_GAUGES.items():
            meter.create_observable_gauge(name, [self._observing(column)], description=METRICS[column])
        for metric, name in SLOT_GAUGES.items():
            meter.create_observable_gauge(name, [self._observing_slots(metric)], description=SLOT_METRICS[metric])

    def close(self) -> None:
        """Sends the metrics once more."""
        self._provider.shutdown()

    def _observing(self, column: str) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        def observe(_: Any) -> Iterable[Any]:
            for job, sample in self._samples().items():
                for step, values in sample.steps.items():
                    value = getattr(values, column)
                    if value is not None:
                        yield Observation(value, {"job": job, "step": step})

        return observe

    def _observing_slots(self, metric: str) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        def observe(_: Any) -> Iterable[Any]:
            for slot in self._slots():
                yield Observation(getattr(slot, metric), {"database": slot.database, "slot": slot.slot})

        return observe

    def _samples(self) -> dict[str, Sample]:
        now = time.monotonic()
        if now - self._read_at >= SAME_READING_S:
            found = self._read()
            self._newest = {job: each.newest for job, each in found.items() if each.newest is not None}
            self._read_at = now
        return self._newest
