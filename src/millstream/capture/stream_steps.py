"""Steps of a database that sends its change log: changes are gathered by table, and a table may change its columns."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from millstream.capture.changes import Change, TableShape
from millstream.capture.ports import Piece, Position
from millstream.errors import InvalidInput
from millstream.records import Schema

PIECE_ROWS = 10_000
STEP_CHANGES = 50_000
COMPARED_CHANGES = 5_000
KEYS = "keys"
"""Of a position: the key columns of each table. Older versions did not store them."""
Id = TypeVar("Id", bound=Hashable)
"""What the database calls a table."""
Converted = TypeVar("Converted")


class Heartbeat:
    """Nothing but a position, so that what is stored follows a quiet database."""

    def __init__(self, position: Position) -> None:
        self.position = position

    def pieces(self) -> Iterator[Piece]:
        return iter(())


class StreamStep(ABC, Generic[Id]):
    """Whole transactions: those that have arrived, up to a limit."""

    def __init__(self, shapes: dict[Id, TableShape], position: Position) -> None:
        """`shapes` are those of the database, which follow the tables."""
        self._shapes = shapes
        self.position: Position = copy.deepcopy(position)

    def pieces(self) -> Iterator[Piece]:
        yield from self._gathered(self._sent(None))

    @abstractmethod
    def _sent(self, mark: int | None) -> Iterator[tuple[Id, Change | TableShape]]:
        """The changes of transactions, and of the tables themselves.

        Without a mark those that are there, else those before it, waiting for them.
        """

    @abstractmethod
    def _batch(self, shape: TableShape, changes: list[Change]) -> pa.RecordBatch:
        """The records of changes."""

    def _gathered(self, sent: Iterable[tuple[Id, Change | TableShape]]) -> Iterator[Piece]:
        waiting: dict[Id, list[Change]] = {}
        for table, change in sent:
            if isinstance(change, TableShape):  # what follows has other columns
                if changes := waiting.pop(table, None):
                    yield self._piece(table, changes)
                self._follow(table, change)
                continue
            changes = waiting.setdefault(table, [])
            changes.append(change)
            if len(changes) >= PIECE_ROWS:
                yield self._piece(table, waiting.pop(table))
        for table, changes in waiting.items():
            yield self._piece(table, changes)

    def _follow(self, table: Id, shape: TableShape) -> None:
        self._shapes[table] = shape
        self.position["tables"][shape.name] = shape.stored.ddl

    def _piece(self, table: Id, changes: list[Change]) -> Piece:
        shape = self._shapes[table]
        return Piece(shape, self._batch(shape, changes))


def column_of(
    table: str,
    where: str,
    values: Iterable[Converted],
    field: pa.Field,
    convert: Callable[[list[Converted], pa.DataType], pa.Array],
) -> pa.Array:
    """The values of a column, converted to its type. One that does not fit is an error that names it."""
    listed = list(values)
    try:
        return convert(listed, field.type)
    except (pa.ArrowException, ValueError):
        pass
    for value in listed:
        try:
            convert([value], field.type)
        except (pa.ArrowException, ValueError) as error:
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            raise InvalidInput(
                f"column '{field.name}' of table '{table}' has {text!r:.80}, which is not {_ddl(field.type)}",
                where=where,
                next_step="correct the row, or capture the column as text, under another name and topic: "
                f"--type {table}.{field.name}=string",
            ) from error
    raise AssertionError("the values fit one by one, and not together")


def _ddl(kind: pa.DataType) -> str:
    return Schema.of(pa.schema([("c", kind)])).ddl.removeprefix("c ")


def being_read(position: Position) -> str | None:
    """The table whose snapshot is not complete yet; one that was begun comes first, since its changes count already."""
    states: dict[str, dict[str, Any]] = position["snapshot"]
    left = [name for name, state in states.items() if not state["done"]]
    return min(left, key=lambda name: states[name]["last"] is None, default=None)


def check_key(table: str, where: str, before: Sequence[str], now: Collection[str]) -> None:
    """The order of columns may differ. Rows that differ in a new key only would have the same records."""
    if set(before) != set(now):
        raise InvalidInput(
            f"the key of table '{table}' is {_listed(now)} now, and was {_listed(before)} before",
            where=where,
            next_step="capture the table under another name, into another topic: the new topic starts with a snapshot",
        )


def _listed(key: Collection[str]) -> str:
    return f"({', '.join(key)})" if key else "none"


def keep_order(table: str, where: str, state: dict[str, Any], kinds: list[str]) -> None:
    """Raises if keys are not sorted any more as they were for the chunks that were read."""
    if state["last"] is not None and state.get("order", kinds) != kinds:
        raise InvalidInput(
            f"the type of the key of table '{table}' has changed while its rows were being read",
            where=where,
            next_step="capture the table under another name, into another topic",
        )
    state["order"] = kinds


def batches(
    sent: Iterable[tuple[Id, Change | TableShape]],
) -> Iterator[list[tuple[Id, Change | TableShape]]]:
    """Changes whose keys are compared at once. What follows a new shape is not read before that is in use."""
    batch: list[tuple[Id, Change | TableShape]] = []
    for each in sent:
        batch.append(each)
        if len(batch) >= COMPARED_CHANGES or isinstance(each[1], TableShape):
            yield batch
            batch = []
    if batch:
        yield batch
