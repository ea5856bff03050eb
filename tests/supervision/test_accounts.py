"""Goal: without the token or an account there is no answer, a viewer changes nothing, and the audit names people.

Method: a real server, once plain and once with TLS and a certificate made for the test.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import AlreadyExists, DamagedState, InvalidInput, MillstreamError, NotFound, SourceUnavailable
from millstream.serving.access import Access, ListenAddress
from millstream.serving.http import server
from millstream.supervision import http
from millstream.supervision.accounts import Accounts, Role, SharedAccess
from millstream.supervision.status import Status
from millstream.supervision.supervisor import Supervisor
from waiting import until

TOKEN = "0123456789abcdef"
PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("supervisor")


@pytest.fixture(scope="module")
def accounts(folder: Path) -> Accounts:
    made = Accounts(folder)
    made.add("ann", PASSWORD, Role.OPERATOR)
    made.add("bob", PASSWORD, Role.VIEWER)
    return made


@pytest.fixture(scope="module")
def supervisor(folder: Path) -> Iterator[Supervisor]:
    made = Supervisor(folder, str(folder / "log"), folder / "log" / "jobs")
    yield made
    made.store.close()


def serving(supervisor: Supervisor, accounts: Accounts, **tls: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as at:
        access = SharedAccess(Access.at(ListenAddress.of("127.0.0.1", 0), token=TOKEN), accounts)
        running = server(http.app(supervisor, Status(supervisor), access, "owner"), **tls)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        until(lambda: running.started, "the server has started")
        yield at.getsockname()[1]
        running.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port(supervisor: Supervisor, accounts: Accounts) -> Iterator[int]:
    yield from serving(supervisor, accounts)


def test_an_operator_acts_under_their_name(port: int, tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text("import millstream as ms\nflow = ms.Flow('a')\nflow.read('in', schema='n int').write('out')\n")
    jobs = ms.supervisor(url=f"http://127.0.0.1:{port}", user="ann", password=PASSWORD)
    assert jobs.submit(flow, schedule="0 3 * * *")["owner"] == "ann"
    jobs.delete("a")
    assert [(each["user"], each["action"]) for each in jobs.audit()] == [("ann", "delete"), ("ann", "submit")]


def test_a_viewer_looks_and_changes_nothing(port: int) -> None:
    jobs = ms.supervisor(url=f"http://127.0.0.1:{port}", user="bob", password=PASSWORD)
    assert jobs.list() == []
    with pytest.raises(MillstreamError, match="a viewer cannot change anything"):
        jobs.delete("a")
    with pytest.raises(MillstreamError, match="a viewer cannot change anything"):
        jobs.savepoint("a")


@pytest.mark.more
@pytest.mark.parametrize(
    "authorization",
    [None, "Basic", "Basic !!!", "Basic YW5u", "Basic YW5uOndyb25n", "Basic ZXZlOndyb25n", "Bearer wrong", "Digest x"],
)
def test_every_route_refuses_others(port: int, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for route in http.DESCRIPTION:
        method, _, path = route.partition(" ")
        connection = HTTPConnection("127.0.0.1", port)
        connection.request(method, path.partition("?")[0], headers=headers)
        assert connection.getresponse().status == 401, route
        connection.close()


def test_accounts_are_checked_when_they_are_added(accounts: Accounts, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AlreadyExists, match="already an account 'ann'"):
        accounts.add("ann", PASSWORD, Role.VIEWER)
    with pytest.raises(InvalidInput, match="12 to 1,000 characters"):
        accounts.add("eve", "short", Role.VIEWER)
    with pytest.raises(InvalidInput, match="cannot be the name"):
        accounts.add("a:b", PASSWORD, Role.VIEWER)
    with pytest.raises(NotFound, match="no account 'eve'"):
        accounts.remove("eve")
    stored = folder / "accounts.json"
    assert PASSWORD not in stored.read_text()
    assert "$argon2id$" in stored.read_text()
    assert stored.stat().st_mode & 0o077 == 0
    (tmp_path / "accounts.json").write_text("{")
    with pytest.raises(DamagedState, match="the accounts cannot be read"):
        Accounts(tmp_path).known()


def test_a_removed_account_is_refused_at_once(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path)
    accounts.add("ann", PASSWORD, Role.VIEWER)
    assert accounts.checked("ann", PASSWORD) is not None
    Accounts(tmp_path).remove("ann")  # by another process
    assert accounts.checked("ann", PASSWORD) is None


def test_with_a_certificate_the_supervisor_speaks_tls(
    supervisor: Supervisor, accounts: Accounts, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    for port in serving(supervisor, accounts, certificate=certificate, key=key):
        url = f"https://127.0.0.1:{port}"
        assert ms.supervisor(url=url, token=TOKEN, certificate=certificate).list() == []
        with pytest.raises(SourceUnavailable, match="certificate verify failed"):
            ms.supervisor(url=url, token=TOKEN).list()
        with pytest.raises(InvalidInput, match="the certificate cannot be read"):
            ms.supervisor(url=url, token=TOKEN, certificate=tmp_path / "none.pem").list()
