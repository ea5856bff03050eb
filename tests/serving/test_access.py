"""Who may ask for rows: the names a server answers to, pages of other origins, and tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog
from millstream.serving import Tables
from millstream.serving.access import Access, Denied, ListenAddress, read_token
from millstream.serving.served import Served

from .running import Running, head
from .support import Job, total, totals_flow

TOKEN = "0123456789abcdef._~+/-=="
ELSEWHERE = ["192.0.2.7", "2001:db8::1", "0.0.0.0", "::", "0", ""]
"""Addresses for documentation and wildcards. Nothing listens there in these tests."""


@pytest.fixture
def served(log: EmbeddedLog) -> Iterator[Served]:
    Job(log, totals_flow("totals")).write((total("red", 5), 1))
    made = Served(Tables(log))
    yield made
    made.close()


@pytest.fixture(params=["127.0.0.1", "127.0.0.2", "127.255.3.4", "localhost"])
def running(request: pytest.FixtureRequest, served: Served) -> Iterator[Running]:
    made = Running(served, request.param)
    yield made
    made.close()


@pytest.fixture
def guarded(served: Served) -> Iterator[Running]:
    made = Running(served, token=TOKEN, allowed_hosts=["Tables.Example.org"])
    yield made
    made.close()


# ---------------------------------------------------------------- names


def test_a_server_on_loopback_answers_to_loopback_names_alone(running: Running) -> None:
    """Goal: a web page whose domain is pointed at this machine cannot read tables."""
    for name in ("127.0.0.1", "127.0.0.2", "127.9.9.9", "localhost", "LocalHost", "[::1]", "[0:0:0:0:0:0:0:1]"):
        for host in (name, f"{name}:{running.port}", f"{name}:1"):
            assert running.ask("/tables/totals/red", host=host).status == 200, host
    for name in (
        "example.org", "localhost.example.org", "127.0.0.1.example.org", "example.localhost", "localhost.", "128.0.0.1",
        "0.0.0.0", "[::]", "[::2]", "127.1", "2130706433", "127.0.0.1@example.org", "example.org#127.0.0.1", "::1",
        "127.0.0.1:x", "127.0.0.1:80:80", "[127.0.0.1", "127.0.0.1, example.org", "\xff", "*",
    ):  # fmt: skip
        for host in (name, f"{name}:{running.port}"):
            if (found := running.ask("/tables/totals/red", host=host)).status != 400:
                raise AssertionError(host)
            assert b"red" not in found.body
            assert b"example" not in found.body


def test_a_request_without_a_name_or_with_two_is_refused(running: Running) -> None:
    assert running.send(b"GET /tables HTTP/1.0\r\n\r\n").status == 400
    assert running.send(head("GET", "/tables", {})).status == 400
    twice = b"GET /tables HTTP/1.1\r\nHost: localhost\r\nHost: example.org\r\n\r\n"
    assert running.send(twice).status == 400


def test_names_can_be_allowed(guarded: Running) -> None:
    bearer = f"Bearer {TOKEN}"
    for host in ("tables.example.org", "TABLES.example.org:80", "127.0.0.1"):
        assert guarded.ask("/tables", host=host, Authorization=bearer).status == 200
    for host in ("example.org", "other.tables.example.org"):
        assert guarded.ask("/tables", host=host, Authorization=bearer).status == 400


@pytest.mark.parametrize("given", ["*", "*.example.org", "http://example.org", "example.org:80", "a b", ""])
def test_an_invalid_name_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="is not a host name or an address") as refused:
        Access.at(ListenAddress.of("127.0.0.1", 0), allowed_hosts=[given])
    assert "--allowed-host" in (refused.value.next_step or "")


# ---------------------------------------------------------------- other machines


@pytest.mark.parametrize("host", ELSEWHERE)
def test_other_machines_need_a_token(host: str) -> None:
    with pytest.raises(InvalidInput, match="no token is set") as refused:
        Access.at(ListenAddress.of(host, 0), allowed_hosts=["tables.example.org"])
    assert "--token-file" in (refused.value.next_step or "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", ""])
def test_a_wildcard_answers_to_named_hosts_alone(host: str) -> None:
    address = ListenAddress.of(host, 0)
    with pytest.raises(InvalidInput, match="every address") as refused:
        Access.at(address, token=TOKEN)
    assert "--allowed-host" in (refused.value.next_step or "")
    access = Access.at(address, token=TOKEN, allowed_hosts=["tables.example.org", "[2001:DB8:0::1]"])
    for allowed in ("tables.example.org:8080", "[2001:db8::1]:8080"):
        access.check(_headers(allowed))
    for name in ("127.0.0.1", "localhost", "0.0.0.0", "[::]", "example.org"):
        with pytest.raises(Denied) as denied:
            access.check(_headers(name))
        assert denied.value.status == 400


def test_an_address_is_a_name_of_its_own() -> None:
    access = Access.at(ListenAddress.of("192.0.2.7", 0), token=TOKEN)
    access.check(_headers("192.0.2.7:8080"))
    for name in ("192.0.2.8", "127.0.0.1", "localhost", "example.org"):
        with pytest.raises(Denied):
            access.check(_headers(name))


def _headers(host: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", host.encode()), (b"authorization", b"Bearer " + TOKEN.encode())]


# ---------------------------------------------------------------- pages


def test_pages_of_other_origins_are_refused(running: Running) -> None:
    host = f"127.0.0.1:{running.port}"
    for origin in (f"http://{host}", f"https://{host}"):
        found = running.ask("/tables/totals/red", host=host, Origin=origin)
        assert found.status == 200
        assert not [name for name in found.headers if name.startswith("access-control")]
    for origin in (
        "null", "http://example.org", f"http://example.org:{running.port}", "http://127.0.0.1", "http://127.0.0.1:1",
        f"http://localhost:{running.port}", f"http://{host}.example.org", f"http://{host}/", f"ftp://{host}", "",
    ):  # fmt: skip
        found = running.ask("/tables/totals/red", host=host, Origin=origin)
        assert found.status == 403, origin
        assert not [name for name in found.headers if name.startswith("access-control")]
    preflight = running.ask("/tables", method="OPTIONS", host=host, Origin=f"http://{host}")
    assert preflight.status == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_a_script_tag_of_another_page_is_refused(running: Running, site: str, status: int) -> None:
    """A browser sends no Origin with it, but this."""
    assert running.ask("/tables/totals/red", Sec_Fetch_Site=site).status == status


# ---------------------------------------------------------------- tokens


def test_every_path_needs_the_token(guarded: Running) -> None:
    for path in ("/", "/tables", "/tables/totals", "/tables/totals/red", "/tables/nothing/red", "/nowhere", "/%00"):
        for given in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": f"Bearer {TOKEN[:-1]}"},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer \xff\xfe"},
        ):
            found = guarded.ask(path, **given)
            assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer"), (path, given)
            assert TOKEN.encode() not in found.body
    assert guarded.ask("/tables/totals/red", authorization=f"bearer {TOKEN}").json == total("red", 5)
    assert guarded.ask(f"/tables/totals/red?token={TOKEN}").status == 401
    twice = f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    assert guarded.send(twice.encode()).status == 401


def test_a_token_is_not_shown() -> None:
    assert TOKEN not in repr(Access.at(ListenAddress.of("127.0.0.1", 0), token=TOKEN))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "shorter than 16"),
        ("tiny", "shorter than 16"),
        ("x" * 2000, "longer than 1024"),
        ("two words in one token", "the token has invalid characters"),
        ("líne-of-some-length-here", "the token has invalid characters"),
        ("0123456789\r\nX-Header: 1", "the token has invalid characters"),
    ],
)
def test_a_token_that_cannot_be_one_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(text)
    for given in ({"file": file, "environment": {}}, {"file": None, "environment": {"MILLSTREAM_TOKEN": text}}):
        with pytest.raises(InvalidInput, match=said) as refused:
            read_token(**given)  # type: ignore[arg-type]
        assert not text or text not in str(refused.value)


def test_a_token_file_must_be_private(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    for mode in (0o600, 0o400):
        file.chmod(mode)
        assert read_token(file, {"MILLSTREAM_TOKEN": "that-of-the-environment"}) == TOKEN
    for mode in (0o644, 0o640, 0o604, 0o620, 0o610):
        file.chmod(mode)
        with pytest.raises(InvalidInput, match=f"open to other users \\(mode {mode:o}\\)") as refused:
            read_token(file, {})
        assert TOKEN not in str(refused.value)
    with pytest.raises(InvalidInput, match="No such file"):
        read_token(tmp_path / "missing", {})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for other in (pipe, tmp_path):
        with pytest.raises(InvalidInput, match="regular file"):
            read_token(other, {})
    assert read_token(None, {}) is None
