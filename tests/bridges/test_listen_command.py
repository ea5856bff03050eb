"""`millstream listen` as a process: what it acknowledged is stored, whatever happens to it."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from millstream.log import EmbeddedLog
from millstream.log.kafka.log import KafkaLog

from .support import request, values
from .test_webhook import certified

COMMAND = [sys.executable, "-m", "millstream.cli"]


class Listening:
    """The command, until it is ended."""

    def __init__(self, log: str | Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "listen", *arguments, "--log", str(log)], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r":(\d+)", line)
        assert found is not None, line + self.process.stderr.read()
        self.port = int(found[1])

    def end(self, by: signal.Signals) -> str:
        self.process.send_signal(by)
        return self.process.communicate(timeout=120)[1]


def post(port: int, number: int) -> dict[str, int]:
    answer = request(
        port, "POST", "/clicks", str(number), Content_Type="application/json", Idempotency_Key=f"k{number}"
    )
    assert answer.status == 200
    return answer.json


@pytest.mark.more
def test_what_was_acknowledged_survives_kills(log: EmbeddedLog, tmp_path: Path) -> None:
    """Goal: a killed bridge has lost nothing that it acknowledged, and stores nothing twice."""
    log.create_topic("clicks")
    for round in range(3):
        listening = Listening(tmp_path / "log", "http", "clicks", "--port", "0")
        for number in range(10 * round, 10 * round + 10):
            assert post(listening.port, number)["stored"] == 1
        listening.end(signal.SIGKILL)
    listening = Listening(tmp_path / "log", "http", "clicks", "--port", "0")
    assert [post(listening.port, number)["duplicates"] for number in range(30)] == [1] * 30
    assert "stored 0, duplicates 30, dead letters 0" in listening.end(signal.SIGINT)
    assert values(log, "clicks") == [str(number).encode() for number in range(30)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("flight",),
        pytest.param(("http", "clicks"), marks=pytest.mark.more),
        pytest.param(("gateway",), marks=pytest.mark.more),
        pytest.param(("tcp", "clicks"), marks=pytest.mark.more),
    ],
    ids=["flight", "http", "gateway", "tcp"],
)
@pytest.mark.parametrize("by", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.more)])
def test_signals_end_it(log: EmbeddedLog, tmp_path: Path, arguments: tuple[str, ...], by: signal.Signals) -> None:
    log.create_topic("clicks")
    listening = Listening(tmp_path / "log", *arguments, "--port", "0")
    assert "Traceback" not in listening.end(by)
    assert listening.process.returncode == 0


@pytest.mark.more
def test_webhooks_into_kafka(kafka_log: KafkaLog) -> None:
    kafka_log.create_topic("clicks")
    listening = Listening(kafka_log.address, "http", "clicks", "--port", "0")
    assert [post(listening.port, 1), post(listening.port, 1)] == [
        {"stored": 1, "duplicates": 0, "dead": 0},
        {"stored": 0, "duplicates": 1, "dead": 0},
    ]
    listening.end(signal.SIGINT)
    assert values(kafka_log, "clicks") == [b"1"]


@pytest.mark.more
@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [(("http", "clicks"), "/clicks", b"7"), (("gateway",), "/v1/topics/clicks/records", b'{"value": 7}')],
    ids=["http", "gateway"],
)
def test_over_tls(log: EmbeddedLog, tmp_path: Path, arguments: tuple[str, ...], path: str, body: bytes) -> None:
    log.create_topic("clicks")
    certificate = str(certified(tmp_path))
    tls = ("--tls-cert", certificate, "--tls-key", certificate)
    listening = Listening(tmp_path / "log", *arguments, "--port", "0", *tls)

    def posted(scheme: str, context: ssl.SSLContext | None) -> int:
        url = f"{scheme}://127.0.0.1:{listening.port}{path}"
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=120, context=context) as answer:
            return int(answer.status)

    try:
        assert posted("https", ssl.create_default_context(cafile=certificate)) == 200
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            posted("https", ssl.create_default_context())
        with pytest.raises(OSError):  # noqa: PT011 - however the connection ends
            posted("http", None)
    finally:
        listening.end(signal.SIGINT)
    assert values(log, "clicks") == [b"7"]
