"""A folder of its own for each storage test, in memory if the machine can: fsync costs nothing there."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support import in_memory


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a partition can be made; not there yet."""
    home = Path(tempfile.mkdtemp(prefix="millstream-test-", dir=in_memory()))
    yield home / "0"
    shutil.rmtree(home)
