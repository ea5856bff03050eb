"""A log where fsync costs nothing, and a Postgres server that is started when the first test asks for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.sinks.postgres import Server
from millstream.log import EmbeddedLog

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """As pytest's own, but where fsync costs nothing."""
    made = Path(tempfile.mkdtemp(prefix="millstream-test-", dir=MEMORY))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        yield opened


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def dsn(server: Server) -> str:
    """The address of an empty database."""
    return server.new_database()
