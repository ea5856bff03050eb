"""A real file system that is soon full, where this user may mount one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = 4096


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    place.mkdir(parents=True)
    options = f"size={size},mode=700"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path, left_pages: int = 0) -> Path:
    """Leaves so many pages of a disk, also if others write to it meanwhile; returns the file that takes the rest."""
    ballast = disk / ".ballast"
    with ballast.open("wb", buffering=0) as file:
        while (free := shutil.disk_usage(disk).free) > left_pages * PAGE:
            try:
                file.write(bytes(min(free - left_pages * PAGE, 1 << 20)))
            except OSError:
                break
    return ballast
