"""Folders where fsync costs nothing, a log, and a Postgres server that is started when the first test asks for it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from millstream.log import EmbeddedLog

from .postgres import Server


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


@pytest.fixture(scope="session")
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture
def dsn(server):
    """The address of an empty database."""
    return server.new_database()
