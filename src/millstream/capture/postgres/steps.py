"""Steps of a Postgres capture: the snapshot, transactions, and a heartbeat on a quiet database."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv

from millstream.capture.changes import DELETE, INSERT, SNAPSHOT, TRUNCATE, UPDATE, Change, TableShape
from millstream.capture.ports import Piece, Position
from millstream.capture.postgres.pgoutput import UNSENT, Begin, Commit, Relation, Row, Texts, Truncate, Unsent
from millstream.capture.postgres.tables import PostgresTable
from millstream.capture.postgres.types import column, to_arrow

if TYPE_CHECKING:
    from millstream.capture.postgres.database import PostgresDatabase

PIECE_ROWS = 10_000
STEP_CHANGES = 50_000
CSV_BYTES = 4 << 20
IN_TRANSACTION_SECONDS = 60.0


def as_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


class Heartbeat:
    """Nothing but a position, so that the slot of a quiet database moves on."""

    def __init__(self, position: Position) -> None:
        self.position = position

    def pieces(self) -> Iterator[Piece]:
        return iter(())


class SnapshotStep:
    """All rows, as of the start of the slot."""

    def __init__(self, database: PostgresDatabase, position: Position) -> None:
        self._database = database
        self._exported = position["snapshot"]
        self.position: Position = {**position, "snapshot": None}
        self.progress: tuple[PostgresTable, int] | None = None

    def pieces(self) -> Iterator[Piece]:
        with self._database.snapshot(self._exported) as db:
            for table in self._database.tables.values():
                yield from self._rows(db, table)
        self.progress = None

    def _rows(self, db: Any, table: PostgresTable) -> Iterator[Piece]:
        shape = self._database.shapes[table.oid]
        select = f"COPY (SELECT {table.selected} FROM {table.only}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
        done = 0
        with db.cursor() as cursor, cursor.copy(select) as copy:
            for batch in _parsed(Copied(copy), len(table.columns)):
                self.progress = (table, done)
                yield Piece(shape, self._records(shape, batch, done))
                done += batch.num_rows

    def _records(self, shape: TableShape, raw: pa.RecordBatch, number: int) -> pa.RecordBatch:
        lsn, at_us = self.position["lsn"], self.position["at_us"]
        fields = zip(raw.columns, shape.columns.arrow, strict=True)
        columns = [self._column(shape, texts, field) for texts, field in fields]
        return shape.snapshot(columns, _keys(shape, raw), f"{SNAPSHOT} {lsn}", number, lsn, at_us)

    def _column(self, shape: TableShape, texts: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column(texts, field.type)
        except (pa.ArrowException, ValueError):  # again, to find the value
            return to_arrow(shape.name, self._database.where, texts.to_pylist(), field)


class Copied(io.RawIOBase):
    """What COPY sends, as a file."""

    def __init__(self, copy: Any) -> None:
        self._blocks = iter(copy)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, length = [self._rest], len(self._rest)
        while size < 0 or length < size:
            block = next(self._blocks, None)
            if block is None:
                break
            parts.append(bytes(block))
            length += len(block)
        whole = b"".join(parts)
        end = len(whole) if size < 0 else size
        self._rest = whole[end:]
        return whole[:end]


def _parsed(copied: Copied, width: int) -> Iterator[pa.RecordBatch]:
    """The texts of all columns. A null has no quotes, and an empty text has."""
    names = [f"c{number}" for number in range(width)]
    try:
        reader = csv.open_csv(
            pa.PythonFile(copied, mode="r"),
            csv.ReadOptions(column_names=names, block_size=CSV_BYTES, use_threads=False),
            csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(names, pa.binary()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return
        raise
    for batch in reader:
        for start in range(0, batch.num_rows, PIECE_ROWS):
            yield batch.slice(start, PIECE_ROWS)


def _keys(shape: TableShape, raw: pa.RecordBatch) -> pa.Array:
    places = [shape.columns.names.index(name) for name in shape.key]
    if len(places) == 1:
        return raw.column(places[0]).cast(pa.string())
    if not places:
        return pa.nulls(raw.num_rows, pa.string())
    texts = zip(*(raw.column(place).cast(pa.string()).to_pylist() for place in places), strict=True)
    return pa.array([json.dumps(each, ensure_ascii=False) for each in texts], pa.string())


class ChangesStep:
    """Whole transactions: those that have arrived, up to a limit."""

    def __init__(self, database: PostgresDatabase, position: Position) -> None:
        self._database = database
        self.position: Position = {**position}

    def pieces(self) -> Iterator[Piece]:
        waiting: dict[int, list[Change]] = {}
        for oid, change in self._changes():
            if isinstance(change, TableShape):  # what follows has other columns
                if changes := waiting.pop(oid, None):
                    yield self._piece(oid, changes)
                self._database.shapes[oid] = change
                self.position["tables"] = {**self.position["tables"], change.name: change.stored.ddl}
                continue
            changes = waiting.setdefault(oid, [])
            changes.append(change)
            if len(changes) >= PIECE_ROWS:
                yield self._piece(oid, waiting.pop(oid))
        for oid, changes in waiting.items():
            yield self._piece(oid, changes)

    def _piece(self, oid: int, changes: list[Change]) -> Piece:
        shape = self._database.shapes[oid]
        return Piece(shape, shape.batch(changes, partial(to_arrow, shape.name, self._database.where), as_text))

    def _changes(self) -> Iterator[tuple[int, Change | TableShape]]:
        position, count = self.position, 0
        begun: Begin | None = None
        number, skipped = 0, False
        while True:
            message = self._database.message(0.0 if begun is None else IN_TRANSACTION_SECONDS)
            if message is None:
                if begun is None:
                    return
                continue
            if isinstance(message, Begin):
                begun, number = message, 0
                skipped = message.commit_lsn < position["lsn"]  # the log has it
                if not skipped:
                    position["at_us"] = max(position["at_us"], message.at_us)
            elif isinstance(message, Commit):
                begun = None
                position["lsn"] = max(position["lsn"], message.end_lsn)
                if count >= STEP_CHANGES:
                    return
            elif isinstance(message, Relation):
                if (changed := self._database.followed(message)) is not None:
                    yield message.oid, changed
            elif begun is not None and not skipped and isinstance(message, Row | Truncate):
                place = begun.commit_lsn, position["at_us"]
                for oid, op, before, after, unsent in self._parts(message):
                    yield oid, Change(op, before, after, str(begun.xid), number, *place, unsent)
                    number, count = number + 1, count + 1

    def _parts(self, message: Row | Truncate) -> Iterator[tuple[int, str, Any, Any, list[str] | None]]:
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
        if old is not None and not message.is_key_only:
            new = [before if after is UNSENT else after for before, after in zip(old, new, strict=True)]
        unsent = [name for name, value in zip(shape.columns.names, new, strict=True) if value is UNSENT] or None
        places = [shape.columns.names.index(name) for name in shape.key]
        if old is not None and places and any(old[place] != new[place] for place in places):
            yield message.oid, DELETE, _image(old), None, None
            yield message.oid, INSERT, None, _image(new), unsent
        else:
            before = None if old is None or message.is_key_only else _image(old)
            yield message.oid, UPDATE, before, _image(new), unsent


def _image(texts: Texts | None) -> tuple[bytes | None, ...] | None:
    return None if texts is None else tuple(None if isinstance(text, Unsent) else text for text in texts)
