"""Event stores on both brokers: the same tests run on each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from folders import in_memory
from millstream.events.store import EventStore

_numbers = itertools.count()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.more)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the stores of a test are."""
    if request.param == "embedded":
        return str(tmp_path / "log")
    return f"kafka://{request.getfixturevalue('kafka').bootstrap}"


@pytest.fixture
def name() -> str:
    """A name that no other test uses: all share one Kafka."""
    return f"store{next(_numbers)}"


Open = Callable[..., EventStore]


@pytest.fixture
def open_store(address: str, name: str) -> Iterator[Open]:
    """Opens the store of a test, as often as it likes: each is like another process's."""
    opened: list[EventStore] = []

    def open_one(**settings: Any) -> EventStore:
        opened.append(ms.event_store(address, name, **settings))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> EventStore:
    return open_store()
