"""A MariaDB database: the transactions of its binary log, and between them its rows in chunks, until all are read.

The server sends exactly what follows the GTIDs of a position, so nothing is repeated. It keeps its binary log for as
long as it is configured to, whether a capture has read it or not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from millstream.capture.alterations import Alterations, AlteredStep, is_recorded
from millstream.capture.changes import TRUNCATE, ColumnTypes, TableShape, check_columns, check_distinct
from millstream.capture.mariadb.address import parsed
from millstream.capture.mariadb.binlog import (
    Begin,
    Commit,
    Decoder,
    Image,
    Message,
    Rows,
    Statement,
    Unsupported,
    is_heartbeat,
    place_of,
)
from millstream.capture.mariadb.connections import Replica, connect, driver, explained, rows
from millstream.capture.mariadb.server import charsets, check_nothing_is_prepared, check_server, folds_names
from millstream.capture.mariadb.statements import altered, dropped_database, replaced, truncated, writes_to
from millstream.capture.mariadb.steps import IN_TRANSACTION_SECONDS, ChangesStep, ChunkStep, cut_off, parts
from millstream.capture.mariadb.table_maps import TableMap
from millstream.capture.mariadb.tables import MariadbTable, TableId, columns_of, find_table, shape_of, table_names
from millstream.capture.mariadb.values import BinlogColumn, UnknownColumn
from millstream.capture.ports import Place, Position, Progress
from millstream.capture.stream_steps import KEYS, Heartbeat, being_read, check_key
from millstream.errors import InvalidInput, MillstreamError, OffsetLost
from millstream.records import Schema

_TABLE_ROWS = "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
BEAT_SECONDS = 10.0
CHECK_SECONDS = 10.0
NEW_NAME = "capture the tables under another name, into other topics: they start with a new snapshot"


class MariadbDatabase:
    def __init__(self, dsn: str, tables: Mapping[str, str], name: str, types: ColumnTypes | None = None) -> None:
        """`tables` are the captured ones, each with its topic; `types`, by table and column, replace MariaDB's."""
        self._address = parsed(dsn)
        self._wanted = tables
        self._name = name
        self._types = types or {}
        self.where = str(self._address)
        self.tables: dict[TableId, MariadbTable] = {}
        self.shapes: dict[TableId, TableShape] = {}
        self._totals: dict[str, int] = {}
        self._replica: Replica | None = None
        self._decoder: Decoder | None = None
        self._pending: deque[Message] = deque()
        self._passed: Commit | None = None
        """The last transaction that changed nothing here, and that no stored position is behind of."""
        self._beat_at = 0.0
        self._altered: Alterations[TableId, tuple[BinlogColumn, ...]] = Alterations()
        self._is_compared = False
        """Whether the catalog was looked at since a table was altered."""
        self._followed: dict[TableId, TableMap] = {}
        self._folds_names = False
        with explained(self._address):
            self._db = connect(self._address)
        self.unbuffered = driver().cursors.SSCursor

    # ------------------------------------------------------------ start

    def every_table(self, position: Position | None) -> list[str]:
        with explained(self._address):
            there = table_names(self._db, self._address.database)
        return list(dict.fromkeys([*there, *([] if position is None else position["snapshot"])]))

    def add(self, tables: Mapping[str, str]) -> None:
        self._wanted = {**self._wanted, **tables}

    def check(self, position: Position | None, owner: str) -> list[TableShape]:
        with explained(self._address):
            check_server(self._db, self.where)
            self._look(position)
            gtids = self._end()[0] if position is None else position["gtids"]
            self._check_starts(position)
            if position is not None:
                self._check_continues(position)
        self._probe(gtids)
        return list(self.shapes.values())

    def begin(self, position: Position | None, owner: str) -> Position:
        with explained(self._address):
            self._look(position)
            if position is None:
                gtids, place = self._end()
                server = int(rows(self._db, "SELECT @@server_id")[0][0])
                position = {"server": server, "gtids": gtids, "place": place, "at_us": 0, "snapshot": {}}
            self._check_starts(position)
        names = [shape.name for shape in self.shapes.values()]
        states = {name: position["snapshot"].get(name) or unread() for name in names}
        columns = {shape.name: shape.stored.ddl for shape in self.shapes.values()}
        keys = {table.name: list(table.key) for table in self.tables.values()}
        return {**position, "snapshot": states, "tables": columns, KEYS: keys}

    def _look(self, position: Position | None) -> None:
        """Reads the definitions of the tables."""
        known = {} if position is None else position["tables"]
        self._folds_names = folds_names(self._db)
        found = {name: find_table(self._db, name, self._address.database, self.where) for name in self._wanted}
        keys = {} if position is None else position.get(KEYS, {})
        for name, table in found.items():
            if (key := keys.get(name)) is not None:
                check_key(name, self.where, key, table.key)
                found[name] = replace(table, key=tuple(key))
        check_distinct([(name, table.id) for name, table in found.items()], self.where)
        for name, topic in self._wanted.items():
            table = found[name]
            shape = shape_of(table, topic, table.columns, self._types)
            self.tables[table.id] = table
            self.shapes[table.id] = shape.since(Schema.of(known[name]), self.where) if name in known else shape
        check_columns(self._types, self.shapes.values(), self.where)

    def _end(self) -> tuple[str, int]:
        """The end of the binary log: GTIDs, and the place."""
        file, offset = rows(self._db, "SHOW MASTER STATUS")[0][:2]
        gtids = rows(self._db, "SELECT BINLOG_GTID_POS(%s, %s)", file, int(offset))[0][0]
        return str(gtids or ""), place_of(file, int(offset))

    def _check_starts(self, position: Position | None) -> None:
        known = {} if position is None else position["snapshot"]
        if any(shape.name not in known for shape in self.shapes.values()):
            check_nothing_is_prepared(self._db, self.where)

    def _check_continues(self, position: Position) -> None:
        server = int(rows(self._db, "SELECT @@server_id")[0][0])
        _, place = self._end()
        if server != position["server"]:
            what = (
                f"the server has the id {server}, and capture '{self._name}' has read the one with {position['server']}"
            )
        elif place < position["place"]:
            what = "the binary log of the server ends before the stored position: the database is an older copy"
        elif (last := position.get("last")) and not self._has_sent(last):
            what = (
                f"the transaction {last['gtid']} of the server is not the one that the log has: the database was "
                "restored from an older copy"
            )
        else:
            return
        raise OffsetLost(what, where=self.where, next_step=NEW_NAME)

    def _has_sent(self, last: Mapping[str, Any]) -> bool:
        """Whether the server has the newest transaction of the log. True also if it has removed what was before it."""
        decoder = Decoder(last["before"], 0, lambda *_: False, charsets(self._db))
        replica = Replica(self._address, last["before"])
        deadline = time.monotonic() + CHECK_SECONDS
        try:
            while (event := replica.event(max(0.0, deadline - time.monotonic()))) is not None:
                for message in decoder.decoded(event):
                    if isinstance(message, Begin):
                        return (message.gtid, message.at_us) == (last["gtid"], last["at_us"])
            return False
        except OffsetLost:
            return True
        finally:
            replica.close()

    def _probe(self, gtids: str) -> None:
        """Raises if the server refuses to send its binary log after these GTIDs."""
        replica = Replica(self._address, gtids)
        try:
            replica.event(CHECK_SECONDS)
        finally:
            replica.close()

    # ------------------------------------------------------------ steps

    def next(self, position: Position, wait_s: float) -> ChangesStep | AlteredStep[TableId] | Heartbeat | None:
        self._start(position)
        if (name := being_read(position)) is not None:
            table = next(table for table in self.tables.values() if table.name == name)
            return ChunkStep(self, position, table)
        self._compare(position)
        if not self._pending and (found := self._altered.taken(self.seen)):
            shapes = {id: self._reshaped(id, columns) for id, columns in found.items()}
            passed = self._behind_passed(position)
            return AlteredStep(self.shapes, shapes, passed, Place(passed["place"], passed["at_us"]))
        if self._has_changes(wait_s):
            self._passed = None
            return ChangesStep(self, position)
        if self._passed is not None and time.monotonic() - self._beat_at > BEAT_SECONDS:
            self._beat_at = time.monotonic()
            return Heartbeat(self._behind_passed(position))
        return None

    def _behind_passed(self, position: Position) -> Position:
        """Behind the transactions that were passed over."""
        passed, self._passed = self._passed, None
        if passed is None:
            return position
        at_us = max(position["at_us"], passed.last["at_us"])
        return {**position, "gtids": passed.gtids, "place": passed.place, "last": passed.last, "at_us": at_us}

    def _compare(self, position: Position) -> None:
        """Looks for tables that were altered since their newest change."""
        if self._altered.are_open or self._is_compared:
            return
        self._is_compared = True
        differing = {}
        for id, table in self.tables.items():
            with explained(self._address), suppress(UnknownColumn):  # which stops the capture with its first change
                columns = columns_of(self._db, id)
                if columns and not is_recorded(shape_of(table, "", columns, self._types), position):
                    differing[id] = columns
        if differing:
            self._altered.found(differing, self.end())

    def _has_changes(self, wait_s: float) -> bool:
        """Whether a transaction with changes of these tables is next. Those without any are passed over."""
        deadline = time.monotonic() + wait_s
        begun: Begin | None = None
        while True:
            message = self.message(
                max(0.0, deadline - time.monotonic()) if begun is None else IN_TRANSACTION_SECONDS,
                is_in_transaction=begun is not None,
            )
            if message is None:
                if begun is not None:
                    raise cut_off(self.where)
                return False
            if isinstance(message, Begin):
                begun = message
            elif isinstance(message, Commit):
                begun, self._passed = None, message
                if time.monotonic() >= deadline and not self._pending:
                    return False
            else:
                self._pending.extendleft([message] if begun is None else [message, begun])
                return True

    def _start(self, position: Position) -> None:
        if self._replica is not None:
            return
        with explained(self._address):
            known = charsets(self._db)
        self._replica = Replica(self._address, position["gtids"])
        self._decoder = Decoder(position["gtids"], position["place"], self._is_captured, known)
        self._beat_at = time.monotonic()

    def _is_captured(self, schema: str, table: str) -> bool:
        return (schema, table) in self.tables

    @property
    def seen(self) -> int:
        """The place up to which the binary log was received."""
        return 0 if self._decoder is None else self._decoder.place

    def put_back(self, message: Message) -> None:
        self._pending.appendleft(message)

    def message(self, wait_s: float, *, is_in_transaction: bool = False) -> Message | None:
        """The next message about a captured table, or about a transaction.

        Within a transaction, the time to wait starts again with each of its events.
        """
        assert self._replica is not None
        assert self._decoder is not None
        deadline = time.monotonic() + wait_s
        while True:
            while self._pending:
                message = self._pending.popleft()
                if not isinstance(message, Statement) or self._concerns(message):
                    return message
                if altered(*self._named(message)) in self.tables:
                    self._is_compared = False
            event = self._replica.event(max(0.0, deadline - time.monotonic()))
            if event is None:
                return None
            if is_in_transaction and not is_heartbeat(event):
                deadline = time.monotonic() + wait_s
            try:
                self._pending.extend(self._decoder.decoded(event))
            except (Unsupported, UnknownColumn) as error:
                raise self._lost(f"the binary log cannot be read any further: {error}") from error

    def _concerns(self, statement: Statement) -> bool:
        sql, schema = self._named(statement)
        if truncated(sql, schema) in self.tables or any(table in self.tables for table in replaced(sql, schema)):
            return True
        database = dropped_database(sql)
        return any(schema == database or writes_to(sql, table) for schema, table in self.tables)

    def _named(self, statement: Statement) -> tuple[str, str]:
        """A statement, and its database, with tables named as in `tables`."""
        named = statement.folded if self._folds_names else statement
        return named.sql, named.schema

    def followed(self, table_map: TableMap) -> TableShape | None:
        """The new shape of a table, if its columns have changed."""
        id = table_map.schema, table_map.table
        self._altered.sent(id)
        if self._followed.get(id) == table_map:
            return None
        self._followed[id] = table_map
        shape = self._reshaped(id, table_map.columns)
        check_key(self.tables[id].name, self.where, self.tables[id].key, table_map.key)
        return None if shape.columns == self.shapes[id].columns else shape

    def _reshaped(self, id: TableId, columns: Sequence[BinlogColumn]) -> TableShape:
        """The shape of a table that has these columns now."""
        table, known = self.tables[id], self.shapes[id]
        if not set(table.key) <= {column.name for column in columns}:
            raise InvalidInput(
                f"the key of table '{table.name}', {', '.join(table.key)}, was renamed or dropped",
                where=self.where,
                next_step="capture the table under another name, into another topic",
            )
        return shape_of(table, known.topic, columns, self._types).since(known.stored, self.where)

    def check_applies(self, begun: Begin, message: Rows | Statement) -> None:
        """Raises if the changes of a table cannot be followed any further."""
        if begun.is_prepared:
            raise self._lost("an XA transaction has changed a captured table, and they cannot be captured")
        if isinstance(message, Statement) and truncated(message.sql, message.schema) is None:
            raise self._lost(
                "a statement has dropped, renamed or replaced a captured table, or was logged without its rows: "
                f"{message.sql:.200}"
            )

    def changes(self, message: Rows | Statement) -> Iterator[tuple[TableId, str, Image | None, Image | None]]:
        if isinstance(message, Statement):
            emptied = truncated(*self._named(message))
            assert emptied is not None
            yield emptied, TRUNCATE, None, None
            return
        id = message.table.schema, message.table.table
        for before, after in message.images:
            for op, old, new in parts(self.shapes[id], before, after):
                yield id, op, old, new

    def _lost(self, what: str) -> MillstreamError:
        return OffsetLost(what, where=self.where, next_step=NEW_NAME)

    # ------------------------------------------------------------ snapshots

    @contextmanager
    def snapshot(self, table: MariadbTable) -> Iterator[tuple[Any, int]]:
        """A connection that sees what was committed before a place of the binary log, and that place."""
        with explained(self._address):
            db = connect(self._address)
            try:
                rows(db, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                rows(db, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                rows(db, f"SELECT 1 FROM {table.full_name} LIMIT 1")  # from now on, its columns stay as they are
                status = dict(rows(db, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
                yield db, place_of(status["Binlog_snapshot_file"], int(status["Binlog_snapshot_position"]))
            finally:
                with suppress(Exception):
                    db.close()

    def current(self, db: Any, table: MariadbTable) -> tuple[MariadbTable, TableShape]:
        """A table as it is now, which may be ahead of the changes that have arrived."""
        found, known = find_table(db, table.name, self._address.database, self.where), self.shapes[table.id]
        check_key(table.name, self.where, table.key, found.key)
        found = replace(found, key=table.key)
        self._followed.pop(table.id, None)
        return found, shape_of(found, known.topic, found.columns, self._types).since(known.stored, self.where)

    # ------------------------------------------------------------ progress

    def confirm(self, position: Position) -> None:
        """The server keeps its binary log for a time, and does not wait for a capture."""

    def end(self) -> int:
        with explained(self._address):
            return self._end()[1]

    def has_reached(self, mark: int, position: Position) -> bool:
        is_read = being_read(position) is None and not self._pending and self.seen >= mark
        return is_read and self._is_compared and not self._altered.are_open

    def progress(self, position: Position) -> Progress | None:
        if (name := being_read(position)) is None:
            return None
        if name not in self._totals:
            id = next(table.id for table in self.tables.values() if table.name == name)
            with explained(self._address):
                self._totals[name] = int(rows(self._db, _TABLE_ROWS, *id)[0][0] or 0)
        return Progress(name, position["snapshot"][name]["rows"], self._totals[name])

    def remove(self) -> bool:
        """A capture leaves nothing in the database."""
        return False

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
        with suppress(driver().Error):
            self._db.close()


def unread() -> dict[str, Any]:
    """The state of a snapshot: up to which key rows were read."""
    return {"last": None, "done": False, "rows": 0}
