"""Tables of a log, served and asked over HTTP, in folders where fsync costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from folders import in_memory
from millstream.log import EmbeddedLog
from millstream.serving import Tables
from millstream.serving.served import Served

from .running import Running


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


@pytest.fixture
def served(log: EmbeddedLog) -> Iterator[Served]:
    made = Served(Tables(log))
    yield made
    made.close()


@pytest.fixture
def running(served: Served) -> Iterator[Running]:
    made = Running(served)
    yield made
    made.close()
