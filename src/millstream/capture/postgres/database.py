"""A Postgres database: its slot's changes, and between them its rows in chunks, until all are read.

A step is a chunk of rows or whole transactions, in the order of their commits. The slot is moved only past changes that
the log has stored durably; so after a crash the server sends the rest again, and what the log has already is skipped by
its position.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from millstream.capture.alterations import Alterations, AlteredStep, is_recorded
from millstream.capture.changes import ColumnTypes, TableShape, check_columns, check_distinct
from millstream.capture.ports import Place, Position, Progress
from millstream.capture.postgres.connections import (
    Replication,
    Snapshot,
    connect,
    driver,
    explained,
    number_of,
    text_of,
)
from millstream.capture.postgres.history import ANOTHER_NAME, STORED, History
from millstream.capture.postgres.pgoutput import Commit, Message, Relation, decoded
from millstream.capture.postgres.steps import MARKS, MESSAGES, ChangesStep, ChunkStep, messages_shape, unread
from millstream.capture.postgres.tables import (
    Column,
    PostgresTable,
    Types,
    check_dimensions,
    columns_of,
    find_table,
    key_of,
    table_names,
)
from millstream.capture.stream_steps import KEYS, Heartbeat, being_read, check_key
from millstream.errors import AlreadyExists, InvalidInput, MillstreamError, OffsetLost, SourceUnavailable
from millstream.postgres_address import without_password
from millstream.records import Schema

VERSION_MIN = 140000
FREE_SECONDS = 10.0
LOOK_SECONDS = 5.0
BEAT_SECONDS = 10.0
VISIBLE_SECONDS = 0.05
FULL = "f"
"""The replica identity of a table that logs whole rows."""
_RIGHTS = (
    "SELECT rolsuper OR rolreplication, has_database_privilege(current_database(), 'CREATE') "
    "FROM pg_roles WHERE rolname = current_user"
)
_SLOT = (
    "SELECT plugin, database = current_database(), active_pid, confirmed_flush_lsn, wal_status "
    "FROM pg_replication_slots WHERE slot_name = %s"
)
_PUBLICATION = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s"
OWNED = "Millstream capture "
"""Before the owner, in the comment of the publication."""
_PUBLISHED = "SELECT prrelid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s"


class PostgresDatabase:
    def __init__(
        self,
        dsn: str,
        tables: Mapping[str, str],
        name: str,
        types: ColumnTypes | None = None,
        messages: str | None = None,
    ) -> None:
        """`tables` are the captured ones, each with its topic; `types`, by table and column, replace Postgres's.

        `messages` is the topic of logical messages; None: they are not captured.
        """
        self._messages = messages
        self._dsn = dsn
        self._wanted = tables
        self._name = name
        self.where = without_password(dsn)
        self.slot = "millstream_" + re.sub(r"[^a-z0-9_]", "_", name.lower())
        self._replication: Replication | None = None
        self._pending: list[Message] = []
        self._totals: dict[str, int] = {}
        self._started = False
        self.seen = 0
        """Up to where the change log was received."""
        with explained(dsn):
            self._db = connect(dsn)
            self.types = Types(self._db, types or {})
        self.tables: dict[str, PostgresTable] = {}
        self.shapes: dict[int, TableShape] = {}
        """By the oid of the table."""
        self._altered: Alterations[int, tuple[Column, ...]] = Alterations()
        self._compared_at: float | None = None
        """When the catalog was looked at; None: it has to be."""
        self._looked_at = self._beat_at = 0.0
        self.history: History
        """Known once the server sends."""

    # ------------------------------------------------------------ start

    def every_table(self, position: Position | None) -> list[str]:
        with explained(self._dsn):
            there = table_names(self._db)
        return list(dict.fromkeys([*there, *([] if position is None else position["snapshot"])]))

    def add(self, tables: Mapping[str, str]) -> None:
        self._wanted = {**self._wanted, **tables}

    def check(self, position: Position | None, owner: str) -> list[TableShape]:
        with explained(self._dsn):
            self._check_server()
            self._look(position)
            self._check_owner(position, owner)
            self._check_slot(position)
            if position is not None:
                self._check_continues(position)
        return list(self.shapes.values())

    def begin(self, position: Position | None, owner: str) -> Position:
        with explained(self._dsn):
            self._look(position)
            with self._db.transaction():
                self._check_owner(position, owner)
                self._publish(owner, is_new=position is None)
            if position is not None:
                return self._with_tables({STORED: position["lsn"], **position})  # older versions did not store it
            if self._db.execute(_SLOT, (self.slot,)).fetchone():  # of a capture that was killed before its snapshot
                self._db.execute("SELECT pg_drop_replication_slot(%s)", (self.slot,))
        self._replication = Replication(self._dsn)
        system = self._replication.execute("IDENTIFY_SYSTEM")[0]
        made = self._replication.execute(f"CREATE_REPLICATION_SLOT {self.slot} LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        return {
            "system": system,
            "lsn": number_of(made[1]),
            STORED: number_of(made[1]),
            "at_us": time.time_ns() // 1000,
            "snapshot": {name: unread(0) for name in self.tables},
            "skipped": [],
            "tables": self._columns(),
            KEYS: self._keys(),
        }

    def _with_tables(self, position: Position) -> Position:
        """The position with the tables that are captured now."""
        started = Snapshot.of(self._db.execute("SELECT pg_current_snapshot()::text").fetchone()[0]).next
        states = {name: position["snapshot"].get(name) or unread(started) for name in self.tables}
        return {**position, "snapshot": states, "tables": self._columns(), KEYS: self._keys()}

    def _keys(self) -> dict[str, list[str]]:
        return {name: list(table.key) for name, table in self.tables.items()}

    def _columns(self) -> dict[str, str]:
        return {shape.name: shape.stored.ddl for shape in self.shapes.values()}

    def _look(self, position: Position | None) -> None:
        """Reads the definitions of the tables."""
        known = {} if position is None else position["tables"]
        keys = {} if position is None else position.get(KEYS, {})
        self.tables = {name: self._found(self._db, name, keys.get(name)) for name in self._wanted}
        check_distinct([(name, table.oid) for name, table in self.tables.items()], self.where)
        for name, table in self.tables.items():
            shape = self.types.shape(table, self._wanted[name], table.columns)
            if name not in known:
                check_dimensions(self._db, table, shape, self.where)
            self.shapes[table.oid] = shape.since(Schema.of(known[name]), self.where) if name in known else shape
        check_columns(self.types.chosen, self.shapes.values(), self.where)
        if self._messages is not None:
            self.shapes[MESSAGES] = messages_shape(self._messages)

    def _found(self, db: Any, name: str, key: Sequence[str] | None) -> PostgresTable:
        """A table; raises if the records that there are have another key, unless that is not known."""
        found = find_table(db, name, self.where)
        if key is None:
            return found
        check_key(name, self.where, key, found.key)
        return replace(found, key=tuple(key))

    @property
    def _oids(self) -> set[int]:
        """Of the captured tables."""
        return set(self.shapes) - {MESSAGES}

    def _publish(self, owner: str, *, is_new: bool) -> None:
        published = {oid for (oid,) in self._db.execute(_PUBLISHED, (self.slot,)).fetchall()}
        listed = ", ".join(table.only for table in self.tables.values())
        if self._db.execute(_PUBLICATION, (self.slot,)).fetchone() is None:
            is_new = True
            self._db.execute(
                f"CREATE PUBLICATION {self.slot} FOR TABLE {listed} WITH (publish_via_partition_root = true)"
            )
        elif published != self._oids:
            self._db.execute(f"ALTER PUBLICATION {self.slot} SET TABLE {listed}")
        if is_new:
            self._db.execute(f"COMMENT ON PUBLICATION {self.slot} IS '{OWNED}{owner}'")

    # ------------------------------------------------------------ what must be so

    def _check_server(self) -> None:
        if self._db.info.server_version < VERSION_MIN:
            raise self._refused("Postgres is older than version 14", "upgrade the server")
        if (level := self._setting("wal_level")) != "logical":
            raise self._refused(
                f"wal_level is '{level}', and changes can only be captured if it is 'logical'",
                "ALTER SYSTEM SET wal_level = logical, then restart Postgres",
            )
        may_replicate, may_create = self._db.execute(_RIGHTS).fetchone()
        user = self._db.info.user
        if not may_replicate:
            raise self._refused(f"the user '{user}' may not replicate", f'ALTER ROLE "{user}" REPLICATION')
        if not may_create:
            raise self._refused(
                f"the user '{user}' may not create a publication", f'GRANT CREATE ON DATABASE … TO "{user}"'
            )

    def _check_owner(self, position: Position | None, owner: str) -> None:
        """Raises if the slot is that of a capture into another log, which would miss what is read here."""
        published = self._db.execute(_PUBLICATION, (self.slot,)).fetchone()
        slot = self._db.execute(_SLOT, (self.slot,)).fetchone()
        comment = "" if published is None else published[0] or ""
        if comment == OWNED + owner:
            return
        is_owned = comment.startswith(OWNED)
        if position is None and (is_owned or (slot is not None and slot[1])):
            raise AlreadyExists(
                f"the slot '{self.slot}' and its publication were made by another capture, such as one of the same "
                "name into another log",
                where=self.where,
                next_step="use another name: --name NAME; or, if that capture is not needed any more, remove it: "
                f"--name {self._name} --remove",
            )
        if position is not None and is_owned:
            raise OffsetLost(
                f"the slot '{self.slot}' was removed, and made again by another capture, such as one of the same name "
                f"into another log: changes since {text_of(position['lsn'])} are lost",
                where=self.where,
                next_step=ANOTHER_NAME,
            )

    def _check_slot(self, position: Position | None) -> None:
        found = self._db.execute(_SLOT, (self.slot,)).fetchone()
        deadline = time.monotonic() + FREE_SECONDS
        while found and found[2] and time.monotonic() < deadline:  # of a capture that was just killed
            time.sleep(0.1)
            found = self._db.execute(_SLOT, (self.slot,)).fetchone()
        if found and not found[1]:
            raise self._refused(f"the slot '{self.slot}' belongs to another database", "use another name")
        if found and found[2]:
            raise SourceUnavailable(
                f"the slot '{self.slot}' is in use by process {found[2]} of the server",
                where=self.where,
                next_step="stop the other capture of this name, or use another name",
            )
        if found is None and position is None:
            used, most = self._db.execute(
                "SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots"
            ).fetchone()
            if used >= most:
                raise self._refused(
                    f"all {most} replication slots of the server are taken",
                    "drop one that is not needed (pg_replication_slots), or increase max_replication_slots",
                )

    def _check_continues(self, position: Position) -> None:
        """Raises if the server cannot send the changes after a position."""
        found = self._db.execute(_SLOT, (self.slot,)).fetchone()
        replication = Replication(self._dsn)
        try:
            system = replication.execute("IDENTIFY_SYSTEM")[0]
        finally:
            replication.close()
        flushed = number_of(self._db.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()[0])
        if system != position["system"]:
            what = f"the server is not the one that capture '{self._name}' has read"
        elif flushed < position["lsn"]:
            what = (
                f"the change log of the server ends at {text_of(flushed)}, and the log has changes up to "
                f"{text_of(position['lsn'])}: the database is an older copy"
            )
        elif found is None:
            what = f"the slot '{self.slot}' was dropped: changes since {text_of(position['lsn'])} are lost"
        elif found[4] == "lost":
            what = f"the server has removed changes that the slot '{self.slot}' needs (max_slot_wal_keep_size)"
        elif found[3] is not None and number_of(str(found[3])) > position["lsn"]:
            what = (
                f"the slot '{self.slot}' is at {found[3]}, and the log has changes up to {text_of(position['lsn'])} "
                "only: the log is an older copy, or something else has read the slot"
            )
        else:
            return
        raise OffsetLost(
            what,
            where=self.where,
            next_step=ANOTHER_NAME,
        )

    def _refused(self, what: str, next_step: str) -> MillstreamError:
        return InvalidInput(what, where=self.where, next_step=next_step)

    def _setting(self, name: str) -> str:
        return str(self._db.execute("SELECT current_setting(%s)", (name,)).fetchone()[0])

    # ------------------------------------------------------------ steps

    def next(self, position: Position, wait_s: float) -> ChangesStep | AlteredStep[int] | Heartbeat | None:
        self._start(position)
        self._check_tables()
        if (name := being_read(position)) is not None:
            return ChunkStep(self, position, self.tables[name])
        if self._compare(position):
            wait_s = 0.0  # who reads up to an end may have waited for nothing else
        if altered := self._altered.taken(self.seen):
            shapes = {oid: self._reshaped(oid, columns) for oid, columns in altered.items()}
            return AlteredStep(self.shapes, shapes, position, Place(position["lsn"], position["at_us"]))
        assert self._replication is not None
        if not self._pending and (received := self._received(wait_s)) is not None:
            self._pending.append(received)
        if self._pending:
            return ChangesStep(self, position)
        self.history.reached(self.seen)
        self.ask()
        if self.seen > position["lsn"] and time.monotonic() - self._beat_at > BEAT_SECONDS:
            self._beat_at = time.monotonic()
            return Heartbeat({**position, "lsn": self.seen})
        return None

    def _start(self, position: Position) -> None:
        if self._started:
            return
        if self._replication is None:
            self._replication = Replication(self._dsn)
        with explained(self._dsn):
            confirmed = number_of(str(self._db.execute(_SLOT, (self.slot,)).fetchone()[3]))
        self.history = History(position, confirmed, self.where)
        self._replication.start(self.slot, self.slot, confirmed)
        self.seen, self._beat_at, self._started = confirmed, time.monotonic(), True

    def ask(self) -> None:
        """Has the server say how far it has read."""
        assert self._replication is not None
        self._replication.tell(asks=True)

    def message(self, wait_s: float) -> Message | None:
        """The next message of a transaction."""
        return self._pending.pop(0) if self._pending else self._received(wait_s)

    def _received(self, wait_s: float) -> Message | None:
        """Waits for a message with a meaning here; keep-alives only move `seen`."""
        assert self._replication is not None
        deadline = time.monotonic() + wait_s
        while True:
            received = self._replication.receive(max(0.0, deadline - time.monotonic()))
            if received is None:
                return None
            if received.data is None:
                self.seen = max(self.seen, received.lsn)
            elif (message := decoded(received.data)) is not None:
                if isinstance(message, Commit):
                    self.seen = max(self.seen, message.end_lsn)
                return message

    def followed(self, relation: Relation) -> TableShape | None:
        """The new shape of a table, if its columns have changed."""
        known = self.shapes.get(relation.oid)
        if known is None:
            return None
        self._altered.sent(relation.oid)
        columns = [(column.name, column.type_oid, column.modifier) for column in relation.columns]
        shape = self._reshaped(relation.oid, columns)
        with explained(self._dsn):
            table = self._table(relation.oid)
            check_key(table.name, self.where, table.key, self._key(relation))
        return None if shape.columns == known.columns else shape

    def _table(self, oid: int) -> PostgresTable:
        return next(table for table in self.tables.values() if table.oid == oid)

    def _reshaped(self, oid: int, columns: Sequence[Column]) -> TableShape:
        """The shape of a table that has these columns now."""
        table, known = self._table(oid), self.shapes[oid]
        if not set(table.key) <= {name for name, _, _ in columns}:
            raise InvalidInput(
                f"the key of table '{table.name}', {', '.join(table.key)}, was renamed or dropped",
                where=self.where,
                next_step="capture the table under another name, into another topic",
            )
        with explained(self._dsn):
            shape = self.types.shape(table, known.topic, columns)
        return shape.since(known.stored, self.where)

    def _compare(self, position: Position) -> bool:
        """Looks for tables that were altered since their newest change, if it is time to."""
        now = time.monotonic()
        if self._altered.are_open or (self._compared_at is not None and now - self._compared_at < LOOK_SECONDS):
            return False
        with explained(self._dsn):
            there = columns_of(self._db, self._oids)
            shapes = {oid: self.types.shape(self._table(oid), "", columns) for oid, columns in there.items()}
        if altered := {oid: there[oid] for oid, shape in shapes.items() if not is_recorded(shape, position)}:
            self._altered.found(altered, self.mark())
        self._compared_at = now
        return True

    def _key(self, relation: Relation) -> tuple[str, ...]:
        identity, named = relation.replica_identity, [column.name for column in relation.columns if column.in_key]
        if identity == FULL or not named:  # then it names all columns; and none if the key is deferrable
            return key_of(self._db, relation.oid, identity)
        return tuple(named)

    def _check_tables(self) -> None:
        """A table that was dropped and created again is not published: its changes would be missed silently."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        with explained(self._dsn):
            published = {oid for (oid,) in self._db.execute(_PUBLISHED, (self.slot,)).fetchall()}
        if gone := [self.shapes[oid].name for oid in self._oids if oid not in published]:
            raise OffsetLost(
                f"{', '.join(gone)} was dropped, or removed from the publication '{self.slot}'",
                where=self.where,
                next_step="capture the tables that are left, or created again, under another name",
            )
        self._looked_at = time.monotonic()

    def confirm(self, position: Position) -> None:
        if self._replication is not None and self._started and self.history.is_proven:
            self._replication.confirmed = position["lsn"]
            self._replication.tell()

    def end(self) -> int:
        self._compared_at = None
        return self.mark()

    def mark(self) -> int:
        """A message that is committed: so it is flushed, and sent at once."""
        with explained(self._dsn):
            found = self._db.execute("SELECT pg_logical_emit_message(true, %s, '')::text", (MARKS.decode(),)).fetchone()
        return number_of(found[0])

    def has_reached(self, mark: int, position: Position) -> bool:
        is_read = being_read(position) is None and not self._pending and self.seen >= mark
        return is_read and self._compared_at is not None and not self._altered.are_open

    def progress(self, position: Position) -> Progress | None:
        if (name := being_read(position)) is None:
            return None
        if name not in self._totals:
            with explained(self._dsn):
                plan = self._db.execute(f"EXPLAIN (FORMAT JSON) SELECT FROM {self.tables[name].only}").fetchone()[0]
            self._totals[name] = int(plan[0]["Plan"]["Plan Rows"])
        return Progress(name, position["snapshot"][name]["rows"], self._totals[name])

    @contextmanager
    def snapshot(self, ended: Sequence[int], before: int) -> Iterator[tuple[Any, Snapshot]]:
        """A connection that sees the database at one moment.

        These transactions have ended then, and so have all whose number is lower than `before`.
        """
        with explained(self._dsn):
            db = connect(self._dsn)
            try:
                db.execute("SET row_security = off")  # an error, instead of rows that are missing
                while True:
                    db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    seen = Snapshot.of(db.execute("SELECT pg_current_snapshot()::text").fetchone()[0])
                    if seen.first_open >= before and all(seen.has(xid) for xid in ended):
                        break
                    db.execute("ROLLBACK")  # the server sends a commit a little before others see it
                    time.sleep(VISIBLE_SECONDS)
                yield db, seen
                db.execute("COMMIT")
            finally:
                db.close()

    def current(self, db: Any, table: PostgresTable) -> tuple[PostgresTable, TableShape]:
        """A table as it is in this transaction, which may be ahead of the changes that have arrived."""
        found, known = self._found(db, table.name, table.key), self.shapes[table.oid]
        return found, self.types.shape(found, known.topic, found.columns).since(known.stored, self.where)

    def remove(self) -> bool:
        """Drops the slot and the publication of the capture; whether there were any."""
        with explained(self._dsn):
            found = self._db.execute(_SLOT, (self.slot,)).fetchone()
            if found:
                self._db.execute("SELECT pg_drop_replication_slot(%s)", (self.slot,))
            published = self._db.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (self.slot,)).fetchone()
            self._db.execute(f"DROP PUBLICATION IF EXISTS {self.slot}")
        return bool(found or published)

    def close(self) -> None:
        if self._replication is not None:
            self._replication.close()
        with suppress(driver().Error):
            self._db.close()
