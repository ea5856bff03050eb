"""A supervisor with its console in this process, and a real browser that looks at it."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from debian_servers import MISSING, program
from millstream.serving.access import Access, ListenAddress
from millstream.serving.http import server
from millstream.supervision.alerting import Alerting
from millstream.supervision.status import Status
from millstream.supervision.supervisor import Supervisor
from millstream.web_console.front_door import FrontDoor
from millstream.web_console.routes import with_console
from waiting import until

from .outside import Attempts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "0123456789abcdef"
OWN = re.compile(r"http://127\.0\.0\.1:\d+/|data:|about:")


class Console:
    """A running supervisor."""

    def __init__(self, supervisor: Supervisor, door: FrontDoor, port: int) -> None:
        self.supervisor, self.door, self.port = supervisor, door, port
        self.log = supervisor.jobs.parent

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: str | bytes | None = None, **headers: str) -> tuple[int, Any, Any]:
        """Status, headers and JSON, or text, of an answer."""
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        is_json = (answer.getheader("content-type") or "").startswith("application/json")
        return answer.status, answer.headers, json.loads(content) if is_json else content

    def logged_in(self) -> dict[str, str]:
        """The headers of a browser that has logged in."""
        code = self.door.link().partition("code=")[2]
        status, headers, document = self.ask("POST", "/console/login", json.dumps({"code": code}))
        assert status == 200
        return {"Cookie": headers["set-cookie"].partition(";")[0], "X_Millstream_Csrf": document["csrf"]}


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """Its process can connect to this machine only, and must not have tried anything else."""
    (tmp_path / "supervisor").mkdir()
    supervisor = Supervisor(tmp_path / "supervisor", str(tmp_path / "log"), tmp_path / "log" / "jobs")
    with ExitStack() as opened:
        outside = opened.enter_context(Attempts.blocked())
        at = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = at.getsockname()[1]
        access = Access.at(ListenAddress.of("127.0.0.1", 0), token=TOKEN)
        url = f"http://127.0.0.1:{port}"
        status, log = Status(supervisor), str(tmp_path / "log")
        alerting = Alerting(tmp_path / "supervisor", status)
        alerting.start()
        opened.callback(alerting.close)
        door = opened.enter_context(with_console(supervisor, status, log, access, access, TOKEN, url, "ann", alerting))
        running = server(door)
        door.ends = lambda: running.should_exit
        thread = threading.Thread(target=running.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        until(lambda: running.started, "the server has started")
        looking = threading.Thread(target=supervisor.run, daemon=True)
        looking.start()
        yield Console(supervisor, door, port)
        running.should_exit = True
        thread.join()
        supervisor.close()
        looking.join()
    supervisor.store.close()
    assert outside == []


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; tests that need it are skipped where it is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing")
    path = program("chromium")
    if path is None:
        pytest.skip(MISSING.format("chromium"))
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, console: Console) -> Iterator[Page]:
    """A page that has logged in. It must neither ask for an address outside this machine nor report an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    outside: list[str] = []
    errors: list[str] = []
    context.route(lambda url: not OWN.match(url), lambda route: route.abort())
    context.on("request", lambda request: None if OWN.match(request.url) else outside.append(request.url))
    made = context.new_page()
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    made.set_default_timeout(30_000)
    made.goto(console.door.link())
    made.get_by_role("navigation", name="Sections").wait_for()
    yield made
    context.close()
    assert outside == []
    assert errors == []
