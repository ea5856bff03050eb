"""Changes of a table over HTTP, as server-sent events: what a browser's EventSource reads, and resumes by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from millstream import terminal
from millstream.errors import MillstreamError
from millstream.serving.following import Change, Following

STREAMS = "millstream.streams"
"""In the scope of a request whose answer has no end."""
HEARTBEAT_SECONDS = 15.0
SUBSCRIBERS_MAX = 32
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
logger = terminal.logger("uvicorn.error")
Send = Callable[[Any], Awaitable[None]]


def encoded(change: Change) -> bytes:
    """One event. JSON has no line breaks, so it is one line of data."""
    position = b"" if change.position is None else b"id: " + change.position.encode() + b"\n"
    return b"event: " + change.kind.encode() + b"\n" + position + b"data: " + change.json() + b"\n\n"


class Subscribers:
    """The requests that are being answered with changes; each has a thread, since reading a topic blocks."""

    def __init__(self, subscribers_max: int = SUBSCRIBERS_MAX) -> None:
        self._threads = ThreadPoolExecutor(subscribers_max, thread_name_prefix="millstream-changes")
        self._free = threading.BoundedSemaphore(subscribers_max)

    def take(self) -> bool:
        """Whether there is room for one more; `stream` gives it back."""
        return self._free.acquire(blocking=False)

    def give_back(self) -> None:
        self._free.release()

    async def stream(
        self,
        following: Following,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Send,
    ) -> None:
        """Answers until the client is gone."""
        loop = asyncio.get_running_loop()
        scope[STREAMS] = True
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            quiet_since = loop.time()
            while not gone.done():
                changes = await loop.run_in_executor(self._threads, lambda: list(following.events()))
                body = b"".join(map(encoded, changes))
                if not body and loop.time() - quiet_since >= HEARTBEAT_SECONDS:
                    body = b": still here\n\n"
                if body and not gone.done():
                    quiet_since = loop.time()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            return
        except MillstreamError as failure:
            logger.error("%s", failure)
        finally:
            gone.cancel()
            await loop.run_in_executor(self._threads, following.close)
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
