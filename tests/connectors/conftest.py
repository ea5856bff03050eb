"""Folders where fsync costs nothing, and sources that are closed after the test."""

import pytest

from folders import in_memory
from millstream.connectors.opening import open_source
from millstream.records import Schema


@pytest.fixture
def tmp_path():
    with in_memory() as folder:
        yield folder


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
