"""Goal: a disk that fills up under a job's checkpoint stops it with a clear error, and with room it goes on exactly.

Method: the job's folder is a file system of a few megabytes; while the job runs, a file takes all of it but a few
pages, in each round another number of them, so that the write that fails is a different one.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .killing import START_S, Killed
from .support import until

PAGE = 4096
LEFT_PAGES = (0, 1, 2, 3, 5, 8, 13, 21, 40)
pytestmark = [pytest.mark.soak, pytest.mark.own_processes, pytest.mark.timeout(1800)]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Path]:
    """A small file system, where this user may mount one."""
    place = tmp_path / "log" / "jobs"
    place.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    place.chmod(0o700)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def killed(tmp_path: Path, jobs: Path) -> Iterator[Killed]:
    made = Killed(tmp_path, seed=2030)
    yield made
    made.close()


def fill(jobs: Path, left_pages: int) -> Path:
    """Leaves so many pages of the disk, whatever a job that runs takes meanwhile."""
    ballast = jobs / ".ballast"
    with ballast.open("wb", buffering=0) as file:
        while (free := shutil.disk_usage(jobs).free) > left_pages * PAGE:
            try:
                file.write(bytes(min(free - left_pages * PAGE, 1 << 20)))
            except OSError:
                break
    return ballast


def test_a_full_disk_stops_the_job_and_room_lets_it_go_on(killed: Killed, jobs: Path) -> None:
    killed.feed(100)
    for left in LEFT_PAGES:
        before = killed.newest()
        heard = len((killed.folder / "err").read_bytes()) if (killed.folder / "err").exists() else 0
        process = killed.start()
        until(lambda before=before: process.poll() is not None or killed.newest() > before + 1, "a batch")
        ballast = fill(jobs, left)
        killed.feed(60)
        code = process.wait(START_S)
        said = (killed.folder / "err").read_bytes()[heard:].decode()
        print(f"{left} pages left: exit code {code}\n{said}", flush=True)
        ballast.unlink()
    killed.catch_up()
    killed.check()
