"""Answers of the supervisor's interface as they change: server-sent events.

A stream asks for some paths again and again, as any client could, and sends the answers that differ. Streams of the
same path share its answers, so that many open pages cost the supervisor no more than one.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
    ask: Callable[[str], Awaitable[tuple[int, bytes]]], paths: Sequence[str], ends: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """The answers to some paths, whenever they change. One with `next` is continued there: its path has `offset`."""
    asked, last, sent_at = list(paths), [b""] * len(paths), time.monotonic()
    while not ends():
        for place, (status, body) in enumerate(await asyncio.gather(*map(ask, asked))):
            if body != last[place]:
                yield event("answer" if status == 200 else "refused", place, body)
                last[place], sent_at = body, time.monotonic()
            after = _cursor(body) if status == 200 and asked[place].startswith(FOLLOWED) else None
            if after is not None:
                asked[place] = CURSOR.sub(lambda _, after=after: f"offset={after}", asked[place])  # type: ignore[misc]
        if time.monotonic() - sent_at > BEAT_S:
            yield b":\n\n"
            sent_at = time.monotonic()
        await asyncio.sleep(EVERY_S)


def event(name: str, place: int, body: bytes) -> bytes:
    """The place of its path as its id, and JSON of one line: a line break in a record is escaped, and cannot end it."""
    return (
        b"event: %s\nid: %d\ndata: " % (name.encode(), place) + body.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n"
    )


def _cursor(body: bytes) -> int | None:
    if b'"next"' not in body:
        return None
    document: Any = json.loads(body)
    after = document.get("next") if isinstance(document, dict) else None
    return after if isinstance(after, int) else None
