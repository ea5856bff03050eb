"""Steps of a MariaDB capture: transactions, and the next chunk of a snapshot between two of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.capture import stream_steps
from millstream.capture.changes import DELETE, INSERT, SNAPSHOT, UPDATE, Change, TableShape
from millstream.capture.mariadb.binlog import Begin, Commit, Image, Rows
from millstream.capture.mariadb.keys import Key, KeyOrder
from millstream.capture.mariadb.tables import MariadbTable, TableId
from millstream.capture.mariadb.types import converter
from millstream.capture.ports import Piece, Position
from millstream.capture.stream_steps import PIECE_ROWS, StreamStep, batches, keep_order
from millstream.errors import SourceUnavailable

if TYPE_CHECKING:
    from millstream.capture.mariadb.database import MariadbDatabase

CHUNK_ROWS = 50_000
IN_TRANSACTION_SECONDS, MARK_SECONDS = 60.0, 0.1
Sent = tuple[TableId, Change | TableShape]


def cut_off(where: str) -> SourceUnavailable:
    return SourceUnavailable("the server does not send the rest of a transaction", where=where)


class ChangesStep(StreamStep[TableId]):
    def __init__(self, database: MariadbDatabase, position: Position) -> None:
        super().__init__(database.shapes, position)
        self._database = database

    def _batch(self, shape: TableShape, changes: list[Change]) -> pa.RecordBatch:
        return shape.batch(changes, converter(shape.name, self._database.where))

    def _sent(self, mark: int | None) -> Iterator[Sent]:
        database, position, count = self._database, self.position, 0
        begun: Begin | None = None
        number = 0
        while True:
            is_reached = mark is None or database.seen >= mark
            wait_s = IN_TRANSACTION_SECONDS if begun else 0.0 if is_reached else MARK_SECONDS
            message = database.message(wait_s, is_in_transaction=begun is not None)
            if message is None:
                if begun is not None:
                    raise cut_off(database.where)
                if is_reached:
                    return
            elif isinstance(message, Begin):
                if mark is not None and message.place >= mark:
                    database.put_back(message)
                    return
                begun, number = message, 0
                position["at_us"] = max(position["at_us"], message.at_us)
            elif isinstance(message, Commit):
                begun = None
                position |= {"gtids": message.gtids, "place": message.place, "last": message.last}
                if message.place >= mark if mark is not None else count >= stream_steps.STEP_CHANGES:
                    return
            elif isinstance(message, Rows) and (changed := database.followed(message.table)) is not None:
                yield (message.table.schema, message.table.table), changed
            if begun is None or message is None or isinstance(message, (Begin, Commit)):
                continue
            database.check_applies(begun, message)
            place = begun.place, position["at_us"]
            for table, op, before, after in database.changes(message):
                yield table, Change(op, before, after, begun.gtid, number, *place)
                number, count = number + 1, count + 1


def parts(shape: TableShape, before: Image | None, after: Image | None) -> list[tuple[str, Image | None, Image | None]]:
    """An update that changes the key is a deletion and an insertion."""
    if before is None:
        return [(INSERT, None, after)]
    if after is None:
        return [(DELETE, before, None)]
    places = [shape.columns.names.index(name) for name in shape.key]
    if any(before[place] != after[place] for place in places):
        return [(DELETE, before, None), (INSERT, None, after)]
    return [(UPDATE, before, after)]


class ChunkStep(ChangesStep):
    """The next chunk of a snapshot, after the changes before it.

    The chunk is read in a transaction that sees exactly what was committed before a place of the binary log. So the
    changes up to that place come first: those of rows that earlier chunks have. The outcome of the others is in this
    chunk, or in a later one.
    """

    def __init__(self, database: MariadbDatabase, position: Position, table: MariadbTable) -> None:
        super().__init__(database, position)
        self._table = table
        self._state: dict[str, Any] = self.position["snapshot"][table.name]
        last = self._state["last"]
        self._start: Key | None = [last] if isinstance(last, int) else last  # older versions stored a number

    def pieces(self) -> Iterator[Piece]:
        with self._database.snapshot(self._table) as (db, mark):
            order = KeyOrder.of(db, self._table)
            if order is not None:
                keep_order(self._table.name, self._database.where, self._state, order.kinds)
            yield from self._gathered(self._before(mark, order))
            yield from self._rows(db, mark, order)

    def _before(self, mark: int, order: KeyOrder | None) -> Iterator[Sent]:
        for batch in batches(self._sent(mark)):
            are_read = iter(self._are_read(batch, order))
            for table, change in batch:
                if isinstance(change, TableShape) or (
                    next(are_read) if table == self._table.id else self._is_complete(table)
                ):
                    yield table, change

    def _is_complete(self, table: TableId) -> bool:
        """Whether the snapshot of a table has all its rows."""
        state = self.position["snapshot"].get(self._shapes[table].name)
        return state is None or bool(state["done"])

    def _are_read(self, batch: list[Sent], order: KeyOrder | None) -> list[bool]:
        """Whether earlier chunks have the rows of the table's changes. A truncation has deleted these."""
        changes = [each for table, each in batch if table == self._table.id and isinstance(each, Change)]
        if self._start is None or order is None:
            return [False] * len(changes)
        names = self._shapes[self._table.id].columns.names
        images = [change.before if change.after is None else change.after for change in changes]
        known = [order.key(image, names) for image in images if image is not None]
        are_after = iter(order.reach(known, self._start) if known else ())
        return [image is None or not next(are_after) for image in images]

    # ------------------------------------------------------------ rows

    def _rows(self, db: Any, mark: int, order: KeyOrder | None) -> Iterator[Piece]:
        table, shape = self._database.current(db, self._table)
        self._follow(table.id, shape)
        position, state = self.position, self._state
        position["at_us"] = max(position["at_us"], time.time_ns() // 1000)
        transaction = f"{SNAPSHOT} {mark} {table.name}.{state['rows']}"
        count = 0
        with db.cursor(self._database.unbuffered) as cursor:
            cursor.execute(*self._select(table, order))
            while found := cursor.fetchmany(PIECE_ROWS):
                start = state["rows"]
                place = mark, position["at_us"]
                changes = [
                    Change(SNAPSHOT, None, row, transaction, start + number, *place) for number, row in enumerate(found)
                ]
                yield Piece(shape, self._batch(shape, changes))
                count += len(found)
                state["rows"] += len(found)
                if order is not None:
                    state["last"] = order.key(found[-1], shape.columns.names)
        state["done"] = order is None or count < CHUNK_ROWS

    def _select(self, table: MariadbTable, order: KeyOrder | None) -> tuple[str, list[object] | None]:
        select = f"SELECT {table.selected} FROM {table.full_name}"
        if order is None:
            return select, None
        if self._start is None:
            return f"{select} ORDER BY {order.names} LIMIT {CHUNK_ROWS}", None
        condition, given = order.after(self._start)
        select, names = (text.replace("%", "%%") for text in (select, order.names))
        return f"{select} WHERE {condition} ORDER BY {names} LIMIT {CHUNK_ROWS}", given
