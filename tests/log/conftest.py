"""Folders where fsync costs nothing, and what committed readers see of a log."""

import pytest

from folders import in_memory
from millstream.log import EmbeddedLog


@pytest.fixture
def tmp_path():
    with in_memory() as folder:
        yield folder


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
