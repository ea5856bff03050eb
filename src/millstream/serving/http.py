"""Tables over HTTP: the current row of a key as JSON, by one GET.

A caller learns which tables are served and the rows of keys it knows, and nothing else, unless the server lets callers
follow whole tables: everything missing gets the same answer, errors contain neither keys nor rows, and internal errors
are only reported on stderr.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote_to_bytes

import orjson

from millstream import terminal
from millstream.connectors.catalog import Remembered
from millstream.connectors.lookups import InvalidKey, TableUnavailable
from millstream.errors import InvalidInput, KafkaUnavailable, MillstreamError, NotFound
from millstream.serving.access import Access, Denied, ListenAddress, unusable
from millstream.serving.events import Subscribers
from millstream.serving.following import Following, NotFollowed
from millstream.serving.served import Served

if TYPE_CHECKING:
    import uvicorn

URL_BYTES_MAX = 8192
HEAD_BYTES_MAX = 16384
KEY_BYTES_MAX = 4096
QUERY_COLUMNS_MAX = 64
LOOKUPS_MAX = 16  # at once; a lookup blocks its thread
KEEP_ALIVE_SECONDS = 5
SHUTDOWN_SECONDS = 10
METHODS = ("GET", "HEAD")
CHANGES = b"/changes/"
HEADERS = (
    (b"content-type", b"application/json"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
DESCRIPTION = {
    "GET /tables": "the tables that are served, and their key columns",
    "GET /tables/NAME": "one of them",
    "GET /tables/NAME/KEY": "the row of a key of one column",
    "GET /tables/NAME?column=value&…": "the row of a key of any number of columns",
    "GET /changes/NAME": "all rows of a table and then its changes, as server-sent events, if the server allows it",
}
BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
logger = terminal.logger("uvicorn.error")  # writes every line to stderr, unlike a command's warnings

Message: TypeAlias = MutableMapping[str, Any]
Application: TypeAlias = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


@dataclass(frozen=True)
class Answer:
    """The response."""

    status: int
    body: bytes
    more_headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*HEADERS, (b"content-length", b"%d" % len(self.body)), *self.more_headers]


def error(status: int, kind: str, what: str, next_step: str, *more_headers: tuple[bytes, bytes]) -> Answer:
    return Answer(status, orjson.dumps({"error": {"kind": kind, "what": what, "next": next_step}}), more_headers)


NOT_FOUND = error(404, "NotFound", "there is no such table or row", "GET /tables lists the tables")
NOT_ALLOWED = error(405, "MethodNotAllowed", "tables can only be read", "use GET", (b"allow", b"GET, HEAD"))
TOO_LONG = error(414, "UriTooLong", f"the URL is longer than {URL_BYTES_MAX} bytes", "use a shorter key")
NOT_HTTP = error(400, "InvalidInput", "this is not a valid HTTP request", "GET /", (b"connection", b"close"))
BUSY = error(
    503, "Busy", "too many connections are open", "try again later", (b"connection", b"close"), (b"retry-after", b"1")
)
UNAVAILABLE = error(503, "TableUnavailable", "the table cannot be read now", "the server reports why on its stderr")
INTERNAL = error(500, "InternalError", "the server failed to answer", "the server reports why on its stderr")
KINDS = {400: "InvalidInput", 401: "Unauthorized", 403: "Forbidden"}


def app(served: Served, access: Access, *, subscribers: Subscribers | None = None) -> Application:
    """The ASGI application. With `subscribers`, clients may follow whole tables."""
    threads = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="millstream-lookup")

    async def answer(
        scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Callable[..., Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        try:
            _check(scope, access)
            loop = asyncio.get_running_loop()
            path, query = bytes(scope["raw_path"]), bytes(scope["query_string"])
            if subscribers is not None and scope["method"] == "GET" and path.startswith(CHANGES):
                if not subscribers.take():
                    raise Refused(BUSY)
                try:
                    position = _position(scope["headers"], query)
                    following = await loop.run_in_executor(threads, _followed, served, path, position)
                    await subscribers.stream(following, scope, receive, send)
                    return
                finally:
                    subscribers.give_back()
            made = await loop.run_in_executor(threads, _answered, served, path, query)
        except Refused as refused:
            made = refused.answer
        await send({"type": "http.response.start", "status": made.status, "headers": made.headers})
        await send({"type": "http.response.body", "body": made.body})

    return answer


class Refused(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def _check(scope: MutableMapping[str, Any], access: Access) -> None:
    """Everything that is rejected without a lookup."""
    try:
        access.check(scope["headers"])
    except Denied as denied:
        asks = ((b"www-authenticate", b"Bearer"),) if denied.status == 401 else ()
        raise Refused(error(denied.status, KINDS[denied.status], denied.what, denied.next_step, *asks)) from None
    if scope["method"] not in METHODS:
        raise Refused(NOT_ALLOWED)
    if len(scope["raw_path"]) + len(scope["query_string"]) > URL_BYTES_MAX:
        raise Refused(TOO_LONG)


def _position(headers: Iterable[tuple[bytes, bytes]], query: bytes) -> str | None:
    """Where a client continues: a browser that has lost its connection sends the id of the last event."""
    given = unquote_to_bytes(query.removeprefix(b"position=")) if query.startswith(b"position=") else b""
    last = next((value for name, value in headers if name == b"last-event-id"), given)
    return last.decode("latin-1") or None


def _followed(served: Served, path: bytes, position: str | None) -> Following:
    """The table of a path, to be followed; whatever prevents it is refused."""
    made: list[Following] = []

    def follow() -> Answer:
        found = served.followed(_text(path.removeprefix(CHANGES)), position)
        if found is None:
            return NOT_FOUND
        made.append(found)
        return Answer(200, b"")

    answer = _guarded(follow)
    if not made:
        raise Refused(answer)
    return made[0]


def _answered(served: Served, path: bytes, query: bytes) -> Answer:
    return _guarded(lambda: _looked_up(served, path, query))


def _guarded(answered: Callable[[], Answer]) -> Answer:
    try:
        return answered()
    except Refused as refused:
        return refused.answer
    except NotFound:  # a topic that was just deleted
        return NOT_FOUND
    except NotFollowed as failure:
        return error(400, "InvalidInput", failure.what, failure.next_step or "")
    except (TableUnavailable, KafkaUnavailable) as failure:
        logger.error("%s", failure)
        return UNAVAILABLE
    except MillstreamError as failure:
        logger.error("%s", failure)
        return INTERNAL
    except Exception:
        logger.exception("a request failed")
        return INTERNAL


def _looked_up(served: Served, path: bytes, query: bytes) -> Answer:
    """Split before decoding: an encoded slash is part of a name or a key."""
    match path.split(b"/", 3):
        case [b"", b""]:
            return Answer(200, orjson.dumps(DESCRIPTION))
        case [b"", b"tables"]:
            return Answer(200, orjson.dumps([_entry(name, table) for name, table in served.listed().items()]))
        case [b"", b"tables", name] if not query:
            text = _text(name)
            table = served.find(text)
            return NOT_FOUND if table is None else Answer(200, orjson.dumps(_entry(text, table)))
        case [b"", b"tables", name]:
            return _row(served, _text(name), _columns(query))
        case [b"", b"tables", name, key]:
            return _row(served, _text(name), _text(key))
    return NOT_FOUND


def _row(served: Served, name: str, key: str | dict[str, str]) -> Answer:
    try:
        row = served.row(name, key)
    except InvalidKey:
        table = served.find(name)
        columns = "GET /tables/NAME lists them" if table is None else ", ".join(table.key)
        raise _bad("that is not a key of the table", f"its key columns: {columns}") from None
    return NOT_FOUND if row is None else Answer(200, row.json())


def _entry(name: str, table: Remembered) -> dict[str, Any]:
    return {"name": name, "kind": table.kind, "key": list(table.key)}


def _columns(query: bytes) -> dict[str, str]:
    parts = query.split(b"&")
    if len(parts) > QUERY_COLUMNS_MAX:
        raise _bad(f"the query has more than {QUERY_COLUMNS_MAX} columns", "use only the key columns")
    columns: dict[str, str] = {}
    for part in parts:
        column, _, value = part.replace(b"+", b" ").partition(b"=")
        if (name := _text(column)) in columns:
            raise _bad("the query names a column twice", "name each key column once")
        columns[name] = _text(value)
    return columns


def _text(encoded: bytes) -> str:
    """Decodes part of a URL. Invalid bytes are rejected, since a replacement would be another name or key."""
    decoded = unquote_to_bytes(encoded)
    if BAD_ESCAPE.search(encoded):
        raise _bad("the URL has a % that does not start an escape", "write % as %25")
    if len(decoded) > KEY_BYTES_MAX:
        raise _bad(f"a name or a key is longer than {KEY_BYTES_MAX} bytes", "use a shorter key")
    if b"\0" in decoded:
        raise _bad("names and keys must not have NUL characters", "remove %00")
    try:
        return decoded.decode()
    except UnicodeDecodeError:
        raise _bad("the URL is not UTF-8", "encode names and keys as UTF-8 before escaping them") from None


def _bad(what: str, next_step: str) -> Refused:
    return Refused(error(400, "InvalidInput", what, next_step))


# ---------------------------------------------------------------- the server


@contextmanager
def listening(address: ListenAddress) -> Iterator[socket.socket]:
    """A listening socket, opened before anything else starts; port 0 is any free one."""
    check_installed()
    with bound(address) as made:
        yield made


@contextmanager
def bound(address: ListenAddress) -> Iterator[socket.socket]:
    """A listening socket, for any server."""
    try:
        made = socket.create_server((str(address.ip), address.port), family=address.family)
    except (OSError, OverflowError) as failure:
        raise unusable(address.host, address.port, failure) from failure
    with made:
        yield made


def server(
    application: Application,
    connection: type[asyncio.Protocol] | None = None,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    message_bytes_max: int | None = None,
) -> uvicorn.Server:
    """`connection` is the class of its connections; default: those of the table server.

    With a certificate and its key, the server speaks TLS. With `message_bytes_max` it accepts WebSockets, whose
    messages are not larger than that.
    """
    import uvicorn

    from millstream.serving.connection import BoundedConnection

    return uvicorn.Server(
        uvicorn.Config(
            application,
            http=connection or BoundedConnection,
            ws="none" if message_bytes_max is None else "websockets-sansio",
            ws_max_size=message_bytes_max or 0,
            lifespan="off",
            interface="asgi3",
            log_level="error",  # any client can cause its warnings
            access_log=False,  # URLs contain keys
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
    )


def serve(served: Served, at: socket.socket, access: Access, *, subscribe: bool = False) -> None:
    """Serves until Ctrl-C."""
    server(app(served, access, subscribers=Subscribers() if subscribe else None)).run(sockets=[at])


def check_installed() -> None:
    try:
        import_module("uvicorn")
    except ImportError as failure:
        raise InvalidInput(
            f"serving tables over HTTP needs the package {failure.name}",
            next_step="pip install 'millstream[serve]'",
        ) from failure
