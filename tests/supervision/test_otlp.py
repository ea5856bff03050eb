"""Metrics for OpenTelemetry, received by a real HTTP server that decodes what OTLP defines."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from typer.testing import CliRunner

from millstream.cli.app import app
from millstream.errors import InvalidInput
from millstream.metrics.samples import Metrics, Sample, StepSample
from millstream.supervision.otlp import OtlpMetrics, check_address

Points = dict[tuple[str, str, str], float]


class Receiver(ThreadingHTTPServer):
    """Keeps the newest value of each metric, by name, job and step."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.points: Points = {}
        self.counters: set[str] = set()
        self.services: set[str] = set()
        self.paths: set[str] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    is_counter = metric.HasField("sum") and metric.sum.is_monotonic
                    self.counters |= {metric.name} if is_counter else set()
                    for point in metric.sum.data_points if is_counter else metric.gauge.data_points:
                        about = {each.key: each.value.string_value for each in point.attributes}
                        value = point.as_int if point.HasField("as_int") else point.as_double
                        self.points[metric.name, about["job"], about["step"]] = value


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.add(self.path)
        self.server.take(ExportMetricsServiceRequest.FromString(body))
        answer = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_metrics_of_every_step(receiver: Receiver) -> None:
    steps = {"read": StepSample(10, 10, lag_s=1.5), "totals": StepSample(None, 3, rows_late=2, state_rows=7)}
    found = {"scores": Metrics(0.0, samples=(Sample(1.0, steps=steps),)), "starting": Metrics(0.0)}
    sent = OtlpMetrics(receiver.address, lambda: found)
    sent.close()
    assert receiver.paths == {"/v1/metrics"}
    assert receiver.services == {"millstream"}
    assert receiver.points["millstream_step_rows_in", "scores", "read"] == 10
    assert receiver.points["millstream_step_lag_seconds", "scores", "read"] == 1.5
    assert receiver.points["millstream_step_late_rows", "scores", "totals"] == 2
    assert receiver.points["millstream_step_state_rows", "scores", "totals"] == 7
    assert ("millstream_step_rows_in", "scores", "totals") not in receiver.points  # unknown is not zero
    assert {"millstream_step_rows_in", "millstream_step_late_rows"} <= receiver.counters
    assert "millstream_step_state_rows" not in receiver.counters
    assert {job for _, job, _ in receiver.points} == {"scores"}


def test_addresses_of_collectors() -> None:
    assert check_address("http://localhost:4318/") == "http://localhost:4318/v1/metrics"
    assert check_address("https://host/otlp/v1/metrics") == "https://host/otlp/v1/metrics"
    for wrong in ("localhost:4318", "grpc://host:4317", "http://"):
        with pytest.raises(InvalidInput, match="no address of a collector"):
            check_address(wrong)


def test_up_refuses_a_wrong_address_before_anything_starts(tmp_path: object) -> None:
    done = CliRunner().invoke(app, ["up", "--log", f"{tmp_path}/log", "--otlp", "host:4318"])
    assert done.exit_code != 0
    assert "no address of a collector" in done.output
