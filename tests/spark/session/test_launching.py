"""Spark's own launcher starts the driver of a cluster, whatever native libraries this process has loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
from pathlib import Path
from millstream.spark.session import java, submitting

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSEGV))  # as a library with threads may
os.environ["JAVA_HOME"] = str(java.launcher_home(java.find()))
folder = Path(sys.argv[1])
gateway = submitting.submit({"spark.ui.enabled": "false"}, folder, folder / "log", cwd=None, local=True)
print(gateway.jvm.System.getProperty("spark.ui.enabled"))
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait(60)
"""


@pytest.mark.more
@pytest.mark.own_processes
def test_the_launcher_is_not_started_in_a_forked_copy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["false"]), done.stderr


@pytest.mark.more
def test_a_launcher_that_ends_is_reported_with_its_output(tmp_path: Path) -> None:
    script = SCRIPT.replace('{"spark.ui.enabled": "false"}', '{"spark.driver.memory": "lots"}')
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode != 0
    assert "Java did not start: it ended with exit code 1" in done.stderr
    assert "lots" in done.stderr
