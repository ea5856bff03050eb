"""Goal: a disk that fills up under a job's checkpoint stops it with a clear error, and with room it resumes exactly.

Method: the job's folder is a file system of a few megabytes; while the job runs, a file takes all of it but a few
pages, in each round another number of them, so that the write that fails is a different one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import small_disk
from millstream.errors import DiskFull
from waiting import exit_code, until

from .killing import Killed

LEFT_PAGES = (0, 2, 7)
pytestmark = [pytest.mark.soak, pytest.mark.own_processes, pytest.mark.timeout(1800)]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Path]:
    with small_disk.mounted(tmp_path / "log" / "jobs", "16m") as place:
        yield place


@pytest.fixture
def killed(tmp_path: Path, jobs: Path) -> Iterator[Killed]:
    made = Killed(tmp_path, seed=2030)
    yield made
    made.close()


def stopped(killed: Killed, process: subprocess.Popen[bytes], heard: int) -> None:
    """The job has ended with a message of the full disk."""
    code = exit_code(process, "the job whose disk is full")
    said = (killed.folder / "err").read_text()[heard:]
    print(said, flush=True)
    assert code == DiskFull.exit_code, said
    assert "error: no space left on the disk" in said
    assert f"where: {killed.job.parent}" in said
    assert "next:  free some space, then" in said
    assert "Traceback" not in said


def test_a_full_disk_stops_the_job_and_room_lets_it_continue(killed: Killed, jobs: Path) -> None:
    killed.feed(100)
    err = killed.folder / "err"
    err.touch()
    for left in LEFT_PAGES:
        heard, before = len(err.read_text()), killed.newest()
        process = killed.start()
        until(lambda: killed.newest() > before + 1, "a batch")  # noqa: B023 called here and now
        ballast = small_disk.fill(jobs, left)
        killed.feed(60)
        stopped(killed, process, heard)
        ballast.unlink()
    heard = len(err.read_text())
    ballast = small_disk.fill(jobs)
    stopped(killed, killed.start(), heard)  # full from the start
    ballast.unlink()
    killed.catch_up()
    killed.check()
