"""Changes of a table's columns, as records: each is stored with the first change that has the new columns.

A database sends the columns of a table with its next change. So a table that is altered and not written has no record.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from millstream.capture.changes import SNAPSHOT, TIME
from millstream.capture.ports import Piece
from millstream.records import Schema

SCHEMAS = "_schemas."
"""The topic of a capture's records, before its name."""
COLUMNS = "columns"
"""Of a stored position: the columns of each table, of which a change was stored."""
SCHEMA = Schema.of(
    pa.schema(
        [
            ("table", pa.string()),
            ("topic", pa.string()),
            ("before", pa.string()),
            ("after", pa.string()),
            ("transaction", pa.string()),
            ("position", pa.int64()),
            ("at", TIME),
        ]
    )
)


class Columns:
    """The columns of tables, up to a change."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = dict(known)

    def follow(self, piece: Piece) -> dict[str, object] | None:
        """The record of a table whose columns have changed. Rows of a snapshot may be ahead of the changes."""
        if not piece.records.num_rows:
            return None
        table, now = piece.shape.name, piece.shape.columns.ddl
        first = piece.records.slice(0, 1).select(["op", "transaction", "position", "at"]).to_pylist()[0]
        before = self.known.setdefault(table, now)
        if first.pop("op") == SNAPSHOT or before == now:
            return None
        self.known[table] = now
        return {"table": table, "topic": piece.shape.topic, "before": before, "after": now, **first}
