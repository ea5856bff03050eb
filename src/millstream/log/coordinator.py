"""What participants agree on lives in one SQLite file: each change is one transaction, so it happened or it did not.

Groups, their members and offsets, named producers and their transactions, queues and their deliveries. That a
transaction's verdict and the offsets that go with it are one commit here is what makes exactly-once exact.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.errors import (
    ClosedError,
    DamagedLog,
    DiskFull,
    MillstreamError,
    NoAccess,
    NotALog,
    StorageError,
    UnsupportedFormat,
)
from millstream.log.disk import mounted_read_only

FORMAT = 1
BUSY_SECONDS = 60.0

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


class Coordinator:
    """One connection of this process; threads take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = os.getpid()
        self._turn = threading.RLock()
        with self._translated():
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._db.row_factory = sqlite3.Row
            self._log_ahead()
            self._db.execute("PRAGMA synchronous = NORMAL")
        self._create()

    def _log_ahead(self) -> None:
        """Two that change a new file's journal at once would wait for each other: SQLite then fails one at once."""
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
                    f"the coordinator has format {version}; this version of Millstream knows {FORMAT}",
                    where=str(self.path),
                    next_step="open the log with the Millstream that wrote it",
                )

    @contextmanager
    def change(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction; `durable` also survives the death of the machine."""
        self._check_process()
        with self._turn, self._translated():
            try:
                if self._db.in_transaction:  # an exception kept the last change from being taken back
                    self._db.execute("ROLLBACK")
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has rolled back by itself when its disk is full
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """Single statements that only read."""
        self._check_process()
        with self._turn, self._translated():
            yield self._db

    def version(self) -> int:
        """Differs whenever another process has changed something."""
        with self.look() as db:
            return int(db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        if os.getpid() == self._process:
            with self._turn:
                self._db.close()

    def _check_process(self) -> None:
        """SQLite's connections and this one's lock do not survive a fork: what a child wrote could be lost."""
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

    def _error(self, error: sqlite3.Error) -> MillstreamError:
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return ClosedError("the log was closed", next_step="open it again with millstream.connect(…)")
        name = getattr(error, "sqlite_errorname", "") or ""
        where = str(self.path)
        if self.path.is_dir():
            return NotALog(
                "there is a folder where the coordinator's file should be",
                where=where,
                next_step="move the folder away and restore the file from a copy; if it is lost for good, make an "
                "empty file of that name: groups, queues and named producers then start without their past",
            )
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE")):
            return DiskFull("there is no room left to coordinate", where=where, next_step="make room; then try again")
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            if _is_mounted_read_only(self.path.parent):
                return mounted_read_only(where)
            return NoAccess(
                "this user may not write the log",
                where=where,
                next_step="give the user rights to the folder of the log",
            )
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return DamagedLog("the coordinator's file is damaged", where=where, next_step="restore it from a copy")
        return StorageError(f"the coordinator says: {error}", where=where, next_step="try again")


def _is_mounted_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False
