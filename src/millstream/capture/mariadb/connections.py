"""Connections to MariaDB: for statements, and for its binary log. Errors are those of Millstream, without passwords."""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from millstream.capture.mariadb.address import Address
from millstream.errors import InvalidInput, MillstreamError, OffsetLost, SourceUnavailable, StorageError
from millstream.readiness import wait_readable
from millstream.secrets import concealed

CONNECT_SECONDS, READ_SECONDS = 10, 600
HEARTBEAT_SECONDS = 0.1
DUMP_COMMAND = 0x12
RECEIVED_BYTES = 1 << 18
PACKET_BYTES_MAX = 0xFFFFFF
PASSING = {1040, 1053, 1158, 1159, 1160, 1161, 1205, 1213, 1412, 1927, 2002, 2003, 2006, 2013, 2014}
"""The server or the connection is away, or a lock or a table's new columns were in the way."""
DENIED = {1044, 1045, 1142, 1227}
PURGED = 1236
SETTINGS = "SET time_zone = '+00:00', sql_mode = '', net_write_timeout = 600"


def driver() -> ModuleType:
    try:
        import pymysql
    except ImportError as error:
        raise InvalidInput(
            "capturing MariaDB needs the package PyMySQL", next_step="pip install 'millstream[mariadb]'"
        ) from error
    found: ModuleType = pymysql
    return found


@contextmanager
def explained(address: Address) -> Iterator[None]:
    """Turns the driver's errors into Millstream's."""
    pymysql = driver()
    try:
        yield
    except pymysql.MySQLError as error:
        raise _error(address, *_parts(error)) from error
    except (OSError, EOFError) as error:
        raise SourceUnavailable(
            f"the connection to MariaDB is broken: {error}",
            where=str(address),
            next_step="check that the server is up, and what its log says",
        ) from error


def _parts(error: Any) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return code, str(error.args[-1] if error.args else error)


def _error(address: Address, code: int, message: str) -> MillstreamError:
    message = concealed(message, [address.password] if address.password else [])
    if code == PURGED:
        return OffsetLost(
            f"MariaDB cannot send its binary log from the stored position on: {message}",
            where=str(address),
            next_step="capture the tables under another name, into other topics: they start with a new snapshot; "
            "increase binlog_expire_logs_seconds if the binary log was removed too early",
        )
    if code in DENIED:
        return InvalidInput(
            f"MariaDB refuses this user: {message}",
            where=str(address),
            next_step="check user and password, and GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO …",
        )
    kind = SourceUnavailable if code in PASSING else StorageError
    return kind(
        f"MariaDB cannot be captured: {message}",
        where=str(address),
        next_step="check that the server is up, and what its log says",
    )


def connect(address: Address) -> Any:
    """In a session whose texts mean the same everywhere. Whole numbers and floats are numbers, the rest is text."""
    pymysql = driver()
    kinds = pymysql.constants.FIELD_TYPE
    whole = (kinds.TINY, kinds.SHORT, kinds.INT24, kinds.LONG, kinds.LONGLONG, kinds.YEAR)
    numbers = {**dict.fromkeys(whole, int), kinds.FLOAT: float, kinds.DOUBLE: float}
    tls = {} if address.ca_file is None else {"ssl": {"ca": address.ca_file}}
    return pymysql.connect(
        host=address.host,
        port=address.port,
        user=address.user,
        password=address.password,
        database=address.database,
        charset="utf8mb4",
        autocommit=True,
        conv={**pymysql.converters.encoders, **numbers},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        init_command=SETTINGS,
        **tls,
    )


def rows(db: Any, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with db.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


class Replica:
    """The events of the binary log after GTIDs, as a replica receives them."""

    def __init__(self, address: Address, gtids: str) -> None:
        self._address = address
        self._buffer = bytearray()
        with explained(address):
            self._connection = connect(address)
            for setting, value in {
                "@master_binlog_checksum": "NONE",
                "@mariadb_slave_capability": 4,
                "@master_heartbeat_period": int(HEARTBEAT_SECONDS * 1e9),
                "@slave_connect_state": gtids,
                "@slave_gtid_strict_mode": 1,
                "@slave_gtid_ignore_duplicates": 0,
            }.items():
                rows(self._connection, f"SET {setting} = %s", value)
            number = 1 << 31 | secrets.randbits(31)  # two replicas must not have the same
            self._connection._execute_command(DUMP_COMMAND, struct.pack("<IHI", 4, 0, number))
            self._socket = self._connection._sock

    def event(self, wait_s: float) -> bytes | None:
        """The next event, waiting up to so long."""
        with explained(self._address):
            packet = self._packet(wait_s)
            if packet is None:
                return None
            if packet[0] == 0xFF:
                driver().err.raise_mysql_exception(packet)
            if packet[0] == 0xFE and len(packet) < 9:
                raise EOFError("the server has ended the replication")
            return packet[1:]

    def _packet(self, wait_s: float) -> bytes | None:
        deadline, at, parts = time.monotonic() + wait_s, 0, b""
        while True:
            if len(self._buffer) >= at + 4:
                size = int.from_bytes(self._buffer[at : at + 3], "little")
                if len(self._buffer) >= at + 4 + size:
                    parts += self._buffer[at + 4 : at + 4 + size]
                    at += 4 + size
                    if size < PACKET_BYTES_MAX:
                        del self._buffer[:at]
                        return parts
                    continue
            if not self._fill(max(0.0, deadline - time.monotonic())):
                return None

    def _fill(self, wait_s: float) -> bool:
        pending = getattr(self._socket, "pending", None)  # of TLS
        if not (pending and pending()) and not wait_readable([self._socket], wait_s):
            return False
        received = self._socket.recv(RECEIVED_BYTES)
        if not received:
            raise EOFError("the server has closed the connection")
        self._buffer += received
        return True

    def close(self) -> None:
        self._connection._force_close()
