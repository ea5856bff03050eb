"""Database tables as sinks and as lookup tables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import ClassVar, Literal, Self

import pyarrow as pa

from millstream.connectors import arguments
from millstream.connectors.catalog import Remembered
from millstream.connectors.claims import Claim, Keeper
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.sink import Sink
from millstream.errors import InvalidPlan
from millstream.log import Broker
from millstream.plan.nodes import Write
from millstream.plan.steps.flat_columns import flat_columns
from millstream.postgres_address import is_ambiguous, scheme_of, without_password
from millstream.records import Schema
from millstream.secrets import Secret
from millstream.user_lines import users_line, what_exists

TableMode = Literal["append", "upsert"]
MODES = ("append", "upsert")


@dataclass(frozen=True)
class DatabaseTable(Connector):
    """`key` names the columns whose newest row an upsert keeps."""

    table: str
    mode: TableMode
    key: tuple[str, ...]
    can_write: ClassVar[bool] = True
    refuses_rows: ClassVar[bool] = True

    @property
    def target(self) -> Hashable:
        """The mode does not matter: it is the same table."""
        return replace(self, mode="append", key=())

    def check_written(self, schema: Schema) -> None:
        self.key_columns(schema)

    def keyed_by(self, key: tuple[str, ...]) -> Self:
        return replace(self, mode="upsert", key=key) if self.mode == "append" and key else self

    def key_columns(self, schema: Schema) -> tuple[str, ...]:
        """The key columns of the table; a struct such as `window` counts as its fields."""
        columns = flat_columns(schema)
        known = {column.name: (column.name,) for column in columns}
        for column in columns:
            for depth in range(1, len(column.path)):
                whole = "_".join(column.path[:depth])
                known[whole] = (*known.get(whole, ()), column.name)
        for name in self.key:
            if name not in known:
                raise InvalidPlan(
                    f"the key names '{name}', but the rows for {self} have no such column",
                    where=users_line(),
                    next_step=what_exists(name, known),
                )
        return tuple(dict.fromkeys(part for name in self.key for part in known[name]))

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, table=self.table + suffix.replace(".", "_").replace("-", "_"))

    @property
    def _how(self) -> str:
        return f"upsert by {', '.join(self.key)}" if self.mode == "upsert" else "append"


@dataclass(frozen=True)
class Sqlite(DatabaseTable):
    path: str

    @property
    def name(self) -> str:
        return f"sqlite {self.table}"

    @property
    def target(self) -> Hashable:
        """Names of tables are not case-sensitive in SQLite."""
        path = str(Path(self.path).expanduser().resolve())
        return replace(self, mode="append", key=(), path=path, table=self.table.lower())

    def open_sink(self, writing: Writing) -> Sink:
        from millstream.connectors.databases.sqlite import SqliteSink

        return SqliteSink(self, writing)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        from millstream.connectors.databases.claims import SqliteKeeper

        return SqliteKeeper(self, claim)

    def load(self, schema: Schema) -> pa.Table:
        from millstream.connectors.databases.all_rows import sqlite_rows

        return sqlite_rows(self, schema)

    def remembered(self, output: Write, log: Path | str) -> Remembered | None:
        if self.mode != "upsert":
            return None
        path = str(Path(self.path).expanduser().absolute())  # absolute, as the reader may run in another folder
        return Remembered(self.table, "sqlite", path, self.key_columns(output.schema), output.schema.ddl)

    def __str__(self) -> str:
        return f"sqlite({self.path}, {self.table}, {self._how})"


@dataclass(frozen=True)
class Postgres(DatabaseTable):
    dsn: Secret = field(repr=False)  # it may contain a password, and plans are pickled

    @property
    def name(self) -> str:
        return f"postgres {self.table}"

    def open_sink(self, writing: Writing) -> Sink:
        from millstream.connectors.databases.postgres import PostgresSink

        return PostgresSink(self, writing)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        from millstream.connectors.databases.claims import PostgresKeeper

        return PostgresKeeper(self, claim)

    def load(self, schema: Schema) -> pa.Table:
        from millstream.connectors.databases.all_rows import postgres_rows

        return postgres_rows(self, schema)

    def remembered(self, output: Write, log: Path | str) -> Remembered | None:
        if self.mode != "upsert":
            return None
        where = without_password(self.dsn.reveal())
        return Remembered(self.table, "postgres", where, self.key_columns(output.schema), output.schema.ddl)

    def __str__(self) -> str:
        return f"postgres({without_password(self.dsn.reveal())}, {self.table}, {self._how})"


def sqlite(
    path: str | PathLike[str], table: str, *, mode: TableMode | None = None, key: str | Sequence[str] | None = None
) -> Sqlite:
    """A table in a SQLite file: every row, or with `key` the newest row of each key."""
    made, columns = mode_of(mode, key)
    name = arguments.text(table, "a table name must be a string", "sqlite('scores.db', 'totals')")
    if name.lower().startswith(("sqlite_", "_millstream")):
        raise arguments.refused(f"the table name '{name}' is reserved", "choose another name")
    return Sqlite(name, made, columns, arguments.path(path, "sqlite('scores.db', 'totals')"))


def postgres(
    dsn: str, table: str, *, mode: TableMode | None = None, key: str | Sequence[str] | None = None
) -> Postgres:
    """A table ("table" or "schema.table") in Postgres: every row, or with `key` the newest row of each key."""
    made, columns = mode_of(mode, key)
    example = "postgres('postgresql://user@host/database', 'totals')"
    address = checked_address(dsn, example)
    name = arguments.text(table, "a table name must be a string", example)
    if name.count(".") > 1 or not all(name.split(".")):
        raise arguments.refused(f"{name!r} is not a table name", "write 'table' or 'schema.table'")
    if name.rpartition(".")[2].startswith("_millstream"):
        raise arguments.refused(f"the table name '{name}' is reserved", "choose another name")
    return Postgres(name, made, columns, Secret(address))


def checked_address(dsn: str, example: str) -> str:
    """The address of a Postgres database, as the user gave it."""
    address = arguments.text(dsn, "a database address must be a string", example)
    scheme = scheme_of(address)
    if scheme not in (None, "postgresql", "postgres"):
        raise arguments.refused(f"'{scheme}://' is not a Postgres address", f"for example {example}")
    if scheme is None and "=" not in address:
        raise arguments.refused("the address of the database cannot be read", f"for example {example}")
    if is_ambiguous(address):
        raise arguments.refused(
            "the address of the database has an extra '@', '/' or '?'",
            "in a password write %40 for '@', %2F for '/' and %3F for '?'",
        )
    return address


def mode_of(mode: object, key: str | Sequence[str] | None) -> tuple[TableMode, tuple[str, ...]]:
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if isinstance(key, Mapping) or not all(isinstance(name, str) and name.strip() for name in names):
        raise arguments.refused(f"key takes column names, not {key!r}", "for example key=['team', 'window']")
    if mode not in (None, *MODES):
        raise arguments.refused(f"there is no mode {mode!r}", what_exists(mode, MODES, kind="modes"))
    if mode == "upsert" and not names:
        raise arguments.refused(
            "mode='upsert' keeps the newest row of a key, but there is no key=", "for example key='team'"
        )
    if mode == "append" and names:
        raise arguments.refused(
            "mode='append' keeps every row and does not use a key", "leave out key=, or use mode='upsert'"
        )
    return ("upsert" if names else "append"), names
