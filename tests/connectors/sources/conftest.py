"""Sources that are closed after the test."""

import pytest

from millstream.connectors.opening import open_source
from millstream.records import Schema


@pytest.fixture
def open_(tmp_path):
    """Opens a source as a job does; given the same name again, it finds what it kept."""
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
