"""What SQLite knows about a table, and the types its columns have in a topic."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.capture.changes import TableShape
from millstream.connectors.databases.all_rows import from_sqlite
from millstream.connectors.databases.sqlite import quoted
from millstream.errors import InvalidInput, NotFound
from millstream.records import Schema
from millstream.user_lines import what_exists

RESERVED = ("sqlite_", "_millstream")
ROWID_NAMES = ("rowid", "_rowid_", "oid")


UniqueColumns = tuple[tuple[str, str], ...]
"""A unique index: its columns, each with the collation that compares them."""


@dataclass(frozen=True)
class SqliteTable:
    """A table as it is in the database."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Names and declared types."""
    primary_key: tuple[str, ...]
    rowid: str | None
    """The name by which the table's row number can be read; None if it is WITHOUT ROWID."""
    unique: tuple[UniqueColumns, ...]

    @property
    def read_names(self) -> tuple[str, ...]:
        """The columns of an image: those of the table, and the row number if there is no other key."""
        names = tuple(name for name, _ in self.columns)
        return names if self.primary_key or self.rowid is None else (*names, self.rowid)

    @property
    def recorded_names(self) -> tuple[str, ...]:
        """What triggers record: an image, and the row number."""
        names = tuple(name for name, _ in self.columns)
        return names if self.rowid is None else (*names, self.rowid)

    @property
    def collations(self) -> dict[str, str]:
        """Of the columns of the primary key."""
        return dict(next((index for index in self.unique if tuple(name for name, _ in index) == self.primary_key), ()))

    @property
    def has_fixed_rowid(self) -> bool:
        """Whether VACUUM keeps the row numbers, because a column has them."""
        declared = dict(self.columns)
        return len(self.primary_key) == 1 and declared[self.primary_key[0]].upper() == "INTEGER"

    def shape(self, topic: str, types: Mapping[str, pa.DataType]) -> TableShape:
        fields = [pa.field(name, types.get(name) or type_of(declared)) for name, declared in self.columns]
        if len(self.read_names) > len(fields):
            fields.append(pa.field(self.read_names[-1], pa.int64()))
        key = self.primary_key or ((self.rowid,) if self.rowid else ())
        return TableShape.of(self.name, topic, Schema.of(pa.schema(fields)), key)


def find_table(db: sqlite3.Connection, name: str, where: str) -> SqliteTable:
    if name.lower().startswith(RESERVED):
        raise InvalidInput(f"the table '{name}' is reserved", where=where, next_step="name a table of the application")
    found = db.execute("SELECT name, type, sql FROM sqlite_master WHERE name = ? COLLATE NOCASE", (name,)).fetchall()
    kinds = [(own, sql) for own, kind, sql in found if kind == "table"]
    if not kinds:
        names = table_names(db)
        what = f"'{name}' is a view, and only tables can be captured" if found else f"there is no table '{name}'"
        raise NotFound(what, where=where, next_step=what_exists(name, names, kind="tables"))
    own, sql = kinds[0]
    if _is_virtual(sql):
        raise InvalidInput(f"'{own}' is a virtual table, which has no triggers", where=where)
    info = db.execute(f"PRAGMA table_xinfo({quoted(own)})").fetchall()
    columns = tuple((row[1], row[2] or "") for row in info if row[6] != 1)
    key = tuple(row[1] for row in sorted((row for row in info if row[5]), key=lambda row: row[5]))
    return SqliteTable(own, columns, key, _rowid_of(db, own, {name.lower() for name, _ in columns}), _unique(db, own))


def table_names(db: sqlite3.Connection) -> list[str]:
    """All that can have triggers: no virtual tables, nor those in which these store their content."""
    found = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    shadows = {row[1] for row in db.execute("PRAGMA table_list").fetchall() if row[2] == "shadow"}
    names = [name for name, sql in found if not _is_virtual(sql) and name not in shadows]
    return [name for name in names if not name.lower().startswith(RESERVED)]


def _is_virtual(sql: str) -> bool:
    return sql.lstrip().upper().startswith("CREATE VIRTUAL")


def _rowid_of(db: sqlite3.Connection, table: str, taken: set[str]) -> str | None:
    for name in ROWID_NAMES:
        if name not in taken:
            try:
                db.execute(f"SELECT {name} FROM {quoted(table)} LIMIT 0")
            except sqlite3.OperationalError:  # WITHOUT ROWID
                return None
            return name
    return None


def _unique(db: sqlite3.Connection, table: str) -> tuple[UniqueColumns, ...]:
    """Indexes by which REPLACE may remove other rows. Those on expressions are left out: they have no column."""
    found = []
    for index in db.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        if index[2]:
            parts = db.execute(f"PRAGMA index_xinfo({quoted(index[1])})").fetchall()
            keys = [(name, collation) for _, _, name, _, collation, is_key in parts if is_key]
            named = tuple((name, collation) for name, collation in keys if name is not None)
            if named:
                found.append(named)
    return tuple(found)


# ---------------------------------------------------------------- types


def type_of(declared: str) -> pa.DataType:
    """By SQLite's own rules for the affinity of a declared type; text where the values may be of any kind."""
    name = declared.upper()
    if "BOOL" in name:
        return pa.bool_()
    if "INT" in name:
        return pa.int64()
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return pa.string()
    if "BLOB" in name:
        return pa.binary()
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    return pa.string()


def to_arrow(table: str, where: str, values: Sequence[Any], field: pa.Field) -> pa.Array:
    """The values of a column; raises at the first that is not of its type: a column of SQLite may hold anything."""
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    return pa.array([_fitted(table, where, value, field) for value in values], field.type)


def _fitted(table: str, where: str, value: Any, field: pa.Field) -> Any:
    try:
        if pa.types.is_string(field.type) and isinstance(value, int | float):
            return str(value)
        made = None if value is None else from_sqlite(value, field.type)
        pa.array([made], field.type)
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"column '{field.name}' of table '{table}' has {value!r:.80}, which is not {field.type}",
            where=where,
            next_step=f"correct the row, or capture the column with a type that fits all its values, under another "
            f"name and topic: --type {table}.{field.name}=string (or binary)",
        ) from error
    return made
