"""Where each stream's events are: derived from the store's topic, and rebuilt from it when it is missing or outdated.

The index is two parts: a SQLite file with everything before an offset, and in memory the events from there on. A flush
moves the second into the first, some ten thousand events at a time, because single changes to a large index would each
rewrite a page. Several processes share the file; each has read the log up to an offset of its own.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import orjson

from millstream.errors import ClosedError, StorageError
from millstream.events.layout import CLOSED, RETENTION, Row
from millstream.log.disk import storage_errors
from millstream.private_files import ensure_database_file

Item = TypeVar("Item", int, str)
FORMAT = 1
FLUSH_EVENTS = 50_000
CACHED_STREAMS_MAX = 200_000
LOOKUPS = 500
BUSY_SECONDS = 60.0
CACHE_KIBIBYTES = 64 << 10

TABLES = """
CREATE TABLE progress (identity TEXT NOT NULL, reached INTEGER NOT NULL, newest_us INTEGER NOT NULL);
CREATE TABLE streams (
    name TEXT PRIMARY KEY, number INTEGER NOT NULL, version INTEGER NOT NULL, closed INTEGER NOT NULL,
    keep_last INTEGER, keep_us INTEGER
) WITHOUT ROWID;
CREATE TABLE positions (
    stream INTEGER NOT NULL, version INTEGER NOT NULL, position INTEGER NOT NULL,
    PRIMARY KEY (stream, version)
) WITHOUT ROWID;
CREATE TABLE ids (id TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE contents (position INTEGER PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE snapshots (
    kind TEXT NOT NULL, stream TEXT NOT NULL, version INTEGER NOT NULL, at_us INTEGER NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (kind, stream, version)
) WITHOUT ROWID
"""


@dataclass(slots=True)
class StreamState:
    """What the store knows of a stream, and the positions of its events that are not in the file yet."""

    version: int = 0
    number: int | None = None
    is_closed: bool = False
    keep_last: int | None = None
    keep_us: int | None = None
    fresh: dict[int, int] = field(default_factory=dict)
    is_changed: bool = False


class Index:
    """Not thread-safe: the store calls it under its own lock."""

    def __init__(self, path: Path | None, identity: str, *, keeps_contents: bool) -> None:
        """Without a path it is a temporary file of this process. `keeps_contents`: the log has no random access."""
        self.path = path
        self._identity = identity
        self._keeps_contents = keeps_contents
        self._process = os.getpid()
        self._db = self._opened()
        self.position, self.newest_us = self._progress()
        self._streams: dict[str, StreamState] = {}
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

    def _ask(self, statement: str, values: Sequence[object] = ()) -> list[tuple[int, ...]]:
        self._check_process()
        try:
            return self._db.execute(statement, values).fetchall()
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
            next_step="free some space if the disk is full; the file can be deleted, it is built again from the topic",
        )

    # ------------------------------------------------------------ lookups

    def prefetch(self, streams: Iterable[str], ids: Iterable[str]) -> dict[str, int]:
        """Loads these streams together; returns the positions of those ids that are recorded."""
        self._load([name for name in streams if name not in self._streams])
        known, missing = {}, []
        for each in ids:
            position = self._ids.get(each)
            if position is None:
                missing.append(each)
            else:
                known[each] = position
        for some in _pieces(missing):
            marks = ",".join("?" * len(some))
            found = self._ask(f"SELECT id, position FROM ids WHERE id IN ({marks})", some)
            known.update(found)  # type: ignore[arg-type]
        return known

    def _load(self, names: list[str]) -> None:
        for some in _pieces(names):
            marks = ",".join("?" * len(some))
            rows = self._ask(
                f"SELECT name, version, number, closed, keep_last, keep_us FROM streams WHERE name IN ({marks})", some
            )
            for name in some:
                self._streams[name] = StreamState()
            for found, version, number, closed, last, age in rows:
                self._streams[str(found)] = StreamState(version, number, bool(closed), last, age)

    def state(self, stream: str) -> StreamState:
        if stream not in self._streams:
            self._load([stream])
        return self._streams[stream]

    def positions(self, stream: str, first: int, last: int) -> list[int]:
        """The positions of the versions of a stream from `first` to `last`."""
        state = self.state(stream)
        found: dict[int, int] = {}
        if state.number is not None:
            asked = "SELECT version, position FROM positions WHERE stream = ? AND version BETWEEN ? AND ?"
            found.update(self._ask(asked, (state.number, first, last)))  # type: ignore[arg-type]
        found.update((version, at) for version, at in state.fresh.items() if first <= version <= last)
        return [found[version] for version in sorted(found)]

    def contents(self, positions: Sequence[int]) -> list[Row]:
        """The events at these positions, where the log itself has no random access."""
        found = {at: self._contents[at] for at in positions if at in self._contents}
        for some in _pieces([at for at in positions if at not in found]):
            marks = ",".join("?" * len(some))
            for at, text in self._ask(f"SELECT position, row FROM contents WHERE position IN ({marks})", some):
                found[at] = Row._make(orjson.loads(text))  # type: ignore[arg-type]
        return [found[at] for at in positions]

    # ------------------------------------------------------------ changes

    def apply(self, positions: Sequence[int], rows: Sequence[Row], next_position: int) -> None:
        """Takes up rows of the log, up to a position; those that it has already are skipped."""
        self._load([name for name in {row.stream for row in rows if row.stream} if name not in self._streams])
        for at, row in zip(positions, rows, strict=True):
            if not row.stream:
                continue  # not written by the store
            state = self._streams[row.stream]
            if row.version is None:
                _apply_own(state, row)
            elif row.version == state.version + 1:
                state.version = row.version
                state.fresh[row.version] = at
            else:
                continue
            state.is_changed = True
            self._ids[row.id] = at
            self.newest_us = max(self.newest_us, row.at_us)
            if self._keeps_contents:
                self._contents[at] = row
            self.waiting += 1
        self.position = max(self.position, next_position)

    def tidy(self) -> None:
        """Called between commits: flushes if enough has come together, and bounds what is cached."""
        if self.waiting >= FLUSH_EVENTS:
            self.flush()
        if len(self._streams) > CACHED_STREAMS_MAX:
            self._streams = {name: state for name, state in self._streams.items() if state.is_changed}

    def flush(self) -> None:
        """Moves what is in memory into the file; nothing, if another process has got further there."""
        if not self.waiting:
            return
        with self._change() as db:
            (reached,) = db.execute("SELECT reached FROM progress").fetchone()
            ahead = reached > self.position
            if not ahead:
                self._write(db)
        if ahead:
            self._streams.clear()
            self.position, self.newest_us = self._progress()
        elif len(self._streams) > CACHED_STREAMS_MAX:
            self._streams.clear()
        else:
            for state in self._streams.values():
                if state.is_changed:
                    state.fresh, state.is_changed = {}, False
        self._ids, self._contents, self.waiting = {}, {}, 0

    def _write(self, db: sqlite3.Connection) -> None:
        changed = [(name, state) for name, state in self._streams.items() if state.is_changed]
        self._number(db, changed)
        db.executemany(
            "INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?, ?, ?)",
            sorted((name, s.number, s.version, s.is_closed, s.keep_last, s.keep_us) for name, s in changed),
        )
        db.executemany(
            "INSERT OR IGNORE INTO positions VALUES (?, ?, ?)",
            sorted((s.number or 0, version, at) for _, s in changed for version, at in s.fresh.items()),
        )
        db.executemany("INSERT OR IGNORE INTO ids VALUES (?, ?)", sorted(self._ids.items()))
        db.executemany(
            "INSERT OR IGNORE INTO contents VALUES (?, ?)",
            [(at, orjson.dumps(list(row)).decode()) for at, row in self._contents.items()],
        )
        db.execute("UPDATE progress SET reached = ?, newest_us = ?", (self.position, self.newest_us))

    def _number(self, db: sqlite3.Connection, changed: Sequence[tuple[str, StreamState]]) -> None:
        """Numbers new streams, unless another process has done so."""
        new = {name: state for name, state in changed if state.number is None}
        for some in _pieces(list(new)):
            marks = ",".join("?" * len(some))
            for name, number in db.execute(f"SELECT name, number FROM streams WHERE name IN ({marks})", some):
                new.pop(name).number = number
        (count,) = db.execute("SELECT count(*) FROM streams").fetchone() if new else (0,)
        for number, state in enumerate(new.values(), count + 1):
            state.number = number

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


def _apply_own(state: StreamState, row: Row) -> None:
    if row.type == CLOSED:
        state.is_closed = True
    elif row.type == RETENTION:
        kept = orjson.loads(row.data)
        state.keep_last, state.keep_us = kept.get("last"), kept.get("age_us")


def _pieces(items: list[Item]) -> Iterator[list[Item]]:
    for start in range(0, len(items), LOOKUPS):
        yield items[start : start + LOOKUPS]
