"""The state that participants share is one SQLite file, in which every change is a transaction.

It has groups, their members and offsets, named producers and their transactions, queues and their deliveries. A
transaction's outcome and its offsets are one commit here: that makes exactly-once exact.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from millstream.errors import (
    ClosedError,
    DamagedLog,
    DiskFull,
    MillstreamError,
    NoAccess,
    StorageError,
    UnsupportedFormat,
)
from millstream.log.agreement.liveness import IDENTITY
from millstream.log.storage.disk import mounted_read_only, parsed, storage_errors
from millstream.log.topics import is_name
from millstream.private_files import ensure_database_file, refuse_link

FORMAT = 1
BUSY_SECONDS = 60.0
VALUE_BYTES_MAX = 64 << 20

TABLES = """
CREATE TABLE producers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    epoch INTEGER NOT NULL,
    owner TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('idle', 'open', 'committing', 'aborting'))
);
CREATE TABLE transaction_partitions (
    producer_id INTEGER NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    PRIMARY KEY (producer_id, topic, partition)
) WITHOUT ROWID;
CREATE TABLE groups (
    name TEXT PRIMARY KEY, generation INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE members (
    group_name TEXT NOT NULL, member TEXT NOT NULL, topics TEXT NOT NULL, joined_at REAL NOT NULL,
    polled_at REAL NOT NULL, poll_seconds_max REAL NOT NULL,
    PRIMARY KEY (group_name, member)
) WITHOUT ROWID;
CREATE TABLE ownership (
    group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, owner TEXT, target TEXT,
    PRIMARY KEY (group_name, topic, partition)
) WITHOUT ROWID;
CREATE TABLE offsets (
    group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    committed_at REAL NOT NULL,
    PRIMARY KEY (group_name, topic, partition)
) WITHOUT ROWID;
CREATE TABLE queues (
    name TEXT PRIMARY KEY, topic TEXT NOT NULL, settings TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE queue_cursors (
    queue TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    lost INTEGER NOT NULL DEFAULT 0, acknowledged INTEGER NOT NULL DEFAULT 0, dead INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, partition)
) WITHOUT ROWID;
CREATE TABLE deliveries (
    queue TEXT NOT NULL, partition INTEGER NOT NULL, record_offset INTEGER NOT NULL, tries INTEGER NOT NULL,
    owner TEXT, due_at REAL NOT NULL, reason TEXT,
    PRIMARY KEY (queue, partition, record_offset)
) WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (queue, due_at);
"""
SINK_BATCHES = """
CREATE TABLE IF NOT EXISTS sink_batches (
    job TEXT NOT NULL, step TEXT NOT NULL, run TEXT NOT NULL, batch INTEGER NOT NULL,
    PRIMARY KEY (job, step, run)
) WITHOUT ROWID
"""
SINK_OUTPUTS = """
CREATE TABLE IF NOT EXISTS sink_outputs (
    job TEXT NOT NULL, step TEXT NOT NULL, run TEXT NOT NULL, folder TEXT NOT NULL, host TEXT NOT NULL,
    topic TEXT NOT NULL, created INTEGER NOT NULL,
    PRIMARY KEY (job, step)
) WITHOUT ROWID
"""


Document = TypeVar("Document")


def _is_anything(_: object) -> bool:
    return True


def _is_whole(value: object) -> bool:
    return isinstance(value, int)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_topic(value: object) -> bool:
    return isinstance(value, str) and is_name(value)


def _is_participant(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, str) and IDENTITY.fullmatch(value) is not None)


CHECKS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("id", "producer_id", "epoch", "generation", "partition", "next_offset", "batch"), _is_whole),
    **dict.fromkeys(("lost", "acknowledged", "dead", "record_offset", "tries"), _is_whole),
    **dict.fromkeys(("joined_at", "polled_at", "poll_seconds_max", "committed_at", "due_at"), _is_number),
    **dict.fromkeys(("name", "group_name", "queue", "state", "settings", "topics"), _is_text),
    **dict.fromkeys(("owner", "target", "member"), _is_participant),
    "topic": _is_topic,
    "reason": _is_text_or_none,
}


def unexpected_schema(db: sqlite3.Connection) -> str | None:
    """What is missing from the file or does not belong there; tables of a newer version are ignored."""
    expected = _expected()
    found = {}
    for kind, name, table, sql in db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"):
        known = (kind, table, sql)
        if kind not in ("table", "index"):
            return f"it has a {kind} '{name}'"
        if sql is not None and (name in expected or kind == "index") and expected.get(name) != known:
            return f"its {kind} '{name}' is not the one that Millstream creates"
        found[name] = known
    missing = expected.keys() - found.keys() - {"sink_batches", "sink_outputs"}
    return f"it lacks {', '.join(sorted(missing))}" if missing else None


@cache
def _expected() -> dict[str, tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(f"{TABLES}{SINK_BATCHES};{SINK_OUTPUTS}")
        rows = db.execute("SELECT name, type, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
        return {name: (kind, table, sql) for name, kind, table, sql in rows}


class Coordinator:
    """One connection per process, shared by its threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._description: Any = None
        self._checks: tuple[Callable[[object], bool], ...] = ()
        self._refuse_links()
        with self._translated():
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._db.row_factory = self._row
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            self._db.execute("PRAGMA trusted_schema = OFF")  # what the file itself defines must not call functions
            self._db.execute("PRAGMA cell_size_check = ON")
            self._enable_write_ahead_log()
            self._db.execute("PRAGMA synchronous = NORMAL")
        self._create()

    def _refuse_links(self) -> None:
        """SQLite would follow links. It creates its other files with the permissions of the first one."""
        with storage_errors(self.path):
            ensure_database_file(self.path)
            for ending in ("-wal", "-shm", "-journal"):
                with suppress(FileNotFoundError):
                    refuse_link(f"{self.path}{ending}")

    def _enable_write_ahead_log(self) -> None:
        """Two processes changing the journal mode of a new file would deadlock: SQLite fails one of them at once."""
        patience = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                    raise
                time.sleep(random.uniform(0.005, 0.02))

    def _create(self) -> None:
        with self.change() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in TABLES.split(";\n"):
                    if statement.strip():
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {FORMAT}")
            elif version != FORMAT:
                raise UnsupportedFormat(
                    f"the coordinator has format {version}; this version of Millstream supports {FORMAT}",
                    where=str(self.path),
                    next_step="open the log with the Millstream that wrote it",
                )
            if fault := unexpected_schema(db):
                raise self._damaged(fault)

    def _row(self, cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> sqlite3.Row:
        """SQLite stores any value in any column, and these values become offsets and file names."""
        if cursor.description is not self._description:
            self._checks = tuple(CHECKS.get(column[0], _is_anything) for column in cursor.description)
            self._description = cursor.description
        for number, is_sound in enumerate(self._checks):
            if not is_sound(values[number]):
                raise self._damaged(
                    f"column '{cursor.description[number][0]}' has the value {str(values[number])[:100]!r}"
                )
        return sqlite3.Row(cursor, values)

    def document(self, text: str, kind: type[Document]) -> Document:
        """The content of a JSON column."""
        try:
            content = parsed(text)
        except ValueError as error:
            raise self._damaged(f"{text[:100]!r} cannot be read: {error}") from error
        if not isinstance(content, kind):
            raise self._damaged(f"{text[:100]!r} is not of type {kind.__name__}")
        return content

    def _damaged(self, what: str) -> DamagedLog:
        return DamagedLog(
            f"the coordinator's file is damaged: {what}", where=str(self.path), next_step="restore it from a copy"
        )

    @contextmanager
    def change(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction; `durable` also survives a crash of the machine."""
        self._check_process()
        with self._turn, self._translated():
            try:
                if self._db.in_transaction:  # an exception kept the last change from being rolled back
                    self._db.execute("ROLLBACK")
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite rolls back by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """Single statements that only read."""
        self._check_process()
        with self._turn, self._translated():
            yield self._db

    def version(self) -> int:
        """Changes whenever another process has changed something."""
        with self.look() as db:
            return int(db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        if os.getpid() == self._process:
            with self._turn:
                self._db.close()

    def _check_process(self) -> None:
        """SQLite's connections and this lock do not survive a fork: writes of a child could be lost."""
        if os.getpid() != self._process:
            raise ClosedError(
                "the log was opened by the process that this one was forked from",
                where=str(self.path.parent),
                next_step="open it again in this process with millstream.connect(…)",
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error
        except UnicodeDecodeError as error:  # in SQLite's message about a damaged page
            raise self._damaged("it holds text that is not UTF-8") from error

    def _error(self, error: sqlite3.Error) -> MillstreamError:
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return ClosedError("the log was closed", next_step="open it again with millstream.connect(…)")
        name = getattr(error, "sqlite_errorname", "") or ""
        where = str(self.path)
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE")):
            return DiskFull(
                "no space left for the coordinator's file", where=where, next_step="free some space, then try again"
            )
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            if _is_mounted_read_only(self.path.parent):
                return mounted_read_only(where)
            return NoAccess(
                "this user may not write to the log",
                where=where,
                next_step="give the user access to the folder of the log",
            )
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_TOOBIG")) or name == "SQLITE_ERROR":
            return self._damaged(str(error))
        if not name and "decode" in str(error):  # text that is not UTF-8
            return self._damaged(str(error)[:200])
        return StorageError(f"the coordinator failed: {error}", where=where, next_step="try again")


def _is_mounted_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False
