"""The checker of histories finds what it is there for: each test feeds it one that is wrong in one way."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.events.store import EventStore

from .histories import Counter, check

Line = dict[str, Any]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "log")


Check = Callable[..., int]


@pytest.fixture
def checked(store: EventStore, tmp_path: Path) -> Check:
    """Checks the store against what one writer noted."""

    def check_lines(*lines: Line) -> int:
        diary = tmp_path / "one.diary"
        diary.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return check(store, [diary])

    return check_lines


def append(store: EventStore, stream: str, *ids: str) -> None:
    store.append(stream, [ms.Event("Counted", id=each) for each in ids])


def begun(stream: str, expected: int, *ids: str) -> Line:
    return {"begun": {stream: list(ids)}, "expected": {stream: expected}}


def put(address: str, *events: tuple[int, str]) -> None:
    """Writes to the topic behind the store's back."""
    with ms.connect(address) as log, log.producer() as producer:
        for version, each in events:
            row = {"stream": "s", "version": version, "type": "Counted", "format": 1, "id": each, "data": "{}"}
            producer.send("store", {**row, "metadata": None, "at": datetime(2026, 1, 2, tzinfo=UTC)}, key="s")


@pytest.fixture
def name() -> str:
    return "store"


def test_a_right_history_passes(store: EventStore, checked: Check) -> None:
    append(store, "s", "a", "b")
    store.append_together([ms.Append(each, [ms.Event("Counted", id=f"c{each}")]) for each in ("s", "t")])
    assert (
        checked(
            begun("s", 0, "a", "b"),
            {"done": {"s": 2}},
            begun("s", 1, "x"),
            {"refused": "s", "current": 2},
            {"begun": {"s": ["cs"], "t": ["ct"]}, "expected": {"s": 2, "t": 0}},
            {"done": {"s": 3, "t": 1}},
            begun("s", 3, "never"),  # killed
        )
        == 2
    )


def test_an_update_that_is_lost(store: EventStore, checked: Check) -> None:
    append(store, "s", "a")
    with pytest.raises(AssertionError, match="acknowledged append is lost"):
        checked(begun("s", 0, "a"), {"done": {"s": 1}}, begun("s", 1, "b"), {"done": {"s": 2}})


def test_an_update_that_did_not_see_another(store: EventStore, checked: Check) -> None:
    """Both decided on version 0."""
    append(store, "s", "a")
    append(store, "s", "b")
    with pytest.raises(AssertionError, match="overtook another"):
        checked(begun("s", 0, "a"), {"done": {"s": 1}}, begun("s", 0, "b"), {"done": {"s": 1}})


def test_an_update_that_was_answered_with_another_version(store: EventStore, checked: Check) -> None:
    append(store, "s", "a")
    with pytest.raises(AssertionError):
        checked(begun("s", 0, "a"), {"done": {"s": 2}})


def test_a_refused_update_that_is_recorded(store: EventStore, checked: Check) -> None:
    append(store, "s", "a")
    with pytest.raises(AssertionError, match="refused append is recorded"):
        checked(begun("s", 0, "a"), {"refused": "s", "current": 1})


def test_an_update_that_is_refused_for_nothing(store: EventStore, checked: Check) -> None:
    with pytest.raises(AssertionError):
        checked(begun("s", 0, "a"), {"refused": "s", "current": 0})


@pytest.mark.parametrize("answer", [{"done": {"s": 2}}, {}])
def test_an_update_that_is_torn(store: EventStore, checked: Check, answer: Line) -> None:
    append(store, "s", "a")
    append(store, "s", "x")
    append(store, "s", "b")
    with pytest.raises(AssertionError, match="torn"):
        checked(begun("s", 0, "a", "b"), answer, begun("s", 1, "x"), {"done": {"s": 2}})


def test_half_of_an_update_of_two_streams(store: EventStore, checked: Check) -> None:
    append(store, "s", "a")
    with pytest.raises(AssertionError):
        checked({"begun": {"s": ["a"], "t": ["b"]}, "expected": {"s": 0, "t": 0}})


def test_an_event_that_nobody_has_appended(store: EventStore, checked: Check) -> None:
    append(store, "s", "a")
    append(store, "s", "ghost")
    with pytest.raises(AssertionError, match="nobody has appended"):
        checked(begun("s", 0, "a"), {"done": {"s": 1}})


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([(1, "a"), (3, "b")], "a gap, or a version twice"),
        ([(1, "a"), (1, "b")], "a gap, or a version twice"),
        ([(1, "a"), (2, "a")], "recorded twice"),
    ],
)
def test_versions_and_events_that_are_wrong(
    checked: Check, store: EventStore, address: str, events: list[tuple[int, str]], problem: str
) -> None:
    assert store.version("s") == 0
    put(address, *events)
    with pytest.raises(AssertionError, match=problem):
        checked(begun("s", 0, "a"), {"done": {"s": 1}}, begun("s", 1, "b"), {"done": {"s": 2}})


def test_a_snapshot_that_differs(store: EventStore, checked: Check) -> None:
    append(store, "s", "a")
    store._index.save_snapshot(Counter.snapshot_kind(), "s", 1, 0, b'{"ids": ["other"]}')
    with pytest.raises(AssertionError, match="a snapshot differs"):
        checked(begun("s", 0, "a"), {"done": {"s": 1}})
