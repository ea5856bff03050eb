"""A console beside a job that runs in this process, without a supervisor: it shows the job and changes nothing."""

from __future__ import annotations

import getpass
import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from millstream.serving.access import Access, Denied, Headers, ListenAddress
from millstream.serving.http import listening, server
from millstream.supervision.home import Home
from millstream.supervision.specification import JobSpecification
from millstream.supervision.status import Status
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor
from millstream.web_console.front_door import SAFE, FrontDoor
from millstream.web_console.routes import with_console

HOST = "127.0.0.1"
CLOSE_S_MAX = 5.0


@dataclass(frozen=True)
class OnlyLooking:
    """Admits requests that change nothing."""

    access: Access

    def admitted(self, headers: Headers, method: str) -> str | None:
        account = self.access.admitted(headers, method)
        if method not in SAFE:
            raise Denied(403, "this console only shows its job", "use the console of a supervisor: millstream up")
        return account


@contextmanager
def console_beside(
    file: Path, flow: str, log: str | PathLike[str], params: Mapping[str, str] | None = None
) -> Iterator[FrontDoor]:
    """Serves a console for a flow of a file that runs on the log in a folder, while the block runs.

    Its time planes load the file in processes of their own, with these parameters.
    """
    log_address = str(Path(log).absolute())
    job = JobSpecification(flow, str(file.absolute()), flow, dict(params or {}), folder=str(Path.cwd()))
    address, token = ListenAddress.of(HOST, 0), secrets.token_urlsafe(32)
    access = Access.at(address, token=token)
    with ExitStack() as opened:
        # The list of jobs is not kept: a supervisor that starts later on this log would take the job for its own.
        own = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millstream-console-")))
        taken = opened.enter_context(listening(address))
        supervisor = Supervisor(own, log_address, Home.of(log_address).jobs)
        opened.callback(supervisor.store.close)
        user = getpass.getuser()
        supervisor.store.add(job, user, Observed.RUNNING, None)
        url = f"http://{HOST}:{taken.getsockname()[1]}"
        looking = OnlyLooking(access)
        door = opened.enter_context(
            with_console(supervisor, Status(supervisor), log_address, access, looking, token, url, user, acts=False)
        )
        running = server(door)
        door.ends = lambda: running.should_exit
        thread = threading.Thread(target=running.run, kwargs={"sockets": [taken]}, name="console", daemon=True)
        thread.start()
        try:
            yield door
        finally:
            running.should_exit = True
            thread.join(CLOSE_S_MAX)
