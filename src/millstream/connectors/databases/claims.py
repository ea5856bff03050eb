"""The claim of a table: a row of the table `_millstream_outputs` next to it."""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from millstream.connectors.claims import Claim, Found, shared
from millstream.connectors.databases.endpoints import Postgres, Sqlite
from millstream.connectors.databases.sqlite import BUSY_SECONDS, quoted
from millstream.connectors.databases.tables import LEDGER
from millstream.errors import SinkUnavailable
from millstream.postgres_address import secrets_of, without_password
from millstream.secrets import concealed

OUTPUTS = "_millstream_outputs"
COLUMNS = "job text NOT NULL, step text NOT NULL, run text NOT NULL, folder text NOT NULL, host text NOT NULL"
Do = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs a statement, with ? for each value, and returns its rows."""


class TableKeeper(ABC):
    keeps_claims = True

    def __init__(self, claim: Claim, table: str, where: str) -> None:
        self._claim = claim
        self._name = table
        self._of_step = (claim.job, claim.step)
        folder, _, name = table.rpartition(".") if self._has_schemas else ("", "", table)
        prefix = f"{quoted(folder)}." if folder else ""
        self._table, self._outputs, self._ledger = (prefix + quoted(each) for each in (name, OUTPUTS, LEDGER))
        self.where = where

    _has_schemas = False

    @abstractmethod
    def _session(self, *, create: bool) -> AbstractContextManager[Do | None]:
        """One transaction; None if there is no database and `create` is False."""

    @abstractmethod
    def _exists(self, do: Do, table: str) -> bool: ...

    def look(self) -> Found:
        with self._session(create=False) as do:
            if do is None:
                return Found(there=False)
            there = self._exists(do, self._table)
            batches: dict[str, int] = {}
            if self._exists(do, self._ledger):
                found = do(f"SELECT run, batch FROM {self._ledger} WHERE job = ? AND step = ?", self._of_step)
                batches = {run: int(batch) for run, batch in found}
            return Found(there, self._claimed(do, batches), batches.get(self._claim.run))

    def _claimed(self, do: Do, batches: dict[str, int]) -> Claim | None:
        """A table written by an older version has no claim: its owner is then derived from the runs in the ledger."""
        if self._exists(do, self._outputs):
            rows = do(f"SELECT run, folder, host FROM {self._outputs} WHERE job = ? AND step = ?", self._of_step)
            for run, folder, host in rows:
                return Claim(*self._of_step, run, folder, host) if run else None
        if not batches:
            return None
        return Claim(*self._of_step, self._claim.run if self._claim.run in batches else max(batches))

    def make(self) -> None:
        own = self._claim
        with self._session(create=True) as do:
            assert do is not None
            do(
                f"CREATE TABLE IF NOT EXISTS {self._outputs} ({COLUMNS}, written text NOT NULL, "
                "created integer NOT NULL, PRIMARY KEY (job, step))",
                (),
            )
            created = not self._exists(do, self._table)
            do(
                f"INSERT INTO {self._outputs} AS held VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, step) DO UPDATE "
                "SET run = excluded.run, folder = excluded.folder, host = excluded.host, written = excluded.written, "
                "created = CASE WHEN excluded.created = 1 THEN 1 WHEN held.written = excluded.written "
                "THEN held.created ELSE 0 END",
                (own.job, own.step, own.run, own.folder, own.host, self._name, int(created)),
            )

    def check_clear(self) -> None:
        with self._session(create=False) as do:
            if do is None or not self._exists(do, self._table) or not do(f"SELECT 1 FROM {self._table} LIMIT 1", ()):
                return
            created, others = False, []
            if self._exists(do, self._outputs):
                rows = do(f"SELECT job, step, run, created FROM {self._outputs} WHERE written = ?", (self._name,))
                created = any((job, step) == self._of_step and made for job, step, _, made in rows)
                others = [job for job, step, run, _ in rows if (job, step) != self._of_step and run]
        if others:
            raise shared(
                f"the table '{self._name}' is also written by {_listed(others)}, so it is not emptied",
                self.where,
                f"delete the rows of '{self._claim.job}' and its lines in {LEDGER} and {OUTPUTS} by hand, "
                "and run the job again",
            )
        if not created:
            raise shared(
                f"the table '{self._name}' was not created by the job '{self._claim.job}', so it is not emptied",
                self.where,
                f"empty or drop the table by hand, and start over again; if it must keep rows of others, delete the "
                f"lines of '{self._claim.job}' in {LEDGER} and {OUTPUTS} as well",
            )

    def clear(self) -> None:
        with self._session(create=False) as do:
            if do is None:
                return
            if self._exists(do, self._table):
                do(f"DELETE FROM {self._table}", ())
            if self._exists(do, self._ledger):
                do(f"DELETE FROM {self._ledger} WHERE job = ? AND step = ?", self._of_step)
            self._release(do)

    def release(self) -> None:
        with self._session(create=False) as do:
            if do is not None:
                self._release(do)

    def _release(self, do: Do) -> None:
        if self._exists(do, self._outputs):
            do(f"UPDATE {self._outputs} SET run = '' WHERE job = ? AND step = ?", self._of_step)


class SqliteKeeper(TableKeeper):
    def __init__(self, endpoint: Sqlite, claim: Claim) -> None:
        self._path = Path(endpoint.path).expanduser().absolute()
        super().__init__(claim, endpoint.table, f"table '{endpoint.table}' of {self._path}")

    @contextmanager
    def _session(self, *, create: bool) -> Iterator[Do | None]:
        if not create and not self._path.exists():
            yield None
            return
        try:
            if create:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE" if create else "BEGIN")
                yield lambda statement, values: db.execute(statement, values).fetchall()
                db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise _unreachable("SQLite", str(error), self.where) from error

    def _exists(self, do: Do, table: str) -> bool:
        return bool(do(f"PRAGMA table_info({table})", ()))

    def close(self) -> None:
        """There is nothing to close."""


class PostgresKeeper(TableKeeper):
    _has_schemas = True

    def __init__(self, endpoint: Postgres, claim: Claim) -> None:
        self._dsn = endpoint.dsn.reveal()
        super().__init__(claim, endpoint.table, f"table '{endpoint.table}' of {without_password(self._dsn)}")

    @contextmanager
    def _session(self, *, create: bool) -> Iterator[Do | None]:
        from millstream.connectors.databases.postgres import CREATION_LOCK

        with postgres_session(self._dsn, self._claim.step, self.where) as db:

            def do(statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
                done = db.execute(_in_postgres(statement), tuple(values))
                return done.fetchall() if done.description else []

            if create:
                do("SELECT pg_advisory_xact_lock(?)", (CREATION_LOCK,))
            yield do

    def _exists(self, do: Do, table: str) -> bool:
        return do("SELECT to_regclass(?)", (table,)) != [(None,)]

    def close(self) -> None:
        """There is nothing to close."""


@contextmanager
def postgres_session(dsn: str, step: str, where: str, *, autocommit: bool = False) -> Iterator[Any]:
    """A short connection; SinkUnavailable if there is none."""
    from millstream.connectors.databases.postgres import CONNECT_SECONDS, UNREADABLE, connection_driver

    psycopg = connection_driver(step)
    options = {} if "connect_timeout" in dsn else {"connect_timeout": CONNECT_SECONDS}
    try:
        with psycopg.connect(dsn, autocommit=autocommit, **options) as db:
            yield db
    except psycopg.Error as error:
        message = concealed(str(error).strip(), secrets_of(dsn))
        if UNREADABLE.search(message):
            message = "the address of the database cannot be read"
        raise _unreachable("Postgres", message, where) from None


def _in_postgres(statement: str) -> str:
    """With psycopg's placeholders, and the % in quoted names doubled."""
    parts = re.split(r'("(?:[^"]|"")*")', statement)
    return "".join(part.replace("%", "%%") if part[:1] == '"' else part.replace("?", "%s") for part in parts)


def _unreachable(what: str, why: str, where: str) -> SinkUnavailable:
    return SinkUnavailable(
        f"{what} cannot be reached: {why}", where=where, next_step="check that it is up and writable from here"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"the job '{name}'" for name in sorted(set(names)))
