"""Tables over HTTP: the current row of a key as JSON, by one GET. What is not there is a 404 that says what is."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import orjson

from millstream.errors import InvalidInput, KafkaUnavailable, MillstreamError, NotFound
from millstream.serving.rows import TableUnavailable
from millstream.serving.tables import Tables
from millstream.sinks.remembered import Remembered

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DESCRIPTION = """Tables of a Millstream log, the current row of each key.

GET /tables                      which tables there are, and their key columns
GET /tables/NAME                 one of them
GET /tables/NAME/KEY             the row of a key
GET /tables/NAME?column=value&…  the row of a key of several columns
"""


def app(tables: Tables, host: str = LOOPBACK[0]) -> Starlette:
    """The application; `host` is where it is served: on this machine alone, it also answers to no other name."""
    _check_installed()
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    # Plain functions: Starlette runs each in a thread of its own, and a look into a database blocks.
    def describe(request: Request) -> Response:
        return PlainTextResponse(DESCRIPTION)

    def list_tables(request: Request) -> Response:
        return _json([_entry(name, table) for name, table in tables.known().items()])

    def by_columns(request: Request) -> Response:
        name = request.path_params["name"]
        if not request.query_params:
            return _json(_entry(name, tables.find(name)))
        return _json(tables.row(name, dict(request.query_params)).json())

    def by_key(request: Request) -> Response:
        return _json(tables.row(request.path_params["name"], request.path_params["key"]).json())

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, MillstreamError)
        return _error(_status(error), type(error).__name__, error.what, error.next_step)

    def unrouted(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _error(error.status_code, "NotFound", f"{request.method} {request.url.path}: {error.detail}", "GET /")

    allowed = [*LOOPBACK, "[::1]"] if host in LOOPBACK else ["*"]
    routes: list[tuple[str, Callable[[Request], Response]]] = [
        ("/", describe),
        ("/tables", list_tables),
        ("/tables/{name}", by_columns),
        ("/tables/{name}/{key:path}", by_key),
    ]
    return Starlette(
        routes=[Route(path, handler) for path, handler in routes],
        exception_handlers={MillstreamError: refused, HTTPException: unrouted},
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)],
    )


def _entry(name: str, table: Remembered) -> dict[str, Any]:
    return {"name": name, "kind": table.kind, "key": list(table.key)}


def _json(content: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    body = content if isinstance(content, bytes) else orjson.dumps(content)
    return Response(body, status, media_type="application/json")


def _error(status: int, kind: str, what: str, next_step: str | None) -> Response:
    return _json({"error": {"kind": kind, "what": what, "next": next_step}}, status)


def _status(error: MillstreamError) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, InvalidInput):
        return 400
    return 503 if isinstance(error, TableUnavailable | KafkaUnavailable) else 500


# ---------------------------------------------------------------- the server


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that takes connections, before anything else is begun; port 0 is any that is free."""
    _check_installed()
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"nothing can be served at {host}:{port}: {getattr(error, 'strerror', None) or error}",
            next_step="choose another with --host and --port; --port 0 takes any that is free",
        ) from error
    with made:
        yield made


def serve(tables: Tables, at: socket.socket, host: str) -> None:
    """Answers until Ctrl-C."""
    import uvicorn

    settings = uvicorn.Config(app(tables, host), log_level="warning", lifespan="off", access_log=False)
    uvicorn.Server(settings).run(sockets=[at])


def _check_installed() -> None:
    try:
        for name in ("starlette", "uvicorn"):
            import_module(name)
    except ImportError as error:
        raise InvalidInput(
            f"to serve tables over HTTP the package {error.name} is needed",
            next_step="pip install 'millstream[serve]'",
        ) from error
