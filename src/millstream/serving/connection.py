"""Connections to the table server: limited in number, and closed if the client stalls.

Uvicorn limits neither: it waits forever for a first request, and counts connections only when one sends a request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from millstream.serving.events import STREAMS
from millstream.serving.http import BUSY, NOT_HTTP

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Connection
else:
    Connection = object


class Bounded(Connection):
    """For a connection of uvicorn: closed unless a request arrives, and its answer is read, within `patience_s`. The
    time that making the answer takes does not count: that of the lookup, or of a stream of events whose client keeps
    up."""

    connections_max: ClassVar[int] = 64
    """Connections beyond it get the answer "busy"; beyond twice as many, they are closed immediately."""
    patience_s: ClassVar[float] = 30.0

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Headers and body are two writes: without this, the second may wait 40 ms for the client's acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > 2 * self.connections_max:
            transport.abort()
            return
        if len(self.connections) > self.connections_max:
            self.app = _busy
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """A stream of changes has no end of its own."""
        if self._streams:
            self.transport.close()
        super().shutdown()

    @property
    def _streams(self) -> bool:
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and bool(cycle.scope.get(STREAMS))

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.patience_s, self._end_unless_answering)

    def _end_unless_answering(self) -> None:
        if self._is_answering() and not self.flow.write_paused:
            self._wait()
        else:
            self.transport.abort()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


class BoundedConnection(Bounded, H11Protocol):
    def send_400_response(self, msg: str) -> None:
        """As JSON, like all other answers."""
        try:
            start = h11.Response(status_code=400, headers=NOT_HTTP.headers, reason=STATUS_PHRASES[400])
            for event in (start, h11.Data(data=NOT_HTTP.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
        except h11.LocalProtocolError:  # the answer to an earlier request is being sent
            self.transport.abort()


class WaitingConnection(BoundedConnection):
    """For the supervisor: a caller of a question keeps its connection until the answer is there."""

    connections_max: ClassVar[int] = 1_100


async def _busy(scope: Any, receive: object, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": BUSY.status, "headers": BUSY.headers})
    await send({"type": "http.response.body", "body": BUSY.body})
