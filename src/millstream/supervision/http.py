"""The supervisor's HTTP interface, version 1: what the command line, Python and the console speak.

Every route needs the token, or an account. Answers are JSON; an error has the same parts as everywhere: what, where and
what to do.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

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
from millstream.serving.access import Denied, Headers
from millstream.supervision.alerting import Alerting
from millstream.supervision.bundle import bundle
from millstream.supervision.metrics import CONTENT_TYPE, exposed
from millstream.supervision.status import Status
from millstream.supervision.supervisor import Supervisor, described
from millstream.supervision.upgrades import UpgradeRequest

if TYPE_CHECKING:
    from millstream.serving.http import Application

VERSION = "v1"
BODY_BYTES_MAX = 1 << 20
BODY_S_MAX = 30.0
LOG_BYTES_MAX = 1 << 20
STATUS_OF = {
    NotFound: 404,
    AlreadyExists: 409,
    JobRunning: 409,
    JobChanged: 409,
    InvalidInput: 400,
    AskFailed: 422,
    AskTimedOut: 504,
    SourceUnavailable: 503,
}
DESCRIPTION = {
    "GET /v1/jobs": "all jobs",
    "POST /v1/jobs": "submits a job: file, name, flow, params, options, schedule, time_zone, restart, "
    "restarts_max, alerts",
    "GET /v1/jobs/NAME": "one job: its progress, its runs and its processes",
    "DELETE /v1/jobs/NAME": "forgets a job that does not run",
    "POST /v1/jobs/NAME/start": "starts it again; a scheduled job runs now",
    "POST /v1/jobs/NAME/stop": "stops it after its current batch",
    "POST /v1/jobs/NAME/restart": "stops it and starts it again",
    "POST /v1/jobs/NAME/reload": "adds and removes flows of a running app, so that it has those of its file",
    "GET /v1/jobs/NAME/runs": "its runs, the newest first",
    "GET /v1/jobs/NAME/failures": "its errors: equal ones together, each with its run, and those of the current run",
    "GET /v1/jobs/NAME/logs?run=N&offset=N&limit=N": "lines of the log of a run; a negative offset counts from its end",
    "GET /v1/jobs/NAME/metrics?since=SECONDS&step=NAME": "metrics of its steps, the newest or those since an instant",
    "GET /v1/jobs/NAME/why-silent": "why nothing comes out of it, and what to do",
    "POST /v1/jobs/NAME/savepoint": "takes a savepoint of it: name",
    "GET /v1/jobs/NAME/state?step=NAME&key=COLUMN=VALUE&batches=N": "the rows that one of its steps keeps, and what "
    "each of its newest batches changed",
    "POST /v1/jobs/NAME/upgrade": "upgrades it: file, map, allow_dropped, watch; check: only returns what it would do",
    "POST /v1/jobs/NAME/rehearse": "compares the results of its flow and another: file, map, last",
    "POST /v1/jobs/NAME/rollback": "goes back to how it was before its last upgrade",
    "GET /v1/jobs/NAME/upgrades": "its upgrades, the newest first",
    "GET /v1/savepoints?job=NAME": "savepoints, the newest first",
    "DELETE /v1/savepoints/NAME": "removes a savepoint",
    "POST /v1/savepoints/NAME/restore": "restores it into its job, or another one: into",
    "GET /v1/alerts": "targets and rules for alerts, and the rules that hold now",
    "POST /v1/alerts/test": "sends a test message: target, or all",
    "GET /v1/audit": "who did what, the newest first",
    "GET /v1/bundle": "a zip for support: plans, settings, metrics and logs, without records",
    "GET /metrics": "state and progress of all jobs, for Prometheus",
}
Handler = Callable[[Request, dict[str, Any]], Any]
"""Called in a thread, or awaited if it is a coroutine function: then many can wait at the same time."""


class Admission(Protocol):
    """Decides who may send a request."""

    def admitted(self, headers: Headers, method: str) -> str | None:
        """The name of the sender's account, None for the owner of the supervisor. Raises Denied."""


@dataclass(frozen=True)
class MoreRoute:
    """A route that another package adds. Its path starts after the version."""

    path: str
    description: dict[str, str]
    """By method and path with its parameters: what it does."""
    handler: Handler
    methods: tuple[str, ...] = ("GET",)


def app(
    supervisor: Supervisor,
    status: Status,
    access: Admission,
    user: str,
    *,
    alerting: Alerting | None = None,
    more: Sequence[MoreRoute] = (),
) -> Application:
    """The ASGI application. `user` is the owner of the token."""
    description = {**DESCRIPTION, **{path: does for each in more for path, does in each.description.items()}}

    masking = supervisor.masking

    def sender(request: Request) -> str:
        account: str | None = request.state.account
        return account or user

    def jobs(request: Request, body: dict[str, Any]) -> Any:
        if request.method == "POST":
            return described(supervisor.submit(body, sender(request)))
        return status.listed()

    def job(request: Request, body: dict[str, Any]) -> Any:
        name = request.path_params["name"]
        if request.method == "DELETE":
            supervisor.delete(name, sender(request))
            return {"deleted": name}
        return status.shown(name)

    def act(request: Request, body: dict[str, Any]) -> Any:
        acts = {"start": supervisor.start, "stop": supervisor.stop, "restart": supervisor.restart}
        action = request.path_params["action"]
        if action not in acts:
            raise NotFound(f"a job cannot {action[:50]!r}", next_step=f"one of {', '.join(acts)}")
        return described(acts[action](request.path_params["name"], sender(request)))

    def reload(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.reload(request.path_params["name"], sender(request))

    def runs(request: Request, body: dict[str, Any]) -> Any:
        return masking.now().document([asdict(run) for run in supervisor.runs(request.path_params["name"])], ())

    def failures(request: Request, body: dict[str, Any]) -> Any:
        return masking.now().document(supervisor.failures(request.path_params["name"]), ())

    def logs(request: Request, body: dict[str, Any]) -> Any:
        run, offset, limit = (number_of(request, name) for name in ("run", "offset", "limit"))
        at_most = min(max(limit or LOG_BYTES_MAX, 1), LOG_BYTES_MAX)
        text, after, number = supervisor.read_log(request.path_params["name"], run, offset or 0, at_most)
        return {"run": number, "text": masking.now().text(text.decode(errors="replace")), "next": after}

    def job_metrics(request: Request, body: dict[str, Any]) -> Any:
        since, step = _instant(request, "since"), request.query_params.get("step")
        return status.metrics(request.path_params["name"], since, step)

    def silence(request: Request, body: dict[str, Any]) -> Any:
        return status.why_silent(request.path_params["name"])

    def savepoint(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.savepoint(request.path_params["name"], sender(request), _text(body, "name"))

    def upgrade(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.upgrade(request.path_params["name"], sender(request), UpgradeRequest.checked(body))

    def rehearse(request: Request, body: dict[str, Any]) -> Any:
        last = _text(body, "last")
        asked = UpgradeRequest.checked({part: value for part, value in body.items() if part != "last"})
        found = supervisor.upgrades.rehearse(
            request.path_params["name"], sender(request), asked.file, asked.map, last or "1 hour"
        )
        return masking.now().document(found, ("key", "old", "new"))

    def rollback(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.rollback(request.path_params["name"], sender(request))

    def upgrades(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.upgrades.listed(request.path_params["name"])

    def savepoints(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.saved.savepoints(request.query_params.get("job"))

    def one_savepoint(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.remove_savepoint(request.path_params["name"], sender(request))

    def restore(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.restore(request.path_params["name"], sender(request), _text(body, "into"))

    def state(request: Request, body: dict[str, Any]) -> Any:
        step, keys = request.query_params.get("step"), request.query_params.getlist("key")
        if not step or not all("=" in key for key in keys):
            raise InvalidInput("step=NAME is missing, or a key is not COLUMN=VALUE", next_step="GET / lists the routes")
        chosen = dict(key.split("=", 1) for key in keys)
        found = supervisor.state(request.path_params["name"], step, chosen, number_of(request, "batches") or 0)
        return masking.now().document(found, ("tables",))

    def alerts(request: Request, body: dict[str, Any]) -> Any:
        if alerting is None:
            raise NotFound("this supervisor sends no alerts", next_step="start it with: millstream up")
        if request.method == "POST":
            target = body.get("target")
            supervisor.store.note(sender(request), "test alerts", details=None if target is None else str(target)[:100])
            return alerting.test(None if target is None else str(target))
        return alerting.document()

    def audit(request: Request, body: dict[str, Any]) -> Any:
        return supervisor.store.audit()

    def support(request: Request, body: dict[str, Any]) -> Any:
        headers = {"content-disposition": 'attachment; filename="millstream-bundle.zip"', "cache-control": "no-store"}
        return Response(bundle(supervisor, status, alerting), media_type="application/zip", headers=headers)

    def metrics(request: Request, body: dict[str, Any]) -> Any:
        databases = None if alerting is None else alerting.slots.databases()
        return Response(exposed(status, databases), media_type=CONTENT_TYPE)

    def root(request: Request, body: dict[str, Any]) -> Any:
        return description

    added = [
        Route(f"/{VERSION}{each.path}", _endpoint(each.handler, access), methods=list(each.methods)) for each in more
    ]
    routes = [
        *added,
        Route("/", _endpoint(root, access), methods=["GET"]),
        Route(f"/{VERSION}/jobs", _endpoint(jobs, access), methods=["GET", "POST"]),
        Route(f"/{VERSION}/jobs/{{name}}", _endpoint(job, access), methods=["GET", "DELETE"]),
        Route(f"/{VERSION}/jobs/{{name}}/reload", _endpoint(reload, access), methods=["POST"]),
        Route(f"/{VERSION}/jobs/{{name}}/runs", _endpoint(runs, access), methods=["GET"]),
        Route(f"/{VERSION}/jobs/{{name}}/failures", _endpoint(failures, access), methods=["GET"]),
        Route(f"/{VERSION}/jobs/{{name}}/logs", _endpoint(logs, access), methods=["GET"]),
        Route(f"/{VERSION}/jobs/{{name}}/metrics", _endpoint(job_metrics, access), methods=["GET"]),
        Route(f"/{VERSION}/jobs/{{name}}/why-silent", _endpoint(silence, access), methods=["GET"]),
        Route(f"/{VERSION}/jobs/{{name}}/savepoint", _endpoint(savepoint, access), methods=["POST"]),
        Route(f"/{VERSION}/jobs/{{name}}/upgrade", _endpoint(upgrade, access), methods=["POST"]),
        Route(f"/{VERSION}/jobs/{{name}}/rehearse", _endpoint(rehearse, access), methods=["POST"]),
        Route(f"/{VERSION}/jobs/{{name}}/rollback", _endpoint(rollback, access), methods=["POST"]),
        Route(f"/{VERSION}/jobs/{{name}}/upgrades", _endpoint(upgrades, access), methods=["GET"]),
        Route(f"/{VERSION}/jobs/{{name}}/state", _endpoint(state, access), methods=["GET"]),
        Route(f"/{VERSION}/savepoints", _endpoint(savepoints, access), methods=["GET"]),
        Route(f"/{VERSION}/savepoints/{{name}}", _endpoint(one_savepoint, access), methods=["DELETE"]),
        Route(f"/{VERSION}/savepoints/{{name}}/restore", _endpoint(restore, access), methods=["POST"]),
        Route(f"/{VERSION}/jobs/{{name}}/{{action}}", _endpoint(act, access), methods=["POST"]),
        Route(f"/{VERSION}/alerts", _endpoint(alerts, access), methods=["GET"]),
        Route(f"/{VERSION}/alerts/test", _endpoint(alerts, access), methods=["POST"]),
        Route(f"/{VERSION}/audit", _endpoint(audit, access), methods=["GET"]),
        Route(f"/{VERSION}/bundle", _endpoint(support, access), methods=["GET"]),
        Route("/metrics", _endpoint(metrics, access), methods=["GET"]),
    ]
    made = Starlette(routes=routes)
    for code in (404, 405):
        made.add_exception_handler(code, _endpoint(_unknown, access))
    return made


def _unknown(request: Request, body: dict[str, Any]) -> Any:
    raise NotFound("there is no such route", next_step="GET / lists them")


def _endpoint(handler: Handler, access: Admission) -> Callable[..., Awaitable[Response]]:
    async def answer(request: Request, _: object = None) -> Response:
        try:
            headers = request.scope["headers"]
            request.state.account = await run_in_threadpool(access.admitted, headers, request.method)
            body = await _body(request)
            if iscoroutinefunction(handler):
                made = await handler(request, body)
            else:
                made = await run_in_threadpool(handler, request, body)
            if isinstance(made, Response):
                return made
            return JSONResponse(made, headers={"cache-control": "no-store"})
        except Denied as denied:
            return _failure(denied.status, "Denied", denied.what, None, denied.next_step)
        except MillstreamError as error:
            status = next((status for kind, status in STATUS_OF.items() if isinstance(error, kind)), 500)
            return _failure(status, type(error).__name__, error.what, error.where, error.next_step)

    return answer


async def _body(request: Request) -> dict[str, Any]:
    if request.method != "POST":
        return {}
    content = await read_body(request, BODY_BYTES_MAX)
    try:
        found = json.loads(content) if content else {}
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the request is not JSON: {error}", next_step="send a JSON object") from error
    if not isinstance(found, dict):
        raise InvalidInput("the request is not a JSON object", next_step='such as {"file": "/home/me/flow.py"}')
    return found


def _text(body: dict[str, Any], name: str) -> str | None:
    found = body.get(name)
    if found is not None and not isinstance(found, str):
        raise InvalidInput(f"'{name}' must be a text, not {found!r}", next_step=f"leave {name} out, or give a text")
    return found


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body of a request, unless it is too large or takes too long."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for part in request.stream():
                size += len(part)
                if size > bytes_max:
                    raise InvalidInput(f"the request is larger than {bytes_max:,} bytes", next_step="send less")
                parts.append(part)
    except TimeoutError:
        raise InvalidInput(
            f"the request was not complete after {BODY_S_MAX:.0f} seconds", next_step="send it faster"
        ) from None
    return b"".join(parts)


def number_of(request: Request, name: str) -> int | None:
    """A number in the query of a request."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{name}={text[:50]!r} is not a number", next_step="give a whole number") from None


def _instant(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidInput(f"{name}={text[:50]!r} is not an instant", next_step="give seconds since 1970")
    return found


def _failure(status: int, kind: str, what: str, where: str | None, next_step: str | None) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"error": {"kind": kind, "what": what, "where": where, "next": next_step}}, status, headers)
