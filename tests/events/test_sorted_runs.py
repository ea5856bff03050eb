"""Sorted runs agree with a dictionary, whatever is added and removed, and also if halves of hashes are equal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.events import heads, index, sorted_runs
from millstream.events.event import Appended
from millstream.events.heads import _held
from millstream.events.sorted_runs import CHECK, HASH, NUMBER, VALUE, Entries, SortedRuns
from properties import examples

HASHES = [-(1 << 63), -5, 0, 1 << 62, (1 << 63) - 1]
keys = st.tuples(st.sampled_from(HASHES), st.integers(0, 2), st.integers(0, 12))
batches = st.lists(st.lists(keys, max_size=12) | st.integers(0, 6), max_size=12)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "PAGE_ENTRIES", 2)
    monkeypatch.setattr(sorted_runs, "MERGED_TOGETHER", 8)


def entries_of(rows: list[tuple[int, int, int, int]]) -> Entries:
    return np.array(rows, np.int64).reshape(-1, 4).T


def up_to(number: int) -> Callable[[Entries], npt.NDArray[np.bool_]]:
    return lambda entries: (entries[NUMBER] <= number) & (entries[CHECK] == 1)


@pytest.mark.usefixtures("small_pieces")
@examples(300)
@given(batches, st.sampled_from([None, 10]))
def test_runs_agree_with_a_dictionary(actions: list[list[tuple[int, int, int]] | int], merged_max: int | None) -> None:
    db = sqlite3.connect("")
    db.executescript(sorted_runs.TABLES)
    runs, others = SortedRuns("a", merged_max), SortedRuns("b")
    expected: dict[tuple[int, int, int], int] = {}
    for time, action in enumerate(actions):
        if isinstance(action, int):
            runs.remove(db, up_to(action))
            expected = {key: value for key, value in expected.items() if key[2] > action or key[1] != 1}
        else:
            runs.add(db, entries_of([(*key, time) for key in action]))
            others.add(db, entries_of([(*key, -1) for key in action]))
            expected.update(dict.fromkeys(action, time))
    for first in HASHES:
        for second in range(3):
            for low, high in ((0, 12), (3, 5), (7, 7)):
                found = runs.found(db, np.array([first, second]), low, high)
                in_order = dict(zip(found[NUMBER].tolist(), found[VALUE].tolist(), strict=True))
                assert in_order == {
                    number: value
                    for (one, two, number), value in expected.items()
                    if (one, two) == (first, second) and low <= number <= high
                }
    assert merged_max is not None or len(runs.sizes(db)) <= 6  # each is longer than all after it were


@examples(100)
@given(st.lists(st.dictionaries(st.tuples(st.sampled_from(HASHES), st.integers(0, 3)), st.integers(1, 9)), max_size=4))
def test_what_is_in_memory_is_found_with_equal_halves_of_hashes(runs: list[dict[tuple[int, int], int]]) -> None:
    held = [
        sorted_runs._sorted(entries_of([(*key, 0, value) for key, value in run.items()]))[[HASH, CHECK, VALUE]]
        for run in runs
    ]
    asked = [(first, second) for second in range(4) for first in HASHES]
    expected: dict[tuple[int, int], int] = {}
    for run in runs:
        expected.update(run)
    assert _held(held, np.array(asked).T).tolist() == [expected.get(key, 0) for key in asked]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("held_max", [0, heads.HELD_MAX])
def test_streams_are_found_in_the_file_and_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_max: int
) -> None:
    monkeypatch.setattr(heads, "HELD_MAX", held_max)
    monkeypatch.setattr(heads, "LOOKUPS_BEFORE_HELD", 0)
    monkeypatch.setattr(index, "CACHED_STREAMS_MAX", 3)
    monkeypatch.setattr(index, "FLUSH_EVENTS", 10)
    with ms.event_store(tmp_path / "log", "s") as store, ms.event_store(tmp_path / "log", "s") as other:
        for round_ in range(8):
            appends = [ms.Append(f"s{number}", [ms.Event("E", {"n": round_})], round_) for number in range(20)]
            outcomes = (store, other)[round_ % 2].append_each(appends)
            assert [each.version for each in outcomes if isinstance(each, Appended)] == [round_ + 1] * 20
        store.close_stream("s7")
        store.append_each([ms.Append(f"t{number}", [ms.Event("E")], 0) for number in range(20)])
        for each in (store, other):
            assert [each.version(f"s{number}") for number in range(20)] == [8] * 20
            assert [each.is_closed(f"s{number}") for number in (6, 7)] == [False, True]
            assert [event.data["n"] for event in each.read("s11")] == list(range(8))
