"""`millstream up` and its jobs, each a process, with Spark: kills of the supervisor and of drivers lose no row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import MillstreamError
from millstream.supervision.client import Jobs
from waiting import until

pytestmark = [pytest.mark.own_processes, pytest.mark.timeout(900)]
KILLS_OF_A_SOAK = 100
"""Each kill of a driver is followed by a pause of up to a minute before it is started again."""
FLOW = """
import millstream as ms
flow = ms.Flow("doubled")
flow.read("in").select(n=f"n * {ms.param('factor', 2)}").write("out")
"""


class Up:
    """A supervisor in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log = folder / "log"
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Jobs:
        command = [sys.executable, "-m", "millstream.cli", "--log", str(self.log), "up", *self._options]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        return until(self._answers, "the supervisor answers")

    def _answers(self) -> Jobs | None:
        try:
            jobs = ms.supervisor(self.log)
            jobs.list()
            return jobs
        except MillstreamError:
            return None

    def close(self) -> None:
        """Stops all jobs, and the supervisor."""
        jobs = self._answers() or self.start()
        for job in jobs.list():
            jobs.stop(job["name"])
            jobs.wait(job["name"], "stopped", "finished", "failed", timeout_s=300)
        self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path)
    yield made
    made.close()


def produced(log: Path, numbers: range) -> None:
    with ms.connect(log) as opened, opened.producer() as producer:
        for number in numbers:
            producer.send("in", {"n": number})


def written(log: Path) -> list[int]:
    with ms.connect(log) as opened:
        if "out" not in opened.topics():
            return []
        found: list[int] = []
        with opened.consumer("out") as consumer:
            while records := consumer.poll(timeout=0.2):
                found += [record.value["n"] for record in records]
        return found


def _is_replaced(jobs: Jobs, runs: int) -> bool:
    """Whether the supervisor has noticed that a driver is gone: until then it reports the job as running."""
    return bool(jobs.show("doubled")["runs"] > runs)


def killed(up: Up, jobs: Jobs, rounds: int) -> None:
    """Kills the supervisor and the driver in turns, while rows come; each row is written once."""
    for number in range(rounds):
        produced(up.log, range(100 * number, 100 * number + 100))
        if number % 2:
            until(lambda number=number: len(written(up.log)) >= 100 * number, "earlier rows are written")  # type: ignore[misc]
            shown = jobs.show("doubled")
            driver = next((each for each in shown["processes"] if each["kind"] == "driver"), None)
            if driver is not None:
                os.kill(driver["pid"], signal.SIGKILL)
                replaced = partial(_is_replaced, jobs, shown["runs"])
                until(replaced, "another driver is started")
        else:
            before = jobs.show("doubled")["runs"]
            up.end(signal.SIGKILL)
            jobs = up.start()
            assert jobs.show("doubled")["runs"] == before, "the job went on"
        jobs.wait("doubled", "running", timeout_s=300)
    total = 100 * rounds
    until(lambda: len(written(up.log)) >= total, "all rows are written")
    assert sorted(written(up.log)) == [2 * number for number in range(total)]


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(5, marks=pytest.mark.more, id="five"),
        pytest.param(KILLS_OF_A_SOAK, marks=[pytest.mark.soak, pytest.mark.timeout(6 * 3600)], id="many"),
    ],
)
def test_kills_of_supervisor_and_drivers_lose_no_job_and_no_row(up: Up, tmp_path: Path, kills: int) -> None:
    jobs = up.start()
    with ms.connect(up.log) as log:
        log.create_topic("in", schema="n int", partitions=1)
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    jobs.submit(flow, restarts_max=1000, options=["--master", "local[1]"])
    killed(up, jobs, kills)
