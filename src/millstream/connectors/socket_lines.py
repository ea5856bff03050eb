"""Lines from a socket as a source: received lines are spooled to a log, and read from there.

Lines can be replayed, but those that a server sends while the job is down are lost. A line that is too long is spooled
as a null, which becomes a dead letter. With `keep=None`, lines are only in memory, and processed at most once.
"""

from __future__ import annotations

import socket as sockets
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from millstream import terminal
from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Reading
from millstream.connectors.dead_letters import Origin, dead_letter_table
from millstream.connectors.rate import check_columns
from millstream.connectors.source import Slab, Source
from millstream.connectors.spooled import RETENTION, SpooledSource
from millstream.connectors.unstored import PassingSource
from millstream.errors import ClosedError, MillstreamError
from millstream.log import EmbeddedLog, Producer
from millstream.private_files import make_folders
from millstream.records import Failure, Schema, duration
from millstream.user_lines import AtUsersLine

RETENTION_S = duration(RETENTION, what="keep").total_seconds()
COLUMNS = Schema.of("value string, at timestamp")
TOPIC = "lines"
CONNECT_SECONDS = 10.0
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.1, 5.0
RECEIVE_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 20
PORT_MAX = 65535
TOO_LONG = f"a line is longer than {LINE_BYTES_MAX >> 20} MiB and was dropped"
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class Socket(Connector):
    host: str
    port: int
    keep_s: float | None = RETENTION_S
    """None: lines are never stored."""
    can_read: ClassVar[bool] = True
    can_peek: ClassVar[bool] = False
    can_replay: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"socket {self.port}"

    def open_source(self, reading: Reading) -> Source:
        check_columns(str(self), COLUMNS, reading.schema)
        if self.keep_s is None:
            return PassingSocketSource(self, reading.schema, reading.folder)
        make_folders(reading.folder)
        return SocketSource(self, reading.schema, self.keep_s, folder=reading.folder)

    def __str__(self) -> str:
        return f"socket({self.host}:{self.port})"


def socket(host: str, port: int, *, keep: str | timedelta | None = RETENTION) -> Socket:
    """A source of text lines from a server: for experiments, since lost lines cannot be replayed.

    Received lines are stored in the job's folder, and kept for a time, so that a batch that is repeated has the same
    lines. With `keep=None` they are not stored: a line is in memory until it is processed, and lost if the job ends
    before that, so each is processed at most once.
    """
    if arguments.whole_number(port, "port", "for example socket('localhost', 9999)") > PORT_MAX:
        raise arguments.refused(f"a port must be at most {PORT_MAX}, not {port}", None)
    with AtUsersLine():
        keep_s = None if keep is None else duration(keep, what="keep").total_seconds()
    return Socket(arguments.text(host, "a host must be a string", "socket('localhost', 9999)"), port, keep_s)


class SocketSource(SpooledSource):
    def __init__(self, endpoint: Socket, schema: Schema, keep_s: float, *, folder: Path) -> None:
        super().__init__(TOPIC, COLUMNS, folder, timedelta(seconds=keep_s))
        self.endpoint = endpoint
        self.schema = schema

    def _receiving(self) -> Receiver:
        return Receiver(self.endpoint, self._log.producer(acks=1))

    def _checked(self, slab: Slab) -> Slab:
        return _checked(slab, self.endpoint, self.schema)


class PassingSocketSource(PassingSource):
    def __init__(self, endpoint: Socket, schema: Schema, folder: Path) -> None:
        super().__init__(TOPIC, COLUMNS, folder)
        self.endpoint = endpoint
        self.schema = schema

    def _receiving(self, log: EmbeddedLog) -> Receiver:
        return Receiver(self.endpoint, log.producer(acks=1))

    def _checked(self, slab: Slab) -> Slab:
        return _checked(slab, self.endpoint, self.schema)


def _checked(slab: Slab, endpoint: Socket, schema: Schema) -> Slab:
    """With the requested columns, and without lines that were too long."""
    rows, offsets, dead = slab.rows, slab.offsets, slab.dead
    too_long = rows.column("value").is_null().to_numpy()
    if too_long.any():
        at = offsets[too_long]
        failures = [Failure(index, TOO_LONG) for index in range(len(at))]
        dead = dead_letter_table([None] * len(at), at, failures, Origin(str(endpoint), 0))
        rows, offsets = rows.filter(pa.array(~too_long)), offsets[~too_long]
    columns = [
        rows.column(field.name) if field.name in COLUMNS else pa.nulls(rows.num_rows, field.type)
        for field in schema.arrow
    ]
    return Slab(slab.partition, pa.Table.from_arrays(columns, schema=schema.arrow), offsets, dead)


class Receiver:
    """A thread that keeps reconnecting, and stores each line with the time of its arrival."""

    def __init__(self, endpoint: Socket, producer: Producer) -> None:
        self._endpoint = endpoint
        self._producer = producer
        self._stop = threading.Event()
        self._connection: sockets.socket | None = None
        self._thread = threading.Thread(target=self._run, name="millstream-socket", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = RETRY_SECONDS
        while not self._stop.is_set():
            try:
                with sockets.create_connection(
                    (self._endpoint.host, self._endpoint.port), CONNECT_SECONDS
                ) as connection:
                    connection.settimeout(None)
                    self._connection = connection
                    pause = RETRY_SECONDS
                    self._read(connection)
            except ClosedError:
                return
            except (OSError, MillstreamError) as error:
                if not self._stop.is_set():
                    logger.warning("%s: %s; retrying in %.1f s", self._endpoint, error, pause)
            finally:
                self._connection = None
            self._stop.wait(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    def _read(self, connection: sockets.socket) -> None:
        rest, is_cut = b"", False
        while received := connection.recv(RECEIVE_BYTES):
            *lines, rest = (rest + received).split(b"\n")
            if lines and is_cut:
                lines, is_cut = lines[1:], False  # the rest of a line that was spooled as too long
            checked: list[bytes | None] = [line if len(line) <= LINE_BYTES_MAX else None for line in lines]
            if len(rest) > LINE_BYTES_MAX:
                rest = b""
                if not is_cut:
                    checked.append(None)
                    is_cut = True
            self._store(checked)
        if rest and not is_cut:
            self._store([rest])  # the last line need not end with a line break

    def _store(self, lines: list[bytes | None]) -> None:
        if not lines:
            return
        if None in lines:
            logger.warning("%s: %s", self._endpoint, TOO_LONG)
        texts = [None if line is None else line.removesuffix(b"\r").decode(errors="replace") for line in lines]
        now = pa.scalar(datetime.now(UTC), COLUMNS.field("at").type)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(texts, pa.string()), pa.repeat(now, len(texts))], schema=COLUMNS.arrow
        )
        self._producer.send_batch(TOPIC, batch, timestamp="at")
        self._producer.flush()

    def close(self) -> None:
        self._stop.set()
        connection = self._connection
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(sockets.SHUT_RDWR)  # wakes the receiving thread
        self._thread.join()
        self._producer.close()
