"""Who may use the console: without a login nothing is served, and a page of another origin can do nothing."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from urllib.parse import quote, urlencode

import pytest

import millstream as ms
from millstream.web_console.front_door import PATHS_MAX
from millstream.web_console.sessions import CODE_S_MAX, CODES_MAX, SESSION_S_MAX, Sessions
from waiting import until

from .conftest import TOKEN, Console
from .outside import Attempts
from .test_time_plane import recorded

PATHS = ["index.html", "index.js", "index.css", "session", "live?path=/v1/jobs", "nothing", "../../etc/passwd",
         "..%2f..%2fetc%2fpasswd", "%2e%2e/front_door.py", "hashes.json", "login.html%00.js"]  # fmt: skip


def test_codes_work_once_and_not_for_long() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    code = sessions.new_code()
    entered = sessions.enter(code)
    assert entered is not None
    assert sessions.find(entered.identity) == entered
    assert sessions.enter(code) is None
    assert sessions.enter("") is None
    old = sessions.new_code()
    now += CODE_S_MAX + 1
    assert sessions.enter(old) is None
    now += SESSION_S_MAX
    assert sessions.find(entered.identity) is None
    first = sessions.new_code()
    for _ in range(CODES_MAX):
        sessions.new_code()
    assert sessions.enter(first) is None


def test_nothing_without_a_login(console: Console) -> None:
    for path in PATHS:
        status, _, document = console.ask("GET", f"/console/{path}")
        assert (status, document["error"]["what"]) == (401, "there is nothing here"), path
    assert console.ask("GET", "/v1/jobs")[0] == 401
    assert console.ask("GET", "/v1/jobs", Cookie=f"millstream_session_{console.port}=guess")[0] == 401


def test_only_built_files_are_served(console: Console) -> None:
    """Goal: no path leads out of the folder of the pages, also with a session."""
    session = console.logged_in()
    assert console.ask("GET", "/console/index.js", **session)[0] == 200
    for path in PATHS[5:]:
        assert console.ask("GET", f"/console/{path}", **session)[0] == 404


def test_the_page_that_logs_in_needs_no_session(console: Console) -> None:
    status, headers, page = console.ask("GET", "/console/")
    assert (status, "Log in" in page) == (200, True)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert console.ask("GET", "/console/login.js", If_None_Match='"x"')[0] == 200
    tag = console.ask("GET", "/console/login.js")[1]["etag"]
    assert console.ask("GET", "/console/login.js", If_None_Match=tag)[0] == 304
    assert console.ask("GET", "/console/", Host="evil.example")[0] == 400


def test_logging_in_sets_a_strict_cookie(console: Console) -> None:
    for given in ({"token": TOKEN}, {"code": console.door.link().partition("code=")[2]}):
        status, headers, document = console.ask("POST", "/console/login", json.dumps(given))
        cookie = headers["set-cookie"]
        assert (status, document["user"]) == (200, "ann")
        assert TOKEN not in cookie
        for part in ("HttpOnly", "SameSite=strict", "Path=/"):
            assert part in cookie
    for wrong in ("{", "[]", '{"token": "guess"}', '{"code": "é"}', "{}", '{"token": "' + "x" * 5000 + '"}'):
        assert console.ask("POST", "/console/login", wrong.encode())[0] in (400, 401, 413)
    assert console.ask("POST", "/console/login", "{}", Origin="http://evil.example")[0] == 403


def test_actions_need_the_secret_of_the_session(console: Console) -> None:
    session = console.logged_in()
    cookie = {"Cookie": session["Cookie"]}
    assert console.ask("GET", "/v1/jobs", **cookie)[::2] == (200, [])
    assert console.ask("POST", "/v1/jobs/a/start", **cookie)[0] == 403
    assert console.ask("POST", "/v1/jobs/a/start", **cookie, X_Millstream_Csrf="guess")[0] == 403
    assert console.ask("POST", "/v1/jobs/a/start", **session)[0] == 404
    assert console.ask("DELETE", "/v1/jobs/a", **cookie)[0] == 403
    assert console.ask("GET", "/v1/jobs", **cookie, Origin="http://evil.example")[0] == 403
    assert console.ask("GET", "/v1/jobs", **cookie, Sec_Fetch_Site="cross-site")[0] == 403
    assert console.ask("POST", "/console/logout", **cookie)[0] == 403
    assert console.ask("POST", "/console/logout", **session)[0] == 200
    assert console.ask("GET", "/v1/jobs", **session)[0] == 401


def test_codes_are_given_for_the_token_alone(console: Console) -> None:
    assert console.ask("POST", "/console/codes")[0] == 401
    assert console.ask("POST", "/console/codes", **console.logged_in())[0] == 401
    status, _, document = console.ask("POST", "/console/codes", Authorization=f"Bearer {TOKEN}")
    assert (status, document["url"].startswith(f"{console.url}/console/#code=")) == (200, True)


def test_live_answers_are_those_of_the_interface_alone(console: Console) -> None:
    session = console.logged_in()
    many = "&path=".join(["/v1/jobs"] * (PATHS_MAX + 1))
    wrong = ("", "/console/session", "http://evil.example/", "//evil.example", "/metrics", "/v1/%C3%A9")
    for path in (*wrong, "/v1/jobs&path=/metrics", many):
        assert console.ask("GET", f"/console/live?path={path}", **session)[0] == 400


def test_the_network_is_blocked_in_these_tests(console: Console) -> None:
    """Goal: the fixture would notice a console that asks another machine. Nothing listens at the address."""
    for host in ("192.0.2.1", "console.example"):
        with Attempts.blocked() as found, pytest.raises(PermissionError, match="the network is blocked"):
            socket.create_connection((host, 443), timeout=1)
        assert [attempt.endswith(host) for attempt in found] == [True]


@pytest.mark.more
def test_the_network_is_blocked_for_processes_of_the_console_as_well(console: Console) -> None:
    """Method: the process of a time plane loads the flow's file, and this one connects to another machine."""
    recorded(console)
    file = console.log.parent / "flow.py"
    file.write_text(f"import socket\nsocket.create_connection(('192.0.2.1', 443), timeout=1)\n{file.read_text()}")
    session = console.logged_in()
    with Attempts.blocked() as found:
        until(lambda: console.ask("GET", "/v1/jobs/totals/plane", **session)[0] == 400, "the file has failed")
    assert [attempt.rpartition(" ")[2] for attempt in found] == ["192.0.2.1"]


INJECTED = "a\r\nSet-Cookie: taken=over\r\n\r\n<html>"
EVENT = "x\n\nevent: refused\ndata: {}\n\n"


def test_contents_of_records_stay_values(console: Console) -> None:
    """Goal: a line break in a key, a header or a value ends neither a header of an answer nor an event of a stream."""
    with ms.connect(console.log) as log:
        log.create_topic("raw", partitions=1)
        with log.producer() as producer:
            producer.send("raw", EVENT.encode(), INJECTED, headers={INJECTED: EVENT.encode()})
    session = console.logged_in()
    for query in ({}, {"key": INJECTED}, {"text": EVENT}):
        status, headers, answer = console.ask("GET", f"/v1/topics/raw/records?{urlencode(query)}", **session)
        assert (status, headers["set-cookie"], headers["content-type"]) == (200, None, "application/json")
        [record] = answer["records"]
        assert (record["key"], record["value"], record["headers"]) == (INJECTED, EVENT, [[INJECTED, EVENT]])
    for path in (f"/v1/topics/{quote(INJECTED)}", f"/v1/topics/raw/records?where={quote(INJECTED)}"):
        status, headers, answer = console.ask("GET", path, **session)
        assert (status in (400, 404), headers["set-cookie"], "error" in answer) == (True, None, True)
    live = HTTPConnection("127.0.0.1", console.port, timeout=60)
    live.request("GET", "/console/live?path=/v1/topics/raw/records", headers={"Cookie": session["Cookie"]})
    stream, received = live.getresponse(), b""
    while not received.endswith(b"\n\n"):
        received += stream.read1()
    live.close()
    *first, data, end = received.decode().splitlines()
    assert (first, end) == (["event: answer", "id: 0"], "")
    assert json.loads(data.removeprefix("data: "))["records"] == [record]
