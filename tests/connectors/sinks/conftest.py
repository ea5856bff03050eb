"""Folders where fsync costs nothing."""

import pytest

from folders import in_memory


@pytest.fixture
def tmp_path():
    with in_memory() as folder:
        yield folder
