"""A folder of its own for each storage test, in memory if the machine can: fsync costs nothing there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from folders import in_memory


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a partition can be made; not there yet."""
    with in_memory() as home:
        yield home / "0"
