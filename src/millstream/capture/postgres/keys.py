"""The order of a table's keys, as the database has it: types, and the collations of texts, decide.

So keys are always compared by the server. A key is a list of texts, one for each of its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.capture.postgres.connections import driver
from millstream.capture.postgres.tables import PostgresTable
from millstream.connectors.databases.postgres import quoted

_TYPES = """
SELECT a.attname, format_type(a.atttypid, -1), quote_ident(n.nspname) || '.' || quote_ident(c.collname)
FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation
LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = %s AND a.attname = ANY(%s)
"""
WHOLE_NUMBERS = ("smallint", "integer", "bigint")
Key = list[str]


class KeyOrder:
    """Of one table, in one transaction."""

    def __init__(self, db: Any, table: PostgresTable) -> None:
        self._db = db
        self._table = table
        found = {name: (kind, collation) for name, kind, collation in db.execute(_TYPES, (table.oid, list(table.key)))}
        self._columns: list[tuple[str, str | None]] = [found[name] for name in table.key]
        self._key = _row(map(quoted, table.key))

    @property
    def kinds(self) -> list[str]:
        """What the order depends on: as long as these stay the same, it does, too."""
        names = ["number" if kind in WHOLE_NUMBERS else kind for kind, _ in self._columns]
        return [f"{name} {collation or ''}".strip() for name, (_, collation) in zip(names, self._columns, strict=True)]

    def between(self, start: Key | None, end: Key | None) -> str:
        """A condition for rows after the first key, up to and including the second."""
        limits = [(">", start), ("<=", end)]
        return " AND ".join(f"{self._key} {sign} {self._literal(key)}" for sign, key in limits if key) or "true"

    def at(self, start: Key | None, number: int) -> Key | None:
        """The key of a row, counted from the first after `start`; None if there are fewer rows."""
        names = ", ".join(map(quoted, self._table.key))
        rows = f"SELECT {names} FROM {self._table.only} WHERE {self.between(start, None)} ORDER BY {names}"
        texts = ", ".join(f"{quoted(name)}::text" for name in self._table.key)  # outside, or they would be the order
        found = self._db.execute(f"SELECT {texts} FROM ({rows} OFFSET {number - 1} LIMIT 1) AS row").fetchone()
        return None if found is None else list(found)

    def reach(self, keys: Sequence[Key], limit: Key) -> list[bool]:
        """Which keys come after a limit."""
        columns = range(len(self._columns))
        texts = ", ".join("%s::text[]" for _ in columns)
        names = ", ".join(f"t{column}" for column in columns)
        values = _row(
            f"t{column}::{kind}" + (f" COLLATE {collation}" if collation else "")
            for column, (kind, collation) in enumerate(self._columns)
        )
        bound = _row(f"%s::{kind}" for kind, _ in self._columns)
        statement = f"SELECT {values} > {bound} FROM unnest({texts}) WITH ORDINALITY AS k({names}, n) ORDER BY n"
        listed = [[key[column] for key in keys] for column in columns]
        return [bool(is_after) for (is_after,) in self._db.execute(statement, (*limit, *listed))]

    def _literal(self, key: Key) -> str:
        literal = driver().sql.Literal
        pairs = zip(key, self._columns, strict=True)
        return _row(f"{literal(text).as_string(self._db)}::{kind}" for text, (kind, _) in pairs)


def _row(parts: Any) -> str:
    return f"({', '.join(parts)})"
