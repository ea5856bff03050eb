"""Answers of the supervisor's interface as they change: server-sent events.

A stream asks for one path again and again, as any client could, and sends the answers that differ. Streams of the same
path share its answers, so that many open pages cost the supervisor no more than one.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from millstream import terminal
from millstream.serving.http import Application, Message

EVERY_S = 1.0
SHARED_S = 0.8
"""How old an answer may be that another stream asked for."""
BEAT_S = 15.0
"""A comment after that long: a connection that has gone is noticed when something is sent."""
SHARED_MAX = 256
FAILED = b'{"error": {"what": "the supervisor failed to answer", "where": null, "next": "its stderr has the reason"}}'
FOLLOWED = "/v1/jobs/"
"""Answers of jobs go on at `next`; in a row of a table, that is a column."""
CURSOR = re.compile(r"(?<=[?&])offset=[^&]*")
logger = terminal.logger(__name__)


class Asked:
    """Asks the supervisor's interface within this process."""

    def __init__(self, inner: Application, token: str, host: str) -> None:
        self._inner = inner
        self._headers = [(b"host", host.encode()), (b"authorization", b"Bearer " + token.encode())]
        self._shared: dict[str, tuple[float, asyncio.Task[tuple[int, bytes]]]] = {}

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. An answer may be shared with others that ask for the same path now."""
        now = time.monotonic()
        asked_at, task = self._shared.get(path, (0.0, None))
        if task is None or now - asked_at > SHARED_S:
            while len(self._shared) >= SHARED_MAX:
                del self._shared[next(iter(self._shared))]
            task = asyncio.create_task(self._get(path))
            self._shared[path] = (now, task)
        return await asyncio.shield(task)

    async def _get(self, path: str) -> tuple[int, bytes]:
        plain, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(plain),
            "raw_path": plain.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": self._headers,
            "server": None,
            "client": None,
        }
        status, parts = 500, []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        try:
            await self._inner(scope, receive, send)
        except Exception:  # a fault of one answer must not end a stream
            logger.exception("%s cannot be answered", plain)
            return 500, FAILED
        return status, b"".join(parts)


async def events(
    ask: Callable[[str], Awaitable[tuple[int, bytes]]], path: str, ends: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """The answers to a path whenever they differ. An answer with `next` goes on from there: the path has `offset`."""
    last, sent_at = b"", time.monotonic()
    while not ends():
        status, body = await ask(path)
        if body != last:
            yield event("answer" if status == 200 else "refused", body)
            last, sent_at = body, time.monotonic()
        elif time.monotonic() - sent_at > BEAT_S:
            yield b":\n\n"
            sent_at = time.monotonic()
        after = _cursor(body) if status == 200 and path.startswith(FOLLOWED) else None
        if after is not None:
            path = CURSOR.sub(lambda _, after=after: f"offset={after}", path)  # type: ignore[misc]
        await asyncio.sleep(EVERY_S)


def event(name: str, body: bytes) -> bytes:
    """JSON of one line: a line break in a record is escaped, and cannot end the event."""
    return b"event: " + name.encode() + b"\ndata: " + body.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n"


def _cursor(body: bytes) -> int | None:
    if b'"next"' not in body:
        return None
    document: Any = json.loads(body)
    after = document.get("next") if isinstance(document, dict) else None
    return after if isinstance(after, int) else None
