"""Several tables of a database in one topic: its images have the columns of all of them.

A column that two tables have is the same column, so it must have a type that fits both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millstream.capture.changes import TableShape
from millstream.capture.ports import Opener, Piece, Position, Removable, Step
from millstream.capture.source import envelopes
from millstream.errors import InvalidInput
from millstream.records import Schema, can_evolve

COLUMNS = "united"
"""In a position: the columns of the images."""


class UnitedTables:
    """A database whose tables go to one topic; everything else is that of the database."""

    def __init__(self, opened: Opener, topic: str, name: str) -> None:
        self._inner = opened(name)
        self._topic = topic
        self._fields: dict[str, pa.Field] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def check(self, position: Position | None, owner: str) -> list[TableShape]:
        shapes = self._inner.check(position, owner)
        if position is not None and COLUMNS in position:
            self._fields = {field.name: field for field in Schema.of(position[COLUMNS]).arrow}
        for shape in shapes:
            self._add(shape, shapes)
        first = shapes[0]
        return [replace(first, topic=self._topic, stored=self.columns)]

    def begin(self, position: Position | None, owner: str) -> Position:
        return {**self._inner.begin(position, owner), COLUMNS: self.columns.ddl}

    def next(self, position: Position, wait_s: float) -> UnitedStep | None:
        found = self._inner.next(position, wait_s)
        return None if found is None else UnitedStep(self, found)

    def united(self, piece: Piece) -> Piece:
        self._add(piece.shape, ())
        shape = replace(piece.shape, topic=self._topic, stored=self.columns)
        rows = envelopes(shape.envelope)(pa.Table.from_batches([piece.records]))
        return Piece(shape, rows.combine_chunks().to_batches()[0])

    @property
    def columns(self) -> Schema:
        return Schema.of(pa.schema(list(self._fields.values())))

    def _add(self, shape: TableShape, others: Sequence[TableShape]) -> None:
        for field in shape.stored.arrow:
            for other in others:
                if field.name in other.stored and other.stored.field(field.name).type != field.type:
                    raise InvalidInput(
                        f"the tables '{shape.name}' and '{other.name}' have the column '{field.name}' with different "
                        "types, so they cannot be in one source",
                        where=self._inner.where,
                        next_step="read each table by itself; or choose one type for both: "
                        f"types={{'{shape.name}.{field.name}': 'string', …}}",
                    )
            known = self._fields.get(field.name)
            if known is None or not can_evolve(pa.schema([known]), pa.schema([field])):
                self._fields[field.name] = field  # new, or wider than it was


class UnitedStep:
    def __init__(self, database: UnitedTables, step: Step) -> None:
        self._database = database
        self._step = step

    def pieces(self) -> Iterator[Piece]:
        for piece in self._step.pieces():
            if piece.records.num_rows:
                yield self._database.united(piece)

    @property
    def position(self) -> Position:
        return {**self._step.position, COLUMNS: self._database.columns.ddl}


def opener(opened: Opener, topic: str) -> Opener:
    def united(name: str) -> Removable:
        made: Any = UnitedTables(opened, topic, name)
        found: Removable = made
        return found

    return united
