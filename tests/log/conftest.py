"""A log in a folder of its own, in memory where the machine has such a place, and what committed readers see of it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from millstream.log import EmbeddedLog


@pytest.fixture
def tmp_path():
    """As pytest's own, but where fsync costs nothing."""
    memory = "/dev/shm"
    made = Path(tempfile.mkdtemp(prefix="millstream-test-", dir=memory if os.access(memory, os.W_OK) else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def log(tmp_path):
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        yield opened


@pytest.fixture
def other(log):
    """A second handle on the same log, as another process has it."""
    with EmbeddedLog(log.path, upkeep=False) as opened:
        yield opened


@pytest.fixture
def read():
    """All that is there now, by partition if several are asked for."""

    def values(log, topic, **settings):
        with log.consumer(topic, **settings) as consumer:
            return [record.value for record in consumer.until_caught_up()]

    return values
