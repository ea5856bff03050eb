"""ZeroMQ and nanomsg pass the public suite: without a broker, what is lost is counted."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any, ClassVar

import pytest

from millstream.bridges.landing import Landing
from millstream.bridges.peers.messages import NUMBER_BYTES, PeerBridge
from millstream.bridges.peers.nanomsg import NanomsgAddress, NanomsgBridge, NanomsgSource, packed
from millstream.bridges.peers.zeromq import ZmqAddress, ZmqBridge, ZmqSource
from millstream.bridges.reports import reported
from millstream.testing.connectors import BridgeSuite, BridgeUnderTest, Message, NumberedSuite

from .kills import killed_often
from .ports import free_port

pytestmark = pytest.mark.more
SENDER = b"12345678"


def run_peer(landing: Landing, ready: Any, port: int, protocol: str) -> None:
    address = f"tcp://127.0.0.1:{port}"
    made: PeerBridge[Any]
    if protocol == "zeromq":
        made = ZmqBridge(ZmqSource(ZmqAddress(address, bind=True), "pull", numbered=True), landing, "messages")
    else:
        source = NanomsgSource(NanomsgAddress(address, bind=True), "pull", numbered=True)
        made = NanomsgBridge(source, landing, "messages")
    made.on_ready = ready
    with reported(landing.log, protocol, landing, missing=lambda: made.missing):
        made.run()


class PeerUnderTest(BridgeUnderTest):
    """One sender, which connects again by itself."""

    listens: ClassVar[bool] = True
    may_lose: ClassVar[str] = "what was taken by either library and is not stored, when a process or connection ends"
    protocol: ClassVar[str]

    def __init__(self) -> None:
        self.server_port = free_port()
        self._numbers = count()

    def runner(self, port: int) -> Any:
        return functools.partial(run_peer, port=self.server_port, protocol=self.protocol)

    def parts(self, message: Message) -> list[bytes]:
        number = next(self._numbers).to_bytes(NUMBER_BYTES)
        return [b"", SENDER, number, message.id.encode(), message.body]

    def lose(self, messages: int, port: int) -> None:
        """They have their numbers, and are never sent."""
        for _ in range(messages):
            next(self._numbers)


class ZeroMqUnderTest(PeerUnderTest):
    protocol: ClassVar[str] = "zeromq"

    def __init__(self) -> None:
        import zmq

        super().__init__()
        self._context = zmq.Context()
        self._socket: zmq.Socket[Any] | None = None

    def send(self, messages: Sequence[Message], port: int) -> None:
        import zmq

        if self._socket is None:
            self._socket = ZmqAddress(f"tcp://127.0.0.1:{port}").open(self._context, zmq.PUSH, LINGER=0)
        for message in messages:
            self._socket.send_multipart(self.parts(message))

    def close(self) -> None:
        self._context.destroy(linger=0)


class TestZeroMq(NumberedSuite, BridgeSuite):
    @pytest.fixture
    def bridge(self) -> Iterator[ZeroMqUnderTest]:
        pytest.importorskip("zmq")
        with closing(ZeroMqUnderTest()) as made:
            yield made


class NanomsgUnderTest(PeerUnderTest):
    protocol: ClassVar[str] = "nanomsg"

    def __init__(self) -> None:
        import pynng

        super().__init__()
        self._socket = pynng.Push0()
        self._is_open = False

    def send(self, messages: Sequence[Message], port: int) -> None:
        if not self._is_open:
            NanomsgAddress(f"tcp://127.0.0.1:{port}").open(self._socket)
            self._is_open = True
        for message in messages:
            self._socket.send(packed(self.parts(message)))

    def close(self) -> None:
        self._socket.close()


class TestNanomsg(NumberedSuite, BridgeSuite):
    test_a_connection_that_is_half_open = None  # type: ignore[assignment]
    """NNG has no heartbeats: only the system ends such a connection, and what is sent until then is lost."""

    @pytest.fixture
    def bridge(self) -> Iterator[NanomsgUnderTest]:
        pytest.importorskip("pynng")
        with closing(NanomsgUnderTest()) as made:
            yield made


TestZeroMqKilledOften = killed_often(TestZeroMq)
TestNanomsgKilledOften = killed_often(TestNanomsg)
