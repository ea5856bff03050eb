"""Tables that were altered and not written since: found in the catalog, and tied to a place of the change log.

A change log has the columns of a table with its next change only. So the catalog is read, then the end of the change
log. If no change of the table has come when that end is reached, what is in the log before it has the old columns, and
what follows has the new ones.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

import pyarrow as pa

from millstream.capture.changes import TableShape
from millstream.capture.ports import COLUMNS, Piece, Place, Position

Id = TypeVar("Id", bound=Hashable)
"""What the database calls a table."""
Found = TypeVar("Found")
"""What the catalog has about the columns of a table."""


class Alterations(Generic[Id, Found]):
    """What the catalog has, until the change log was read up to there."""

    def __init__(self) -> None:
        self._found: dict[Id, Found] = {}
        self._end = 0

    @property
    def are_open(self) -> bool:
        return bool(self._found)

    def found(self, tables: Mapping[Id, Found], end: int) -> None:
        """`end` is that of the change log, after the catalog was read."""
        self._found, self._end = dict(tables), end

    def sent(self, table: Id) -> None:
        """The change log has the columns of a table itself."""
        self._found.pop(table, None)

    def taken(self, seen: int) -> dict[Id, Found]:
        """Those that are at this place, up to which the change log was read."""
        if seen < self._end:
            return {}
        found, self._found = self._found, {}
        return found


def is_recorded(shape: TableShape, position: Position) -> bool:
    """Whether the columns are those of the newest record; or nobody wants to know."""
    columns = shape.columns.ddl
    return bool(position.get(COLUMNS, {}).get(shape.name, columns) == columns)


class AlteredStep(Generic[Id]):
    """Nothing but the new columns of tables."""

    def __init__(
        self, shapes: dict[Id, TableShape], altered: Mapping[Id, TableShape], position: Position, place: Place
    ) -> None:
        """`shapes` are those of the database, which follow the tables."""
        self._shapes = shapes
        self._altered = altered
        self._place = place
        self.position = copy.deepcopy(position)

    def pieces(self) -> Iterator[Piece]:
        for table, shape in self._altered.items():
            self._shapes[table] = shape
            self.position["tables"][shape.name] = shape.stored.ddl
            yield altered_piece(shape, self._place)


def altered_piece(shape: TableShape, place: Place) -> Piece:
    return Piece(shape, pa.RecordBatch.from_pylist([], schema=shape.envelope.arrow), place)
