"""A Postgres table: the rows of a batch and the ledger entry are one transaction.

Rows are sent with COPY: straight into the table if they are only added, else into a temporary table, from which a few
statements change the whole table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.connector import Writing
from millstream.connectors.databases.changes import COPIES, Changes
from millstream.connectors.databases.endpoints import Postgres
from millstream.connectors.databases.tables import LEDGER, Layout, Units, warn_of_missing
from millstream.connectors.flat_rows import as_json, texts_of_decimals, texts_of_times
from millstream.connectors.refusals import Refuse, RowRefused, has_nul, refusals_of, stop, unfit
from millstream.connectors.sink import Sink
from millstream.errors import InvalidInput, InvalidSchema, MillstreamError, SinkFailed, SinkUnavailable
from millstream.postgres_address import secrets_of, without_password
from millstream.secrets import concealed

if TYPE_CHECKING:
    import psycopg

STAGE = "_millstream_stage"
WHAT = "_millstream_what"
ESCAPED = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}  # the backslash first, since the others contain it
CONNECT_SECONDS = 10
NAME_BYTES_MAX = 63
CREATION_LOCK = 5_701_224_901  # arbitrary, but the same in all versions of Millstream
FOR_GOOD = re.compile(
    r'authentication failed|database ".*" does not exist|role ".*" does not exist|no pg_hba\.conf entry|'
    r"no password supplied"
)
OF_A_ROW = ("22", "23", "44", "54", "21", "P0001")
"""SQLSTATE classes: data, constraints, views, limits such as that of an index entry, and user triggers."""
UNFIT = {"a NUL character, which texts of Postgres cannot hold": has_nul}
# libpq's message for such an address may quote part of the password.
UNREADABLE = re.compile(
    r'missing "=" after|invalid (connection option|URI|port|integer|percent)|in URI|connection info string|Servname'
)


NEXT_STEP = (
    "compare the table's columns, constraints and triggers with the rows (\\d in psql): change the table, or convert "
    "the rows with select(…); to start with a new table, write to another name"
)


class PostgresSink(Sink):
    def __init__(self, endpoint: Postgres, writing: Writing) -> None:
        self._psycopg = connection_driver(writing.step)
        self._dsn = endpoint.dsn.reveal()
        self._where = f"step '{writing.step}', table '{endpoint.table}' of {without_password(self._dsn)}"
        folder, _, name = endpoint.table.rpartition(".")
        prefix = f"{quoted(folder)}." if folder else ""
        self._name = name
        self._table = prefix + quoted(name)
        self._ledger = prefix + quoted(LEDGER)
        self._stage = self._stage_name(prefix, writing)
        self._job, self._step, self._run_name = writing.job, writing.step, writing.run
        self._layout = Layout(endpoint, writing.schema, stored)
        self._check_names()
        self._db: psycopg.Connection[Any] | None = None
        with suppress(SinkUnavailable):  # `write` reports it and retries
            self._run(None, None)

    def _stage_name(self, prefix: str, writing: Writing) -> str:
        """The table of rows that are compared with those of the table."""
        return STAGE

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        refused = unfit(rows, UNFIT)
        units = self._layout.units(rows, weights, refused)

        def put(db: psycopg.Connection[Any]) -> None:
            found = units.applied(lambda part: self._attempt(db, part, staged=part is not units))
            refuse(refusals_of(refused | found))

        self._run(batch, put)

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(self._psycopg.Error):
                db.close()

    # ------------------------------------------------------------ one transaction

    def _run(self, batch: int | None, put: Callable[[psycopg.Connection[Any]], None] | None) -> None:
        """Writes the rows of a batch; without one it only ensures that the table exists."""
        with self._session(batch) as db:
            if batch is not None and put is not None:
                with db.transaction():
                    if self._is_new(db, batch):
                        put(db)

    @contextmanager
    def _session(self, batch: int | None) -> Iterator[psycopg.Connection[Any]]:
        """The connection, which is closed if anything fails."""
        try:
            yield self._db or self._open()
        except self._psycopg.Error as error:
            connected = self._db is not None
            self.close()
            if not connected and UNREADABLE.search(str(error)):
                raise InvalidInput(
                    "the address of the database cannot be read",
                    where=f"step '{self._step}'",
                    next_step="write postgresql://user:password@host:port/database",
                ) from None
            raise self._error(error, batch) from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> psycopg.Connection[Any]:
        options = {} if "connect_timeout" in self._dsn else {"connect_timeout": CONNECT_SECONDS}
        db: psycopg.Connection[Any] = self._psycopg.connect(self._dsn, autocommit=True, **options)
        self._db = db
        self._connected(db)
        with db.transaction():
            self._prepare(db)
        self._make_stage(db)
        return db

    def _connected(self, db: psycopg.Connection[Any]) -> None:
        """Called with every new connection, before anything else is done."""

    def _make_stage(self, db: psycopg.Connection[Any]) -> None:
        self._do(db, f"CREATE TEMPORARY TABLE {self._stage} ON COMMIT DELETE ROWS AS {self._staged_columns()}")

    def _staged_columns(self) -> str:
        return f"SELECT {self._listed()}, ''::text AS {WHAT}, 0::bigint AS {COPIES} FROM {self._table} WITH NO DATA"

    def _is_new(self, db: psycopg.Connection[Any], batch: int) -> bool:
        """Also locks the ledger's row, so that another process of this job waits for this transaction."""
        done = self._do(
            db,
            f"INSERT INTO {self._ledger} AS held VALUES (%s, %s, %s, %s) ON CONFLICT (job, step, run) "
            "DO UPDATE SET batch = excluded.batch WHERE excluded.batch > held.batch",
            (self._job, self._step, self._run_name, batch),
        )
        return done.rowcount > 0

    def _do(self, db: psycopg.Connection[Any], statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        return db.execute(statement, values or None)

    # ------------------------------------------------------------ the table

    def _prepare(self, db: psycopg.Connection[Any]) -> None:
        self._do(db, "SELECT pg_advisory_xact_lock(%s)", (CREATION_LOCK,))  # concurrent creation is not safe
        self._do(
            db,
            f"CREATE TABLE IF NOT EXISTS {self._ledger} "
            "(job text NOT NULL, step text NOT NULL, run text NOT NULL, batch bigint NOT NULL, "
            "PRIMARY KEY (job, step, run))",
        )
        found = self._do(
            db,
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (self._table,),
        ).fetchall()
        if found:
            self._layout.check_table(dict(found), fits, self._where)
            self._check_case([name for name, _ in found])
        else:
            columns = ", ".join(f"{quoted(column.name)} {sql_type(column.type)}" for column in self._layout.columns)
            self._do(db, f"CREATE TABLE {self._table} ({columns})")
            if self._layout.key:
                keys = ", ".join(map(quoted, self._layout.key))
                self._do(db, f"CREATE UNIQUE INDEX ON {self._table} ({keys}) NULLS NOT DISTINCT")
        if found and self._layout.key:
            self._check_unique(db)

    def _check_names(self) -> None:
        """Postgres silently truncates longer names."""
        if long := [name for name in (self._name, *self._layout.names) if len(name.encode()) > NAME_BYTES_MAX]:
            raise InvalidSchema(
                f"names in Postgres have at most {NAME_BYTES_MAX} bytes: {', '.join(long)}",
                where=self._where,
                next_step="rename the columns before writing",
            )

    def _check_case(self, found: Sequence[str]) -> None:
        if wrong := [name for name in self._layout.names if name not in found]:
            raise InvalidSchema(
                f"the existing table '{self._name}' spells columns differently: {', '.join(wrong)}",
                where=self._where,
                next_step=f"Postgres column names are case-sensitive; its columns: {', '.join(found)}",
            )

    def _check_unique(self, db: psycopg.Connection[Any]) -> None:
        """An upsert needs a unique index over exactly its key, in any order."""
        indexes = self._do(
            db,
            "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indexrelid "
            "WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL GROUP BY indexrelid",
            (self._table,),
        ).fetchall()
        if not any(set(names) == set(self._layout.key) for (names,) in indexes):
            keys = ", ".join(map(quoted, self._layout.key))
            raise InvalidSchema(
                f"the existing table '{self._name}' has no unique index over the key",
                where=self._where,
                next_step=f"CREATE UNIQUE INDEX ON {self._table} ({keys}) NULLS NOT DISTINCT",
            )

    # ------------------------------------------------------------ changes

    def _attempt(self, db: psycopg.Connection[Any], units: Units, *, staged: bool) -> None:
        try:
            with db.transaction():  # nested in the batch's, so a savepoint
                if staged:
                    self._do(db, f"TRUNCATE {self._stage}")  # the rows of an earlier part
                self._apply(db, self._layout.changes(units))
                self._do(db, "SET CONSTRAINTS ALL IMMEDIATE")  # deferred constraints must not fail the commit
        except self._psycopg.Error as error:
            if not (error.sqlstate or "").startswith(OF_A_ROW):
                raise
            raise RowRefused(f"Postgres refuses it: {_message(error)}") from error

    def _apply(self, db: psycopg.Connection[Any], changes: Changes) -> None:
        upserts = bool(self._layout.key)
        if upserts or changes.deleted.height:
            staged = [("delete", changes.deleted), ("clear", changes.cleared)]
            staged += [("put", changes.put)] if upserts else []
            for what, rows in staged:
                self._copy_staged(db, what, rows)
        if changes.deleted.height:
            gone = self._do(db, self._delete_rows()).rowcount
            if not upserts:
                warn_of_missing(int(changes.deleted[COPIES].sum()) - gone, self._name)
        if changes.cleared.height:
            self._do(db, f"DELETE FROM {self._table} WHERE ctid = ANY(ARRAY({self._found('clear', self._layout.key)}))")
        if upserts and changes.put.height:
            self._do(db, self._upsert())
        elif changes.put.height:
            self._copy(db, f"{self._table} ({self._listed()})", changes.put)

    def _delete_rows(self) -> str:
        """Deletes as many equal rows as are retracted."""
        found = self._found("delete", self._layout.names, f", s.{COPIES}, s.ctid AS staged")
        return (
            f"DELETE FROM {self._table} WHERE ctid = ANY(ARRAY(SELECT place FROM (SELECT place, {COPIES}, "
            f"row_number() OVER (PARTITION BY staged) AS number FROM ({found}) AS found) AS numbered "
            f"WHERE number <= {COPIES}))"
        )

    def _found(self, what: str, compared: Sequence[str], extra: str = "") -> str:
        """The ctids of rows (t) that equal staged ones (s), compared by their text, in which nulls are equal.

        Rows without nulls in the lookup columns are also compared by `=`, so that an index can be used.
        """
        whole = " = ".join(f"ROW({', '.join(f'{side}.{quoted(name)}' for name in compared)})::text" for side in "ts")
        by_index = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self._layout.lookup)
        has_null = " OR ".join(f"s.{quoted(name)} IS NULL" for name in self._layout.lookup)
        joined = f"{self._table} t JOIN {self._stage} s ON s.{WHAT} = '{what}' AND {whole}"
        pairs = f"SELECT t.ctid AS place{extra} FROM {joined}"
        return f"{pairs} AND {by_index} UNION ALL {pairs} AND ({has_null})"

    def _upsert(self) -> str:
        keys = ", ".join(map(quoted, self._layout.key))
        others = [quoted(name) for name in self._layout.names if name not in self._layout.key]
        replaced = ", ".join(f"{name} = excluded.{name}" for name in others)
        return (
            f"INSERT INTO {self._table} ({self._listed()}) SELECT {self._listed()} FROM {self._stage} "
            f"WHERE {WHAT} = 'put' ON CONFLICT ({keys}) DO {f'UPDATE SET {replaced}' if others else 'NOTHING'}"
        )

    def _copy_staged(self, db: psycopg.Connection[Any], what: str, rows: pl.DataFrame) -> None:
        if rows.height:
            copies = pl.col(COPIES) if COPIES in rows.columns else pl.lit(1).alias(COPIES)
            columns = [*self._layout.names, pl.lit(what).alias(WHAT), copies]
            self._copy(db, f"{self._stage} ({self._listed()}, {WHAT}, {COPIES})", rows.select(columns))

    def _copy(self, db: psycopg.Connection[Any], into: str, rows: pl.DataFrame) -> None:
        statement = f"COPY {into} FROM STDIN"
        with db.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(as_copied(rows))

    def _listed(self) -> str:
        return ", ".join(map(quoted, self._layout.names))

    def _error(self, error: psycopg.Error, batch: int | None) -> MillstreamError:
        passing = isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError)
        message = concealed(_message(error), secrets_of(self._dsn))
        if passing and not FOR_GOOD.search(message):
            return SinkUnavailable(
                f"Postgres cannot be written: {message}",
                where=self._where,
                next_step="check that the server is up and reachable from here",
            )
        what = "Postgres refuses the table" if batch is None else f"Postgres refuses batch {batch}"
        return SinkFailed(f"{what}: {message}", where=self._where, next_step=error.diag.message_hint or NEXT_STEP)


def _message(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).strip()


def connection_driver(step: str) -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidInput(
            "writing to Postgres needs the package psycopg",
            where=f"step '{step}'",
            next_step="pip install 'millstream[postgres]'",
        ) from error
    return psycopg


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def as_copied(rows: pl.DataFrame) -> bytes:
    """The rows as lines of COPY's text format."""
    written = []
    for name, kind in rows.schema.items():
        column = pl.col(name)
        if kind == pl.String:
            for sign, escaped in ESCAPED.items():
                column = column.str.replace_all(sign, escaped, literal=True)
        written.append(column)
    lines = rows.select(written).write_csv(include_header=False, separator="\t", quote_style="never", null_value=r"\N")
    return lines.encode()


# ---------------------------------------------------------------- types


def sql_type(kind: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_nested(kind):
        return "jsonb"
    if is_.is_boolean(kind):
        return "boolean"
    if is_.is_int8(kind) or is_.is_int16(kind):
        return "smallint"
    if is_.is_int32(kind):
        return "integer"
    if is_.is_integer(kind):
        return "bigint"
    if is_.is_float32(kind):
        return "real"
    if is_.is_floating(kind):
        return "double precision"
    if is_.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if is_.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    if is_.is_date(kind):
        return "date"
    if is_.is_duration(kind):
        return "interval"
    return "bytea" if is_.is_binary(kind) else "text"


WIDER = {
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric"},
    "bigint": {"numeric"},
    "real": {"double precision"},
    "text": {"character varying"},
    "jsonb": {"json"},
}


def fits(kind: pa.DataType, found: str) -> bool:
    wanted = re.sub(r"\(.*\)", "", sql_type(kind))
    return found == wanted or found in WIDER.get(wanted, ())


def stored(array: pa.Array) -> pa.Array:
    """Numbers and booleans as they are, everything else as text that Postgres parses."""
    kind = array.type
    if pa.types.is_nested(kind):
        return as_json(array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array
    if pa.types.is_floating(kind):
        return pc.add(array, pa.scalar(0.0, kind))  # -0.0 equals 0.0, and rows are compared by their text
    if pa.types.is_timestamp(kind):
        return texts_of_times(array)
    if pa.types.is_duration(kind):
        return pc.binary_join_element_wise(array.view(pa.int64()).cast(pa.string()), "microseconds", " ")
    if pa.types.is_decimal(kind):
        return texts_of_decimals(array)
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else rf"\x{value.hex()}" for value in array.to_pylist()], pa.string())
    return array.cast(pa.string())
