"""What MariaDB knows about a table, and the shape that its changes have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.capture.changes import ColumnTypes, TableShape
from millstream.capture.mariadb import values
from millstream.capture.mariadb.connections import rows
from millstream.capture.mariadb.types import catalog_column, type_of
from millstream.capture.mariadb.values import BinlogColumn, UnknownColumn
from millstream.errors import InvalidInput, NotFound
from millstream.records import Schema
from millstream.user_lines import what_exists

_TABLE = """
SELECT table_type, engine, IF(@@lower_case_table_names = 0, table_schema, LOWER(table_schema)),
  IF(@@lower_case_table_names = 0, table_name, LOWER(table_name))
FROM information_schema.tables WHERE table_schema = %s AND table_name = %s
"""
_COLUMNS = """
SELECT column_name, data_type, column_type, numeric_precision, numeric_scale, character_set_name
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_KEY = """
SELECT column_name FROM information_schema.key_column_usage
WHERE table_schema = %s AND table_name = %s AND constraint_name = 'PRIMARY' ORDER BY ordinal_position
"""
_CASCADES = """
SELECT constraint_name FROM information_schema.referential_constraints
WHERE constraint_schema = %s AND table_name = %s
  AND (delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL'))
"""
_THERE = """
SELECT IF(table_schema = %s, table_name, CONCAT(table_schema, '.', table_name)) FROM information_schema.tables
WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')
ORDER BY 1
"""
_EVERY = """
SELECT table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND table_schema = %s ORDER BY 1
"""
TableId = tuple[str, str]
"""The database and the name of a table, as the binary log has them."""


@dataclass(frozen=True)
class MariadbTable:
    name: str
    """As the user has named it."""
    id: TableId
    key: tuple[str, ...]
    columns: tuple[BinlogColumn, ...]

    @property
    def full_name(self) -> str:
        return ".".join(map(quoted, self.id))

    @property
    def selected(self) -> str:
        """As numbers, floats are exact; as texts they are rounded."""
        return ", ".join(
            f"CAST({quoted(column.name)} AS DOUBLE)" if column.kind == values.FLOAT else quoted(column.name)
            for column in self.columns
        )


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def shape_of(
    table: MariadbTable,
    topic: str,
    columns: Sequence[BinlogColumn],
    chosen: ColumnTypes,
) -> TableShape:
    fields = [pa.field(column.name, chosen.get((table.name, column.name)) or type_of(column)) for column in columns]
    return TableShape.of(table.name, topic, Schema.of(pa.schema(fields)), table.key)


def table_names(db: Any, database: str) -> list[str]:
    """The tables of a database."""
    return [str(name) for (name,) in rows(db, _EVERY, database)]


def columns_of(db: Any, id: TableId) -> tuple[BinlogColumn, ...]:
    """The columns of a table, none if it is gone; raises `UnknownColumn`."""
    return tuple(catalog_column(*column) for column in rows(db, _COLUMNS, *id))


def find_table(db: Any, name: str, database: str, where: str) -> MariadbTable:
    """Raises if the table cannot be captured."""
    parts = name.split(".")
    if len(parts) > 2 or not all(parts):
        raise InvalidInput(f"{name!r} is not a table name", where=where, next_step="write 'table' or 'database.table'")
    found = rows(db, _TABLE, *(database, *parts)[-2:])
    if not found:
        there = [str(each) for (each,) in rows(db, _THERE, database)]
        raise NotFound(
            f"there is no table '{name}', or this user may not read it",
            where=where,
            next_step=what_exists(name, there, kind="tables"),
        )
    kind, engine, *names = found[0]
    id = str(names[0]), str(names[1])
    if kind != "BASE TABLE" or engine != "InnoDB":
        raise InvalidInput(
            f"'{name}' is not a table of InnoDB, and only those can be read at a known place of the binary log",
            where=where,
            next_step="capture the tables that it is made of; or ALTER TABLE … ENGINE = InnoDB",
        )
    if cascades := rows(db, _CASCADES, *id):
        raise InvalidInput(
            f"the foreign key '{cascades[0][0]}' changes rows of '{name}' when others change (CASCADE or SET NULL), "
            "and MariaDB does not log such changes",
            where=where,
            next_step="delete and update these rows in the application, and make the foreign key RESTRICT",
        )
    rows(db, f"SELECT 1 FROM {'.'.join(map(quoted, id))} LIMIT 0")  # it may be known, and not readable
    try:
        columns = columns_of(db, id)
    except UnknownColumn as error:
        raise InvalidInput(
            f"table '{name}': {error}", where=where, next_step="change the column, or capture a table without it"
        ) from error
    key = tuple(str(column) for (column,) in rows(db, _KEY, *id))
    return MariadbTable(name, id, key, columns)
