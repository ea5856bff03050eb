"""Lines, syslog and datagrams from sockets into a topic.

These protocols have no acknowledgement. On a stream, nothing more is read until what was read is stored, so that a
sender that is too fast is stopped by TCP itself; datagrams that cannot be stored in time are dropped and counted.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Any

from millstream import terminal
from millstream.bridges.arrivals import Arrival
from millstream.bridges.grouping import GroupedLanding
from millstream.bridges.sockets import syslog
from millstream.bridges.sockets.framing import Counted, Lines, Piece, Unframed
from millstream.bridges.sockets.sequences import Sequence as Numbers
from millstream.errors import BufferFull, InvalidInput, MillstreamError

RECEIVE_BYTES = 1 << 16
DATAGRAMS_AT_ONCE = 512
CONNECTIONS_MAX = 1000
RETRY_SECONDS = 0.05
BUFFER_BYTES = 8 << 20
SEQUENCE = "sequence"
"""The header with the number of a datagram."""
QUEUE_OVERFLOW = getattr(socket, "SO_RXQ_OVFL", 40)
logger = terminal.logger(__name__)
Network = IPv4Network | IPv6Network


@dataclass
class Traffic:
    """What was received and could not be stored, since the bridge was started."""

    refused_connections: int = 0
    dropped: int = 0
    """Datagrams for which there was no space, here or in the operating system."""
    numbers: Numbers = field(default_factory=Numbers)

    @property
    def missing(self) -> int:
        """Numbers that never came; without numbers, datagrams that were dropped."""
        return self.dropped if self.numbers.next is None else self.numbers.missing

    def summary(self) -> str:
        parts = [f"dropped {self.dropped:,}"]
        if self.numbers.next is not None:
            parts.append(f"missing numbers {self.numbers.missing:,}, repeated {self.numbers.duplicates:,}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Reader:
    """What becomes of the messages of a socket."""

    topic: str
    kind: str
    """`lines` or `syslog`."""
    bytes_max: int = 1 << 20
    allowed: Sequence[Network] = ()
    """The senders; without any, all that can reach the socket."""

    def framing(self) -> Lines | Counted:
        return Counted(self.bytes_max) if self.kind == "syslog" else Lines(self.bytes_max)

    def arrival(self, piece: Piece, origin: str) -> Arrival:
        made = Arrival(self.topic, piece.content, origin=origin, fault=piece.fault)
        if self.kind == "syslog" and piece.fault is None:
            try:
                made.value, made.key = syslog.as_json(piece.content, datetime.now(UTC))
            except syslog.NotSyslog as error:
                made.fault = str(error)
        return made

    def is_allowed(self, host: str | None) -> bool:
        if not self.allowed or host is None:
            return True
        address = ip_address(host.partition("%")[0])
        return any(address in network for network in self.allowed)


async def land(grouped: GroupedLanding, arrivals: Sequence[Arrival]) -> None:
    """Waits for space: meanwhile nothing more is read from this sender."""
    while arrivals:
        try:
            await grouped.land(arrivals)
            return
        except BufferFull:
            await asyncio.sleep(RETRY_SECONDS)


class StreamListener:
    """Connections of TCP or of a Unix socket."""

    def __init__(self, grouped: GroupedLanding, reader: Reader, traffic: Traffic) -> None:
        self._grouped = grouped
        self._reader = reader
        self._traffic = traffic
        self._open = 0

    async def connected(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) else None
        if self._open >= CONNECTIONS_MAX or not self._reader.is_allowed(host):
            self._traffic.refused_connections += 1
            writer.close()
            return
        self._open += 1
        try:
            await self.read(stream, f"{self._reader.kind} {host}" if host else self._reader.kind)
        except (OSError, MillstreamError) as error:
            logger.warning("a connection from %s is closed: %s", host or "this machine", error)
        finally:
            self._open -= 1
            writer.close()

    async def read(self, stream: asyncio.StreamReader, origin: str) -> None:
        """Until the sender ends the stream."""
        framing = self._reader.framing()
        try:
            while received := await stream.read(RECEIVE_BYTES):
                await self._land(framing.feed(received), origin)
        except Unframed:
            return
        await self._land(framing.end(), origin)

    async def _land(self, pieces: Iterable[Piece], origin: str) -> None:
        arrivals: list[Arrival] = []
        failure = None
        try:
            arrivals.extend(self._reader.arrival(piece, origin) for piece in pieces if piece.content)
        except Unframed as error:
            failure = error
        await land(self._grouped, arrivals)
        if failure is not None:
            raise failure

    async def read_pipe(self, opened: int, path: Path) -> None:
        """Until it is cancelled: writers come and go."""
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader(limit=RECEIVE_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(opened, "rb", buffering=0)
        )
        try:
            await self.read(stream, f"pipe {path.name}")
        finally:
            transport.close()


@dataclass(frozen=True)
class Numbered:
    """Where datagrams have their sequence number: a big-endian number."""

    at: int
    size: int

    def read(self, datagram: bytes) -> int | None:
        number = datagram[self.at : self.at + self.size]
        return int.from_bytes(number) if len(number) == self.size else None


class DatagramListener:
    """UDP: every datagram is a message. Several lines (multicast groups) with the same numbers are merged into one."""

    def __init__(
        self, grouped: GroupedLanding, reader: Reader, traffic: Traffic, numbered: Numbered | None = None
    ) -> None:
        self._grouped = grouped
        self._reader = reader
        self._traffic = traffic
        self._numbered = numbered
        self._overflows: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, at: socket.socket) -> None:
        at.setblocking(False)
        asyncio.get_running_loop().add_reader(at, self._receive, at)

    def _receive(self, at: socket.socket) -> None:
        arrivals = []
        for _ in range(DATAGRAMS_AT_ONCE):
            try:
                datagram, extra, flags, sender = at.recvmsg(self._reader.bytes_max, 64)
            except BlockingIOError:
                break
            except OSError as error:  # about an earlier datagram of ours; there are none
                logger.warning("receiving failed: %s", error)
                break
            self._count_overflow(at, extra)
            if self._reader.is_allowed(sender[0]) and (made := self._arrival(datagram, sender[0])) is not None:
                if flags & socket.MSG_TRUNC:
                    made.fault = f"the datagram is longer than {self._reader.bytes_max:,} bytes, and was cut"
                arrivals.append(made)
        if arrivals:
            task = asyncio.get_running_loop().create_task(self._land(arrivals))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _arrival(self, datagram: bytes, host: str) -> Arrival | None:
        made = self._reader.arrival(Piece(datagram), f"udp {host}")
        if self._numbered is not None:
            number = self._numbered.read(datagram)
            if number is None:
                made.fault = "the datagram is too short for a sequence number"
            elif not self._traffic.numbers.is_new(number):
                return None
            else:
                made.headers = ((SEQUENCE, str(number).encode()),)
        return made

    def _count_overflow(self, at: socket.socket, extra: list[tuple[int, int, bytes]]) -> None:
        """The operating system counts what it had no space for."""
        for level, kind, content in extra:
            if level == socket.SOL_SOCKET and kind == QUEUE_OVERFLOW:
                (total,) = struct.unpack("I", content[:4])
                self._traffic.dropped += total - self._overflows.get(at.fileno(), 0)
                self._overflows[at.fileno()] = total

    async def _land(self, arrivals: list[Arrival]) -> None:
        try:
            await self._grouped.land(arrivals)
        except MillstreamError as error:
            if not self._traffic.dropped:
                logger.warning("datagrams are dropped: %s", error)
            self._traffic.dropped += len(arrivals)
            for arrival in arrivals:  # the other line may still bring them
                for name, number in arrival.headers:
                    if name == SEQUENCE:
                        self._traffic.numbers.give_back(int(number))

    async def close(self) -> None:
        """What was received is stored."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


# ---------------------------------------------------------------- sockets


def datagram_socket(host: str, port: int, group: str | None = None) -> socket.socket:
    """A socket for datagrams to an address, or to a multicast group on the interface with that address."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        made.setsockopt(socket.SOL_SOCKET, QUEUE_OVERFLOW, 1)
        made.bind((group or host, port))
        if group is not None:
            member = socket.inet_aton(group) + socket.inet_aton(host)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    except OSError as error:
        made.close()
        raise InvalidInput(
            f"cannot receive datagrams at {group or host}:{port}: {error.strerror or error}",
            next_step="give an address of this machine with --host, and a group of 224.0.0.0/4 with --multicast",
        ) from error
    return made


def unix_socket(path: Path) -> socket.socket:
    """A socket that only this user can connect to. One that a dead process has left is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.lstat().st_mode) and not _is_served(path):
            path.unlink()
        made.bind(str(path))
        path.chmod(0o600)
        made.listen()
    except OSError as error:
        made.close()
        raise InvalidInput(
            f"cannot listen at {path}: {error.strerror or error}", next_step="choose another path"
        ) from error
    return made


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        try:
            trying.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def named_pipe(path: Path) -> Path:
    try:
        if not path.exists():
            os.mkfifo(path, 0o600)
        if not stat.S_ISFIFO(path.stat().st_mode):
            raise InvalidInput(f"{path} is not a named pipe", next_step="choose another path")
    except OSError as error:
        raise InvalidInput(f"cannot open {path}: {error.strerror or error}", next_step="choose another path") from error
    return path


def opened_pipe(path: Path) -> int:
    """Also opened for writing, so that the stream does not end with its last writer."""
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


@dataclass
class Doors:
    """The sockets of one bridge, served together until it is stopped."""

    streams: Sequence[socket.socket] = ()
    datagrams: Sequence[socket.socket] = ()
    pipe: Path | None = None
    tls: ssl.SSLContext | None = None
    numbered: Numbered | None = None

    async def serve(
        self,
        grouped: GroupedLanding,
        reader: Reader,
        traffic: Traffic,
        until: Callable[[], Any],
    ) -> None:
        """`until` returns what is awaited."""
        listener = StreamListener(grouped, reader, traffic)
        receiver = DatagramListener(grouped, reader, traffic, self.numbered)
        servers = [
            await asyncio.start_server(listener.connected, sock=at, limit=RECEIVE_BYTES, ssl=self.tls)
            if at.family != socket.AF_UNIX
            else await asyncio.start_unix_server(listener.connected, sock=at, limit=RECEIVE_BYTES)
            for at in self.streams
        ]
        for at in self.datagrams:
            receiver.listen(at)
        reading = None
        if self.pipe is not None:  # opened before it is ready: a writer finds a reader
            reading = asyncio.ensure_future(listener.read_pipe(opened_pipe(self.pipe), self.pipe))
        try:
            await until()
        finally:
            for server in servers:
                server.close()
            for at in self.datagrams:
                asyncio.get_running_loop().remove_reader(at)
            await receiver.close()
            if reading is not None:
                reading.cancel()
