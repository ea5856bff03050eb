"""Rows that are known beforehand: read once, all of them, or a refusal that names the first that does not fit."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from millstream.connectors.files.source import FilesSource
from millstream.errors import InvalidInput, InvalidSchema, NotFound, StorageError
from millstream.plan.endpoints import Files, Postgres, Sqlite
from millstream.postgres_address import secrets_of, without_password
from millstream.records import Schema, align, codec, rows_to_batch
from millstream.secrets import concealed
from millstream.user_lines import what_exists

CONNECT_SECONDS = 10
BUSY_SECONDS = 10.0
# What libpq says of such an address may quote a part of the password.
UNREADABLE = re.compile(
    r'missing "=" after|invalid (connection option|URI|port|integer|percent)|in URI|connection info string|Servname'
)
TAKES = "a list of dicts, a polars, pyarrow or pandas frame, or ms.files(…), ms.sqlite(…), ms.postgres(…)"


def load(place: Any, schema: Schema) -> pa.Table:
    """All rows of a place, as the schema says."""
    if isinstance(place, Files):
        return _files(place, schema)
    if isinstance(place, Sqlite):
        return _sqlite(place, schema)
    if isinstance(place, Postgres):
        return _postgres(place, schema)
    if isinstance(place, Sequence) and not isinstance(place, str | bytes):
        return _rows(place, schema, "the list")
    return _frame(place, schema)


# ---------------------------------------------------------------- what is in memory


def _rows(rows: Sequence[Any], schema: Schema, what: str, where: str | None = None) -> pa.Table:
    batch, failures = rows_to_batch(rows, schema)
    if failures:
        first = failures[0]
        raise InvalidInput(
            f"row {first.index} of {what} does not fit: {first.reason}",
            where=where,
            next_step=f"the schema is {schema}",
        )
    return pa.Table.from_batches([batch])


def _frame(frame: Any, schema: Schema) -> pa.Table:
    """A frame whose columns are of other types is read row by row: what fits is taken."""
    kind = f"{type(frame).__module__.partition('.')[0]} frame"
    table = _arrow(frame)
    if table is None:
        raise InvalidInput(f"rows cannot be read from {type(frame).__name__}", next_step=f"give {TAKES}")
    for name in schema.names:
        if name not in table.column_names:
            raise InvalidInput(
                f"the {kind} has no column '{name}'", next_step=what_exists(name, map(str, table.column_names))
            )
    table = table.select(schema.names).combine_chunks()
    try:
        batches = [align(batch, schema.arrow) for batch in table.to_batches()]
    except InvalidSchema:
        return _rows(table.to_pylist(), schema, f"the {kind}")
    return pa.Table.from_batches(batches, schema.arrow)


def _arrow(frame: Any) -> pa.Table | None:
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    library = type(frame).__module__.partition(".")[0]
    if library == "polars" and hasattr(frame, "to_arrow"):
        made: pa.Table = frame.to_arrow()
        return made if isinstance(made, pa.Table) else None
    if library == "pandas" and hasattr(frame, "columns"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return None


# ---------------------------------------------------------------- files


def _files(place: Files, schema: Schema) -> pa.Table:
    found = [schema.arrow.empty_table()]
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        source = FilesSource(place, schema, folder=Path(folder))
        for task in source.slices(source.earliest(), source.latest(), 1):
            for part in task:
                for slab in source.read(part):
                    if slab.dead is not None and slab.dead.num_rows:
                        raise _unfit(slab.dead.slice(0, 1).to_pylist()[0], place, schema)
                    found.append(slab.rows)
    return pa.concat_tables(found)


def _unfit(letter: dict[str, Any], place: Files, schema: Schema) -> InvalidInput:
    counted = "line" if place.format in ("csv", "json") else "row"
    return InvalidInput(
        f"{counted} {letter['offset']} of {letter['topic']} does not fit: {letter['reason']}",
        where=str(place),
        next_step=f"the schema is {schema}",
    )


# ---------------------------------------------------------------- tables of a database


def _sqlite(place: Sqlite, schema: Schema) -> pa.Table:
    path = Path(place.path).expanduser()
    if not path.is_file():
        raise NotFound("there is no such file", where=str(path), next_step="see that the path of the database is right")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({_quoted(place.table)})")]
            if not columns:
                there = db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
                raise _no_table(place.table, str(path), [name for (name,) in there])
            _check_columns(place.table, str(path), columns, schema)
            found = db.execute(f"SELECT {_listed(schema)} FROM {_quoted(place.table)}").fetchall()
    except sqlite3.Error as error:
        raise StorageError(
            f"SQLite cannot be read: {error}",
            where=str(path),
            next_step="see that it is a database, and that nobody holds it",
        ) from error
    return _converted(found, schema, _from_sqlite, f"table '{place.table}'", str(path))


def _postgres(place: Postgres, schema: Schema) -> pa.Table:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidInput(
            "to read from Postgres the package psycopg is needed",
            where=str(place),
            next_step="pip install 'millstream[postgres]'",
        ) from error
    dsn = place.dsn.reveal()
    where = without_password(dsn)
    folder, _, name = place.table.rpartition(".")
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
                raise _no_table(place.table, where, [str(name) for (name,) in there])
            _check_columns(place.table, where, columns, schema)
            found = db.execute(f"SELECT {_listed(schema)} FROM {table}".encode()).fetchall()
    except psycopg.Error as error:
        said = concealed((error.diag.message_primary or str(error)).strip(), secrets_of(dsn))
        if UNREADABLE.search(said):
            raise InvalidInput(
                "the address of the database cannot be read",
                next_step="write postgresql://user:password@host:port/database",
            ) from None
        raise StorageError(
            f"Postgres cannot be read: {said}",
            where=where,
            next_step=error.diag.message_hint or "see that the server is up and can be reached from here",
        ) from error
    return _converted(found, schema, _from_postgres, f"table '{place.table}'", where)


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
    """What cannot be converted stays as it is, and is refused with its row."""
    names, kinds = schema.names, [field.type for field in schema.arrow]

    def value(given: Any, kind: pa.DataType) -> Any:
        try:
            return None if given is None else from_database(given, kind)
        except (ValueError, TypeError, OverflowError, InvalidOperation):
            return given

    made = [{name: value(given, kind) for name, kind, given in zip(names, kinds, row, strict=True)} for row in rows]
    return _rows(made, schema, what, where)


def _from_sqlite(value: Any, kind: pa.DataType) -> Any:
    """SQLite has whole numbers, floats, texts and bytes: times are texts, in UTC if they do not say otherwise."""
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
