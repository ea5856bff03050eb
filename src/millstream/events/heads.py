"""The version of each stream, and whether it has rules of its own: in the file, and in memory once many are asked for.

24 bytes of memory per stream, so that an append to a stream that was not used for long reads nothing from the file; a
store with more streams than `HELD_MAX` reads from the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millstream.events.sorted_runs import CHECK, HASH, VALUE, Entries, SortedRuns, hashes

HELD_MAX = 4 << 20
LOOKUPS_BEFORE_HELD = 1000  # a process that opens a store for a few appends does not read all of its streams


Values: TypeAlias = npt.NDArray[np.int64]
"""Twice the version, and 1 more if the stream has rules; 0 if there is no such stream."""


class Heads:
    def __init__(self) -> None:
        self._runs = SortedRuns("heads")
        self._held: dict[int, Entries] | None = None  # by the number of the run, the oldest first
        self._lookups = 0

    def find(self, db: sqlite3.Connection, names: Sequence[str]) -> tuple[list[int], list[str]]:
        """The versions of streams, and those that have rules."""
        self._lookups += len(names)
        if self._held is None and self._lookups > LOOKUPS_BEFORE_HELD:
            self._hold(db)
        keys = hashes(names)
        values = self._stored(db, keys) if self._held is None else _held(list(self._held.values()), keys)
        return (values >> 1).tolist(), [names[place] for place in np.flatnonzero(values & 1).tolist()]

    def _stored(self, db: sqlite3.Connection, keys: Entries) -> Values:
        found = [self._runs.found(db, key, 0, 0)[VALUE] for key in keys.T]
        return np.array([values[-1] if len(values) else 0 for values in found], np.int64)

    def add(self, db: sqlite3.Connection, keys: Entries, versions: Sequence[int], have_rules: Sequence[bool]) -> None:
        entries = np.zeros((4, len(versions)), np.int64)
        entries[: CHECK + 1] = keys
        entries[VALUE] = np.array(versions, np.int64) << 1 | np.array(have_rules, np.int64)
        self._runs.add(db, entries)

    def refresh(self, db: sqlite3.Connection) -> None:
        """Called when the file has changed."""
        if self._held is not None:
            self._hold(db)

    def _hold(self, db: sqlite3.Connection) -> None:
        known, self._held = self._held or {}, None
        sizes = self._runs.sizes(db)
        if sum(sizes.values()) <= HELD_MAX:
            self._held = {run: known[run] if run in known else self._columns(db, run) for run in sizes}

    def _columns(self, db: sqlite3.Connection, run: int) -> Entries:
        return self._runs.entries(db, run)[[HASH, CHECK, VALUE]]


def _held(runs: Sequence[Entries], keys: Entries) -> Values:
    order = np.argsort(keys[0])  # each search is near the one before, in memory as well
    ordered = keys[:, order]
    found = np.zeros(len(order), np.int64)
    for held in runs:
        _look_up(held, ordered, found)
    values = np.empty_like(found)
    values[order] = found
    return values


def _look_up(held: Entries, keys: Entries, values: Values) -> None:
    """Puts in the values of those names that the run has."""
    if not held.shape[1]:
        return
    places = np.searchsorted(held[0], keys[0])
    inside = np.minimum(places, held.shape[1] - 1)
    same = (held[0, inside] == keys[0]) & (places < held.shape[1])
    exact = same & (held[1, inside] == keys[1])
    values[exact] = held[2, inside[exact]]
    for number in np.flatnonzero(same & ~exact).tolist():  # another name with the same half of a hash
        end = np.searchsorted(held[0], keys[0, number], side="right")
        for place in range(int(places[number]) + 1, int(end)):
            if held[1, place] == keys[1, number]:
                values[number] = held[2, place]
