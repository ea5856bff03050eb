"""A SQLite database: its changes, and its rows in chunks, are always read in one read transaction.

So a chunk of a snapshot shows the rows exactly as the changes before it left them. Changes of rows that are not in the
snapshot yet are skipped: a later chunk has their outcome. A read transaction sees whole transactions only, and all
changes that it finds are one step.
"""

from __future__ import annotations

import copy
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from millstream.capture.alterations import altered_piece, is_recorded
from millstream.capture.changes import (
    DELETE,
    INSERT,
    SNAPSHOT,
    UPDATE,
    Change,
    ColumnTypes,
    TableShape,
    check_columns,
    check_distinct,
)
from millstream.capture.ports import Piece, Place, Position, Progress
from millstream.capture.sqlite.keys import KeyOrder
from millstream.capture.sqlite.tables import SqliteTable, find_table, table_names, to_arrow
from millstream.capture.sqlite.triggers import Triggers
from millstream.connectors.databases.sqlite import PASSING, error_name, quoted
from millstream.errors import AlreadyExists, NotFound, OffsetLost, SourceUnavailable, StorageError
from millstream.records import Schema

BUSY_SECONDS = 10.0
LAST_MS = "last_ms"
"""Of a position: when its last change was made, by which a restored database is recognized."""
LOOK_SECONDS = 0.02
CHUNK_ROWS = 20_000
PIECE_ROWS = 10_000
DONE = "done"


class SqliteDatabase:
    def __init__(self, path: Path, tables: Mapping[str, str], name: str, types: ColumnTypes | None = None) -> None:
        """`tables` are the captured ones, each with its topic; `types`, by table and column, replace declared types."""
        self._path = path.expanduser().absolute()
        self._wanted = tables
        self._types = types or {}
        self.where = str(self._path)
        if not self._path.is_file():
            raise NotFound("there is no such file", where=self.where, next_step="check the path of the database")
        with self._errors():
            self._db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._db.text_factory = _text  # a text that is not UTF-8 is reported with its row
        self._triggers = Triggers(self._db, name)
        self._totals: dict[str, int] = {}
        self._name = name
        self.tables: dict[str, SqliteTable] = {}
        self.shapes: dict[str, TableShape] = {}
        self._seen: tuple[int, int] | None = None

    # ------------------------------------------------------------ start

    def every_table(self, position: Position | None) -> list[str]:
        with self._errors():
            there = table_names(self._db)
        return list(dict.fromkeys([*there, *([] if position is None else position["tables"])]))

    def add(self, tables: Mapping[str, str]) -> None:
        self._wanted = {**self._wanted, **tables}

    def check(self, position: Position | None, owner: str) -> list[TableShape]:
        with self._errors():
            self._look(position)
            if position is None:
                self._check_is_free(owner)
            else:
                self._check_continues(position)
            return list(self.shapes.values())

    def begin(self, position: Position | None, owner: str) -> Position:
        with self._errors():
            with self._writing():
                self._look(position)
                if position is None:
                    self._check_is_free(owner)
                    self._triggers.drop()  # of a capture that was killed before it stored anything
                    self._triggers.create(owner)
                    position = {"identity": owner, "id": 0, "at_us": 0, "schema": -1, "tables": {}}
                else:
                    self._check_continues(position)
                is_same = position["schema"] == self._schema_version()
                self._triggers.install(list(self.tables.values()))
                newest = self._triggers.newest()
            tables = {name: self._begun(name, position["tables"].get(name), is_same, newest) for name in self.tables}
            return {**position, "schema": self._schema_version(), "tables": tables}

    def _begun(self, name: str, before: dict[str, Any] | None, is_same: bool, newest: int) -> dict[str, Any]:
        """The state of a table's snapshot, which starts over if its columns, or the row numbers, may have changed.

        `again`: the topic has rows of an earlier snapshot, so changes of rows that are not read again yet count, too.
        `layouts`: the recorded columns, each list of them with the number of the last change before it.
        """
        columns, recorded = self.shapes[name].stored.ddl, list(self.tables[name].recorded_names)
        if before is not None and before["layouts"][-1][1] != recorded:
            before = {**before, "layouts": [*before["layouts"], [newest, recorded]]}
        keeps_rows = is_same or self.tables[name].has_fixed_rowid
        if before is not None and before["columns"] == columns and (keeps_rows or before["snapshot"] == DONE):
            return before
        layouts = [[0, recorded]] if before is None else before["layouts"]
        return {"columns": columns, "snapshot": None, "rows": 0, "again": before is not None, "layouts": layouts}

    def _look(self, position: Position | None) -> None:
        """Reads the definitions of the tables."""
        known = {} if position is None else position["tables"]
        found = [find_table(self._db, name, self.where) for name in self._wanted]
        names = [(name, table.name) for name, table in zip(self._wanted, found, strict=True)]
        check_distinct(names, self.where)
        self.tables = {table.name: table for table in found}
        for table, topic in zip(found, self._wanted.values(), strict=True):
            types = {column: kind for (name, column), kind in self._types.items() if name.lower() == table.name.lower()}
            shape = table.shape(topic, types)
            if table.name in known:
                shape = shape.since(Schema.of(known[table.name]["columns"]), self.where)
            self.shapes[table.name] = shape
        own = {table.name.lower(): table.name for table in found}
        chosen = [(own.get(table.lower(), table), column) for table, column in self._types]
        check_columns(chosen, self.shapes.values(), self.where)

    def _check_is_free(self, owner: str) -> None:
        """Raises if changes are recorded for a capture into another log, which would miss them."""
        identity, _ = self._triggers.state() or (owner, 0)
        if identity != owner:
            raise AlreadyExists(
                f"the table '{self._triggers.table}' and its triggers record changes for a capture '{self._name}' into "
                "another log",
                where=self.where,
                next_step="use another name: --name NAME; or, if that capture is not needed any more, remove it: "
                f"--name {self._name} --remove",
            )

    def _check_continues(self, position: Position) -> None:
        """Raises if the database is not the one that the position belongs to, or an older copy of it."""
        identity, removed = self._triggers.state() or (None, 0)
        newest = self._triggers.newest() if identity else 0
        if identity != position["identity"]:
            what = (
                f"the database is not the one that capture '{self._name}' has read, or its triggers were removed: "
                "changes since then are not recorded"
            )
        elif removed > position["id"]:
            what = (
                f"the log has the changes of capture '{self._name}' up to {position['id']}, and the database has "
                f"removed those up to {removed}: the log is an older copy"
            )
        elif newest < position["id"]:
            what = (
                f"the database has changes up to {newest}, and the log up to {position['id']}: the database is an "
                "older copy"
            )
        elif (
            removed < position["id"]
            and LAST_MS in position
            and self._triggers.time_of(position["id"]) != position[LAST_MS]
        ):
            what = (
                f"the change {position['id']} of the database is not the one that the log has: the database was "
                "restored from an older copy"
            )
        elif gone := [name for name in self.tables if name in position["tables"] and not self._triggers.has(name)]:
            what = (
                f"{', '.join(gone)} was dropped and created again, or its triggers were removed: changes since then "
                "are not recorded"
            )
        else:
            return
        raise OffsetLost(
            what,
            where=self.where,
            next_step="capture the database under another name, into other topics: they start with a new snapshot",
        )

    def recorded(self, position: Position) -> sqlite3.Cursor:
        """The changes after a position: number, table, op, time, and the values of both images, with a common width."""
        widths = [len(names) for table in position["tables"].values() for _, names in table["layouts"]]
        return self._triggers.recorded(position["id"], max(widths))

    def _schema_version(self) -> int:
        return int(self._db.execute("PRAGMA schema_version").fetchone()[0])

    # ------------------------------------------------------------ steps

    def next(self, position: Position, wait_s: float) -> SqliteStep | None:
        with self._errors():
            deadline = time.monotonic() + wait_s
            while True:
                if self._schema_version() != position["schema"]:
                    position = self.begin(position, position["identity"])
                if self._has_news(position):
                    return SqliteStep(self, position)
                if (left := deadline - time.monotonic()) <= 0:
                    return None
                time.sleep(min(left, LOOK_SECONDS))

    def _has_news(self, position: Position) -> bool:
        if not is_complete(position) or not all(is_recorded(shape, position) for shape in self.shapes.values()):
            return True
        seen = (self._db.execute("PRAGMA data_version").fetchone()[0], position["id"])
        if self._seen == seen or self._triggers.newest() <= position["id"]:
            self._seen = seen
            return False
        return True

    def confirm(self, position: Position) -> None:
        with self._errors():
            state = self._triggers.state()
            if state is not None and state[1] < position["id"]:
                with self._writing():
                    self._triggers.forget(position["id"])

    def end(self) -> int:
        with self._errors():
            return self._triggers.newest()

    def has_reached(self, mark: int, position: Position) -> bool:
        return is_complete(position) and position["id"] >= mark

    def progress(self, position: Position) -> Progress | None:
        for name, table in position["tables"].items():
            if table["snapshot"] != DONE:
                if name not in self._totals:
                    with self._errors():
                        self._totals[name] = self._db.execute(f"SELECT count(*) FROM {quoted(name)}").fetchone()[0]
                return Progress(name, table["rows"], self._totals[name])
        return None

    def remove(self) -> bool:
        """Removes the triggers and the recorded changes of the capture; whether there were any."""
        with self._errors(), self._writing():
            found = self._triggers.exist()
            self._triggers.drop()
            return found

    def close(self) -> None:
        self._db.close()

    # ------------------------------------------------------------ transactions and errors

    @property
    def connection(self) -> sqlite3.Connection:
        return self._db

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            kind = SourceUnavailable if error_name(error).startswith(PASSING) else StorageError
            raise kind(
                f"SQLite cannot be captured: {error}",
                where=self.where,
                next_step="check that it is a database, writable, and not locked for long",
            ) from error


def is_complete(position: Position) -> bool:
    """Whether all snapshots are done."""
    return all(table["snapshot"] == DONE for table in position["tables"].values())


class SqliteStep:
    """Everything that was committed after the last step, and the next chunk of a snapshot."""

    def __init__(self, database: SqliteDatabase, position: Position) -> None:
        self._database = database
        self.position: Position = copy.deepcopy(position)

    def pieces(self) -> Iterator[Piece]:
        with self._database.reading() as db:
            yield from self._changed()
            yield from self._altered()
            for name, table in self.position["tables"].items():
                if table["snapshot"] != DONE:
                    yield from self._chunk(db, name, table)
                    break

    def _altered(self) -> Iterator[Piece]:
        """Tables that may not have been written since they were altered."""
        for shape in self._database.shapes.values():
            if not is_recorded(shape, self.position):
                self.position["at_us"] = max(self.position["at_us"], time.time_ns() // 1000)
                yield altered_piece(shape, Place(self.position["id"], self.position["at_us"]))

    def _piece(self, name: str, changes: list[Change]) -> Piece:
        shape = self._database.shapes[name]
        return Piece(shape, shape.batch(changes, partial(to_arrow, name, self._database.where)))

    # ------------------------------------------------------------ changes

    def _changed(self) -> Iterator[Piece]:
        waiting: dict[str, list[Change]] = {}
        for name, change in self._changes():
            changes = waiting.setdefault(name, [])
            changes.append(change)
            if len(changes) >= PIECE_ROWS:
                yield self._piece(name, waiting.pop(name))
        for name, changes in waiting.items():
            yield self._piece(name, changes)

    def _changes(self) -> Iterator[tuple[str, Change]]:
        """The changes of rows that the snapshots have."""
        position, transaction, number = self.position, "", 0
        for id, name, op, at_ms, *values in self._database.recorded(position):
            transaction = transaction or str(id)
            position["id"], position[LAST_MS] = id, at_ms
            position["at_us"] = max(position["at_us"], at_ms * 1000)
            if name not in position["tables"]:  # no longer captured
                continue
            table, half = self._database.tables[name], len(values) // 2
            images = (self._laid_out(table, id, image) for image in (values[:half], values[half:]))
            for made, before, after in self._parts(table, op, *images):
                if self._is_read(table, before, after):
                    width = len(table.read_names)
                    old = None if before is None else tuple(before[:width])
                    new = None if after is None else tuple(after[:width])
                    yield name, Change(made, old, new, transaction, number, id, position["at_us"])
                    number += 1

    def _laid_out(self, table: SqliteTable, id: int, values: list[Any]) -> list[Any]:
        """A recorded image with the columns that the table has now."""
        layouts = self.position["tables"][table.name]["layouts"]
        while len(layouts) > 1 and layouts[1][0] < id:
            layouts.pop(0)
        names = layouts[0][1]
        if names == list(table.recorded_names):
            return values[: len(names)]
        known = dict(zip(names, values, strict=False))
        return [known.get(name) for name in table.recorded_names]

    def _parts(
        self, table: SqliteTable, op: str, before: list[Any], after: list[Any]
    ) -> list[tuple[str, list[Any] | None, list[Any] | None]]:
        """An update that changes the key is a deletion and an insertion."""
        if op == INSERT:
            return [(INSERT, None, after)]
        if op == DELETE:
            return [(DELETE, before, None)]
        numbered = () if table.rowid is None else (table.rowid,)
        places = [table.recorded_names.index(name) for name in (*table.primary_key, *numbered)]
        if any(before[place] != after[place] for place in places):
            return [(DELETE, before, None), (INSERT, None, after)]
        return [(UPDATE, before, after)]

    def _is_read(self, table: SqliteTable, before: list[Any] | None, after: list[Any] | None) -> bool:
        """Whether the snapshot of the table has passed a row, so that its changes count."""
        state = self.position["tables"][table.name]
        if state["again"] or state["snapshot"] == DONE:
            return True
        row, last = before or after, state["snapshot"]
        if last is None or row is None:
            return False
        if table.rowid is None:
            return not KeyOrder(self._database.connection, table).is_after(row, last)
        return bool(row[-1] <= last)

    # ------------------------------------------------------------ snapshots

    def _chunk(self, db: sqlite3.Connection, name: str, state: dict[str, Any]) -> Iterator[Piece]:
        table = self._database.tables[name]
        rows = db.execute(self._select(db, table, state["snapshot"]))
        self.position["at_us"] = max(self.position["at_us"], time.time_ns() // 1000)
        transaction = f"{SNAPSHOT} {self.position['schema']}.{self.position['id']} {name}.{state['rows']}"
        width, count = len(table.read_names), 0
        while found := rows.fetchmany(PIECE_ROWS):
            places = range(state["rows"] + count, state["rows"] + count + len(found))
            where = self.position["id"], self.position["at_us"]
            yield self._piece(
                name,
                [
                    Change(SNAPSHOT, None, row[:width], transaction, number, *where)
                    for number, row in zip(places, found, strict=True)
                ],
            )
            count += len(found)
            state["snapshot"] = found[-1][-1] if table.rowid is not None else list(found[-1][width:])
        state["rows"] += count
        if count < CHUNK_ROWS:
            state["snapshot"] = DONE

    def _select(self, db: sqlite3.Connection, table: SqliteTable, last: Any) -> str:
        """The next rows, in the order of their numbers, or of their keys; these are read at the end of a row."""
        names = [quoted(name) for name in table.recorded_names]
        if table.rowid is not None:
            order = quoted(table.rowid)
            after = f"{order} > {last}"
        else:
            keys = KeyOrder(db, table)
            names, order = [*names, *keys.literals], keys.by
            after = "" if last is None else keys.after(last)
        where = "" if last is None else f" WHERE {after}"
        return f"SELECT {', '.join(names)} FROM {quoted(table.name)}{where} ORDER BY {order} LIMIT {CHUNK_ROWS}"


def _text(given: bytes) -> str:
    return given.decode(errors="surrogateescape")
