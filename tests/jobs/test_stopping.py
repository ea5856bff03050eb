"""How a job ends when it is asked to: by a signal while Spark starts, and in a batch that does not end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.log import EmbeddedLog
from waiting import PATIENCE_S, until

from .support import put

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
def log(log: EmbeddedLog) -> EmbeddedLog:
    put(log, "scores", [("ann", 1, 0.0)])
    return log


def started(tmp_path: Path, log: EmbeddedLog, *more: str) -> subprocess.Popen[str]:
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW.format(started=tmp_path / "started"))
    command = [sys.executable, "-m", "millstream.cli", "--log", str(log.path), "run", str(flow), "--master", "local[1]"]
    return subprocess.Popen([*command, *more], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


def jvms_of(pid: int) -> list[int]:
    """The JVMs that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if rest.split()[1] == str(pid) and name.startswith("java"):
            found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("number", "code", "after_s"),
    [
        pytest.param(signal.SIGTERM, 143, 0.0, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, 0.0, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, 143, 2.0, id="SIGTERM later", marks=pytest.mark.more),
        # tests/cli/test_run.py interrupts a later start, too
        pytest.param(signal.SIGINT, 130, 2.0, id="Ctrl-C later", marks=pytest.mark.soak),
    ],
)
def test_a_signal_while_spark_starts_ends_at_once_and_quietly(
    tmp_path: Path, log: EmbeddedLog, number: int, code: int, after_s: float
) -> None:
    """Method: the JVM has just been started, is starting Spark's gateway, or the session; none of them is left."""
    process = started(tmp_path, log, "--progress", "none")
    until(lambda: bool(jvms_of(process.pid)), "the JVM")
    time.sleep(after_s)
    jvms = jvms_of(process.pid)
    os.kill(process.pid, number)
    assert ended(process) == (code, "")
    until(lambda: not any(map(is_alive, jvms)), "the end of the JVM")


@pytest.mark.more
def test_a_batch_that_does_not_end_is_given_up_after_the_grace_period(tmp_path: Path, log: EmbeddedLog) -> None:
    process = started(tmp_path, log, "--progress", "lines", "--grace", "0.5")
    until((tmp_path / "started").exists, "the batch")
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
    assert "stuck: stopping after the current batch, within 0.5 s" in said
    assert "is abandoned" in said
    assert "Traceback" not in said
