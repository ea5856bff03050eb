"""The thread of an MQTT client that publishes: paho's own waits with select, which refuses descriptors above 1023."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millstream.readiness import wait_readable

if TYPE_CHECKING:
    from paho.mqtt.client import Client

LOOK_SECONDS = 1.0
GOODBYE_SECONDS = 5.0


class ClientLoop:
    """Sends and receives for a client until its connection has ended. It is made before the client connects."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop_at = float("inf")
        self._wake_receive, self._wake_send = socket.socketpair()
        self._wake_receive.setblocking(False)
        self._wake_send.setblocking(False)
        client.on_socket_register_write = self._wake
        self._thread = threading.Thread(target=self.run, name="millstream-mqtt", daemon=True)

    def start(self) -> None:
        """Once the client has a socket."""
        self._thread.start()

    def stop(self) -> None:
        """What the client still has to send is sent first, if the broker takes it soon."""
        self._stop_at = time.monotonic() + GOODBYE_SECONDS
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._wake_receive.close()
        self._wake_send.close()

    def _wake(self, *_: Any) -> None:
        with suppress(OSError):  # it is awake already, or has ended
            self._wake_send.send(b"\x00")

    @property
    def is_stopping(self) -> bool:
        return self._stop_at < float("inf")

    def run(self) -> None:
        """In the thread of the loop: until the connection has ended, or the loop is stopped."""
        while (connection := self._client.socket()) is not None and not self._is_over():
            self._once(connection)

    def _is_over(self) -> bool:
        now = time.monotonic()
        return now >= self._stop_at or (self.is_stopping and not self._client.want_write())

    def _once(self, connection: Any) -> None:
        client = self._client
        pending = isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
        wait_s = 0.0 if pending else max(0.0, min(LOOK_SECONDS, self._stop_at - time.monotonic()))
        writing = connection if client.want_write() else None
        ready = wait_readable([connection, self._wake_receive], wait_s, writing=writing)
        if self._wake_receive.fileno() in ready:
            with suppress(BlockingIOError):
                self._wake_receive.recv(4096)
        if pending or connection.fileno() in ready:
            client.loop_read()
        if client.want_write():
            client.loop_write()
        client.loop_misc()
