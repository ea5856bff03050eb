"""A copy as a table of a database, `key` and `row` as JSON. Rows and mark are changed in one transaction.

A rebuild fills a table beside it. The switch replaces the rows, not the table, in one transaction: so readers see the
old copy or the new one, and views, indexes and rights that others have put on the table stay.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from millstream.connectors.databases.sqlite import PASSING, error_name, quoted
from millstream.copies.ports import Changes, Mark
from millstream.errors import AlreadyExists, InvalidInput, SinkFailed, SinkUnavailable
from millstream.postgres_address import secrets_of, without_password
from millstream.secrets import concealed

MARKS, NEXT = "_millstream", "_next"
NAME_LENGTH_MAX = 40
BUSY_SECONDS = 10.0
CONNECT_SECONDS = 10


class DatabaseRows(ABC):
    value: ClassVar[str]
    """A placeholder."""
    json_type: ClassVar[str]

    def __init__(self, where: str, name: str, replaces: str | None = None) -> None:
        """`replaces` is the table that this one takes the place of."""
        if len(name.removesuffix(NEXT)) > NAME_LENGTH_MAX:
            raise InvalidInput(
                f"the name of a table may have up to {NAME_LENGTH_MAX} characters here", next_step=f"shorten '{name}'"
            )
        self.where = f"table '{replaces or name}' of {where}"
        self._name = name
        self._replaces = replaces
        self._rows, self._marks = quoted(name), quoted(name + MARKS)
        self._db: Any = None
        with self._changing():
            self._create()

    def _create(self) -> None:
        if self._exists(self._name) and not self._exists(self._name + MARKS):
            raise AlreadyExists(
                "there is a table of this name that is not a copy of Millstream",
                where=self.where,
                next_step="choose a name that does not exist",
            )
        self._db.execute(f"CREATE TABLE IF NOT EXISTS {self._marks} (writer text PRIMARY KEY, mark text NOT NULL)")
        self._db.execute(
            f"CREATE TABLE IF NOT EXISTS {self._rows} (key text PRIMARY KEY, row {self.json_type} NOT NULL)"
        )

    # ------------------------------------------------------------ rows and marks

    def mark(self, writer: str) -> Mark | None:
        with self._changing():
            return self._mark(writer)

    def _mark(self, writer: str) -> Mark | None:
        found = self._db.execute(f"SELECT mark FROM {self._marks} WHERE writer = {self.value}", (writer,)).fetchone()
        return None if found is None else dict(json.loads(found[0]))

    def writers(self) -> list[str]:
        with self._changing():
            return sorted(writer for (writer,) in self._db.execute(f"SELECT writer FROM {self._marks}").fetchall())

    def apply(self, changes: Changes, writer: str, mark: Mark, before: Mark | None, *, clear: bool = False) -> bool:
        with self._changing():
            if self._mark(writer) != before:
                return False
            if clear:
                self._db.execute(f"DELETE FROM {self._rows}")
            newest = [(key, row.decode()) for key, row in changes.items() if row is not None]
            self._put(self._rows, ("key", "row"), newest)
            gone = [(key,) for key, row in changes.items() if row is None]
            self._repeat(f"DELETE FROM {self._rows} WHERE key = {self.value}", gone)
            self._put(self._marks, ("writer", "mark"), [(writer, json.dumps(mark))])
        return True

    def _put(self, table: str, names: tuple[str, str], values: Sequence[tuple[str, str]]) -> None:
        key, value = names
        statement = f"INSERT INTO {table} ({key}, {value}) VALUES ({self.value}, {self.value}) "
        self._repeat(f"{statement} ON CONFLICT ({key}) DO UPDATE SET {value} = excluded.{value}", values)

    def _repeat(self, statement: str, values: Sequence[tuple[str, ...]]) -> None:
        if values:
            self._db.cursor().executemany(statement, values)

    def holds(self, key: str, row: bytes) -> bool:
        with self._changing():
            equal = f"SELECT 1 FROM {self._rows} WHERE key = {self.value} AND row = {self.value}"
            return self._db.execute(equal, (key, row.decode())).fetchone() is not None

    def empty(self) -> None:
        with self._changing():
            for table in (self._rows, self._marks):
                self._db.execute(f"DELETE FROM {table}")

    # ------------------------------------------------------------ rebuilding

    def replacement(self) -> DatabaseRows:
        made = self._beside()
        made.empty()  # of a rebuild that was killed
        return made

    @abstractmethod
    def _beside(self) -> DatabaseRows:
        """The copy that takes the place of this one."""

    def switch(self) -> None:
        assert self._replaces is not None
        with self._changing():
            for new, old in ((self._rows, self._replaces), (self._marks, self._replaces + MARKS)):
                self._db.execute(f"DELETE FROM {quoted(old)}")
                self._db.execute(f"INSERT INTO {quoted(old)} SELECT * FROM {new}")
                self._db.execute(f"DROP TABLE {new}")

    # ------------------------------------------------------------ connections

    @abstractmethod
    def _exists(self, table: str) -> bool: ...

    @abstractmethod
    def _changing(self) -> Any:
        """A context: one transaction, alone; errors are those of Millstream."""

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


class SqliteRows(DatabaseRows):
    value, json_type = "?", "text"

    def __init__(self, path: Path, name: str, replaces: str | None = None) -> None:
        self._path = path.expanduser()
        super().__init__(str(path), name, replaces)

    def _exists(self, table: str) -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None

    def _beside(self) -> SqliteRows:
        return SqliteRows(self._path, self._name + NEXT, self._name)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            if self._db is None:
                self._db = sqlite3.connect(
                    self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db is not None and self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            kind = SinkUnavailable if error_name(error).startswith(PASSING) else SinkFailed
            raise kind(
                f"the copy cannot be written: {error}",
                where=self.where,
                next_step="check the file, its folder, and other programs that write to it",
            ) from error


class PostgresRows(DatabaseRows):
    value, json_type = "%s", "jsonb"

    def __init__(self, dsn: str, name: str, replaces: str | None = None) -> None:
        self._dsn = dsn
        super().__init__(without_password(dsn), name, replaces)

    def _exists(self, table: str) -> bool:
        found = self._db.execute("SELECT to_regclass(%s)", (quoted(table),)).fetchone()
        return found is not None and found[0] is not None

    def _beside(self) -> PostgresRows:
        return PostgresRows(self._dsn, self._name + NEXT, self._name)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        from millstream.connectors.databases.postgres import FOR_GOOD, connection_driver

        psycopg = connection_driver(self.where)
        try:
            if self._db is None or self._db.closed:
                options = {} if "connect_timeout" in self._dsn else {"connect_timeout": CONNECT_SECONDS}
                self._db = psycopg.connect(self._dsn, autocommit=True, **options)
            with self._db.transaction():
                self._db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self._replaces or self._name,))
                yield
        except psycopg.Error as error:
            message = concealed((error.diag.message_primary or str(error)).strip(), secrets_of(self._dsn))
            passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            with suppress(psycopg.Error):
                self.close()
            kind = SinkUnavailable if passing and not FOR_GOOD.search(message) else SinkFailed
            raise kind(
                f"the copy cannot be written: {message}",
                where=self.where,
                next_step=error.diag.message_hint or "check that the server is up, and the rights of the user",
            ) from None
