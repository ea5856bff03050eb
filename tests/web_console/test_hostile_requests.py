"""Requests that are too large or too slow are refused, and cost others nothing."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from http.client import HTTPConnection
from urllib.parse import urlencode

import pytest

from millstream.serving.http import HEAD_BYTES_MAX, URL_BYTES_MAX
from millstream.supervision.http import BODY_BYTES_MAX
from millstream.web_console.front_door import LOGIN_BYTES_MAX, PATH_BYTES_MAX

from .conftest import Console

CHUNK = b"x" * 65536


def started(console: Console, path: str, *headers: tuple[str, str]) -> HTTPConnection:
    """A request whose body is still to be sent."""
    connection = HTTPConnection("127.0.0.1", console.port, timeout=60)
    connection.putrequest("POST", path)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    return connection


def session_of(console: Console) -> list[tuple[str, str]]:
    return [(name.replace("_", "-"), value) for name, value in console.logged_in().items()]


def answers(console: Console) -> bool:
    return console.ask("GET", "/v1/jobs", **console.logged_in())[0] == 200


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/topics/any/records", "/v1/groups/any/reset"])
def test_an_oversized_body_is_refused_before_it_has_been_read(console: Console, path: str) -> None:
    """Goal: a body is not kept without bounds. Method: its length is not known, and it does not end."""
    sending = started(console, path, *session_of(console), ("Transfer-Encoding", "chunked"))
    for _ in range(BODY_BYTES_MAX // len(CHUNK) + 1):
        sending.send(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
    answer = sending.getresponse()
    error = json.loads(answer.read())["error"]
    assert (answer.status, "larger than" in error["what"]) == (400, True)
    sending.close()
    assert answers(console)


def test_an_oversized_login_is_refused(console: Console) -> None:
    """Goal: who has not logged in can make the supervisor keep even less."""
    sending = started(console, "/console/login", ("Transfer-Encoding", "chunked"))
    sending.send(b"%x\r\n%s\r\n" % (LOGIN_BYTES_MAX + 1, b"x" * (LOGIN_BYTES_MAX + 1)))
    assert sending.getresponse().status == 413
    sending.close()
    assert answers(console)


def test_without_a_login_no_body_is_read(console: Console) -> None:
    sending = started(console, "/v1/jobs", ("Content-Length", str(10 * BODY_BYTES_MAX)))
    assert sending.getresponse().status == 401
    sending.close()


def test_oversized_headers_and_addresses_are_refused(console: Console) -> None:
    session = console.logged_in()
    with socket.create_connection(("127.0.0.1", console.port), timeout=60) as endless:
        endless.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Padding: " + b"x" * HEAD_BYTES_MAX)
        assert endless.recv(1024).startswith(b"HTTP/1.1 400 ")
    long = console.ask("GET", f"/v1/jobs/{'x' * URL_BYTES_MAX}", **session)
    assert 400 <= long[0] < 500
    path = f"/v1/topics/raw/records?text={'x' * PATH_BYTES_MAX}"
    assert console.ask("GET", f"/console/live?{urlencode({'path': path})}", **session)[0] == 400
    assert answers(console)


@pytest.mark.parametrize("path", ["/v1/jobs", "/console/login"])
def test_a_slow_body_is_refused(console: Console, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr("millstream.supervision.http.BODY_S_MAX", 0.3)
    slow = started(console, path, *session_of(console), ("Content-Length", "100"))
    slow.send(b"{")
    assert answers(console), "others are answered meanwhile"
    answer = slow.getresponse()
    assert answer.status in (400, 413)
    assert "was not complete" in json.loads(answer.read())["error"]["what"]
    slow.close()


@pytest.mark.parametrize("sent", [b"", b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
def test_a_connection_whose_headers_do_not_end_is_closed(
    console: Console, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("millstream.serving.connection.Bounded.patience_s", 0.3)
    with socket.create_connection(("127.0.0.1", console.port), timeout=60) as slow:
        slow.sendall(sent)
        assert answers(console), "others are answered meanwhile"
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""
