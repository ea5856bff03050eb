"""How a job ends when it is asked to: by SIGTERM while Spark starts, and in a batch that does not end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.log import EmbeddedLog

from .support import PATIENCE_S, SCHEMA, put

pytestmark = pytest.mark.own_processes

FLOW = """
import time
import millstream as ms

flow = ms.Flow("stuck")


def write(rows, batch):
    open("{started}", "w").close()
    time.sleep(1000)


flow.read("scores", "user string, n int, at timestamp").write(ms.foreach_batch(write))
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("scores", schema=SCHEMA)
        put(opened, "scores", [("ann", 1, 0.0)])
        yield opened


def started(tmp_path: Path, log: EmbeddedLog, *more: str) -> subprocess.Popen[str]:
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW.format(started=tmp_path / "started"))
    command = [sys.executable, "-m", "millstream.cli", "--log", str(log.path), "run", str(flow), "--master", "local[1]"]
    return subprocess.Popen([*command, *more], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def java_below(pid: int) -> bool:
    """Whether a process has started its JVM."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if rest.split()[1] == str(pid) and name.startswith("java"):
            return True
    return False


def test_sigterm_while_spark_starts_ends_at_once_and_quietly(tmp_path: Path, log: EmbeddedLog) -> None:
    process = started(tmp_path, log, "--progress", "none")
    wait_for(lambda: java_below(process.pid))
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == (143, "")


def test_a_batch_that_does_not_end_is_given_up_after_the_grace_period(tmp_path: Path, log: EmbeddedLog) -> None:
    process = started(tmp_path, log, "--progress", "lines", "--grace", "0.5")
    wait_for((tmp_path / "started").exists)
    listed = subprocess.run(
        [sys.executable, "-m", "millstream.cli", "--log", str(log.path), "--json", "jobs", "list"],
        capture_output=True,
        text=True,
        check=True,
    )
    (job,) = json.loads(listed.stdout)
    assert (job["name"], job["state"], job["lag"]) == ("stuck", "running", 0)
    os.kill(process.pid, signal.SIGTERM)
    code, said = ended(process)
    assert code == 143
    assert "stuck: stopping after the running batch, within 0.5 s" in said
    assert "given up" in said
    assert "Traceback" not in said
