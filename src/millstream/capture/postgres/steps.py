"""Steps of a Postgres capture: the snapshot, transactions, and a heartbeat on a quiet database."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv

from millstream.capture import stream_steps
from millstream.capture.changes import DELETE, INSERT, MESSAGE, SNAPSHOT, TRUNCATE, UPDATE, Change, TableShape
from millstream.capture.ports import Piece, Position
from millstream.capture.postgres.connections import Snapshot, copied
from millstream.capture.postgres.history import MESSAGE_ID, STORED, id_of, note
from millstream.capture.postgres.keys import Key, KeyOrder
from millstream.capture.postgres.pgoutput import UNSENT, Begin, Commit, Emitted, Relation, Row, Texts, Truncate, Unsent
from millstream.capture.postgres.tables import PostgresTable
from millstream.capture.postgres.types import column, to_arrow
from millstream.capture.stream_steps import StreamStep, batches, keep_order
from millstream.errors import SourceUnavailable
from millstream.records import Schema

if TYPE_CHECKING:
    from millstream.capture.postgres.database import PostgresDatabase

CSV_BYTES = 4 << 20
CHUNK_ROWS = 250_000
IN_TRANSACTION_SECONDS = 60.0
MARK_SECONDS = 0.1
Sent = tuple[int, Change | TableShape]
"""The oid of a table, and a change of a row, or of the table itself."""


MESSAGES = 0
"""In place of the oid of a table: logical messages, which have a topic of their own."""
MARKS = b"millstream"
"""The prefix of messages that captures emit themselves."""


def messages_shape(topic: str) -> TableShape:
    columns = Schema.of("prefix string, content binary")
    return TableShape.of("pg_logical_emit_message", topic, columns, ("prefix",))


def as_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _parsed(sent: Iterable[memoryview], width: int) -> Iterator[pa.RecordBatch]:
    """The texts of all columns, from what COPY sends: a row at a time. A null has no quotes, and an empty text has."""
    names = [f"c{number}" for number in range(width)]
    quoting = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    texts = csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(names, pa.binary()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    for block in _blocks(sent):
        reading = csv.ReadOptions(column_names=names, block_size=len(block), use_threads=False)
        yield from csv.read_csv(pa.BufferReader(pa.py_buffer(block)), reading, quoting, texts).to_batches()


def _blocks(sent: Iterable[memoryview]) -> Iterator[bytearray]:
    """Whole rows. They are read here, since a thread of Arrow that calls Python for more takes longer."""
    block = bytearray()
    for row in sent:
        block += row
        if len(block) >= CSV_BYTES:
            yield block
            block = bytearray()
    if block:
        yield block


def _keys(shape: TableShape, raw: pa.RecordBatch) -> pa.Array:
    places = [shape.columns.names.index(name) for name in shape.key]
    if len(places) == 1:
        return raw.column(places[0]).cast(pa.string())
    if not places:
        return pa.nulls(raw.num_rows, pa.string())
    texts = zip(*(raw.column(place).cast(pa.string()).to_pylist() for place in places), strict=True)
    return pa.array([json.dumps(each, ensure_ascii=False) for each in texts], pa.string())


class ChangesStep(StreamStep[int]):
    """Tables are known by their oid."""

    def __init__(self, database: PostgresDatabase, position: Position) -> None:
        super().__init__(database.shapes, position)
        self._database = database

    def _batch(self, shape: TableShape, changes: list[Change]) -> pa.RecordBatch:
        return shape.batch(changes, partial(to_arrow, shape.name, self._database.where), as_text)

    def _sent(self, mark: int | None) -> Iterator[Sent]:
        position, count = self.position, 0
        begun: Begin | None = None
        number, skipped = 0, False
        while True:
            is_reached = mark is None or self._database.seen >= mark
            wait_s = IN_TRANSACTION_SECONDS if begun is not None else 0.0 if is_reached else MARK_SECONDS
            message = self._database.message(wait_s)
            if message is None:
                if begun is None and is_reached:
                    return
                self._database.ask()
            elif isinstance(message, Begin):
                begun, number = message, 0
                self._database.history.sent(message.commit_lsn, id_of(message))
                skipped = message.commit_lsn < position[STORED]  # the log has it
                if not skipped:
                    position["at_us"] = max(position["at_us"], message.at_us)
            elif isinstance(message, Commit):
                if begun is not None and not skipped:
                    note(position, begun.commit_lsn, id_of(begun), message.end_lsn)
                begun = None
                if self._database.seen >= mark if mark is not None else count >= stream_steps.STEP_CHANGES:
                    return
            elif isinstance(message, Relation):
                if (changed := self._database.followed(message)) is not None:
                    yield message.oid, changed
            elif begun is None and isinstance(message, Emitted):  # outside of a transaction
                self._database.history.sent(message.lsn, MESSAGE_ID)
                if message.lsn >= position[STORED]:
                    note(position, message.lsn, MESSAGE_ID, message.lsn + 1)
                    position["at_us"] = max(position["at_us"], time.time_ns() // 1000)
                    place = message.lsn, position["at_us"]
                    for oid, op, _, after, _ in self._parts(message):
                        yield oid, Change(op, None, after, f"{MESSAGE} {message.lsn}", 0, *place)
                        count += 1
            elif begun is not None and not skipped and isinstance(message, Row | Truncate | Emitted):
                place = begun.commit_lsn, position["at_us"]
                for oid, op, before, after, unsent in self._parts(message):
                    yield oid, Change(op, before, after, str(begun.xid), number, *place, unsent)
                    number, count = number + 1, count + 1

    def _parts(self, message: Row | Truncate | Emitted) -> Iterator[tuple[int, str, Any, Any, list[str] | None]]:
        if isinstance(message, Emitted):
            if MESSAGES in self._database.shapes and message.prefix != MARKS:
                yield MESSAGES, MESSAGE, None, (message.prefix, b"\\x" + message.content.hex().encode()), None
            return
        if isinstance(message, Truncate):
            for oid in message.oids:
                if oid in self._database.shapes:
                    yield oid, TRUNCATE, None, None, None
            return
        shape = self._database.shapes.get(message.oid)
        if shape is None:
            return
        old, new = message.old, message.new
        if message.op == DELETE or new is None:
            yield message.oid, DELETE, _image(old), None, None
            return
        if message.op == INSERT:
            yield message.oid, INSERT, None, _image(new), None
            return
        places = [shape.columns.names.index(name) for name in shape.key]
        if old is not None:  # a key may be a large value, too
            is_known = [not message.is_key_only or place in places for place in range(len(old))]
            pairs = zip(old, new, is_known, strict=True)
            new = [before if after is UNSENT and known else after for before, after, known in pairs]
        unsent = [name for name, value in zip(shape.columns.names, new, strict=True) if value is UNSENT] or None
        if old is not None and places and any(old[place] != new[place] for place in places):
            yield message.oid, DELETE, _image(old), None, None
            yield message.oid, INSERT, None, _image(new), unsent
        else:
            before = None if old is None or message.is_key_only else _image(old)
            yield message.oid, UPDATE, before, _image(new), unsent


def _image(texts: Texts | None) -> tuple[bytes | None, ...] | None:
    return None if texts is None else tuple(None if isinstance(text, Unsent) else text for text in texts)


def unread(since: int) -> dict[str, Any]:
    """The state of a snapshot: up to which key rows were read, and from which transaction on changes are sent."""
    return {"last": None, "done": False, "rows": 0, "since": since}


class ChunkStep(ChangesStep):
    """The next chunk of a snapshot, between the changes before and after it.

    The rows of the chunk are read in one snapshot of the database. Transactions that it sees are in the rows, and are
    skipped; those that it does not see follow the rows. Changes of rows that are in no chunk yet are skipped, too: a
    later chunk has their outcome, since its snapshot is not taken before it sees the skipped transactions. Nor is it
    taken before those have ended that had begun when the table was published: what they changed before is not sent.
    """

    def __init__(self, database: PostgresDatabase, position: Position, table: PostgresTable) -> None:
        super().__init__(database, position)
        self._table = table
        self._state: dict[str, Any] = self.position["snapshot"][table.name]
        last = self._state["last"]
        self._start: Key | None = [str(last)] if isinstance(last, int) else last  # older versions stored a number
        self._later: list[tuple[int, Change]] = []
        self._skipped: set[int] = set()
        self._chunk = ""
        """In place of a transaction."""

    def pieces(self) -> Iterator[Piece]:
        with self._database.snapshot(self.position["skipped"], self._state["since"]) as (db, seen):
            order = KeyOrder(db, self._table) if self._table.key else None
            last = None if order is None else self._end_of_chunk(order)
            mark = self._database.mark()  # everything that the snapshot sees was committed before
            yield from self._gathered(self._before(mark, seen, order, last))
            yield from self._rows(db, "true" if order is None else order.between(self._start, last))
        yield from self._gathered(self._later)
        self._state["last"] = last
        self._state["done"] = last is None
        self.position["skipped"] = sorted(self._skipped)

    def _end_of_chunk(self, order: KeyOrder) -> Key | None:
        """The last key of the chunk; None if it has all rows that are left."""
        keep_order(self._table.name, self._database.where, self._state, order.kinds)
        return order.at(self._start, CHUNK_ROWS)

    # ------------------------------------------------------------ changes

    def _before(self, mark: int, seen: Snapshot, order: KeyOrder | None, last: Key | None) -> Iterator[Sent]:
        """The changes before the chunk; those after it are noted. From the first of these on, all come after it."""
        for batch in batches(self._sent(mark)):
            places = iter(self._places(batch, order, last))
            for oid, change in batch:
                if isinstance(change, TableShape):
                    if oid == self._table.oid and self._later:
                        raise SourceUnavailable(f"table '{change.name}' was altered while its rows were being read")
                    yield oid, change
                elif oid == MESSAGES:
                    yield oid, change
                elif oid != self._table.oid:
                    state = self.position["snapshot"].get(self._database.shapes[oid].name)
                    if state is None or state["done"]:
                        yield oid, change
                    else:
                        self._skipped.add(int(change.transaction))
                else:
                    yield from self._placed(oid, change, next(places), seen)

    def _placed(self, oid: int, change: Change, place: str, seen: Snapshot) -> Iterator[Sent]:
        """A change of the table that is being read."""
        xid = int(change.transaction)
        is_later = bool(self._later) or not seen.has(xid)
        if place == "beyond":
            self._skipped.add(xid)
        elif place == "before" or not seen.has(xid):
            if is_later:
                self._later.append((oid, change))
            else:
                yield oid, change

    def _places(self, batch: list[Sent], order: KeyOrder | None, last: Key | None) -> list[str]:
        """Whether the rows of the table's changes are in an earlier chunk, in this one, or beyond it."""
        changes = [each for oid, each in batch if oid == self._table.oid and isinstance(each, Change)]
        keys = [self._key(change) for change in changes]
        known = [key for key in keys if key]
        if order is None or not known:
            after_start = after_end = [False] * len(known)
        else:
            after_start = [True] * len(known) if self._start is None else order.reach(known, self._start)
            after_end = [False] * len(known) if last is None else order.reach(known, last)
        found = iter(zip(after_start, after_end, strict=True))
        places = []
        for key in keys:
            if key is None:
                places.append("before")  # a truncation has deleted what earlier chunks have
            elif not key:
                places.append("here")
            else:
                is_after_start, is_after_end = next(found)
                places.append("beyond" if is_after_end else "here" if is_after_start else "before")
        return places

    def _key(self, change: Change) -> Key | None:
        """None of a truncation, and an empty one if the table has no key."""
        image = change.before if change.after is None else change.after
        if image is None:
            return None
        names = self._database.shapes[self._table.oid].columns.names
        return [(image[names.index(name)] or b"").decode() for name in self._table.key]

    # ------------------------------------------------------------ rows

    def _rows(self, db: Any, chosen: str) -> Iterator[Piece]:
        table, shape = self._database.current(db, self._table)
        self._follow(table.oid, replace(self._database.shapes[table.oid], stored=shape.stored))
        if self._later:
            _, first = self._later[0]
            place = first.position, first.at_us
        else:
            self.position["at_us"] = max(self.position["at_us"], time.time_ns() // 1000)
            place = self.position["lsn"], self.position["at_us"]
        self._chunk = f"{SNAPSHOT} {place[0]} {table.name}.{self._state['rows']}"
        rows = f"SELECT {table.selected} FROM {table.only} WHERE {chosen}"
        select = f"COPY ({rows}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
        for batch in _parsed(copied(db, select), len(table.columns)):
            yield Piece(shape, self._records(shape, batch, *place))
            self._state["rows"] += batch.num_rows

    def _records(self, shape: TableShape, raw: pa.RecordBatch, lsn: int, at_us: int) -> pa.RecordBatch:
        fields = zip(raw.columns, shape.columns.arrow, strict=True)
        columns = [self._column(shape, texts, field) for texts, field in fields]
        return shape.snapshot(columns, _keys(shape, raw), self._chunk, self._state["rows"], lsn, at_us)

    def _column(self, shape: TableShape, texts: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column(texts, field.type)
        except (pa.ArrowException, ValueError):  # again, to find the value
            return to_arrow(shape.name, self._database.where, texts.to_pylist(), field)
