"""A socket to a broker that sends heartbeats by itself, and notices when the other side sends none any more.

One thread receives. Any thread may send; a heartbeat never stands in the middle of what another one sends.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time

from millstream.bridges.brokers.address import BrokerAddress
from millstream.bridges.brokers.failures import ConnectionLost
from millstream.readiness import wait_readable

READ_BYTES = 1 << 18
CONNECT_SECONDS = 10.0
SILENT_BEATS_MAX = 2.5


class BrokerSocket:
    def __init__(self, broker: BrokerAddress) -> None:
        self._lock = threading.Lock()  # also for receiving: a TLS connection is used by one thread at a time
        self._closed = threading.Event()
        self._beating: threading.Thread | None = None
        self._silence_seconds_max: float | None = None
        self._heard_at = time.monotonic()
        try:
            self._socket: socket.socket = socket.create_connection((broker.host, broker.port), CONNECT_SECONDS)
        except OSError as error:
            raise _lost(error) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (context := broker.tls()) is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=broker.host)
        except OSError as error:
            self._socket.close()
            raise _lost(error) from error

    def send(self, data: bytes | bytearray) -> None:
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError as error:
            raise _lost(error) from error

    def receive(self, seconds: float) -> bytes:
        """What has come, or nothing after so long. Raises ConnectionLost at its end, or after too long a silence."""
        try:
            pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
            if not pending and not wait_readable([self._socket], seconds):
                self._check_silence()
                return b""
            with self._lock:
                data = self._socket.recv(READ_BYTES)
        except (OSError, ValueError) as error:
            raise _lost(error) from error
        if not data:
            raise ConnectionLost("the broker has closed the connection")
        self._heard_at = time.monotonic()
        return data

    def keep_alive(self, beat: bytes, beat_seconds: float | None, silence_seconds: float | None) -> None:
        """Sends a beat so often; expects to hear something so often. None: never."""
        if silence_seconds is not None:
            self._silence_seconds_max = SILENT_BEATS_MAX * silence_seconds
        if beat_seconds is not None:
            self._beating = threading.Thread(target=self._beat, args=(beat, beat_seconds), daemon=True)
            self._beating.start()

    def close(self) -> None:
        self._closed.set()
        self._socket.close()
        if self._beating is not None:
            self._beating.join()

    def _beat(self, beat: bytes, seconds: float) -> None:
        while not self._closed.wait(seconds):
            try:
                self.send(beat)
            except ConnectionLost:  # the thread that receives sees it too
                return

    def _check_silence(self) -> None:
        if self._silence_seconds_max is not None:
            silent = time.monotonic() - self._heard_at
            if silent > self._silence_seconds_max:
                raise ConnectionLost(f"the broker has sent nothing for {silent:.1f} s")


def _lost(error: BaseException) -> ConnectionLost:
    return ConnectionLost(str(error) or type(error).__name__)
