"""A SQLite table: the rows of a batch and the ledger entry are one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.connector import Writing
from millstream.connectors.databases.changes import COPIES, Changes
from millstream.connectors.databases.endpoints import Sqlite
from millstream.connectors.databases.tables import LEDGER, Layout, Units, warn_of_missing
from millstream.connectors.flat_rows import as_json, texts_of_decimals, texts_of_times
from millstream.connectors.refusals import AS_TEXT, Refuse, RowRefused, refusals_of, stop, unfit
from millstream.connectors.sink import Sink
from millstream.errors import MillstreamError, SinkFailed, SinkUnavailable

BUSY_SECONDS = 10.0
PASSING = ("BUSY", "LOCKED", "IOERR", "FULL", "CANTOPEN", "READONLY", "PROTOCOL", "NOMEM", "PERM", "INTERRUPT")
OF_A_ROW = ("CONSTRAINT", "MISMATCH", "TOOBIG")
ATTEMPT = "_millstream_attempt"


class SqliteSink(Sink):
    def __init__(self, endpoint: Sqlite, writing: Writing) -> None:
        self._path = Path(endpoint.path).expanduser()
        self._table = endpoint.table
        self._job, self._step, self._run_name = writing.job, writing.step, writing.run
        self._layout = Layout(endpoint, writing.schema, stored)
        self._db: sqlite3.Connection | None = None
        self._indexed = False
        with suppress(SinkUnavailable):  # `write` reports it and retries
            self._run(None, None)

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        refused = unfit(rows, AS_TEXT)
        units = self._layout.units(rows, weights, refused)

        def put(db: sqlite3.Connection) -> None:
            found = units.applied(lambda part: self._attempt(db, part))
            refuse(refusals_of(refused | found))

        self._run(batch, put)

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    # ------------------------------------------------------------ one transaction

    def _run(self, batch: int | None, put: Callable[[sqlite3.Connection], None] | None) -> None:
        """Writes the rows of a batch; without one it only ensures that the table exists."""
        try:
            db = self._db or self._open()
            if batch is not None and put is not None:
                db.execute("BEGIN IMMEDIATE")
                if self._is_new(db, batch):
                    put(db)
                db.execute("COMMIT")
        except sqlite3.Error as error:
            self.close()
            raise self._error(error, batch) from error
        except BaseException:
            self.close()  # which rolls back
            raise

    def _open(self) -> sqlite3.Connection:
        with suppress(OSError):  # SQLite reports what is wrong with the folder
            self._path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._db = db
        db.execute("PRAGMA synchronous = FULL")
        self._indexed = False
        db.execute("BEGIN IMMEDIATE")
        self._prepare(db)
        db.execute("COMMIT")
        return db

    def _is_new(self, db: sqlite3.Connection, batch: int) -> bool:
        done = db.execute(
            f"INSERT INTO {LEDGER} VALUES (?, ?, ?, ?) "
            "ON CONFLICT (job, step, run) DO UPDATE SET batch = excluded.batch WHERE excluded.batch > batch",
            (self._job, self._step, self._run_name, batch),
        )
        return done.rowcount > 0

    # ------------------------------------------------------------ the table

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {LEDGER} (job TEXT NOT NULL, step TEXT NOT NULL, run TEXT NOT NULL, "
            "batch INTEGER NOT NULL, PRIMARY KEY (job, step, run)) WITHOUT ROWID"
        )
        found = {row[1]: row[2].upper() for row in db.execute(f"PRAGMA table_info({quoted(self._table)})")}
        if found:
            self._layout.check_table(found, fits, str(self._path))
        else:
            columns = ", ".join(f"{quoted(column.name)} {sql_type(column.type)}" for column in self._layout.columns)
            db.execute(f"CREATE TABLE {quoted(self._table)} ({columns})")
        if self._layout.key:
            self._index(db)

    def _index(self, db: sqlite3.Connection) -> None:
        """Indexes the lookup columns, so that rows are found without a table scan."""
        if not self._indexed:
            name, columns = quoted(f"{self._table}_millstream"), listed(self._layout.lookup)
            db.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {quoted(self._table)} ({columns})")
            self._indexed = True

    def _attempt(self, db: sqlite3.Connection, units: Units) -> None:
        db.execute(f"SAVEPOINT {ATTEMPT}")
        try:
            self._apply(db, self._layout.changes(units))
        except sqlite3.Error as error:
            if not error_name(error).startswith(OF_A_ROW) or not db.in_transaction:
                raise
            db.execute(f"ROLLBACK TO {ATTEMPT}")
            db.execute(f"RELEASE {ATTEMPT}")
            raise RowRefused(f"SQLite refuses it: {error}") from error
        db.execute(f"RELEASE {ATTEMPT}")

    def _apply(self, db: sqlite3.Connection, changes: Changes) -> None:
        table, names, key = quoted(self._table), self._layout.names, self._layout.key
        if changes.deleted.height:
            self._index(db)
            equal, limit = same(names), "" if key else " LIMIT ?"
            chosen = changes.deleted.select([*names] if key else [*names, COPIES])
            statement = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {equal}{limit})"
            gone = db.executemany(statement, chosen.rows()).rowcount
            if not key:
                warn_of_missing(int(changes.deleted[COPIES].sum()) - gone, self._table)
        if key:
            keys = pl.concat([changes.cleared.select(key), changes.put.select(key)])
            db.executemany(f"DELETE FROM {table} WHERE {same(key)}", keys.rows())
        marks = ", ".join("?" * len(names))
        db.executemany(f"INSERT INTO {table} ({listed(names)}) VALUES ({marks})", changes.put.rows())

    def _error(self, error: sqlite3.Error, batch: int | None) -> MillstreamError:
        name = error_name(error)
        where = f"step '{self._step}', table '{self._table}' of {self._path}"
        if name.startswith(PASSING):
            return SinkUnavailable(
                f"SQLite cannot be written: {error}",
                where=where,
                next_step="check that the file is not locked, and that its folder is writable and has free space",
            )
        what = "SQLite refuses the table" if batch is None else f"SQLite refuses batch {batch}"
        next_step = (
            f"compare the rows with the table and its triggers (sqlite3 {self._path.name} .schema): change the table, "
            f"convert the rows with select(…), or write to another table"
        )
        return SinkFailed(f"{what}: {error}", where=where, next_step=next_step)


def error_name(error: sqlite3.Error) -> str:
    """SQLite's own name of an error, such as BUSY."""
    return (getattr(error, "sqlite_errorname", "") or "").removeprefix("SQLITE_")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def same(names: Sequence[str]) -> str:
    """A condition that is also true if both are null."""
    return " AND ".join(f"{quoted(name)} IS ?" for name in names)


# ---------------------------------------------------------------- types


def sql_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_duration(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) else "TEXT"


def fits(kind: pa.DataType, found: str) -> bool:
    """Whether a declared type preserves the values: SQLite converts text that looks like a number."""
    wanted = sql_type(kind)
    if wanted == "INTEGER":
        return "INT" in found or "BOOL" in found or not found
    if wanted == "REAL":
        return any(part in found for part in ("REAL", "FLOA", "DOUB")) or not found
    if wanted == "BLOB":
        return "BLOB" in found or not found
    return any(part in found for part in ("CHAR", "CLOB", "TEXT")) or not found


def stored(array: pa.Array) -> pa.Array:
    """As SQLite stores it: integers, floats, texts and bytes. Times are texts that sort like times, durations are
    microseconds, and decimals are texts, since SQLite's numbers would round them."""
    kind = array.type
    if pa.types.is_nested(kind):
        return as_json(array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array.cast(pa.int64())
    if pa.types.is_floating(kind):  # SQLite has no NaN: it stores null
        numbers = array.cast(pa.float64())
        return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)
    if pa.types.is_timestamp(kind):
        return texts_of_times(array)
    if pa.types.is_duration(kind):
        return array.view(pa.int64())
    if pa.types.is_decimal(kind):
        return texts_of_decimals(array)
    return array if pa.types.is_binary(kind) else array.cast(pa.string())
