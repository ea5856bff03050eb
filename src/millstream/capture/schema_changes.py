"""Changes of a table's columns, as records: each is stored with the first change that has the new columns.

Of a table that is altered and not written, it is stored by itself, between the changes before and after it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import pyarrow as pa

from millstream.capture.changes import SNAPSHOT, TIME, TableShape
from millstream.capture.ports import COLUMNS, Piece, Position
from millstream.records import Schema

SCHEMAS = "_schemas."
"""The topic of a capture's records, before its name."""
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
        table, now = piece.shape.name, piece.shape.columns.ddl
        if piece.records.num_rows:
            first = piece.records.slice(0, 1).select(["op", "transaction", "position", "at"]).to_pylist()[0]
        elif piece.place is not None:
            first = {
                "op": None,
                "transaction": None,
                "position": piece.place.position,
                "at": pa.scalar(piece.place.at_us, TIME).as_py(),
            }
        else:
            return None
        before = self.known.setdefault(table, now)
        if first.pop("op") == SNAPSHOT or before == now:
            return None
        self.known[table] = now
        return {"table": table, "topic": piece.shape.topic, "before": before, "after": now, **first}


def with_columns(position: Position, shapes: Iterable[TableShape], known: Container[str]) -> Position:
    """A position with the columns of the tables that are captured from here on; `known` were before."""
    new = {shape.name: shape.columns.ddl for shape in shapes if shape.name not in known}
    return {**position, COLUMNS: {**new, **position.get(COLUMNS, {})}}
