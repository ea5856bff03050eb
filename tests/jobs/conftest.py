"""A log with the topic that most jobs of the tests read."""

from __future__ import annotations

import pytest

from millstream.log import EmbeddedLog

from .support import SCHEMA


@pytest.fixture
def log(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("scores", schema=SCHEMA)
    return log
