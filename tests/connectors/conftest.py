"""Folders where fsync costs nothing, servers, sources that are closed after the test, and both parsers of JSON."""

import pytest

from folders import in_memory
from hdfs_server import HdfsServer
from millstream.connectors.opening import open_source
from millstream.records import Schema
from records.both_parsers import both_parsers

__all__ = ["both_parsers"]


@pytest.fixture
def tmp_path():
    with in_memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def hdfs():
    """A NameNode and a DataNode."""
    with HdfsServer() as server:
        yield server


@pytest.fixture
def open_(tmp_path):
    """Opens a source as a job does; opened again under the same name, it finds what it stored."""
    opened = []

    def make(place, schema, name="in", **settings):
        folder = tmp_path / "kept" / name
        folder.mkdir(parents=True, exist_ok=True)
        broker = str(tmp_path / "log")
        opened.append(open_source(place, Schema.of(schema), broker=broker, folder=folder, name=name, **settings))
        return opened[-1]

    yield make
    for source in opened:
        source.close()
