"""Bridges into a log in a folder where fsync costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from folders import in_memory
from millstream.log import EmbeddedLog


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


@pytest.fixture
def trades(log: EmbeddedLog) -> EmbeddedLog:
    """A log with a topic `trades`."""
    log.create_topic("trades")
    return log


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Where a socket without a broker may be."""
    return f"ipc://{tmp_path}/feed"


@pytest.fixture
def orders(log: EmbeddedLog) -> EmbeddedLog:
    """A log with a topic `orders`."""
    log.create_topic("orders")
    return log
