"""Lines over TCP, Unix sockets and pipes, syslog and datagrams pass the public suite, with what they may lose."""

from __future__ import annotations

import functools
import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millstream.bridges.landing import Landing, dead_letter_topic
from millstream.bridges.reports import reported
from millstream.bridges.sockets import running
from millstream.bridges.sockets.listener import (
    Doors,
    Numbered,
    Reader,
    Traffic,
    datagram_socket,
    named_pipe,
    unix_socket,
)
from millstream.serving.access import ListenAddress
from millstream.serving.http import bound
from millstream.testing.connectors import BridgeSuite, BridgeUnderTest, DoorSuite, Message, NumberedSuite
from millstream.testing.connectors.bridge_suite import bench_of
from waiting import until

from .kills import killed_often
from .ports import free_port

pytestmark = pytest.mark.more
UNREAD = "what was sent and not yet stored, when either process ends or the connection breaks"
DATAGRAM_BYTES_MAX = 1 << 14
NUMBER = Numbered(0, 8)


class LinesUnderTest(BridgeUnderTest):
    has_ids: ClassVar[bool] = False
    listens: ClassVar[bool] = True
    may_lose: ClassVar[str] = UNREAD
    framed = staticmethod(lambda message: message.body + b"\n")

    def _sent(self, sender: socket.socket, messages: Sequence[Message]) -> None:
        """Nobody knows how much of it arrives if it fails: it is not repeated."""
        with suppress(OSError):
            sender.sendall(b"".join(self.framed(message) for message in messages))


def run_tcp(landing: Landing, ready: Any, port: int, kind: str) -> None:
    with bound(ListenAddress.of("127.0.0.1", port)) as taken:
        running.serve(landing, Doors([taken]), Reader("messages", kind), Traffic(), lambda stop: ready())


class TcpUnderTest(LinesUnderTest):
    kind: ClassVar[str] = "lines"

    def __init__(self) -> None:
        self.server_port = free_port()

    def runner(self, port: int) -> Any:
        return functools.partial(run_tcp, port=self.server_port, kind=self.kind)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sender:
            self._sent(sender, messages)


class TestTcp(BridgeSuite):
    @pytest.fixture
    def bridge(self) -> TcpUnderTest:
        return TcpUnderTest()


class SyslogUnderTest(TcpUnderTest):
    """With the length in front; what is malformed has no priority."""

    kind: ClassVar[str] = "syslog"
    schema: ClassVar[str | None] = "message_id string, message string"

    @staticmethod
    def framed(message: Message) -> bytes:  # type: ignore[override]
        header = b"" if message.id == "bad" else f"<13>1 - host app - {message.id} - ".encode()
        return b"%d %b" % (len(header + message.body), header + message.body)

    def id_of(self, row: Any) -> str:
        return str(row["message_id"])


class TestSyslog(BridgeSuite):
    @pytest.fixture
    def bridge(self) -> SyslogUnderTest:
        return SyslogUnderTest()


# ---------------------------------------------------------------- on this machine


def run_unix(landing: Landing, ready: Any, path: Path) -> None:
    with unix_socket(path) as taken:
        running.serve(landing, Doors([taken]), Reader("messages", "lines"), Traffic(), lambda stop: ready())


class UnixUnderTest(LinesUnderTest):
    def __init__(self, path: Path) -> None:
        self._path = path

    def runner(self, port: int) -> Any:
        return functools.partial(run_unix, path=self._path)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with socket.socket(socket.AF_UNIX) as sender, suppress(OSError):  # nobody listens
            sender.connect(str(self._path))
            self._sent(sender, messages)


class TestUnixSocket(DoorSuite):
    @pytest.fixture
    def bridge(self, tmp_path: Path) -> UnixUnderTest:
        return UnixUnderTest(tmp_path / "lines.sock")


def run_pipe(landing: Landing, ready: Any, path: Path) -> None:
    running.serve(landing, Doors(pipe=path), Reader("messages", "lines"), Traffic(), lambda stop: ready())


class PipeUnderTest(LinesUnderTest):
    def __init__(self, path: Path) -> None:
        self._path = named_pipe(path)

    def runner(self, port: int) -> Any:
        return functools.partial(run_pipe, path=self._path)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with suppress(OSError):  # nobody reads
            opened = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(opened, True)
            with os.fdopen(opened, "wb") as pipe:
                pipe.write(b"".join(self.framed(message) for message in messages))


class TestPipe(DoorSuite):
    @pytest.fixture
    def bridge(self, tmp_path: Path) -> PipeUnderTest:
        return PipeUnderTest(tmp_path / "lines.pipe")


# ---------------------------------------------------------------- datagrams


def run_udp(landing: Landing, ready: Any, port: int, numbered: Numbered | None) -> None:
    traffic = Traffic()
    reader = Reader("messages", "lines", DATAGRAM_BYTES_MAX)
    with (
        datagram_socket("127.0.0.1", port) as taken,
        reported(landing.log, "udp", landing, missing=lambda: traffic.missing),
    ):
        doors = Doors(datagrams=[taken], numbered=numbered)
        running.serve(landing, doors, reader, traffic, lambda stop: ready())


class UdpUnderTest(BridgeUnderTest):
    has_ids: ClassVar[bool] = False
    listens: ClassVar[bool] = True
    may_lose: ClassVar[str] = "what is sent while nobody receives, and what the network or the system drops"
    large_bytes: ClassVar[int] = 2 * DATAGRAM_BYTES_MAX
    numbered: ClassVar[Numbered | None] = None

    def __init__(self) -> None:
        self._port = free_port(socket.SOCK_DGRAM)

    def runner(self, port: int) -> Any:
        return functools.partial(run_udp, port=self._port, numbered=self.numbered)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for message in messages:
                sender.sendto(self.datagram(message), ("127.0.0.1", self._port))

    def datagram(self, message: Message) -> bytes:
        return message.body


class TestUdp(DoorSuite):
    @pytest.fixture
    def bridge(self) -> UdpUnderTest:
        return UdpUnderTest()


class NumberedUdpUnderTest(UdpUnderTest):
    schema: ClassVar[str | None] = None
    numbered: ClassVar[Numbered | None] = NUMBER

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def datagram(self, message: Message) -> bytes:
        return next(self._numbers).to_bytes(NUMBER.size) + message.body

    def lose(self, messages: int, port: int) -> None:
        """To where nobody receives."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(messages):
                sender.sendto(self.datagram(Message("lost", b"lost")), ("127.0.0.1", free_port(socket.SOCK_DGRAM)))

    def id_of(self, row: Any) -> str:
        return str(json.loads(row[NUMBER.size :])["id"])


class TestNumberedUdp(NumberedSuite, DoorSuite):
    @pytest.fixture
    def bridge(self) -> NumberedUdpUnderTest:
        return NumberedUdpUnderTest()

    def test_a_malformed_message(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        """Of a datagram, only its number is read."""
        assert isinstance(bridge, NumberedUdpUnderTest)
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"short", ("127.0.0.1", bridge._port))
            bench.send()
            until(lambda: bench.rows(dead_letter_topic("messages")), "it is a dead letter")
            (letter,) = bench.rows(dead_letter_topic("messages"))
            assert (letter["value"], letter["topic"]) == (b"short", "udp 127.0.0.1")


TestTcpKilledOften = killed_often(TestTcp)
TestSyslogKilledOften = killed_often(TestSyslog)
TestUnixSocketKilledOften = killed_often(TestUnixSocket)
TestPipeKilledOften = killed_often(TestPipe)
TestUdpKilledOften = killed_often(TestUdp)
TestNumberedUdpKilledOften = killed_often(TestNumberedUdp)
