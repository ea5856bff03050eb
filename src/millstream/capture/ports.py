"""What a database must provide to be captured.

A position is a small JSON document. Only its database knows what it means, except that `tables` has the names of the
captured tables, and that `columns` has the columns of each, as they were recorded last: a database only reads them. It
is stored with the changes before it in one transaction of the log: so a capture that starts at a stored position
repeats nothing, and misses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from millstream.capture.changes import TableShape

Position = dict[str, Any]
COLUMNS = "columns"
"""Of a stored position: the columns of each table, up to there."""


class Place(NamedTuple):
    """In the change log of a database; both never decrease."""

    position: int
    at_us: int


class Piece(NamedTuple):
    """Consecutive changes of one table; without any, it has these columns now."""

    shape: TableShape
    records: pa.RecordBatch
    place: Place | None = None
    """Where it was altered, if there are no changes."""


class Step(Protocol):
    """Changes that belong together: whole transactions of the database, or a part of a snapshot."""

    def pieces(self) -> Iterator[Piece]:
        """Called once; reads from the database while the pieces are being stored."""

    @property
    def position(self) -> Position:
        """Where the next step starts; known after the last piece."""


class Progress(NamedTuple):
    """How much of the snapshot is done."""

    table: str
    rows: int
    total: int
    """As far as the database knows without reading them all."""


class Database(Protocol):
    @property
    def where(self) -> str:
        """For messages; without a password."""

    def every_table(self, position: Position | None) -> list[str]:
        """The tables of the application, and those that were captured up to a position, even if they are gone."""

    def add(self, tables: Mapping[str, str]) -> None:
        """More tables to capture, each with its topic; called before `check` or `begin`."""

    def check(self, position: Position | None, owner: str) -> list[TableShape]:
        """The captured tables. Raises if they cannot be captured from this position, and changes nothing.

        Raises also if the database has what a capture of this name with another owner has made.
        """

    def begin(self, position: Position | None, owner: str) -> Position:
        """Prepares the database; without a position, to start with a snapshot. Returns where the first step starts.

        What is made in the database is marked as of this owner.
        """

    def next(self, position: Position, wait_s: float) -> Step | None:
        """The next step, waiting for changes up to so long."""

    def confirm(self, position: Position) -> None:
        """Called when the log durably has everything before this position: the database may forget it."""

    def end(self) -> int:
        """A mark behind everything that was committed before."""

    def has_reached(self, mark: int, position: Position) -> bool:
        """Whether everything before a mark, and the whole snapshot, is before this position."""

    def progress(self, position: Position) -> Progress | None:
        """The table whose snapshot is being read; None after the snapshot."""

    def close(self) -> None: ...


class Removable(Database, Protocol):
    def remove(self) -> bool:
        """Removes what a capture of this name has created in the database; whether there was anything."""


class Opener(Protocol):
    """Opens a database for a capture of this name; it must not change anything yet."""

    def __call__(self, name: str) -> Removable: ...
