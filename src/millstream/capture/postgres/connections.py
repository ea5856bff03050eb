"""Connections to Postgres: for statements, and for replication. Errors are those of Millstream, without passwords."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from millstream.capture.postgres.pgoutput import EPOCH_US
from millstream.capture.postgres.types import SETTINGS
from millstream.connectors.databases.postgres import FOR_GOOD, UNREADABLE
from millstream.errors import InvalidInput, MillstreamError, SourceUnavailable, StorageError
from millstream.postgres_address import secrets_of, without_password
from millstream.readiness import wait_readable
from millstream.secrets import concealed

CONNECT_SECONDS = 10
STATUS_SECONDS = 5.0
WAIT_SECONDS = 0.2
_DATA, _KEEPALIVE, _STATUS = struct.Struct(">xQQq"), struct.Struct(">xQqB"), struct.Struct(">cQQQqB")
PASSING_STATES = ("08", "57P", "53", "55006")
"""SQLSTATE classes: the connection, shutdown, resources, and a slot that is in use."""


def driver() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidInput(
            "capturing Postgres needs the package psycopg", next_step="pip install 'millstream[postgres]'"
        ) from error
    return psycopg


@contextmanager
def explained(dsn: str) -> Iterator[None]:
    """Turns the driver's errors into Millstream's."""
    psycopg = driver()
    try:
        yield
    except psycopg.Error as error:
        made = _error(dsn, error)
        raise made from (None if isinstance(made, InvalidInput) else error)  # libpq may quote a password


def _error(dsn: str, error: Any) -> MillstreamError:
    message = concealed((error.diag.message_primary or str(error)).strip(), secrets_of(dsn))
    if UNREADABLE.search(message):
        return InvalidInput(
            "the address of the database cannot be read",
            next_step="write postgresql://user:password@host:port/database",
        )
    lost = isinstance(error, driver().OperationalError) and error.sqlstate is None and not FOR_GOOD.search(message)
    kind = SourceUnavailable if lost or (error.sqlstate or "").startswith(PASSING_STATES) else StorageError
    return kind(
        f"Postgres cannot be captured: {message}",
        where=without_password(dsn),
        next_step=error.diag.message_hint or "check that the server is up, and what its log says",
    )


def connect(dsn: str, **options: Any) -> Any:
    """In a session whose texts mean the same everywhere."""
    timeout = {} if "connect_timeout" in dsn else {"connect_timeout": CONNECT_SECONDS}
    given = driver().conninfo.conninfo_to_dict(dsn).get("options") or ""
    settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    return driver().connect(dsn, autocommit=True, options=f"{given} {settings}".strip(), **timeout, **options)


def database_name(dsn: str) -> str:
    """As the server names it."""
    with explained(dsn), connect(dsn) as db:
        return str(db.info.dbname)


def copied(db: Any, statement: str) -> Iterator[memoryview]:
    """What COPY … TO STDOUT sends: a row at a time.

    It is read from libpq itself, because psycopg's own loop takes longer than everything else in a snapshot.
    """
    psycopg, pg = driver(), db.pgconn
    result = pg.exec_(statement.encode())
    if result.status != psycopg.pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    while (received := pg.get_copy_data(1))[0] >= 0:  # without waiting: libpq would keep all other threads from running
        if received[0] > 0:
            yield received[1]
        else:
            wait_readable([pg.socket], WAIT_SECONDS)
            pg.consume_input()
    ended = pg.get_result()
    while pg.get_result() is not None:
        pass
    if ended is None or ended.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(ended)


class Received(NamedTuple):
    """A message of the change log; or, without data, only how far the server has read it."""

    data: bytes | None
    lsn: int


class Replication:
    """The change log of a slot, from a position on. `confirmed` is what the server may forget."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        with explained(dsn):
            self._connection = connect(dsn, replication="database")
        self._pg = self._connection.pgconn
        self.confirmed = 0
        self._said_at = 0.0

    def execute(self, command: str) -> Any:
        with explained(self._dsn):
            return self._connection.execute(command).fetchone()

    def start(self, slot: str, publication: str, lsn: int) -> None:
        self.confirmed = lsn
        options = f"proto_version '1', publication_names '{publication}', messages 'true'"
        command = f"START_REPLICATION SLOT {slot} LOGICAL {text_of(lsn)} ({options})"
        psycopg = driver()
        with explained(self._dsn):
            self._pg.send_query(command.encode())
            while self._pg.is_busy():
                self._fill(WAIT_SECONDS)
            result = self._pg.get_result()
            if result.status != psycopg.pq.ExecStatus.COPY_BOTH:
                raise psycopg.errors.error_from_result(result)

    def receive(self, wait_s: float) -> Received | None:
        """The next message, waiting up to so long."""
        with explained(self._dsn):
            deadline = time.monotonic() + wait_s
            while True:
                size, data = self._pg.get_copy_data(1)
                if size > 0:
                    received = self._understood(bytes(data))
                    if received is not None:
                        return received
                    continue
                if size < 0:
                    self._raise_end()
                now = time.monotonic()
                if now - self._said_at > STATUS_SECONDS:
                    self.tell()
                if now >= deadline:
                    return None
                self._fill(min(deadline - now, WAIT_SECONDS))

    def _understood(self, data: bytes) -> Received | None:
        if data[:1] == b"w":
            _, end, _ = _DATA.unpack_from(data)
            return Received(data[25:], end)
        if data[:1] == b"k":
            end, _, wants_answer = _KEEPALIVE.unpack_from(data)
            if wants_answer:
                self.tell()
            return Received(None, end)
        return None

    def tell(self, *, asks: bool = False) -> None:
        """Tells the server what it may forget; with `asks` it answers with how far it has read."""
        now = time.time_ns() // 1000 - EPOCH_US
        with explained(self._dsn):
            self._pg.put_copy_data(_STATUS.pack(b"r", self.confirmed, self.confirmed, self.confirmed, now, asks))
            self._pg.flush()
        self._said_at = time.monotonic()

    def _fill(self, wait_s: float) -> None:
        if wait_readable([self._pg.socket], wait_s):
            self._pg.consume_input()

    def _raise_end(self) -> None:
        psycopg = driver()
        result = self._pg.get_result()
        if result is not None and result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        raise psycopg.OperationalError("the server has ended the replication")

    def close(self) -> None:
        with suppress(driver().Error):
            self._connection.close()


@dataclass(frozen=True)
class Snapshot:
    """Which transactions a snapshot of the database sees."""

    first_open: int
    next: int
    open: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Snapshot:
        """From `pg_current_snapshot()`: 10:20:10,14,15."""
        first_open, following, listed = text.split(":")
        return cls(int(first_open), int(following), frozenset(map(int, filter(None, listed.split(",")))))

    def has(self, xid: int) -> bool:
        """Of a transaction that has ended; its id has the lower 32 bits only."""
        whole = (self.next & ~0xFFFFFFFF) | xid
        if whole >= self.next + (1 << 31):
            whole -= 1 << 32
        return whole < self.first_open or (whole < self.next and whole not in self.open)


def text_of(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def number_of(lsn: str) -> int:
    high, _, low = lsn.partition("/")
    return int(high, 16) << 32 | int(low, 16)
