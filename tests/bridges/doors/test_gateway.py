"""The gateway, over HTTP and over WebSockets, and Arrow Flight pass the public suite."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any, ClassVar

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

import millstream as ms
from millstream.bridges.flight_server import FlightServer
from millstream.bridges.http.connection import BridgeConnection
from millstream.bridges.http.gateway import BODY_BYTES_MAX, gateway
from millstream.errors import InvalidInput, SourceUnavailable
from millstream.log import EmbeddedLog
from millstream.log.flight.log import FlightLog
from millstream.serving.access import Access, ListenAddress
from millstream.serving.http import listening, server
from millstream.testing.connectors import BridgeSuite, BridgeUnderTest, Message
from waiting import LOOK_S, PATIENCE_S, until

from ..support import request
from .kills import killed_often
from .ports import free_port

pytestmark = pytest.mark.more
ANSWER_SECONDS = 2.0
TOO_BIG = 1009
"""How a WebSocket is closed by a message that is too large."""


class ServedUnderTest(BridgeUnderTest):
    uses_the_log: ClassVar[bool] = True
    listens: ClassVar[bool] = True
    rejects_malformed: ClassVar[bool] = True

    def __init__(self) -> None:
        self.server_port = free_port()


# ---------------------------------------------------------------- the gateway


def run_gateway(log: EmbeddedLog, ready: Any, port: int) -> None:
    address = ListenAddress.of("127.0.0.1", port)
    with listening(address) as at, gateway(log, Access.at(address)) as application:
        ready()
        server(application, BridgeConnection, message_bytes_max=BODY_BYTES_MAX).run(sockets=[at])


def body_of(messages: Sequence[Message]) -> bytes:
    return json.dumps([{"value": json.loads(message.body)} for message in messages]).encode()


def check_answers(messages: Sequence[Message], answers: list[dict[str, Any]]) -> None:
    for message, answer in zip(messages, answers, strict=True):
        assert ("error" in answer) == (message.id == "bad"), answer


class GatewayUnderTest(ServedUnderTest):
    """Requests without an answer are repeated, and have no id."""

    has_ids: ClassVar[bool] = False
    large_bytes: ClassVar[int] = BODY_BYTES_MAX + 1

    def runner(self, port: int) -> Any:
        return functools.partial(run_gateway, port=self.server_port)

    def send(self, messages: Sequence[Message], port: int) -> None:
        until(lambda: self._is_answered(messages, port), "the gateway answers")

    def _is_answered(self, messages: Sequence[Message], port: int) -> bool:
        try:
            answer = request(port, "POST", "/v1/topics/messages/records", body_of(messages), timeout=ANSWER_SECONDS)
        except (OSError, HTTPException):  # killed before, or in the middle of, its answer
            return False
        assert answer.status in (200, 413, 429, 503), answer
        assert (answer.status == 413) == any(len(each.body) > self.large_bytes for each in messages)
        if answer.status == 200:
            check_answers(messages, json.loads(answer.body))
        return answer.status in (200, 413)


class TestGateway(BridgeSuite):
    @pytest.fixture
    def bridge(self) -> GatewayUnderTest:
        return GatewayUnderTest()


class SocketUnderTest(GatewayUnderTest):
    """A new connection for each attempt."""

    def _is_answered(self, messages: Sequence[Message], port: int) -> bool:
        url = f"ws://127.0.0.1:{port}/v1/topics/messages/socket"
        try:
            with connect(url, open_timeout=ANSWER_SECONDS, close_timeout=0, max_size=None) as socket:
                socket.send(body_of(messages))
                check_answers(messages, json.loads(socket.recv(ANSWER_SECONDS))["stored"])
                return True
        except ConnectionClosed as error:
            return error.rcvd is not None and error.rcvd.code == TOO_BIG
        except (OSError, InvalidHandshake):  # also of what takes too long
            return False


class TestWebSocket(BridgeSuite):
    @pytest.fixture
    def bridge(self) -> SocketUnderTest:
        return SocketUnderTest()


# ---------------------------------------------------------------- Arrow Flight


def run_flight(log: EmbeddedLog, ready: Any, port: int) -> None:
    with FlightServer(log, f"grpc+tcp://127.0.0.1:{port}") as running:
        ready()
        running.wait_until_stopped()


class FlightUnderTest(ServedUnderTest):
    """A producer repeats what was not answered, and the server recognizes it."""

    has_ids: ClassVar[bool] = False
    is_exact: ClassVar[bool] = True
    large_bytes: ClassVar[int] = 65 << 20

    def runner(self, port: int) -> Any:
        return functools.partial(run_flight, port=self.server_port)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with self._connected(port) as remote:
            for message in messages:
                try:
                    with remote.producer(acks="all") as producer:
                        assert producer.send("messages", json.loads(message.body)).offset >= 0
                except InvalidInput:
                    assert message.id == "bad" or len(message.body) >= self.large_bytes

    def _connected(self, port: int) -> FlightLog:
        """Also to a server that is away at the moment: only a producer waits for it by itself."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = ms.connect(f"flight://127.0.0.1:{port}")
                assert isinstance(found, FlightLog)
                return found
            except SourceUnavailable:
                assert time.monotonic() < deadline
                time.sleep(LOOK_S)


class TestFlight(BridgeSuite):
    @pytest.fixture
    def bridge(self) -> FlightUnderTest:
        return FlightUnderTest()


TestGatewayKilledOften = killed_often(TestGateway)
TestWebSocketKilledOften = killed_often(TestWebSocket)
TestFlightKilledOften = killed_often(TestFlight)
