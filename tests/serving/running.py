"""The server for tables in a thread of the tests, on a loopback address, and requests to it as they are on the wire."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

from millstream.serving import http
from millstream.serving.access import Access, ListenAddress
from millstream.serving.events import Subscribers
from millstream.serving.served import Served


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """A server in a thread, until it is closed."""

    def __init__(
        self, served: Served, host: str = "127.0.0.1", *, subscribers: Subscribers | None = None, **access: Any
    ) -> None:
        address = ListenAddress.of(host, 0)
        self.host = host
        self._listening = http.listening(address)
        at = self._listening.__enter__()
        self.port: int = at.getsockname()[1]
        self._server = http.server(http.app(served, Access.at(address, **access), subscribers=subscribers))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [at]})
        self._thread.start()

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=60)

    def ask(self, target: str, *, method: str = "GET", host: str | None = None, **headers: str) -> Answered:
        """Sends the target as it is; names of headers have _ for -."""
        named = {"Host": host or f"{self.host}:{self.port}", **headers}
        return self.send(head(method, target, named))

    def send(self, request: bytes) -> Answered:
        with self.connect() as connection:
            connection.sendall(request)
            return received(connection)

    def wait_until_alone(self) -> None:
        """Until the server has closed all connections."""
        deadline = time.monotonic() + 60
        while self._server.server_state.connections:
            assert time.monotonic() < deadline, "connections stay open"
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.__exit__(None, None, None)


def head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def received(connection: socket.socket) -> Answered:
    answer = HTTPResponse(connection)
    answer.begin()
    return Answered(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
