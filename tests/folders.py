"""Folders for tests that sync to disk often."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where fsync costs nothing, if the machine has such a place."""


@contextmanager
def in_memory() -> Iterator[Path]:
    """An empty folder there; elsewhere if there is no such place."""
    made = Path(tempfile.mkdtemp(prefix="millstream-test-", dir=MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
