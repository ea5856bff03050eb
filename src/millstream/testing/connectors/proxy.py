"""A TCP proxy that breaks connections as networks do: it never changes a byte, and never reorders any."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

RECEIVE_BYTES = 1 << 16
CONNECT_SECONDS = 10.0
Direction = Literal["to_server", "to_client"]
BOTH: tuple[Direction, ...] = ("to_server", "to_client")


@dataclass(eq=False)
class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    client: socket.socket
    server: socket.socket
    held: set[Direction] = field(default_factory=set)
    is_cut: bool = False

    def cut(self) -> None:
        self.is_cut = True
        for end in (self.client, self.server):
            with suppress(OSError):  # closed already
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.client.close()
        self.server.close()


class FaultProxy:
    """Passes connections on to a server on this machine, and breaks them on request.

    Clients connect to `port`. Bytes that are held back are not lost while their connection lasts, as on a network that
    stops for a while; `cut` loses them.
    """

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.delay_seconds = 0.0
        """How long bytes wait before they are passed on, in both directions."""
        self._held: set[Direction] = set()
        self._links: set[_Link] = set()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="fault-proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Ends all connections, with what is on the way. New ones are accepted."""
        with self._changed:
            for link in self._links:
                link.cut()
            self._changed.notify_all()

    def hold(self, *directions: Direction) -> None:
        """Passes nothing on in these directions, of present and new connections; default: in both."""
        with self._changed:
            self._held.update(directions or BOTH)

    def freeze(self) -> None:
        """Leaves the present connections half-open: nothing passes, and neither side is notified. New ones work."""
        with self._changed:
            for link in self._links:
                link.held.update(BOTH)

    def heal(self) -> None:
        """Everything passes again, also what was held back."""
        with self._changed:
            self.delay_seconds = 0.0
            self._held.clear()
            for link in self._links:
                link.held.clear()
            self._changed.notify_all()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        self.cut()
        self._thread.join()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ------------------------------------------------------------ threads

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            _in_thread(partial(self._serve, client))

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port), CONNECT_SECONDS)
        except OSError:  # the server is down, and the client learns it
            client.close()
            return
        server.settimeout(None)
        link = _Link(client, server)
        with self._changed:
            self._links.add(link)
            if self._closed.is_set():
                link.cut()
        back = _in_thread(partial(self._pump, link, "to_client"))
        self._pump(link, "to_server")
        back.join()
        with self._changed:
            self._links.discard(link)
        link.close()

    def _pump(self, link: _Link, direction: Direction) -> None:
        source, target = (link.client, link.server) if direction == "to_server" else (link.server, link.client)
        with suppress(OSError):
            received = b"-"
            while received:
                received = source.recv(RECEIVE_BYTES)
                if self.delay_seconds:
                    self._closed.wait(self.delay_seconds)
                if not self._may_pass(link, direction):
                    return
                if received:
                    target.sendall(received)
            target.shutdown(socket.SHUT_WR)
            return
        link.cut()  # one side is gone without a goodbye: so is the other

    def _may_pass(self, link: _Link, direction: Direction) -> bool:
        """Waits while the direction is held back. False: the connection was cut meanwhile."""

        def is_decided() -> bool:
            return link.is_cut or direction not in self._held | link.held

        with self._changed:
            self._changed.wait_for(is_decided)
            return not link.is_cut


def _in_thread(work: Callable[[], None]) -> threading.Thread:
    made = threading.Thread(target=work, daemon=True)
    made.start()
    return made
