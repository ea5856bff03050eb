"""The order of the keys of a table without row numbers, as SQLite has it: it compares them, since collations decide.

A key is a list of SQL literals, which are exact: also for texts that are not UTF-8, or have zero bytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from millstream.capture.sqlite.tables import SqliteTable
from millstream.connectors.databases.sqlite import quoted

LITERAL = "CASE typeof({0}) WHEN 'text' THEN '+CAST(X''' || hex({0}) || ''' AS TEXT)' ELSE quote({0}) END"
"""With a plus, which takes away the affinity of a text: it would make texts of numbers that it is compared with."""
Key = list[str]


class KeyOrder:
    def __init__(self, db: sqlite3.Connection, table: SqliteTable) -> None:
        self._db = db
        self._places = [table.recorded_names.index(name) for name in table.primary_key]
        self._names = [quoted(name) for name in table.primary_key]
        self._collations = [table.collations.get(name, "BINARY") for name in table.primary_key]
        self.literals = [LITERAL.format(name) for name in self._names]
        """Expressions for the key of a row."""

    @property
    def by(self) -> str:
        return ", ".join(self._names)

    def after(self, start: Key) -> str:
        """A condition for the rows after a key."""
        return f"({', '.join(self._names)}) > ({', '.join(start)})"

    def is_after(self, row: Sequence[Any], limit: Key) -> bool:
        values, given = [], []
        for place, collation in zip(self._places, self._collations, strict=True):
            is_text = isinstance(row[place], str)
            values.append(f"({'+CAST(? AS TEXT)' if is_text else '?'}) COLLATE {collation}")
            given.append(row[place].encode(errors="surrogateescape") if is_text else row[place])
        found = self._db.execute(f"SELECT ({', '.join(values)}) > ({', '.join(limit)})", given).fetchone()
        return bool(found[0])
