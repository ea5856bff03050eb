"""All rows of a database table, read once: for a lookup table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from millstream.connectors.static_rows import fitted
from millstream.errors import InvalidInput, NotFound, StorageError
from millstream.postgres_address import secrets_of, without_password
from millstream.records import Schema, codec
from millstream.secrets import concealed
from millstream.user_lines import what_exists

if TYPE_CHECKING:
    from millstream.connectors.databases.endpoints import Postgres, Sqlite

CONNECT_SECONDS = 10
BUSY_SECONDS = 10.0
# libpq's message for such an address may quote part of the password.
UNREADABLE = re.compile(
    r'missing "=" after|invalid (connection option|URI|port|integer|percent)|in URI|connection info string|Servname'
)


def sqlite_rows(endpoint: Sqlite, schema: Schema) -> pa.Table:
    path = Path(endpoint.path).expanduser()
    if not path.is_file():
        raise NotFound("there is no such file", where=str(path), next_step="check the path of the database")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({_quoted(endpoint.table)})")]
            if not columns:
                there = db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
                raise _no_table(endpoint.table, str(path), [name for (name,) in there])
            _check_columns(endpoint.table, str(path), columns, schema)
            found = db.execute(f"SELECT {_listed(schema)} FROM {_quoted(endpoint.table)}").fetchall()
    except sqlite3.Error as error:
        raise StorageError(
            f"SQLite cannot be read: {error}",
            where=str(path),
            next_step="check that it is a database and is not locked",
        ) from error
    return _converted(found, schema, from_sqlite, f"table '{endpoint.table}'", str(path))


def postgres_rows(endpoint: Postgres, schema: Schema) -> pa.Table:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidInput(
            "reading from Postgres needs the package psycopg",
            where=str(endpoint),
            next_step="pip install 'millstream[postgres]'",
        ) from error
    dsn = endpoint.dsn.reveal()
    where = without_password(dsn)
    folder, _, name = endpoint.table.rpartition(".")
    table = f"{_quoted(folder)}.{_quoted(name)}" if folder else _quoted(name)
    options: dict[str, Any] = {} if "connect_timeout" in dsn else {"connect_timeout": CONNECT_SECONDS}
    try:
        with psycopg.connect(dsn, **options) as db:
            columns = _postgres_columns(db, table)
            if not columns:
                there = db.execute(
                    "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f') "
                    "AND pg_table_is_visible(oid) AND relnamespace <> 'pg_catalog'::regnamespace ORDER BY relname"
                ).fetchall()
                raise _no_table(endpoint.table, where, [str(name) for (name,) in there])
            _check_columns(endpoint.table, where, columns, schema)
            found = db.execute(f"SELECT {_listed(schema)} FROM {table}".encode()).fetchall()
    except psycopg.Error as error:
        message = concealed((error.diag.message_primary or str(error)).strip(), secrets_of(dsn))
        if UNREADABLE.search(message):
            raise InvalidInput(
                "the address of the database cannot be read",
                next_step="write postgresql://user:password@host:port/database",
            ) from None
        raise StorageError(
            f"Postgres cannot be read: {message}",
            where=where,
            next_step=error.diag.message_hint or "check that the server is up and reachable from here",
        ) from error
    return _converted(found, schema, _from_postgres, f"table '{endpoint.table}'", where)


def _postgres_columns(db: Any, table: str) -> list[str]:
    found = db.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
        "ORDER BY attnum",
        (table,),
    )
    return [name for (name,) in found.fetchall()]


def _no_table(table: str, where: str, there: Iterable[str]) -> NotFound:
    return NotFound(f"there is no table '{table}'", where=where, next_step=what_exists(table, there, kind="tables"))


def _check_columns(table: str, where: str, there: Sequence[str], schema: Schema) -> None:
    for name in schema.names:
        if name not in there:
            raise InvalidInput(
                f"the table '{table}' has no column '{name}'", where=where, next_step=what_exists(name, there)
            )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(schema: Schema) -> str:
    return ", ".join(map(_quoted, schema.names))


def _converted(
    rows: Sequence[tuple[Any, ...]],
    schema: Schema,
    from_database: Callable[[Any, pa.DataType], Any],
    what: str,
    where: str,
) -> pa.Table:
    """A value that cannot be converted is left as it is, and its row is rejected."""
    names, kinds = schema.names, [field.type for field in schema.arrow]

    def value(given: Any, kind: pa.DataType) -> Any:
        try:
            return None if given is None else from_database(given, kind)
        except (ValueError, TypeError, OverflowError, InvalidOperation):
            return given

    made = [{name: value(given, kind) for name, kind, given in zip(names, kinds, row, strict=True)} for row in rows]
    return fitted(made, schema, what, where)


def from_sqlite(value: Any, kind: pa.DataType) -> Any:
    """SQLite has integers, floats, texts and bytes: times are texts, in UTC unless they have an offset."""
    types = pa.types
    if types.is_boolean(kind):
        return {0: False, 1: True}.get(value, value)
    if types.is_timestamp(kind):
        moment = datetime.fromisoformat(value)
        return moment if not kind.tz or moment.tzinfo else moment.replace(tzinfo=UTC)
    if types.is_date(kind):
        return date.fromisoformat(value)
    if types.is_duration(kind):
        return timedelta(microseconds=value)
    if types.is_decimal(kind):
        return Decimal(str(value))
    if types.is_nested(kind):
        return _from_json(value, kind)
    return value


def _from_postgres(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, Decimal) and pa.types.is_floating(kind):
        return float(value)
    if isinstance(value, Decimal) and pa.types.is_integer(kind) and value == int(value):
        return int(value)
    return str(value) if isinstance(value, UUID) else value


def _from_json(text: str, kind: pa.DataType) -> Any:
    decoded = codec("json", Schema(pa.schema([("v", kind)]))).decode([b'{"v":' + text.encode() + b"}"])
    if decoded.failures:
        raise ValueError(decoded.failures[0].reason)
    return decoded.rows.column(0)[0].as_py()
