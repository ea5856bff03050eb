"""The transactional outbox: events are rows of a table, inserted in the transaction that they tell about.

A capture of the table sends each to its topic, and notes its id in the same transaction of the log. The row is deleted
only after that, so an event is in the table, in the log, or for a moment in both, but never in neither. Ids are never
used twice, so a deletion that is repeated after a crash deletes nothing else.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import pyarrow.compute as pc

from millstream import terminal
from millstream.capture.capturing import Capture
from millstream.capture.capturing_topics import create_if_missing
from millstream.capture.changes import INSERT, SNAPSHOT, TableShape
from millstream.capture.ports import Opener, Piece, Position
from millstream.connectors import arguments
from millstream.connectors.databases.endpoints import checked_address
from millstream.errors import InvalidInput, InvalidName, InvalidRecord, SourceUnavailable, StorageError
from millstream.log import Broker
from millstream.log.channel import checked_headers
from millstream.log.topics import checked_name
from millstream.postgres_address import scheme_of, without_password
from millstream.records import Schema, batch_to_rows, codec
from millstream.secrets import Secret

COLUMNS = ("id", "topic", "key", "value", "headers", "at")
ID_HEADER = "outbox-id"
REASON_HEADER = "reason"
REJECTED = ".rejected"
REMOVE = "remove"
BUSY_SECONDS = 10.0
Ranges = list[tuple[int, int]]
logger = terminal.logger(__name__)


class Store(Protocol):
    """The database with the table."""

    mark: str
    """The placeholder of a parameter."""

    def ddl(self, table: str) -> str: ...

    def opener(self, *tables: str) -> Opener: ...

    def name(self) -> str:
        """The name of the database."""

    def has_no_transaction(self, connection: Any) -> bool:
        """Whether a statement would be committed at once."""

    def run(self, statement: str, values: Iterable[tuple[int, int]] = ()) -> None:
        """Executes a statement, once for each pair of values, in a transaction of its own."""


@dataclass(frozen=True)
class Outbox:
    """A table of events; made by `ms.outbox(…)`."""

    store: Store
    table: str
    keep: bool

    @property
    def ddl(self) -> str:
        """The statement that creates the table, for those who manage their schema themselves."""
        return self.store.ddl(_quoted(self.table))

    def create(self) -> None:
        """Creates the table if it does not exist."""
        self.store.run(self.ddl)

    def put(
        self,
        connection: Any,
        topic: str,
        value: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Inserts an event in the open transaction of a connection: it is sent if that is committed, else it never was.

        `value` is stored as JSON; None is a tombstone of its key. A topic that does not exist is created when the event
        is sent.
        """
        checked_name(topic, "topic")
        if key is not None and not isinstance(key, str):
            raise InvalidRecord(f"a key of an event must be text, not {type(key).__name__}", next_step="key=str(…)")
        if self.store.has_no_transaction(connection):
            raise InvalidInput(
                "the connection has no open transaction, so the event would be committed by itself",
                next_step="begin a transaction, make the change that the event is about, and put the event into it",
            )
        given = None if headers is None else {name: text.decode() for name, text in checked_headers(headers)}
        try:
            written = [None if part is None else json.dumps(part, ensure_ascii=False) for part in (value, given)]
        except (TypeError, ValueError) as error:
            raise InvalidRecord(f"the event cannot be written as JSON: {error}", where=f"topic '{topic}'") from error
        marks = ", ".join([self.store.mark] * 4)
        statement = f"INSERT INTO {_quoted(self.table)} (topic, key, value, headers) VALUES ({marks})"
        with closing(connection.cursor()) as cursor:
            cursor.execute(statement, (topic, key, *written))

    def capture(self, log: Broker, *, name: str | None = None, **settings: Any) -> OutboxCapture:
        """Sends the events to their topics, in the order of their commits: use it as a context manager.

        `catch_up()` sends all that are committed, and `run(stop)` goes on until the event `stop` is set. `settings` are
        those of new topics.
        """
        return OutboxCapture(self, log, name or self.default_name, **settings)

    @property
    def default_name(self) -> str:
        """Of its capture."""
        return f"outbox_{self.store.name()}"


class OutboxCapture(Capture):
    """Sends the rows of an outbox as records of the topics that they name."""

    def __init__(self, outbox: Outbox, log: Broker, name: str, **settings: Any) -> None:
        self._outbox = outbox
        self._sent: list[int] = []
        """Ids of this step."""
        self._removed: Ranges = []
        super().__init__(log, name, outbox.store.opener(outbox.table), is_inner=True, **settings)

    def step(self, wait_s: float = 0.0) -> bool:
        self._remove()  # what the last process has sent, and not removed
        self._sent = []
        found = super().step(wait_s)
        self._remove()
        return found

    def _with_notes(self, position: Position) -> Position:
        return {**position, REMOVE: [] if self._outbox.keep else ranges(self._sent)}

    def _remove(self) -> None:
        sent: Ranges = self.position.get(REMOVE, [])
        if sent and sent is not self._removed:
            mark = self._outbox.store.mark
            table = _quoted(self._outbox.table)
            self._outbox.store.run(f"DELETE FROM {table} WHERE id BETWEEN {mark} AND {mark}", sent)
            self._removed = sent

    # ------------------------------------------------------------ topics

    def _check_topics(self, shapes: list[TableShape], known: object) -> None:
        """Events may go to any topic, but the table must be an outbox."""
        for shape in shapes:
            self._fit(shape)

    def _fit(self, shape: TableShape) -> None:
        if tuple(sorted(shape.columns.names)) != tuple(sorted(COLUMNS)):
            raise InvalidInput(
                f"the table '{shape.name}' is not an outbox: its columns are {', '.join(shape.columns.names)}",
                where=self.database.where,
                next_step=f"an outbox has exactly these: {', '.join(COLUMNS)}; create it with ms.outbox(…).create()",
            )
        self._topics[shape.topic] = shape

    def _send(self, piece: Piece) -> None:
        if self._topics.get(piece.shape.topic) != piece.shape:
            self._fit(piece.shape)
        ops = piece.records.column("op")
        put = pc.or_(pc.equal(ops, INSERT), pc.equal(ops, SNAPSHOT))
        events = piece.records.filter(put).column("after").to_pylist()
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for event in events:
            by_topic.setdefault(event["topic"], []).append(event)
        for topic, found in by_topic.items():
            self._send_to(topic, found)
        self._sent += [event["id"] for event in events]

    def _send_to(self, topic: str, events: list[dict[str, Any]]) -> None:
        try:
            create_if_missing(self._log, topic, **self._settings)
            schema = self._log.topic(topic).settings.schema
        except InvalidName as error:
            for event in events:
                self._reject(event, error.what)
            return
        values, reasons = _values(events, schema)
        for number, event in enumerate(events):
            if number in reasons:
                self._reject(event, reasons[number])
                continue
            try:
                at, headers = _moment(event["at"]), _headers(event)
                self._producer.send(topic, values[number], event["key"], timestamp=at, headers=headers)
            except (InvalidRecord, ValueError) as error:
                self._reject(event, str(error))

    def _reject(self, event: dict[str, Any], reason: str) -> None:
        """An event that its topic cannot have must not hold up all others, and must not be lost."""
        topic = self._outbox.table.rpartition(".")[2] + REJECTED
        create_if_missing(self._log, topic, **self._settings)
        logger.warning(
            "event %s does not fit topic '%s', and is in '%s': %s", event["id"], event["topic"], topic, reason
        )
        document = json.dumps({name: event[name] for name in COLUMNS[:-1]}, ensure_ascii=False)
        headers = {ID_HEADER: str(event["id"]), REASON_HEADER: reason}
        self._producer.send(topic, document, event["key"], headers=headers)


def _values(events: list[dict[str, Any]], schema: Schema | None) -> tuple[list[Any], dict[int, str]]:
    """The values for a topic, and the reasons for those that it cannot have."""
    texts = [event["value"] for event in events]
    if schema is None:
        return texts, {}
    there = [number for number, text in enumerate(texts) if text is not None]
    decoded = codec("json", schema).decode([texts[number].encode() for number in there])
    reasons = {there[failure.index]: failure.reason for failure in decoded.failures}
    for index, row in zip(decoded.indices, batch_to_rows(decoded.rows), strict=True):
        texts[there[index]] = row
    return texts, reasons


def _headers(event: dict[str, Any]) -> dict[str, str]:
    return {**json.loads(event["headers"] or "{}"), ID_HEADER: str(event["id"])}


def _moment(at: datetime | str) -> datetime:
    """SQLite has no type for times."""
    return at if isinstance(at, datetime) else datetime.fromisoformat(at)


def ranges(ids: Iterable[int]) -> Ranges:
    """Consecutive numbers as pairs of the first and the last."""
    made: Ranges = []
    for number in sorted(ids):
        if made and made[-1][1] + 1 == number:
            made[-1] = (made[-1][0], number)
        else:
            made.append((number, number))
    return made


def _quoted(table: str) -> str:
    from millstream.connectors.databases.postgres import quoted

    return ".".join(map(quoted, table.split(".")))


# ---------------------------------------------------------------- databases


@dataclass(frozen=True)
class SqliteStore:
    path: Path
    mark = "?"

    @property
    def where(self) -> str:
        return str(self.path)

    def ddl(self, table: str) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key TEXT, "
            "value TEXT, headers TEXT, at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))"
        )

    def opener(self, *tables: str) -> Opener:
        from millstream.capture.sqlite.database import SqliteDatabase

        return partial(SqliteDatabase, self.path, {table: table for table in tables})

    def name(self) -> str:
        return self.path.stem

    def has_no_transaction(self, connection: Any) -> bool:
        is_autocommit = connection.isolation_level is None and getattr(connection, "autocommit", None) is not False
        return is_autocommit and not connection.in_transaction

    def run(self, statement: str, values: Iterable[tuple[int, int]] = ()) -> None:
        try:
            with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as db, db:
                if values:
                    db.executemany(statement, values)
                else:
                    db.execute(statement)
        except sqlite3.OperationalError as error:
            raise SourceUnavailable(
                f"the outbox cannot be written: {error}", where=self.where, next_step="check that it is not locked"
            ) from error
        except sqlite3.Error as error:
            raise StorageError(f"the outbox cannot be written: {error}", where=self.where) from error


@dataclass(frozen=True)
class PostgresStore:
    dsn: Secret = field(repr=False)
    mark = "%s"

    @property
    def where(self) -> str:
        return without_password(self.dsn.reveal())

    def ddl(self, table: str) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "topic text NOT NULL, key text, value text, headers text, at timestamptz NOT NULL DEFAULT now())"
        )

    def opener(self, *tables: str) -> Opener:
        from millstream.capture.postgres.database import PostgresDatabase

        return partial(PostgresDatabase, self.dsn.reveal(), {table: table for table in tables})

    def name(self) -> str:
        from millstream.capture.postgres.connections import database_name

        return database_name(self.dsn.reveal())

    def has_no_transaction(self, connection: Any) -> bool:
        status = connection.info.transaction_status
        return bool(connection.autocommit) and getattr(status, "name", status) in ("IDLE", 0)

    def run(self, statement: str, values: Iterable[tuple[int, int]] = ()) -> None:
        with self._connected() as db, db.transaction():
            if values:
                db.cursor().executemany(statement, values)
            else:
                db.execute(statement)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        from millstream.capture.postgres.connections import connect, explained

        dsn = self.dsn.reveal()
        with explained(dsn), connect(dsn) as db:
            yield db


def outbox(dsn: str | PathLike[str], *, table: str = "outbox", keep: bool = False) -> Outbox:
    """A table of events in a Postgres database (its address) or a SQLite file (its path).

    `put` inserts an event in the caller's transaction; `capture`, or `millstream capture outbox`, sends each event once
    to its topic. Rows that were sent are deleted, or stay with `keep`.
    """
    example = "outbox('postgresql://user@host/database')"
    name = arguments.text(table, "a table name must be a string", "outbox(…, table='outbox')")
    address = arguments.path(dsn, example)
    if scheme_of(address) is None and "=" not in address:
        return Outbox(SqliteStore(Path(address).expanduser().absolute()), name, keep)
    return Outbox(PostgresStore(Secret(checked_address(address, example))), name, keep)
