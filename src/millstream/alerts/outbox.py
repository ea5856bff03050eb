"""Messages that are to be sent, in an SQLite file: a message that was accepted survives a kill until it is sent.

A message may be sent twice if the process is killed right after sending, never zero times. The file is bounded: beyond
a number of messages for one target, the oldest are dropped and counted.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millstream.alerts.message import Message
from millstream.private_files import ensure_database_file, refuse_link

FILE = "alerts.db"
MESSAGES_MAX = 1000
TABLES = """
create table if not exists messages (
    number integer primary key, target text not null, message text not null, due real not null) strict;
create table if not exists targets (
    name text primary key, failures integer not null default 0, failing_since real, error text,
    dropped integer not null default 0) strict;
create table if not exists seen (key text primary key, until real not null) strict;
create table if not exists conditions (
    rule text not null, job text not null, since real not null, fired_at real, primary key (rule, job)) strict;
create table if not exists batches (step text primary key, batch integer not null) strict;
"""


@dataclass(frozen=True)
class Health:
    """Whether a target can be reached."""

    failures: int = 0
    """In a row."""
    failing_since: float | None = None
    error: str | None = None
    dropped: int = 0


class Outbox:
    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        ensure_database_file(path)
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.executescript(TABLES)

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

    # ------------------------------------------------------------ messages

    def put(self, target: str, message: Message, due: float) -> None:
        with self.transaction() as connection:
            connection.execute("insert into targets (name) values (?) on conflict do nothing", (target,))
            connection.execute(
                "insert into messages (target, message, due) values (?, ?, ?)", (target, message.to_json(), due)
            )
            over = connection.execute(
                "select number from messages where target = ? order by number desc limit -1 offset ?",
                (target, MESSAGES_MAX),
            ).fetchall()
            connection.executemany("delete from messages where number = ?", over)
            connection.execute("update targets set dropped = dropped + ? where name = ?", (len(over), target))

    def is_new(self, key: str, now: float, window_s: float) -> bool:
        """Whether something was not seen in this time; from now on it was."""
        with self.transaction() as connection:
            connection.execute("delete from seen where until <= ?", (now,))
            added = connection.execute(
                "insert into seen (key, until) values (?, ?) on conflict do nothing", (key, now + window_s)
            )
            return added.rowcount > 0

    def due(self, now: float) -> list[str]:
        """Targets for which a message is due."""
        with self._lock:
            rows = self._connection.execute("select distinct target from messages where due <= ?", (now,))
            return [name for (name,) in rows]

    def waiting(self, target: str, now: float) -> dict[int, Message]:
        """The messages for a target that are due, by number."""
        with self._lock:
            rows = self._connection.execute(
                "select number, message from messages where target = ? and due <= ? order by number", (target, now)
            )
            return {number: Message.from_json(text) for number, text in rows}

    def count(self) -> int:
        with self._lock:
            return int(self._connection.execute("select count(*) from messages").fetchone()[0])

    # ------------------------------------------------------------ targets

    def sent(self, target: str, numbers: list[int]) -> Health:
        """Forgets sent messages, and returns how the target was before."""
        with self.transaction() as connection:
            before = self.health().get(target, Health())
            connection.executemany("delete from messages where number = ?", [(number,) for number in numbers])
            connection.execute(
                "update targets set failures = 0, failing_since = null, error = null, dropped = 0 where name = ?",
                (target,),
            )
            return before

    def failed(self, target: str, why: str, now: float, again_at: float) -> Health:
        """Notes a failure; its messages are due again later. Returns how the target is now."""
        with self.transaction() as connection:
            connection.execute("insert into targets (name) values (?) on conflict do nothing", (target,))
            connection.execute(
                "update targets set failures = failures + 1, failing_since = coalesce(failing_since, ?), error = ?"
                " where name = ?",
                (now, why, target),
            )
            connection.execute("update messages set due = max(due, ?) where target = ?", (again_at, target))
            return self.health()[target]

    def health(self) -> dict[str, Health]:
        with self._lock:
            return _health(self._connection)


def read_health(folder: Path) -> dict[str, Health]:
    """The targets of another process's outbox; empty if there is none."""
    path = folder / FILE
    try:
        refuse_link(path)
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
    except (OSError, sqlite3.Error):
        return {}
    try:
        return _health(connection)
    except sqlite3.Error:
        return {}
    finally:
        connection.close()


def _health(connection: sqlite3.Connection) -> dict[str, Health]:
    rows = connection.execute("select name, failures, failing_since, error, dropped from targets order by name")
    return {name: Health(*values) for name, *values in rows}
