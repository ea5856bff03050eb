"""What `make kafka` runs: at the port that the docs name if it is free, with nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kafka_cluster
from kafka_cluster import KafkaCluster
from kafka_node import HOST, free_ports


@pytest.mark.more
def test_it_uses_the_requested_port_and_leaves_nothing_behind(tmp_path: Path) -> None:
    [port] = free_ports(1)
    command = [sys.executable, str(Path(kafka_cluster.__file__)), "--port", str(port)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        lines = []
        for line in running.stdout:
            lines.append(line)
            if line.startswith("Data and logs"):
                running.send_signal(signal.SIGINT)
    assert running.returncode == 0
    assert f"MILLSTREAM_BROKER=kafka://{HOST}:{port}\n" in lines
    assert list(tmp_path.glob("millstream-kafka-*")) == []


def test_another_port_is_announced(kafka: KafkaCluster) -> None:
    [taken] = [int(kafka.bootstrap.split(":")[1])]
    assert KafkaCluster(first_port=taken)._port(1) is None
    [free] = free_ports(1)
    assert KafkaCluster(first_port=free)._port(1) == free
    lines = kafka_cluster._started(kafka, free, kept=False)
    assert f"Port {free} is taken" in lines[1]
