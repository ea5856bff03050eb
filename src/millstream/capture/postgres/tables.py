"""What Postgres knows about a table, and the shape that its changes have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.capture.changes import ColumnTypes, TableShape
from millstream.capture.postgres.types import type_of
from millstream.connectors.databases.postgres import quoted
from millstream.errors import InvalidInput, NotFound
from millstream.records import Schema
from millstream.user_lines import what_exists

_TABLE = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident,
  has_table_privilege(c.oid, 'SELECT') AS readable, pg_has_role(c.relowner, 'USAGE') AS owned,
  c.relpersistence
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT attrelid, attname, atttypid, atttypmod FROM pg_attribute
WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attrelid, attnum
"""
_DIMENSIONS = """
SELECT attname, attndims FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attndims > 1 ORDER BY attnum
"""
_INDEX = """
SELECT array_agg(a.attname ORDER BY k.place) FROM pg_index i
CROSS JOIN unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indislive AND CASE WHEN %s THEN i.indisreplident ELSE i.indisprimary END
"""
_TYPE = """
SELECT t.typname, t.typtype, t.typbasetype, t.typtypmod,
  CASE WHEN t.typinput = 'pg_catalog.array_in'::regproc AND e.typdelim = ',' THEN t.typelem ELSE 0 END
FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = %s
"""
"""Arrays with another separator, such as those of boxes, are texts."""
_THERE = """
SELECT CASE WHEN pg_table_is_visible(oid) THEN relname ELSE relnamespace::regnamespace || '.' || relname END
FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace NOT IN
('pg_catalog'::regnamespace, 'information_schema'::regnamespace) ORDER BY 1
"""
_EVERY = _THERE.replace(
    "ORDER BY",
    "AND relpersistence = 'p' AND NOT relispartition AND NOT EXISTS (SELECT 1 FROM pg_depend d "
    "WHERE d.classid = 'pg_class'::regclass AND d.objid = pg_class.oid AND d.deptype = 'e') ORDER BY",
)
"""Those that have a change log of their own, and do not belong to an extension."""
Column = tuple[str, int, int]
"""Name, and the oid and modifier of the type."""


@dataclass(frozen=True)
class PostgresTable:
    oid: int
    name: str
    """As the user has named it."""
    full_name: str
    """Quoted, with its schema."""
    is_partitioned: bool
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def only(self) -> str:
        """The table without those that inherit from it; a partitioned one has no rows of its own."""
        return self.full_name if self.is_partitioned else f"ONLY {self.full_name}"

    @property
    def selected(self) -> str:
        return ", ".join(quoted(name) for name, _, _ in self.columns)


class Types:
    """Types of columns by the oids of Postgres, looked up once."""

    def __init__(self, db: Any, chosen: ColumnTypes) -> None:
        self._db = db
        self.chosen = chosen
        self._known: dict[int, tuple[str, int, str | None]] = {}

    def shape(self, table: PostgresTable, topic: str, columns: Sequence[Column]) -> TableShape:
        fields = [
            pa.field(name, self.chosen.get((table.name, name)) or self._type(oid, modifier))
            for name, oid, modifier in columns
        ]
        return TableShape.of(table.name, topic, Schema.of(pa.schema(fields)), table.key)

    def _type(self, oid: int, modifier: int) -> pa.DataType:
        name, own_modifier, element = self._looked_up(oid)
        return type_of(name, modifier if modifier >= 0 else own_modifier, element)

    def _looked_up(self, oid: int) -> tuple[str, int, str | None]:
        if oid not in self._known:
            name, kind, base, modifier, element = self._db.execute(_TYPE, (oid,)).fetchone()
            if kind == "d":  # a domain: its base type, with the modifier that the domain gives it
                inner, inner_modifier, of = self._looked_up(base)
                self._known[oid] = (inner, modifier if modifier >= 0 else inner_modifier, of)
            elif element:
                inner, inner_modifier, _ = self._looked_up(element)
                self._known[oid] = (name, inner_modifier, inner)
            else:
                self._known[oid] = (name, -1, None)
        return self._known[oid]


def columns_of(db: Any, oids: Collection[int]) -> dict[int, tuple[Column, ...]]:
    """The columns of tables, in their order; a table without any is missing."""
    found: dict[int, tuple[Column, ...]] = {}
    for oid, name, kind, modifier in db.execute(_COLUMNS, (list(oids),)).fetchall():
        found[oid] = (*found.get(oid, ()), (str(name), int(kind), int(modifier)))
    return found


def key_of(db: Any, oid: int, replica_identity: str) -> tuple[str, ...]:
    """The columns of the primary key, or of the index that is the replica identity; none if there is neither."""
    return tuple(db.execute(_INDEX, (oid, replica_identity == "i")).fetchone()[0] or ())


def find_table(db: Any, name: str, where: str) -> PostgresTable:
    parts = name.split(".")
    if len(parts) > 2 or not all(parts):
        raise InvalidInput(f"{name!r} is not a table name", where=where, next_step="write 'table' or 'schema.table'")
    found = db.execute(_TABLE, (".".join(map(quoted, parts)),)).fetchone()
    if found is None:
        there = [str(each) for (each,) in db.execute(_THERE).fetchall()]
        raise NotFound(f"there is no table '{name}'", where=where, next_step=what_exists(name, there, kind="tables"))
    oid, schema, relation, kind, identity, is_readable, is_owned, persistence = found
    full_name = f"{quoted(schema)}.{quoted(relation)}"
    if kind not in ("r", "p") or persistence != "p":
        raise InvalidInput(
            f"'{name}' is not a permanent table, and only those have a change log",
            where=where,
            next_step="capture the tables that it is made of",
        )
    if not is_readable:
        raise InvalidInput(
            f"this user may not read the table '{name}'", where=where, next_step=f"GRANT SELECT ON {full_name} TO …"
        )
    if not is_owned:
        raise InvalidInput(
            f"this user does not own the table '{name}', and only its owner can publish its changes",
            where=where,
            next_step="connect as the owner of the table",
        )
    key = key_of(db, oid, identity)
    columns = columns_of(db, [oid]).get(oid, ())
    made = PostgresTable(oid, name, full_name, kind == "p", identity, key, columns)
    if identity == "n" or (identity != "f" and not made.key):
        raise InvalidInput(
            f"the table '{name}' has no key: once published, Postgres would refuse to update and delete its rows",
            where=where,
            next_step=f"have it log whole rows, ALTER TABLE {full_name} REPLICA IDENTITY FULL; or add a primary key",
        )
    return made


def table_names(db: Any) -> list[str]:
    """The tables of the application."""
    return [str(name) for (name,) in db.execute(_EVERY).fetchall()]


def check_dimensions(db: Any, table: PostgresTable, shape: TableShape, where: str) -> None:
    """Raises for an array that is declared with several dimensions, unless it is captured as something else."""
    for name, dimensions in db.execute(_DIMENSIONS, (table.oid,)).fetchall():
        if name in shape.columns and pa.types.is_list(shape.columns.field(name).type):
            raise InvalidInput(
                f"column '{name}' of table '{table.name}' is an array of {dimensions} dimensions, and those of a topic "
                "have one",
                where=where,
                next_step=f"capture it as text: --type {table.name}.{name}=string",
            )
