"""Webhooks into topics: `POST /TOPIC` is answered with 200 when its events are durable, and never before.

A sender that gets another answer, or none, sends again; with an id its events are stored once.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from millstream import terminal
from millstream.bridges.arrivals import Arrival, Landed
from millstream.bridges.grouping import WAITING_BYTES_MAX, GroupedLanding
from millstream.bridges.http.bodies import EventFormat, TooLarge
from millstream.bridges.landing import Landing
from millstream.errors import BufferFull, InvalidInput, MillstreamError, NotFound
from millstream.serving.access import Access, Denied
from millstream.serving.http import KINDS, Answer, Application, Message, Refused, error
from millstream.webhooks.signatures import BadSignature, Verifier

BODY_BYTES_MAX = 8 << 20
ID_CHARACTERS_MAX = 255
ID = re.compile(rf"[\x21-\x7e]{{1,{ID_CHARACTERS_MAX}}}")
ID_HEADER = "idempotency-key"
STORE_SECONDS = 30.0
SWITCH_SECONDS = 0.0005
Headers = dict[bytes, bytes]
logger = terminal.logger("uvicorn.error")

NOT_FOUND = error(404, "NotFound", "there is no such topic here", "POST to one that the server was started with")
NOT_ALLOWED = error(405, "MethodNotAllowed", "events can only be sent", "use POST", (b"allow", b"POST"))
FULL = error(429, "BufferFull", "too many events are waiting to be stored", "send it again", (b"retry-after", b"1"))
UNAVAILABLE = error(
    503, "StorageError", "the events cannot be stored now", "send it again with the same id", (b"retry-after", b"5")
)


@dataclass(frozen=True)
class Rules:
    """What a request must be like, and what is kept of it."""

    access: Access
    verifier: Verifier | None = None
    format: EventFormat = field(default_factory=EventFormat)
    id_header: str = ID_HEADER
    kept_headers: Sequence[str] = ()
    """Headers of the request that become headers of its records."""
    body_bytes_max: int = BODY_BYTES_MAX
    store_seconds: float = STORE_SECONDS

    def id_of(self, headers: Headers, signed: str | None) -> str | None:
        given = headers.get(self.id_header.encode())
        id = signed if given is None else given.decode("latin-1")
        if id is not None and not ID.fullmatch(id):
            raise _invalid(
                f"the id is not 1 to {ID_CHARACTERS_MAX} printable ASCII characters without spaces",
                "use a UUID, or another id that does not change when the request is sent again",
            )
        return id


def app(grouped: GroupedLanding, rules: Rules) -> Application:
    """The ASGI application."""
    topics = {f"/{topic}".encode(): topic for topic in grouped.landing.topics}
    kept = [(name.lower().encode(), name.lower()) for name in rules.kept_headers]

    async def answer(
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        try:
            made = await _received(scope, receive)
        except Refused as refused:
            made = refused.answer
        await send({"type": "http.response.start", "status": made.status, "headers": made.headers})
        await send({"type": "http.response.body", "body": made.body})

    async def _received(scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]]) -> Answer:
        _check(scope, rules.access)
        topic = topics.get(bytes(scope["raw_path"]))
        if topic is None:
            raise Refused(NOT_FOUND)
        headers: Headers = dict(scope["headers"])
        body = await _body(headers, receive, rules.body_bytes_max)
        arrivals = _arrivals(topic, headers, body, scope["client"])
        try:
            async with asyncio.timeout(rules.store_seconds):
                landed = await grouped.land(arrivals)
        except BufferFull:
            return FULL
        except TimeoutError:  # it may be stored later: the sender's id keeps it from being stored twice
            return UNAVAILABLE
        except NotFound:
            return NOT_FOUND
        except MillstreamError as failure:
            logger.error("%s", failure)
            return UNAVAILABLE
        return _stored(landed)

    def _arrivals(topic: str, headers: Headers, body: bytes, client: Any) -> list[Arrival]:
        signed = None
        if rules.verifier is not None:
            try:
                signed = rules.verifier.check(headers, body)
            except BadSignature as bad:
                raise Refused(error(401, "BadSignature", str(bad), "sign the body with the shared secret")) from None
        id = rules.id_of(headers, signed)
        origin = f"http {client[0]}" if client else "http"
        try:
            arrivals = rules.format.events(topic, body, headers.get(b"content-type", b""), id, origin)
        except TooLarge as large:
            raise Refused(error(413, "TooLarge", large.what, large.next_step or "")) from None
        found = tuple((name, headers[raw]) for raw, name in kept if raw in headers)
        if found:
            for arrival in arrivals:
                arrival.headers = found
        return arrivals

    return answer


def _check(scope: MutableMapping[str, Any], access: Access) -> None:
    try:
        access.check(scope["headers"])
    except Denied as denied:
        raise Refused(error(denied.status, KINDS[denied.status], denied.what, denied.next_step)) from None
    if scope["method"] != "POST":
        raise Refused(NOT_ALLOWED)


async def _body(headers: Headers, receive: Callable[[], Awaitable[Message]], bytes_max: int) -> bytes:
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > bytes_max:
        raise _too_large(bytes_max)
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise _too_large(bytes_max)
        if not message.get("more_body"):
            break
    if message["type"] == "http.disconnect":
        raise _invalid("the request was cut off", "send it again")
    return b"".join(parts)


def _stored(landed: Landed) -> Answer:
    return Answer(200, orjson.dumps({"stored": landed.stored, "duplicates": landed.duplicates, "dead": landed.dead}))


def _too_large(bytes_max: int) -> Refused:
    closes = (b"connection", b"close")  # the rest of the body is not read
    return Refused(
        error(413, "TooLarge", f"the body is larger than {bytes_max:,} bytes", "send fewer events at once", closes)
    )


def _invalid(what: str, next_step: str) -> Refused:
    return Refused(error(400, "InvalidInput", what, next_step))


@contextmanager
def listener(landing: Landing, rules: Rules, *, waiting_bytes_max: int = WAITING_BYTES_MAX) -> Iterator[Application]:
    """The application, until it is no longer served."""
    check_installed()
    grouped = GroupedLanding(landing, waiting_bytes_max=waiting_bytes_max)
    try:
        yield app(grouped, rules)
    finally:
        grouped.close()


def share_processor() -> None:
    """Lets the thread that stores run soon while others parse requests: a switch after 5 ms delays every commit."""
    sys.setswitchinterval(SWITCH_SECONDS)


def check_installed() -> None:
    try:
        import httptools as _httptools  # noqa: F401
        import starlette as _starlette  # noqa: F401
        import uvicorn as _uvicorn  # noqa: F401
        import websockets as _websockets  # noqa: F401
    except ImportError as failure:
        raise InvalidInput(
            f"listening for HTTP needs the package {failure.name}", next_step="pip install 'millstream[bridges]'"
        ) from failure
