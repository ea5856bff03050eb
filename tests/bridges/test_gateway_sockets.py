"""A topic over a WebSocket: records in both directions, positions that resume, errors, tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from millstream.bridges.http.connection import BridgeConnection
from millstream.bridges.http.gateway import gateway
from millstream.log import EmbeddedLog
from millstream.serving.access import Access, ListenAddress
from waiting import until

from .support import MESSAGE_BYTES_MAX, serving, values

ADDRESS = ListenAddress.of("127.0.0.1", 0)
TOKEN = "0123456789abcdef"


@contextmanager
def opened(log: EmbeddedLog, token: str | None = None, **more: Any) -> Iterator[int]:
    with gateway(log, Access.at(ADDRESS, token=token), **more) as application, serving(application) as port:
        yield port


@pytest.fixture
def port(log: EmbeddedLog) -> Iterator[int]:
    log.create_topic("clicks")
    with opened(log) as made:
        yield made


def connected(port: int, query: str = "", topic: str = "clicks", **more: Any) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{port}/v1/topics/{topic}/socket{query}", open_timeout=120, **more)


def asked(socket: ClientConnection, message: Any) -> Any:
    socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(socket.recv(120))


def read_all(socket: ClientConnection) -> None:
    while True:
        socket.recv(120)


def test_records_go_in_and_come_out(port: int, log: EmbeddedLog) -> None:
    with connected(port, "?position=earliest") as reader, connected(port) as writer:
        answer = asked(writer, [{"key": "ann", "value": {"n": 1}}, {"value": "two"}])
        assert answer == {"stored": [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]}
        assert asked(writer, b'{"value": 3}') == {"stored": [{"partition": 0, "offset": 2}]}
        seen = [json.loads(reader.recv(120)) for _ in range(3)]
    assert [(each["record"]["value"], each["position"]) for each in seen] == [
        ({"n": 1}, "0:1"),
        ("two", "0:2"),
        (3, "0:3"),
    ]
    with connected(port, f"?position={seen[0]['position']}") as resumed:
        assert json.loads(resumed.recv(120))["record"]["value"] == "two"
    assert values(log, "clicks") == [b'{"n": 1}', b'"two"', b"3"]


def test_a_bad_message_is_answered_and_the_next_one_stored(port: int, log: EmbeddedLog) -> None:
    with connected(port) as socket:
        assert "no records" in asked(socket, "not JSON")["error"]["what"]
        assert asked(socket, {"value": 1})["stored"]
        with pytest.raises(ConnectionClosed):
            asked(socket, "x" * (MESSAGE_BYTES_MAX + 1))
    assert values(log, "clicks") == [b"1"]


def test_a_topic_that_is_deleted_ends_the_connection(port: int, log: EmbeddedLog) -> None:
    with connected(port, "?position=earliest") as socket:
        assert asked(socket, {"value": 1})
        log.delete_topic("clicks")
        with pytest.raises(ConnectionClosed) as closed:
            read_all(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011


@pytest.mark.parametrize(
    ("topic", "query", "status"), [("other", "", 404), ("clicks", "?position=x", 400), ("clicks", "?position=0:9", 400)]
)
def test_what_is_refused_before_it_begins(port: int, topic: str, query: str, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connected(port, query, topic)
    assert refused.value.response.status_code == status
    assert b"error" in (refused.value.response.body or b"")


def test_tokens_origins_and_read_only(log: EmbeddedLog) -> None:
    log.create_topic("clicks")
    with opened(log, TOKEN, read_only=True) as port:
        for headers, status in (({}, 401), ({"Origin": "http://elsewhere.example"}, 403)):
            with pytest.raises(InvalidStatus) as refused:
                connected(port, additional_headers=headers)
            assert refused.value.response.status_code == status
        with connected(port, additional_headers={"Authorization": f"Bearer {TOKEN}"}) as socket:
            assert "read-only" in asked(socket, {"value": 1})["error"]["what"]


def test_a_silent_connection_stays_open(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a request is closed soon; one that has become a WebSocket is not."""
    monkeypatch.setattr(BridgeConnection, "patience_s", 0.2)

    def in_time() -> ClientConnection | None:
        try:
            return connected(port)
        except (OSError, EOFError, InvalidHandshake):  # this machine was too slow to send the request
            return None

    with until(in_time, "a connection in time") as socket:
        with pytest.raises(TimeoutError):
            socket.recv(0.4)
        assert asked(socket, {"value": 1})["stored"]
