"""A private SQLite file: one connection for all threads of the process that writes it, or a short one to read."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.private_files import Access, ensure_database_file, refuse_link

WRITE_TIMEOUT_S, READ_TIMEOUT_S = 30.0, 5.0


class SqliteFile:
    """Every change is one transaction, so that a killed process leaves no half of one."""

    def __init__(self, path: Path, tables: str, *, access: Access | None = None, is_durable: bool = True) -> None:
        """`is_durable`: whether a change survives a crash of the machine, and not only of the process."""
        ensure_database_file(path, access)
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=WRITE_TIMEOUT_S)
        try:
            self._connection.execute("pragma journal_mode = wal")
            self._connection.execute(f"pragma synchronous = {'full' if is_durable else 'off'}")
            self._connection.executescript(tables)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection.in_transaction:
                yield self._connection
                return
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees all tables as of one moment. Raises OSError or sqlite3.Error if there is no such file."""
    refuse_link(path)
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=READ_TIMEOUT_S)
    try:
        connection.execute("begin")
        yield connection
    finally:
        connection.close()
