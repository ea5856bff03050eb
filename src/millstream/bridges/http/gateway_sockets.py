"""WebSockets of the gateway: a topic in both directions over one connection.

Nothing of a client is stored here: each record comes with the position after it, from which the client continues on any
other connection. A client that does not read is not read from either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from millstream.bridges.http.json_records import as_json, written
from millstream.bridges.http.positions import position_text
from millstream.serving.access import Access

if TYPE_CHECKING:
    from millstream.bridges.http.gateway import Gateway, Places

FAILED = 1011


class Sockets:
    def __init__(self, gateway: Gateway, access: Access, places: Places, threads: ThreadPoolExecutor) -> None:
        self._gateway = gateway
        self._access = access
        self._places = places
        self._threads = threads

    async def serve(self, socket: WebSocket) -> None:
        from millstream.bridges.http.gateway import failed

        try:
            self._access.check(socket.scope["headers"])
            self._places.check()
            topic, position = await in_thread(self._threads, self._begin, socket)
        except Exception as error:
            await socket.send_denial_response(failed(error))
            return
        await socket.accept()
        talk = _Talk(self._gateway, self._threads, socket, topic)
        with self._places.taken():
            tasks = [asyncio.ensure_future(talk.store())]
            if position is not None:
                tasks.append(asyncio.ensure_future(talk.follow(position)))
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, socket: WebSocket) -> tuple[str, dict[int, int] | None]:
        name, given = str(socket.path_params["topic"]), socket.query_params.get("position")
        if given is None:  # only to store records
            return self._gateway.topic_of(name), None
        return self._gateway.begin_events(name, given)


class _Talk:
    """One connection."""

    def __init__(self, gateway: Gateway, threads: ThreadPoolExecutor, socket: WebSocket, topic: str) -> None:
        self._gateway = gateway
        self._threads = threads
        self._socket = socket
        self._topic = topic
        self._turn = asyncio.Lock()

    async def store(self) -> None:
        """Answers every message with the offsets of its records, in order, when they are durable."""
        from millstream.bridges.http.gateway import failed

        with suppress(WebSocketDisconnect):
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                body = message.get("bytes") or (message.get("text") or "").encode()
                try:
                    answers = await in_thread(self._threads, self._gateway.store, self._topic, body)
                    await self._send(written({"stored": answers}))
                except WebSocketDisconnect:
                    raise
                except Exception as error:  # about this message; the next one may be better
                    await self._send(bytes(failed(error).body))

    async def follow(self, position: dict[int, int]) -> None:
        from millstream.bridges.http.gateway import failed

        try:
            async with aclosing(self._gateway.follow(self._topic, position, self._threads)) as following:
                async for records in following:
                    for record in records:
                        position[record.partition] = record.offset + 1
                        await self._send(written({"record": as_json(record), "position": position_text(position)}))
        except WebSocketDisconnect:
            return
        except Exception as error:  # it cannot go on: records were deleted, or the topic was
            with suppress(WebSocketDisconnect):
                await self._send(bytes(failed(error).body))
                await self._socket.close(FAILED)

    async def _send(self, document: bytes) -> None:
        async with self._turn:
            await self._socket.send_text(document.decode())


async def in_thread(threads: ThreadPoolExecutor, work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
