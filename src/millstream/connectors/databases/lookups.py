"""Lookups in database tables written by sinks: one SELECT per key, converted back to the rows' types."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.connectors.catalog import Remembered
from millstream.connectors.databases import postgres, sqlite
from millstream.connectors.lookups import Key, Row, TableUnavailable, TypedRow
from millstream.errors import InvalidInput, MillstreamError
from millstream.plan.steps.flat_columns import flat_columns
from millstream.postgres_address import is_ambiguous, secrets_of, without_password
from millstream.records import Schema, codec
from millstream.records.texts import text_leaf
from millstream.secrets import concealed

if TYPE_CHECKING:
    import psycopg

BUSY_SECONDS = 10.0
CONNECT_SECONDS = 10
MASK = "…"  # replaces a password in an address that may be shown


class DatabaseTable:
    """Shared by all databases. Structs are stored as flattened columns, and returned so."""

    held_bytes = 0

    def __init__(self, table: Remembered) -> None:
        self.name, self.kind = table.name, table.kind
        self._where = f"table '{table.name}' of {table.where}"
        columns = flat_columns(Schema.of(table.schema or ""))
        self._columns = pa.schema([(column.name, column.type) for column in columns])
        self._key = Key(table.name, pa.schema([self._columns.field(name) for name in table.key]))
        self.key = self._key.names

    def row(self, key: Any) -> Row | None:
        raise NotImplementedError

    def some_keys(self, count: int) -> list[str]:
        raise NotImplementedError

    def text(self, key: Any) -> str:
        return self._key.text(self._key.batch(key))

    def close(self) -> None:
        """There is nothing to close."""

    def _row(self, values: Sequence[Any], loaded: Callable[[Any, pa.DataType], Any]) -> Row:
        try:
            arrays = [
                _of_json(value, column.type)
                if pa.types.is_nested(column.type)
                else pa.array([None if value is None else loaded(value, column.type)], column.type)
                for value, column in zip(values, self._columns, strict=True)
            ]
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
            raise TableUnavailable(
                f"a row cannot be read as {Schema(self._columns)}: {error}",
                where=self._where,
                next_step="another program has changed the table; rebuild it by running the job with --start-over",
            ) from error
        return TypedRow(pa.RecordBatch.from_arrays(arrays, schema=self._columns))

    def _keys(self, rows: Sequence[Sequence[Any]]) -> list[str]:
        return [", ".join("null" if part is None else str(part) for part in row) for row in rows]


def _of_json(text: str | None, kind: pa.DataType) -> pa.Array:
    if text is None:
        return pa.nulls(1, kind)
    decoded = codec("json", Schema(pa.schema([("v", kind)]))).decode([b'{"v":%s}' % text.encode()])
    if decoded.failures:
        raise ValueError(decoded.failures[0].reason)
    return decoded.rows.column("v")


# ---------------------------------------------------------------- SQLite


class SqliteTable(DatabaseTable):
    """Opened for each lookup, so that a recreated file is noticed."""

    def __init__(self, table: Remembered, at: str | None = None) -> None:
        super().__init__(table)
        self._path = Path(table.where)

    def row(self, key: Any) -> Row | None:
        asked = self._key.batch(key)
        values = [sqlite.stored(column)[0].as_py() for column in asked.columns]
        names, wanted = sqlite.listed(self._columns.names), sqlite.same(self.key)
        found = self._rows(f"SELECT {names} FROM {sqlite.quoted(self.name)} WHERE {wanted} LIMIT 1", values)
        return self._row(found[0], _from_sqlite) if found else None

    def some_keys(self, count: int) -> list[str]:
        table = sqlite.quoted(self.name)
        return self._keys(self._rows(f"SELECT {sqlite.listed(self.key)} FROM {table} LIMIT {count}", []))

    def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            address = f"{self._path.as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as db:
                return db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise TableUnavailable(
                f"SQLite cannot be read: {error}",
                where=self._where,
                next_step="check that the file is still where the job wrote it; a job records the path when it starts",
            ) from error


def _from_sqlite(value: Any, kind: pa.DataType) -> Any:
    """The inverse of `sqlite.stored`."""
    if pa.types.is_boolean(kind):
        return bool(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_duration(kind):
        return timedelta(microseconds=value)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return text_leaf(kind).one(value)
    return value


# ---------------------------------------------------------------- Postgres


class PostgresTable(DatabaseTable):
    """One connection for all lookups, replaced if it is lost."""

    def __init__(self, table: Remembered, at: str | None = None) -> None:
        super().__init__(table)
        self._psycopg = _driver()
        self._dsn = at or table.where
        if is_ambiguous(self._dsn):
            raise _unreadable()
        self._has_address = at is not None
        self._where = f"table '{table.name}' of {without_password(self._dsn)}"
        folder, _, name = table.name.rpartition(".")
        self._table = f"{_quoted(folder)}.{_quoted(name)}" if folder else _quoted(name)
        self._db: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    def row(self, key: Any) -> Row | None:
        asked = self._key.batch(key)
        wanted, values = [], []
        for name, column in zip(self.key, asked.columns, strict=True):
            value = postgres.stored(column)[0].as_py()
            # A comparison that is also true for nulls would not use the index.
            if value is None:
                wanted.append(f"{_quoted(name)} IS NULL")
            else:
                wanted.append(f"{_quoted(name)} = CAST(%s AS {postgres.sql_type(column.type)})")
                values.append(value)
        names = ", ".join(
            f"{_quoted(column.name)}::text" if pa.types.is_nested(column.type) else _quoted(column.name)
            for column in self._columns
        )
        found = self._rows(f"SELECT {names} FROM {self._table} WHERE {' AND '.join(wanted)} LIMIT 1", values)
        return self._row(found[0], lambda value, _: value) if found else None

    def some_keys(self, count: int) -> list[str]:
        names = ", ".join(f"{_quoted(name)}::text" for name in self.key)
        return self._keys(self._rows(f"SELECT {names} FROM {self._table} LIMIT {count}", []))

    def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._db is not None:
                with suppress(self._psycopg.OperationalError, self._psycopg.InterfaceError):
                    return self._asked(self._db, statement, values)
            self._close()
            with self._translated_errors():
                self._db = self._connected()
                return self._asked(self._db, statement, values)

    def _asked(self, db: psycopg.Connection[Any], statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._translated_errors(passing=False):
            return db.execute(statement.encode(), values).fetchall()

    def _connected(self) -> psycopg.Connection[Any]:
        from psycopg import conninfo

        parameters = conninfo.conninfo_to_dict(self._dsn)
        parameters = {name: value for name, value in parameters.items() if value != MASK}
        parameters.setdefault("connect_timeout", CONNECT_SECONDS)
        connection: psycopg.Connection[Any] = self._psycopg.connect(**parameters, autocommit=True)
        return connection

    @contextmanager
    def _translated_errors(self, *, passing: bool = True) -> Iterator[None]:
        """Translates driver errors; without `passing`, the caller reopens a lost connection."""
        try:
            yield
        except (self._psycopg.OperationalError, self._psycopg.InterfaceError) as error:
            if not passing:
                raise
            raise self._error(error) from None  # libpq's message may quote a password
        except self._psycopg.Error as error:
            raise self._error(error) from None

    def _error(self, error: Any) -> MillstreamError:
        hidden = secrets_of(self._dsn)
        message = concealed(str(error).strip(), hidden)
        if postgres.UNREADABLE.search(message):
            return _unreadable()
        keeps = (
            "a job's password is not stored: set PGPASSWORD or write it to ~/.pgpass, or give the whole address with "
            "--at-env or --at-file (at= in Python)"
        )
        return TableUnavailable(
            f"Postgres cannot be read: {concealed((error.diag.message_primary or message).strip(), hidden)}",
            where=self._where,
            next_step="check that the server is up and the table exists"
            if self._has_address and "password" not in message
            else f"check that the server is up and the table exists; {keeps}",
        )

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(self._psycopg.Error):
                db.close()


def _unreadable() -> InvalidInput:
    return InvalidInput(
        "the address of the database cannot be read",
        next_step="write postgresql://user:password@host:port/database, in a password %40 for '@' and %2F for '/'",
    )


def _quoted(name: str) -> str:
    return postgres.quoted(name).replace("%", "%%")  # the driver's placeholder


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidInput(
            "reading from Postgres needs the package psycopg", next_step="pip install 'millstream[postgres]'"
        ) from error
    return psycopg
