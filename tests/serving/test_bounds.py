"""What a client can cost a server, in memory, connections and time; and requests that make no sense."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import millstream as ms
from millstream.log import EmbeddedLog
from millstream.serving import Tables
from millstream.serving.connection import BoundedConnection
from millstream.serving.served import Served

from .running import Running, head, received
from .support import Job, put, total, totals_flow

NASTY = ["%ff", "%C3", "%ed%a0%80", "%00", "a%00b", "%", "%zz", "100%", "%F4%90%80%80", "%c0%ae%c0%ae"]
"""Not UTF-8 (a lone byte, a cut sequence, a surrogate, overlong), NUL, and escapes that are none."""


@pytest.fixture
def served(log: EmbeddedLog, served: Served) -> Served:
    """With a table that a job has written."""
    Job(log, totals_flow("totals")).write((total("red", 5), 1), (total("\ufffd", 6), 1))
    return served


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize("text", NASTY)
def test_text_that_cannot_be_a_name_or_a_key(running: Running, text: str) -> None:
    for path in (f"/tables/{text}", f"/tables/{text}/red", f"/tables/totals/{text}", f"/tables/totals?team={text}",
                 f"/tables/totals?{text}=red", f"/tables/nothing/{text}"):  # fmt: skip
        found = running.ask(path)
        assert (found.status, found.json["error"]["kind"]) == (400, "InvalidInput"), path
    assert running.ask("/tables/totals/red").status == 200


KEYS = ["", ".", "..", "%2e%2e%2f%2e%2e", "9" * 4000, "-" * 50, "1e999", "nan", "'; --", "%F0%9F%98%80", "%0d%0a", "{}"]


@pytest.mark.parametrize(
    "kind", ["int", "double", "decimal(10, 2)", "boolean", "date", "timestamp", "binary", "string"]
)
def test_invalid_keys_are_refused_or_not_found(log: EmbeddedLog, tmp_path: Any, dsn: str, kind: str) -> None:
    """Goal: whatever the key, of whatever type, it is the caller's mistake and no failure of the server."""
    flow = ms.Flow("keys")
    rows = flow.read("rows", f"k {kind}, v int").to_table(key="k")
    for place in ("a", ms.sqlite(tmp_path / "tables.db", "b"), ms.postgres(dsn, "c")):
        rows.write(place)
    Job(log, flow)
    served = Served(Tables(log))
    running = Running(served)
    for name in ("a", "b", "c"):
        for key in KEYS:
            for path in (f"/tables/{name}/{key}", f"/tables/{name}?k={key}"):
                found = running.ask(path)
                assert found.status in (400, 404), (path, found)
    running.close()
    served.close()


def test_urls_keys_and_queries_have_a_maximum_length(running: Running) -> None:
    found = running.ask(f"/tables/totals?team={'x' * 9000}")
    assert (found.status, found.json["error"]["kind"]) == (414, "UriTooLong")
    for path in (f"/tables/totals/{'x' * 5000}", f"/tables/totals?team={'x' * 5000}", f"/tables/{'x' * 5000}"):
        found = running.ask(path)
        assert (found.status, "longer than 4096 bytes" in found.json["error"]["what"]) == (400, True)
    found = running.ask("/tables/totals?" + "&".join(f"c{number}=1" for number in range(100)))
    assert (found.status, found.json["error"]["what"]) == (400, "the query has more than 64 columns")
    assert running.ask(f"/tables/totals/{'x' * 4096}").status == 404


def test_a_head_has_a_maximum_length(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(b"GET /tables HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000)  # and no end of it
        found = received(connection)
    assert (found.status, found.json["error"]["kind"]) == (400, "InvalidInput")


def test_tables_can_only_be_read(running: Running) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"):
        found = running.ask("/tables/totals/red", method=method)
        assert (found.status, found.headers["allow"]) == (405, "GET, HEAD"), method
    with running.connect() as connection:
        connection.sendall(head("HEAD", "/tables/totals/red", {"Host": "localhost", "Connection": "close"}))
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")  # no body


def test_every_answer_is_json_that_is_neither_guessed_nor_stored(running: Running) -> None:
    asked = [
        running.ask(path) for path in ("/", "/tables", "/tables/totals/red", "/nowhere", "/tables/%ff", "/" * 9000)
    ]
    asked += [running.ask("/", method="POST"), running.ask("/", host="example.org"), running.ask("/", Origin="null")]
    asked += [running.send(b"nonsense\r\n\r\n")]
    assert [answer.status for answer in asked] == [200, 200, 200, 404, 400, 414, 405, 400, 403, 400]
    for answer in asked:
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        assert answer.json


def test_a_websocket_is_not_opened(running: Running) -> None:
    found = running.ask("/tables", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Key="eA==")
    assert found.status == 200
    assert "upgrade" not in found.headers


# ---------------------------------------------------------------- connections


def test_a_client_that_stalls_is_cut_off(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: silence, half a request, and half a second request do not hold a connection."""
    monkeypatch.setattr(BoundedConnection, "patience_s", 0.2)
    whole = head("GET", "/tables/totals/red", {"Host": "localhost"})
    for sent in (b"", whole[:20], whole + whole[:20], whole[:-2] + b"Content-Length: 1000\r\n\r\nx"):
        with running.connect() as connection:
            connection.sendall(sent)
            assert _is_closed(connection), sent
    monkeypatch.undo()  # a busy machine may take longer to ask
    assert running.ask("/tables/totals/red").status == 200


def test_a_client_that_does_not_read_is_cut_off(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("long")
    put(log, "long", ("k", "x" * 500_000))
    served = Served(Tables(log), ["long"])
    running = Running(served)
    assert len(running.ask("/tables/long/k").body) > 500_000
    running.wait_until_alone()
    monkeypatch.setattr(BoundedConnection, "patience_s", 0.5)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect((running.host, running.port))
        connection.sendall(head("GET", "/tables/long/k", {"Host": "localhost"}) * 50)
        running.wait_until_alone()
    running.close()
    served.close()


def test_the_number_of_connections_is_limited(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "connections_max", 3)
    held = [running.connect() for _ in range(3)]
    ask = head("GET", "/tables/totals/red", {"Host": "localhost"})
    for connection in held:
        connection.sendall(ask)
        assert received(connection).status == 200
    found = running.ask("/tables/totals/red")
    assert (found.status, found.json["error"]["kind"], found.headers["retry-after"]) == (503, "Busy", "1")
    more = [running.connect() for _ in range(4)]
    assert _is_closed(more[-1])  # at once
    for connection in [*held, *more]:
        connection.close()
    running.wait_until_alone()
    assert running.ask("/tables/totals/red").status == 200


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


# ---------------------------------------------------------------- memory


def _filled(log: EmbeddedLog, *names: str, rows: int = 1) -> None:
    for name in names:
        log.create_topic(name)
        put(log, name, *[(f"k{number}", f"{name} {number}") for number in range(rows)])


def test_the_number_of_open_tables_is_limited(log: EmbeddedLog) -> None:
    _filled(log, "a", "b", "c")
    served = Served(Tables(log), ["a", "b", "c"], tables_max=2)
    for name in ("a", "b", "a", "c"):
        row = served.row(name, "k0")
        assert row is not None
        assert row.values() == {"value": f"{name} 0"}
    assert served.open_tables == ["a", "c"]  # b was not used for the longest time
    served.close()
    assert served.open_tables == []


def test_tables_of_failed_lookups_are_not_kept_open(log: EmbeddedLog, served: Served, running: Running) -> None:
    _filled(log, *[f"other{number}" for number in range(5)])
    for number in range(5):
        assert running.ask(f"/tables/other{number}/k0").status == 404
    assert served.open_tables == []
    assert running.ask("/tables/totals/red").status == 200
    assert served.open_tables == ["totals"]


def test_indexes_share_a_memory_limit(log: EmbeddedLog) -> None:
    _filled(log, "a", "b", rows=1000)
    tables = Tables(log)
    one = Served(tables, ["a"])
    assert one.row("a", "k5") is not None
    size = one.held_bytes
    assert size > 1000 * 100
    one.close()
    served = Served(tables, ["a", "b"], index_bytes_max=size * 3 // 2)
    for name in ("a", "b", "a"):
        row = served.row(name, "k5")
        assert row is not None
        assert row.values() == {"value": f"{name} 5"}
        assert served.open_tables == [name]
    served.close()


def test_a_table_too_large_for_an_index_is_looked_up_without(log: EmbeddedLog) -> None:
    _filled(log, "a", rows=1000)
    served = Served(Tables(log), ["a"], index_bytes_max=10_000)
    for number in (5, 999):
        row = served.row("a", f"k{number}")
        assert row is not None
        assert row.values() == {"value": f"a {number}"}
        assert (served.held_bytes, served.open_tables) == (0, ["a"])  # it gave up, and was not closed for its size
    put(log, "a", ("k5", "new"))
    row = served.row("a", "k5")
    assert row is not None
    assert row.values() == {"value": "new"}
    assert served.row("a", "nothing") is None
    served.close()
