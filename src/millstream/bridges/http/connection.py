"""Connections of a bridge's HTTP server: parsed by httptools, and bounded like those of the table server."""

from __future__ import annotations

from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from millstream.serving.connection import Bounded
from millstream.serving.http import HEAD_BYTES_MAX, NOT_HTTP


class BridgeConnection(Bounded, HttpToolsProtocol):  # type: ignore[misc]
    connections_max: ClassVar[int] = 1024
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX + len(data):  # the parser itself has no limit
            self.send_400_response("")
            return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def handle_websocket_upgrade(self, *request: Any) -> None:
        """From here on, pings find out whether the client is there."""
        if self._timer is not None:
            self._timer.cancel()
        super().handle_websocket_upgrade(*request)

    def send_400_response(self, msg: str) -> None:
        """As JSON, like all other answers."""
        head = b"".join(b"%b: %b\r\n" % header for header in NOT_HTTP.headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n%b\r\n%b" % (head, NOT_HTTP.body))
        self.transport.close()
