"""Where each stream's events are: derived from the store's topic, and rebuilt from it when it is missing or outdated.

The index is two parts: a SQLite file with everything before an offset, and in memory the events from there on. A flush
moves the second into the first, a hundred thousand events at a time, as sorted runs: what it costs does not depend on
how many streams there are. Several processes share the file; each has read the log up to an offset of its own.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from millstream.errors import ClosedError, StorageError
from millstream.events import sorted_runs
from millstream.events.fresh import Fresh
from millstream.events.heads import Heads
from millstream.events.layout import CLOSED, RETENTION, Row, values_of
from millstream.events.scavenging import Limited, Removed
from millstream.events.sorted_runs import CHECK, HASH, NUMBER, VALUE, Entries, SortedRuns, hashes
from millstream.log.storage.disk import storage_errors
from millstream.private_files import ensure_database_file

Item = TypeVar("Item", int, str)
FORMAT = 3
FLUSH_EVENTS = 150_000
CACHED_STREAMS_MAX = 200_000
LOOKUPS = 500
MERGED_EVENTS_MAX = 2 << 20  # merging so many takes about half a second
BUSY_SECONDS = 60.0
CACHE_KIBIBYTES = 64 << 10

TABLES = f"""
CREATE TABLE progress (identity TEXT NOT NULL, reached INTEGER NOT NULL, newest_us INTEGER NOT NULL);
{sorted_runs.TABLES.strip()};
CREATE TABLE rules (
    name TEXT PRIMARY KEY, closed INTEGER NOT NULL, keep_last INTEGER, keep_us INTEGER, was_limited INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE ids (id TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE contents (position INTEGER PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE snapshots (
    kind TEXT NOT NULL, stream TEXT NOT NULL, version INTEGER NOT NULL, at_us INTEGER NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (kind, stream, version)
) WITHOUT ROWID
"""


class Rules(NamedTuple):
    """What may be done with a stream; few have any of their own."""

    is_closed: bool = False
    keep_last: int | None = None
    keep_us: int | None = None
    was_limited: bool = False
    """Whether it ever had a limit: then its oldest events may have been removed."""


NO_RULES = Rules()


class Index:
    """Not thread-safe: the store calls it under its own lock."""

    def __init__(self, path: Path | None, identity: str, *, keeps_contents: bool) -> None:
        """Without a path it is a temporary file of this process. `keeps_contents`: the log has no random access."""
        self.path = path
        self._identity = identity
        self._keeps_contents = keeps_contents
        self._process = os.getpid()
        self._db = self._opened()
        self._file = None if path is None else _identity_of(path)
        self.position, self.newest_us = self._progress()
        self._heads = Heads()
        self._positions = SortedRuns("positions", MERGED_EVENTS_MAX)
        # Of text and numbers alone: the garbage collector does not visit these, however many streams there are.
        self._versions: dict[str, int] = {}  # of the streams that are cached
        self._fresh = Fresh()
        self._rules: dict[str, Rules] = {}  # of the streams that are cached and have any
        self._ruled: set[str] = set()  # those whose rules differ from the file
        self._ids: dict[str, int] = {}
        self._contents: dict[int, Row] = {}
        self.waiting = 0
        """Events that are not in the file yet."""

    # ------------------------------------------------------------ the file

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or self.path is None:
                raise self._failed(error) from error
            for ending in ("", "-wal", "-shm", "-journal"):  # it is derived: damaged, it is built again
                Path(f"{self.path}{ending}").unlink(missing_ok=True)
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        if self.path is not None:
            with storage_errors(self.path):
                ensure_database_file(self.path)
        db = sqlite3.connect(
            "" if self.path is None else self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            if self.path is not None:
                db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Creates the tables, also over those of a topic of the same name that was deleted."""
        db.execute("BEGIN IMMEDIATE")
        try:
            (found,) = db.execute("PRAGMA user_version").fetchone()
            known = db.execute("SELECT identity FROM progress").fetchone() if found == FORMAT else None
            if known != (self._identity,):
                for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
                    db.execute(f'DROP TABLE "{table}"')
                for statement in TABLES.split(";\n"):
                    db.execute(statement)
                db.execute("INSERT INTO progress VALUES (?, 0, 0)", (self._identity,))
                db.execute(f"PRAGMA user_version = {FORMAT}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _progress(self) -> tuple[int, int]:
        (reached, newest_us) = self._ask("SELECT reached, newest_us FROM progress")[0]
        return reached, newest_us

    def check_file(self) -> None:
        """Refuses to go on with a file that was deleted: SQLite would mix it with that of the next process."""
        if self.path is not None and _identity_of(self.path) != self._file:
            raise StorageError(
                "the index of the event store was deleted or replaced while the store was open",
                where=str(self.path),
                next_step="close the store in all processes, delete the files that begin with this name, open it again",
            )

    def _ask(self, statement: str, values: Sequence[object] = ()) -> list[tuple[int, ...]]:
        self._check_process()
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Several statements that see the file at one moment."""
        self._check_process()
        try:
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClosedError(
                "the event store was opened by the process that this one was forked from",
                next_step="open it again in this process with millstream.event_store(…)",
            )

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        self._check_process()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._failed(error) from error
            raise

    def _failed(self, error: sqlite3.Error) -> StorageError | ClosedError:
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return ClosedError("the event store was closed", next_step="open it again with millstream.event_store(…)")
        return StorageError(
            f"the index of the event store failed: {error}",
            where=str(self.path or "a temporary file"),
            next_step="free some space if the disk is full; the file can be deleted: it is rebuilt from the topic",
        )

    # ------------------------------------------------------------ lookups

    def prefetch(self, streams: Iterable[str], ids: Iterable[str]) -> dict[str, int]:
        """Loads these streams together; returns the positions of those ids that are recorded."""
        self._load([name for name in streams if name not in self._versions])
        known, missing = {}, []
        for each in ids:
            position = self._ids.get(each)
            if position is None:
                missing.append(each)
            else:
                known[each] = position
        ((newest,),) = self._ask("SELECT max(id) FROM ids")
        # Most ids are of new events and sort by time, after all others: there is nothing to look up.
        for some in _pieces([each for each in missing if newest is not None and each <= str(newest)]):
            marks = ",".join("?" * len(some))
            found = self._ask(f"SELECT id, position FROM ids WHERE id IN ({marks})", some)
            known.update(found)  # type: ignore[arg-type]
        return known

    def _load(self, names: list[str]) -> None:
        if not names:
            return
        with self._reading() as db:
            versions, ruled = self._heads.find(db, names)
        self._versions.update(zip(names, versions, strict=True))
        for some in _pieces(ruled):
            marks = ",".join("?" * len(some))
            asked = f"SELECT name, closed, keep_last, keep_us, was_limited FROM rules WHERE name IN ({marks})"
            for name, closed, last, age, was_limited in self._ask(asked, some):
                self._rules[str(name)] = Rules(bool(closed), last, age, bool(was_limited))

    def version(self, stream: str) -> int:
        version = self._versions.get(stream)
        if version is None:
            self._load([stream])
            version = self._versions[stream]
        return version

    def rules(self, stream: str) -> Rules:
        self.version(stream)
        return self._rules.get(stream, NO_RULES)

    def positions(self, stream: str, first: int, last: int) -> list[int]:
        """The positions of the versions of a stream from `first` to `last`."""
        with self._reading() as db:
            stored = self._positions.found(db, hashes([stream])[:, 0], first, last)
        found = dict(zip(stored[NUMBER].tolist(), stored[VALUE].tolist(), strict=True))
        found.update(self._fresh.positions(stream, first, last))
        return [found[version] for version in sorted(found)]

    def contents(self, positions: Sequence[int]) -> list[Row | None]:
        """The events at these positions, where the log itself has no random access; None for removed ones."""
        found = {at: self._contents[at] for at in positions if at in self._contents}
        for some in _pieces([at for at in positions if at not in found]):
            marks = ",".join("?" * len(some))
            for at, text in self._ask(f"SELECT position, row FROM contents WHERE position IN ({marks})", some):
                found[at] = Row(*orjson.loads(text))  # type: ignore[arg-type]
        return [found.get(at) for at in positions]

    def limited(self) -> list[Limited]:
        """The streams that keep only some of their events, from the file: flush first."""
        asked = "SELECT name, keep_last, keep_us FROM rules WHERE keep_last NOTNULL OR keep_us NOTNULL"
        rules = self._ask(asked)
        with self._reading() as db:
            versions, _ = self._heads.find(db, [str(name) for name, _, _ in rules])
        return [Limited(str(name), version, *kept) for (name, *kept), version in zip(rules, versions, strict=True)]

    # ------------------------------------------------------------ changes

    def apply(self, positions: Sequence[int], rows: Sequence[Row], next_position: int) -> None:
        """Takes up rows of the log, up to a position; those that it has already are skipped."""
        self._load([name for name in {row.stream for row in rows if row.stream} if name not in self._versions])
        versions, fresh, ids, newest_us, taken = self._versions, self._fresh, self._ids, self.newest_us, 0
        for at, row in zip(positions, rows, strict=True):
            stream, version = row.stream, row.version
            if not stream or (version is not None and version <= versions[stream]):
                continue  # not written by the store, or known; those before it may have been removed
            if version is None:
                self._rules[stream] = _changed(self._rules.get(stream, NO_RULES), row)
                self._ruled.add(stream)
                fresh.touch(stream)
            else:
                versions[stream] = version
                fresh.add(stream, version, at)
            ids[row.id] = at
            if row.at_us > newest_us:
                newest_us = row.at_us
            if self._keeps_contents:
                self._contents[at] = row
            taken += 1
        self.newest_us = newest_us
        self.waiting += taken
        self.position = max(self.position, next_position)

    def tidy(self) -> None:
        """Called between commits: flushes if enough has come together, and bounds what is cached."""
        if self.waiting >= FLUSH_EVENTS:
            self.flush()
        if len(self._versions) > CACHED_STREAMS_MAX:
            self._versions = {name: self._versions[name] for name in self._fresh.streams}
            self._rules = {name: rules for name, rules in self._rules.items() if name in self._versions}

    def flush(self) -> None:
        """Moves what is in memory into the file; nothing, if another process has got further there."""
        if not self.waiting:
            return
        with self._change() as db:
            (reached,) = db.execute("SELECT reached FROM progress").fetchone()
            ahead = reached > self.position
            if not ahead:
                self._write(db, reached)
        with self._reading() as db:
            self._heads.refresh(db)
        if ahead:
            self.position, self.newest_us = self._progress()
        if ahead or len(self._versions) > CACHED_STREAMS_MAX:
            self._versions, self._rules = {}, {}
        self._fresh, self._ruled, self._ids, self._contents, self.waiting = Fresh(), set(), {}, {}, 0

    def _write(self, db: sqlite3.Connection, reached: int) -> None:
        """Without events before `reached`: those that the file does not have were removed."""
        names = list(self._fresh.streams)
        keys = hashes(names)
        self._positions.add(db, self._fresh.entries(keys, reached))
        self._heads.add(db, keys, [self._versions[name] for name in names], [name in self._rules for name in names])
        db.executemany(
            "INSERT OR REPLACE INTO rules VALUES (?, ?, ?, ?, ?)",
            sorted((name, *self._rules[name]) for name in self._ruled),
        )
        # An id may be there: of an event that was removed, and appended again.
        db.executemany(
            "INSERT OR REPLACE INTO ids VALUES (?, ?)", sorted(each for each in self._ids.items() if each[1] >= reached)
        )
        db.executemany(
            "INSERT OR IGNORE INTO contents VALUES (?, ?)",
            [(at, orjson.dumps(values_of(row)).decode()) for at, row in self._contents.items() if at >= reached],
        )
        db.execute("UPDATE progress SET reached = ?, newest_us = ?", (self.position, self.newest_us))

    def forget(self, removed: Removed) -> None:
        """Drops what was removed from the log. It only saves space: what is left of it here is never used."""
        gone = _up_to(removed.versions)
        with self._change() as db:
            if removed.versions:
                self._positions.remove(db, gone)
            db.executemany("DELETE FROM contents WHERE position = ?", ((at,) for _, at in removed.ids()))
            db.executemany("DELETE FROM ids WHERE id = ? AND position = ?", removed.ids())
        for stream, version in removed.versions.items():
            for at in self._fresh.remove(stream, version):
                self._contents.pop(at, None)
        for name, position in removed.ids():
            if self._ids.get(name) == position:
                del self._ids[name]

    # ------------------------------------------------------------ snapshots

    def snapshot(self, kind: str, stream: str, version: int) -> tuple[int, bytes] | None:
        """The newest snapshot of a stream up to a version."""
        found = self._ask(
            "SELECT version, state FROM snapshots WHERE kind = ? AND stream = ? AND version <= ? "
            "ORDER BY version DESC LIMIT 1",
            (kind, stream, version),
        )
        return None if not found else (found[0][0], bytes(found[0][1]))

    def save_snapshot(self, kind: str, stream: str, version: int, at_us: int, state: bytes) -> None:
        with self._change() as db:
            db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", (kind, stream, version, at_us, state))

    def close(self) -> None:
        if os.getpid() == self._process:
            self._db.close()


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - hot path
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _up_to(versions: dict[str, int]) -> Callable[[Entries], npt.NDArray[np.bool_]]:
    """Which entries are of these streams, up to the version of each."""
    keys = hashes(versions)
    limits = pl.DataFrame({"hash": keys[HASH], "check": keys[CHECK], "limit": list(versions.values())})

    def found(entries: Entries) -> npt.NDArray[np.bool_]:
        columns = {"hash": entries[HASH], "check": entries[CHECK], "number": entries[NUMBER]}
        joined = pl.DataFrame(columns).join(limits, on=["hash", "check"], how="left", maintain_order="left")
        return joined.select((pl.col("number") <= pl.col("limit")).fill_null(False)).to_series().to_numpy()

    return found


def _changed(rules: Rules, row: Row) -> Rules:
    """The rules after a row of the store itself."""
    if row.type == CLOSED:
        return rules._replace(is_closed=True)
    if row.type == RETENTION:
        kept = orjson.loads(row.data)
        return rules._replace(keep_last=kept.get("last"), keep_us=kept.get("age_us"), was_limited=True)
    return rules


def _pieces(items: list[Item]) -> Iterator[list[Item]]:
    for start in range(0, len(items), LOOKUPS):
        yield items[start : start + LOOKUPS]
