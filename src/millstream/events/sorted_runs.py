"""Entries in sorted runs in a SQLite file: a run never changes, and runs are merged as more are added.

A flush into a tree would rewrite a page for nearly each entry, because the keys are hashes; a run is written from its
beginning to its end. An entry is a column of four numbers: the two halves of the hash of a name, a number, and a value.
Of equal keys, which are the first three, the newest counts. The file finds pages by the first half and the number; the
second half is compared in what was found.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Entries: TypeAlias = npt.NDArray[np.int64]
HASH, CHECK, NUMBER, VALUE = range(4)
PAGE_ENTRIES = 250  # two pages of the file
MERGED_TOGETHER = 1 << 17  # entries: they are in memory at a time, and near the processor
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1

TABLES = """
CREATE TABLE runs (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, entries INTEGER NOT NULL);
CREATE TABLE pages (run INTEGER NOT NULL, hash INTEGER NOT NULL, number INTEGER NOT NULL, content BLOB NOT NULL);
CREATE INDEX pages_by_key ON pages (run, hash, number)
"""
# The last page that begins before a key may contain it, in each run.
BEFORE = """
SELECT r.number, (
    SELECT p.content FROM pages p WHERE p.run = r.number AND (p.hash, p.number) < (:hash, :first)
    ORDER BY p.hash DESC, p.number DESC LIMIT 1
) FROM runs r WHERE r.kind = :kind
"""
WITHIN = """
SELECT r.number, p.content FROM runs r JOIN pages p ON p.run = r.number
WHERE r.kind = :kind AND (p.hash, p.number) >= (:hash, :first) AND (p.hash, p.number) <= (:hash, :last)
"""
LOOKUP = f"{BEFORE} UNION ALL {WITHIN}"
SLICE = """
SELECT content FROM pages WHERE run = :run AND hash <= :last
AND hash >= ifnull((SELECT max(hash) FROM pages WHERE run = :run AND hash < :first), :first) ORDER BY hash, number
"""


def hashes(names: Iterable[str]) -> Entries:
    """Two numbers for each name: together they differ for different names, also for those that somebody has chosen."""
    digests = b"".join([blake2b(name.encode(), digest_size=16).digest() for name in names])
    return np.ascontiguousarray(np.frombuffer(digests, "<i8").reshape(-1, 2).T)


class SortedRuns:
    """The runs of one kind in a file. All methods are called within a transaction of the caller, or need none."""

    def __init__(self, kind: str, merged_max: int | None = None) -> None:
        """`merged_max`: longer runs are not merged any more, as that would hold up the appends for too long."""
        self._kind = kind
        self._merged_max = merged_max

    def found(self, db: sqlite3.Connection, key: Entries, first: int, last: int) -> Entries:
        """The entries of a name, with numbers from `first` to `last`; those of newer runs come later."""
        wanted = {"kind": self._kind, "hash": int(key[0]), "first": first, "last": last}
        pages = sorted(db.execute(LOOKUP, wanted).fetchall(), key=itemgetter(0))
        entries = _joined([content for _, content in pages if content is not None])
        numbers = entries[NUMBER]
        is_wanted = (entries[HASH] == key[0]) & (entries[CHECK] == key[1]) & (numbers >= first) & (numbers <= last)
        return entries[:, is_wanted]

    def sizes(self, db: sqlite3.Connection) -> dict[int, int]:
        """How many entries each run has, the oldest run first."""
        asked = "SELECT number, entries FROM runs WHERE kind = ? ORDER BY number"
        return dict(db.execute(asked, (self._kind,)).fetchall())

    def entries(self, db: sqlite3.Connection, run: int) -> Entries:
        return _read(db, run, LOWEST, HIGHEST)

    def add(self, db: sqlite3.Connection, added: Entries) -> None:
        """Adds entries as the newest run, together with the runs before it that are no longer."""
        if not added.shape[1]:
            return
        total, merged = added.shape[1], list[int]()
        for run, size in reversed(self.sizes(db).items()):
            if size > total or (self._merged_max is not None and size + total > self._merged_max):
                break
            total += size
            merged.insert(0, run)
        made = self._begun(db)
        pieces = _slices(db, merged, _sorted(added), total)
        self._end(db, made, sum(_write(db, made, piece) for piece in pieces))
        for run in merged:
            _delete(db, run)

    def remove(self, db: sqlite3.Connection, is_removed: Callable[[Entries], npt.NDArray[np.bool_]]) -> None:
        """Rewrites the runs without some of their entries."""
        for run, size in self.sizes(db).items():
            for low, high in _ranges(size):
                kept = _read(db, run, low, high)
                removed = is_removed(kept)
                if removed.any():
                    self._replace(db, run, is_removed)
                    break

    def _replace(
        self, db: sqlite3.Connection, run: int, is_removed: Callable[[Entries], npt.NDArray[np.bool_]]
    ) -> None:
        """Under a number of its own at first, as its pages are read while others are written."""
        made, count = self._begun(db), 0
        for low, high in _ranges(self.sizes(db)[run]):
            entries = _read(db, run, low, high)
            count += _write(db, made, entries[:, ~is_removed(entries)])
        _delete(db, run)
        db.execute("UPDATE pages SET run = ? WHERE run = ?", (run, made))
        db.execute("UPDATE runs SET number = ? WHERE number = ?", (run, made))
        self._end(db, run, count)

    def _begun(self, db: sqlite3.Connection) -> int:
        """A number after all others: it is never that of an earlier run, which another process may know."""
        made = db.execute("INSERT INTO runs (kind, entries) VALUES (?, 0)", (self._kind,)).lastrowid
        assert made is not None
        return made

    def _end(self, db: sqlite3.Connection, run: int, count: int) -> None:
        db.execute("UPDATE runs SET entries = ? WHERE number = ?", (count, run))


def _delete(db: sqlite3.Connection, run: int) -> None:
    db.execute("DELETE FROM pages WHERE run = ?", (run,))
    db.execute("DELETE FROM runs WHERE number = ?", (run,))


def _joined(pages: Sequence[bytes]) -> Entries:
    if not pages:
        return np.empty((4, 0), np.int64)
    return np.concatenate([np.frombuffer(page, "<i8").reshape(4, -1) for page in pages], axis=1)


def _write(db: sqlite3.Connection, run: int, entries: Entries) -> int:
    count: int = entries.shape[1]
    db.executemany(
        "INSERT INTO pages VALUES (?, ?, ?, ?)",
        (
            (run, int(entries[HASH, at]), int(entries[NUMBER, at]), entries[:, at : at + PAGE_ENTRIES].tobytes())
            for at in range(0, count, PAGE_ENTRIES)
        ),
    )
    return count


def _read(db: sqlite3.Connection, run: int, low: int, high: int) -> Entries:
    """The entries of a run with hashes from `low` to `high`."""
    found = db.execute(SLICE, {"run": run, "first": low, "last": high}).fetchall()
    return _within(_joined([content for (content,) in found]), low, high)


def _within(entries: Entries, low: int, high: int) -> Entries:
    first, end = np.searchsorted(entries[HASH], low), np.searchsorted(entries[HASH], high, side="right")
    return entries[:, first:end]


def _ranges(count: int) -> Iterator[tuple[int, int]]:
    """Ranges of hashes, each with about as many entries as may be in memory."""
    pieces = count // MERGED_TOGETHER + 1
    bounds = [LOWEST + (1 << 64) * number // pieces for number in range(pieces + 1)]
    for low, end in pairwise(bounds):
        yield low, end - 1


def _slices(db: sqlite3.Connection, runs: Sequence[int], newest: Entries, total: int) -> Iterator[Entries]:
    """All entries of these runs and of the newest one, in order, some at a time."""
    if not runs:
        yield newest
        return
    for low, high in _ranges(total):
        parts = [_read(db, run, low, high) for run in runs]
        yield _sorted(np.concatenate([*parts, _within(newest, low, high)], axis=1))


def _sorted(entries: Entries) -> Entries:
    """By hash and number; of equal keys the last."""
    order = np.argsort(entries[HASH], kind="stable")  # fast for runs one after the other
    found = entries[:, order]
    same = found[HASH, 1:] == found[HASH, :-1]
    if (same & (found[NUMBER, 1:] < found[NUMBER, :-1])).any():
        found = entries[:, np.lexsort((entries[NUMBER], entries[HASH]))]
        same = found[HASH, 1:] == found[HASH, :-1]
    repeated = same & (found[NUMBER, 1:] == found[NUMBER, :-1]) & (found[CHECK, 1:] == found[CHECK, :-1])
    return found[:, ~np.append(repeated, False)] if repeated.any() else found
