"""The jobs of a supervisor from Python: `ms.supervisor()`."""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from millstream.errors import (
    AlreadyExists,
    AskFailed,
    AskTimedOut,
    InvalidInput,
    JobChanged,
    JobRunning,
    MillstreamError,
    NotFound,
    SourceUnavailable,
)
from millstream.log import chosen_address
from millstream.records import duration
from millstream.supervision.home import Home

KINDS: dict[str, type[MillstreamError]] = {
    each.__name__: each
    for each in (
        NotFound,
        AlreadyExists,
        JobRunning,
        JobChanged,
        InvalidInput,
        AskFailed,
        AskTimedOut,
        SourceUnavailable,
    )
}
REQUEST_S_MAX = 90.0
CALL_TIMEOUT = "10 seconds"
RELOAD_S_MAX = 200.0
REHEARSAL_S_MAX = 3600.0
STATE_S_MAX = 330.0
FOLLOW_S = 0.5
ENDS = ("stopped", "finished", "failed", "scheduled")


class Jobs:
    """The jobs of a supervisor. Each is a dictionary with the parts that `GET /v1/jobs/NAME` has."""

    def __init__(self, url: str, token: str, *, certificate: str | os.PathLike[str] | None = None) -> None:
        """`token` is that of the owner, or a name and a password: "name:password". `certificate` is trusted."""
        self._url = urlsplit(url)
        is_account = ":" in token  # which no token contains
        self._authorization = f"Basic {base64.b64encode(token.encode()).decode()}" if is_account else f"Bearer {token}"
        self._certificate = certificate

    def _connection(self, timeout_s: float) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme != "https":
            return HTTPConnection(host, port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=self._certificate)
        if self._certificate is not None:  # exactly this one, whatever names it has
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.check_hostname = False
        return HTTPSConnection(host, port, timeout=timeout_s, context=context)

    def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("GET", "/v1/jobs")
        return found

    def show(self, name: str) -> dict[str, Any]:
        """One job, with its newest runs and its processes."""
        return self._job("GET", name)

    def submit(
        self,
        file: str | os.PathLike[str],
        *,
        name: str | None = None,
        flow: str | None = None,
        params: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        schedule: str | None = None,
        time_zone: str = "UTC",
        restart: str = "on-failure",
        restarts_max: int = 5,
        alerts: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Submits the flow of a file. `options` are those of `millstream run`, such as ["--master", "local[2]"].

        `alerts` are rules such as "lag_seconds > 60 for 5 minutes".
        """
        given = {
            "file": str(Path(file).expanduser().absolute()),
            "folder": str(Path.cwd()),
            "flow": flow,
            "params": {each: str(value) for each, value in (params or {}).items()},
            "options": list(options),
            "schedule": schedule,
            "time_zone": time_zone,
            "restart": restart,
            "restarts_max": restarts_max,
            "alerts": list(alerts),
        }
        made: dict[str, Any] = self._call("POST", "/v1/jobs", {**given, **({} if name is None else {"name": name})})
        return made

    def start(self, name: str) -> dict[str, Any]:
        """Starts a job that has stopped, finished or failed; a scheduled one runs now."""
        return self._job("POST", name, "start")

    def stop(self, name: str, *, savepoint: str | bool = False, timeout_s: float = 120.0) -> dict[str, Any]:
        """Stops a job after its current batch; with `savepoint`, waits for that and takes one, under a name if given.

        The answer then has its name as `savepoint`.
        """
        if savepoint is False:
            return self._job("POST", name, "stop")
        given = savepoint if isinstance(savepoint, str) else None
        if given is not None and any(each["name"] == given for each in self.savepoints()):
            raise AlreadyExists(f"there is already a savepoint '{given}'", next_step="choose another name")
        job = self._job("POST", name, "stop")
        self.wait(name, *ENDS, timeout_s=timeout_s)
        return {**job, "savepoint": self.savepoint(name, given)["name"]}

    def savepoint(self, name: str, savepoint: str | None = None) -> dict[str, Any]:
        """Takes a savepoint of a job, whether it runs or not: its offsets, its state and its plan."""
        made: dict[str, Any] = self._call("POST", f"{_path(name)}/savepoint", {"name": savepoint})
        return made

    def savepoints(self, name: str | None = None) -> Any:
        """The savepoints of a job, or of all, the newest first."""
        return self._call("GET", "/v1/savepoints" + ("" if name is None else f"?{urlencode({'job': name})}"))

    def upgrade(
        self,
        name: str,
        file: str | os.PathLike[str],
        *,
        map: Mapping[str, str] | None = None,
        allow_dropped: bool = False,
        watch: str | None = None,
        check: bool = False,
    ) -> dict[str, Any]:
        """Continues a job with another flow file, on its state. With `check`, only says what becomes of each step.

        `map` has the new names of renamed steps; `watch`, such as "10 minutes", lets it go back by itself.
        """
        given: dict[str, Any] = {"file": str(Path(file).expanduser().absolute()), "map": dict(map or {})}
        given |= {"watch": watch, "allow_dropped": allow_dropped, "check": check}
        made: dict[str, Any] = self._call("POST", f"{_path(name)}/upgrade", given)
        return made

    def rehearse(
        self,
        name: str,
        file: str | os.PathLike[str],
        *,
        last: str = "1 hour",
        map: Mapping[str, str] | None = None,
        timeout_s: float = REHEARSAL_S_MAX,
    ) -> dict[str, Any]:
        """Runs a job's flow and another one from a savepoint over the same records, and compares their results."""
        given = {"file": str(Path(file).expanduser().absolute()), "map": dict(map or {}), "last": last}
        made: dict[str, Any] = self._call("POST", f"{_path(name)}/rehearse", given, timeout_s)
        return made

    def rollback(self, name: str) -> Any:
        """Goes back to how a job was before its last upgrade."""
        return self._call("POST", f"{_path(name)}/rollback")

    def upgrades(self, name: str) -> Any:
        """The upgrades of a job, the newest first."""
        return self._call("GET", f"{_path(name)}/upgrades")

    def remove_savepoint(self, savepoint: str) -> Any:
        return self._call("DELETE", f"/v1/savepoints/{quote(savepoint, safe='')}")

    def restore(self, savepoint: str, *, into: str | None = None) -> Any:
        """Restores a savepoint into its job, or into another one. The job must not run."""
        return self._call("POST", f"/v1/savepoints/{quote(savepoint, safe='')}/restore", {"into": into})

    def state(self, name: str, step: str, key: Mapping[str, Any] | None = None, batches: int = 0) -> Any:
        """The rows that a step of a job keeps, by table; with `key`, those of one key.

        With `batches` also what each of that many batches changed, the newest first.
        """
        asked = [("step", step), *(("key", f"{column}={value}") for column, value in (key or {}).items())]
        asked += [("batches", str(batches))] if batches else []
        return self._call("GET", f"{_path(name)}/state?{urlencode(asked)}", timeout_s=STATE_S_MAX)

    def ask(
        self,
        job: str,
        *,
        step: str | None = None,
        table: str | None = None,
        key: Mapping[str, Any] | None = None,
        window: datetime | None = None,
    ) -> dict[str, Any]:
        """What a running job holds for a key: in a step, in a table that it writes, or in a window of an output.

        The answer has the `rows`, and the `batch`, the `watermark` and the time (`as_of`) that they hold for.
        """
        asked = [(name, value) for name, value in (("step", step), ("table", table)) if value is not None]
        asked += [("key", f"{column}={value}") for column, value in (key or {}).items()]
        asked += [] if window is None else [("window", window.isoformat())]
        found: dict[str, Any] = self._call("GET", f"{_path(job)}/ask?{urlencode(asked)}")
        return found

    def call(self, job: str, question: str, /, timeout: str | timedelta = CALL_TIMEOUT, **arguments: Any) -> Any:
        """Asks a job a question (`flow.ask`), and waits for the rows of the answer."""
        limit_s = duration(timeout, what="timeout").total_seconds()
        path = f"{_path(job)}/ask/{quote(question, safe='')}?{urlencode({'timeout_s': limit_s})}"
        return self._call("POST", path, arguments, limit_s + REQUEST_S_MAX)["rows"]

    def restart(self, name: str) -> dict[str, Any]:
        return self._job("POST", name, "restart")

    def reload(self, name: str) -> Any:
        """Adds and removes flows of a running app, so that it has those of its file. The others are not restarted.

        Returns the names of those `added`, `removed` and `changed`: these continue as they were until a restart.
        """
        return self._call("POST", f"{_path(name)}/reload", timeout_s=RELOAD_S_MAX)

    def delete(self, name: str) -> dict[str, Any]:
        """Forgets a job that does not run. What it wrote stays, and so does its state."""
        return self._job("DELETE", name)

    def metrics(self, name: str, *, last: str | timedelta | None = None, step: str | None = None) -> dict[str, Any]:
        """The newest metrics of a job, like `Job.metrics`; with `last`, such as "10 minutes", those of that time."""
        since = None if last is None else time.time() - duration(last, what="last").total_seconds()
        asked = {name: value for name, value in (("since", since), ("step", step)) if value is not None}
        found: dict[str, Any] = self._call("GET", f"/v1/jobs/{quote(name, safe='')}/metrics?{urlencode(asked)}")
        return found

    def why_silent(self, name: str) -> dict[str, Any]:
        """Why nothing comes out of a job: `findings`, each with `what` and `next_step`."""
        found: dict[str, Any] = self._call("GET", f"/v1/jobs/{quote(name, safe='')}/why-silent")
        return found

    def runs(self, name: str) -> Any:
        """The runs of a job, the newest first."""
        return self._call("GET", f"{_path(name)}/runs")

    def failures(self, name: str) -> dict[str, Any]:
        """The errors of a job: `groups` of equal ones, `failures` with their runs, and those of the `current` run."""
        found: dict[str, Any] = self._call("GET", f"{_path(name)}/failures")
        return found

    def alerts(self) -> dict[str, Any]:
        """The `targets` and `rules` for alerts, and the rules that hold now (`active`)."""
        found: dict[str, Any] = self._call("GET", "/v1/alerts")
        return found

    def test_alerts(self, target: str | None = None) -> Any:
        """Sends a test message to a target, or to all, and returns what became of it."""
        return self._call("POST", "/v1/alerts/test", {} if target is None else {"target": target})

    def audit(self) -> Any:
        """Who did what, the newest first."""
        return self._call("GET", "/v1/audit")

    def bundle(self) -> bytes:
        """A zip for support: plans, settings, metrics and logs of all jobs, without records and with secrets hidden."""
        return self._answer("GET", "/v1/bundle")

    def console_link(self, page: str = "") -> str:
        """An address that opens the console in a browser, once and within ten minutes: a page such as "/topics"."""
        return str(self._call("POST", "/console/codes")["url"]) + page

    def logs(self, name: str, *, run: int | None = None, tail_bytes: int | None = None) -> Iterator[str]:
        """The log of a run, by default the newest, in parts."""
        return (text for _, text in self.logged(name, run=run, tail_bytes=tail_bytes))

    def follow(self, name: str, *, tail_bytes: int = 0) -> Iterator[str]:
        """The log as it is written, over all runs, until the job ends."""
        return (text for _, text in self.logged(name, tail_bytes=tail_bytes or None, follow=True))

    def logged(
        self, name: str, *, run: int | None = None, tail_bytes: int | None = None, follow: bool = False
    ) -> Iterator[tuple[int, str]]:
        """Parts of the log, each with the number of its run. With `follow`, as they are written, also of later runs."""
        offset = 0 if tail_bytes is None else -tail_bytes
        while True:
            state = self.show(name) if follow else None
            part = self._log(name, run, offset)
            run, offset = part["run"], part["next"]
            if part["text"]:
                yield part["run"], part["text"]
            elif state is None:
                return
            elif state["runs"] > part["run"]:
                run, offset = part["run"] + 1, 0
            elif state["state"] in ENDS:
                return
            else:
                time.sleep(FOLLOW_S)

    def wait(self, name: str, *states: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Waits until a job is in one of these states, such as "running"."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.show(name)
            if found["state"] in states:
                return found
            if time.monotonic() > deadline:
                raise MillstreamError(
                    f"the job '{name}' is {found['state']} after {timeout_s:g} seconds, not {' or '.join(states)}",
                    next_step=f"millstream jobs logs {name} says what it does",
                )
            time.sleep(0.1)

    def _log(self, name: str, run: int | None, offset: int) -> dict[str, Any]:
        asked = {"offset": offset} | ({} if run is None else {"run": run})
        found: dict[str, Any] = self._call("GET", f"{_path(name)}/logs?{urlencode(asked)}")
        return found

    def _job(self, method: str, name: str, action: str | None = None) -> dict[str, Any]:
        path = _path(name) + ("" if action is None else f"/{action}")
        found: dict[str, Any] = self._call(method, path)
        return found

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = REQUEST_S_MAX
    ) -> Any:
        try:
            return json.loads(self._answer(method, path, body, timeout_s))
        except ValueError as error:
            raise self._silent(error) from error

    def _answer(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = REQUEST_S_MAX
    ) -> bytes:
        headers = {"Authorization": self._authorization, "Content-Type": "application/json"}
        try:
            connection = self._connection(timeout_s)
        except OSError as error:
            raise InvalidInput(
                f"the certificate cannot be read: {error}", next_step="name a PEM file of the supervisor's certificate"
            ) from error
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            document = json.loads(content) if answer.status >= 400 else None
        except (OSError, HTTPException, ValueError) as error:
            raise self._silent(error) from error
        finally:
            connection.close()
        if answer.status >= 400:
            failure = document.get("error", {}) if isinstance(document, dict) else {}
            made = KINDS.get(failure.get("kind", ""), MillstreamError)
            what = failure.get("what", f"the supervisor answered {answer.status}")
            raise made(what, where=failure.get("where"), next_step=failure.get("next"))
        return content

    def _silent(self, error: Exception) -> SourceUnavailable:
        return SourceUnavailable(
            f"the supervisor does not answer: {error}",
            where=self._url.geturl(),
            next_step="start it again: millstream up; running jobs continue without it",
        )


def _path(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}"


def supervisor(
    log: str | os.PathLike[str] | None = None,
    *,
    url: str | None = None,
    token: str | None = None,
    user: str | None = None,
    password: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
) -> Jobs:
    """The jobs of the supervisor of a log (`millstream up`), or of one at another address.

    That needs its token, or the name and the password of an account; and the `certificate` that it has, unless an
    authority vouches for it.
    """
    if user is not None and password is not None:
        token = f"{user}:{password}"
    if url is not None:
        if token is None:
            raise InvalidInput(
                "a supervisor at another address needs its token, or an account",
                next_step="pass token=…, or user=… and password=…",
            )
        return Jobs(url, token, certificate=certificate)
    home = Home.of(chosen_address(log))
    known, secret = home.known()
    return Jobs(known, token or secret, certificate=certificate or home.certificate())
