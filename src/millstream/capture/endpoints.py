"""The changes of database tables as sources of a flow: SQLite, Postgres and MariaDB."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from millstream.capture.changes import TableShape
from millstream.capture.ports import Opener
from millstream.capture.source import CaptureSource, envelopes, kept_table, rows_of_table
from millstream.capture.united_tables import opener as united
from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Reading
from millstream.connectors.databases.endpoints import checked_address
from millstream.connectors.source import Source
from millstream.errors import InvalidInput, MillstreamError
from millstream.plan.endpoints import KeptTable, TableSource
from millstream.postgres_address import without_password
from millstream.records import Schema
from millstream.secrets import Secret
from millstream.user_lines import users_line

TOPIC = "changes"
Types = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CapturedTable(Connector, TableSource):
    """The changes of tables, or with `as_rows` the rows of one."""

    tables: tuple[str, ...]
    types: Types
    as_rows: bool
    can_read: ClassVar[bool] = True
    can_peek: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"changes of {self.listed}"

    @property
    def listed(self) -> str:
        return ", ".join(self.tables)

    def opener(self) -> Opener:
        """Opens the database, with one topic for all tables."""
        if len(self.tables) == 1:
            return self.opening({self.tables[0]: TOPIC})
        return united(self.opening({table: table for table in self.tables}), TOPIC)

    def opening(self, topics: Mapping[str, str]) -> Opener:
        """Opens the database, with these topics of the tables."""
        raise NotImplementedError

    def shape(self) -> TableShape:
        """Looked up in the database, while a flow is being built."""
        try:
            name = secrets.token_hex(6)  # of no capture that there may be
            database = self.opener()(f"flow_{name}")
            try:
                return database.check(None, name)[0]
            finally:
                database.close()
        except MillstreamError as error:
            raise type(error)(error.what, where=f"{users_line()} ({error.where})", next_step=error.next_step) from error

    def own_schema(self, broker: str | None) -> Schema:
        return self.shape().envelope

    def as_table(self, broker: str | None) -> KeptTable:
        if len(self.tables) > 1:
            raise InvalidInput(
                f"a table is kept up to date from one table of the database, not from {len(self.tables)}",
                where=users_line(),
                next_step="call flow.table once for each; flow.read returns the changes of several",
            )
        shape = self.shape()
        if not shape.key:
            raise InvalidInput(
                f"the table '{shape.name}' has no key, so its rows cannot be kept up to date",
                where=users_line(),
                next_step="give it a primary key; or read its changes: flow.read(…)",
            )
        return kept_table(replace(self, as_rows=True), shape.columns, shape.key)

    def open_source(self, reading: Reading) -> Source:
        made = rows_of_table(reading.schema, str(self)) if self.as_rows else envelopes(reading.schema)
        return CaptureSource(self.opener(), TOPIC, reading.folder, made)


@dataclass(frozen=True)
class SqliteChanges(CapturedTable):
    path: str

    def opening(self, topics: Mapping[str, str]) -> Opener:
        from millstream.capture.sqlite.database import SqliteDatabase

        return partial(SqliteDatabase, Path(self.path), topics, types=column_types(dict(self.types)))

    def __str__(self) -> str:
        return f"sqlite_changes({self.path}, {self.listed})"


def sqlite_changes(
    path: str | PathLike[str], tables: str | Sequence[str], *, types: Mapping[str, str] | None = None
) -> SqliteChanges:
    """The rows of a table in a SQLite file, and every change of them. Triggers in the file record the changes.

    `flow.read` returns changes with their images before and after, `flow.table` the rows as a table that is kept up to
    date. Changes of several tables have the columns of all of them in their images. `types` has the types of columns
    whose values are not of the declared one: {"orders.at": "timestamp"}.
    """
    example = "sqlite_changes('app.db', tables=['orders'])"
    chosen_tables = table_names(tables, example)
    chosen = checked_types(types)
    return SqliteChanges(chosen_tables, chosen, False, str(Path(arguments.path(path, example)).expanduser().absolute()))


@dataclass(frozen=True)
class PostgresChanges(CapturedTable):
    dsn: Secret = field(repr=False)

    def opening(self, topics: Mapping[str, str]) -> Opener:
        from millstream.capture.postgres.database import PostgresDatabase

        types = column_types(dict(self.types))
        return partial(PostgresDatabase, self.dsn.reveal(), topics, types=types)

    def __str__(self) -> str:
        return f"postgres_changes({without_password(self.dsn.reveal())}, {self.listed})"


def postgres_changes(
    dsn: str, tables: str | Sequence[str], *, types: Mapping[str, str] | None = None
) -> PostgresChanges:
    """The rows of a table in Postgres, and every change of them, by logical replication.

    `flow.read` returns changes with their images before and after, `flow.table` the rows as a table that is kept up to
    date. Changes of several tables have the columns of all of them in their images. `types` has the types of columns
    that are not to be mapped as usual: {"orders.price": "string"}.
    """
    example = "postgres_changes('postgresql://user@host/database', tables=['orders'])"
    chosen_tables = table_names(tables, example)
    return PostgresChanges(chosen_tables, checked_types(types), False, Secret(checked_address(dsn, example)))


@dataclass(frozen=True)
class MariadbChanges(CapturedTable):
    dsn: Secret = field(repr=False)

    def opening(self, topics: Mapping[str, str]) -> Opener:
        from millstream.capture.mariadb.database import MariadbDatabase

        types = column_types(dict(self.types))
        return partial(MariadbDatabase, self.dsn.reveal(), topics, types=types)

    def __str__(self) -> str:
        from millstream.capture.mariadb.address import parsed

        return f"mariadb_changes({parsed(self.dsn.reveal())}, {self.listed})"


def mariadb_changes(dsn: str, tables: str | Sequence[str], *, types: Mapping[str, str] | None = None) -> MariadbChanges:
    """The rows of a table in MariaDB, and every change of them, by its binary log.

    `flow.read` returns changes with their images before and after, `flow.table` the rows as a table that is kept up to
    date. Changes of several tables have the columns of all of them in their images. `types` has the types of columns
    that are not to be mapped as usual: {"orders.price": "string"}.
    """
    from millstream.capture.mariadb.address import parsed

    example = "mariadb_changes('mariadb://user@host:3306/database', tables=['orders'])"
    chosen_tables = table_names(tables, example)
    try:
        parsed(arguments.text(dsn, "a database address must be a string", example))
    except InvalidInput as error:
        raise arguments.refused(error.what, error.next_step) from error
    return MariadbChanges(chosen_tables, checked_types(types), False, Secret(dsn))


def table_names(given: object, example: str) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name.strip() for name in names):
        raise arguments.refused(f"tables must be names, not {given!r}", f"for example {example}")
    if not names or len(set(names)) < len(names):
        raise arguments.refused(
            f"tables must be different names, at least one, not {given!r}", f"for example {example}"
        )
    return tuple(names)


def checked_types(types: Mapping[str, str] | None) -> Types:
    try:
        column_types(types or {})
    except InvalidInput as error:
        raise arguments.refused(error.what, error.next_step) from error
    return tuple(sorted((types or {}).items()))


def column_types(types: Mapping[str, str]) -> dict[tuple[str, str], pa.DataType]:
    """By table and column, from 'table.column' and a type such as 'timestamp'."""
    found = {}
    for place, kind in types.items():
        table, _, column = place.rpartition(".")
        if not table or not column:
            raise InvalidInput(f"{place!r} is not a column", next_step="write TABLE.COLUMN, for example orders.at")
        found[table, column] = Schema.of(f"c {kind}").field("c").type
    return found
