"""One connection to an MQTT broker that receives: only the thread that runs it uses its socket.

Acknowledgements come from another thread, and are sent many at a time. While enough messages wait to be stored it does
not read: the broker keeps them.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from millstream.bridges.brokers.failures import ConnectionLost, Rejected
from millstream.bridges.mqtt import wire
from millstream.bridges.mqtt.client import MqttBroker
from millstream.readiness import wait_readable

READ_BYTES = 1 << 18
CONNECT_SECONDS = 10.0
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Session:
    """What the broker keeps for a client, by its id."""

    client_id: str
    filters: Sequence[str]
    qos: int
    seconds: int
    receive_max: int


class MqttConnection:
    def __init__(
        self, broker: MqttBroker, session: Session, receive: Callable[[MqttConnection, list[wire.Published]], None]
    ) -> None:
        self._broker = broker
        self._session = session
        self._receive = receive
        self.on_subscribed: Callable[[], None] = lambda: None
        self.on_accepted: Callable[[bool], None] = lambda has_session: None
        """Called before the first message. False: the broker did not know the session, and numbers start over."""
        self.unreleased: set[bytes] = set()
        """Numbers of messages of quality of service 2 that are stored, and that the broker may deliver again."""
        self.may_read: Callable[[], bool] = lambda: True
        self.was_accepted = False
        self._decoder = wire.Decoder(broker.version)
        self._keep_alive_seconds = float(broker.keep_alive_seconds)
        self._lock = threading.Lock()
        self._outgoing = bytearray()
        self._is_stopping = False
        self._wake_receive, self._wake_send = socket.socketpair()
        self._wake_receive.setblocking(False)
        self._wake_send.setblocking(False)

    # ------------------------------------------------------------ any thread

    def acknowledge(self, messages: Sequence[wire.Published]) -> None:
        """Without effect if the connection has ended: the broker delivers them again."""
        self._queue(wire.acknowledgements(messages))

    def stop(self) -> None:
        self._is_stopping = True
        self.wake()

    def wake(self) -> None:
        """Lets the thread that runs it look at what has changed."""
        with suppress(OSError):  # it is awake already, or has ended
            self._wake_send.send(b"\x00")

    def _queue(self, data: bytes) -> None:
        if data:
            with self._lock:
                self._outgoing += data
            self.wake()

    # ------------------------------------------------------------ the thread that runs it

    def run(self) -> None:
        """Until it is stopped. Raises ConnectionLost or Rejected."""
        try:
            connection = self._opened()
            try:
                self._pump(connection)
            finally:
                connection.close()
        except (OSError, wire.BrokenPacket) as error:
            raise ConnectionLost(str(error) or type(error).__name__) from error
        finally:
            self._wake_receive.close()
            self._wake_send.close()

    def _opened(self) -> socket.socket:
        broker, session = self._broker, self._session
        made = socket.create_connection((broker.host, broker.port), CONNECT_SECONDS)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (context := broker.tls()) is not None:
                made = context.wrap_socket(made, server_hostname=broker.host)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        will = broker.will
        self._outgoing += wire.connect_packet(
            broker.version,
            session.client_id,
            broker.keep_alive_seconds,
            session.seconds,
            session.receive_max,
            broker.user,
            None if broker.password is None else broker.password.reveal(),
            None if will is None else (will.topic, will.payload, will.qos, will.retain),
        )
        return made

    def _pump(self, connection: socket.socket) -> None:
        sent_at = heard_at = time.monotonic()
        wants_write = True  # the packet that connects
        asked_at: float | None = None
        while True:
            reads = self.may_read()
            readable = self._wait(connection, reads, wants_write)
            now = time.monotonic()
            if readable:
                self._read(connection)
                heard_at, asked_at = now, None
            if self._is_stopping:
                self._queue(wire.DISCONNECT)
            elif self._keep_alive_seconds:
                if asked_at is None and now - min(sent_at, heard_at) >= self._keep_alive_seconds / 2:
                    self._queue(wire.PING)
                    asked_at = now
                elif asked_at is not None and reads and now - asked_at >= self._keep_alive_seconds:
                    raise ConnectionLost("the broker does not answer")
            if self._outgoing:
                wants_write = not self._write(connection)
                sent_at = now
            if self._is_stopping:
                return

    def _wait(self, connection: socket.socket, reads: bool, wants_write: bool) -> bool:
        """Whether there is something to read. Waits for that, for room to write, or to be woken."""
        pending = reads and isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
        sources = [connection, self._wake_receive] if reads else [self._wake_receive]
        seconds = 0.0 if pending else min(LOOK_SECONDS, self._keep_alive_seconds / 4 or LOOK_SECONDS)
        ready = wait_readable(sources, seconds, writing=connection if wants_write else None)
        if self._wake_receive.fileno() in ready:
            with suppress(BlockingIOError):
                self._wake_receive.recv(4096)
        return pending or connection.fileno() in ready

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        if not data:
            raise ConnectionLost("the broker has closed the connection")
        messages, others = self._decoder.feed(data)
        for other in others:
            self._handle(other)
        if messages:
            self._receive(self, messages)

    def _write(self, connection: socket.socket) -> bool:
        """Whether everything is sent."""
        with self._lock:
            try:
                while self._outgoing:
                    del self._outgoing[: connection.send(self._outgoing)]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
        return True

    def _handle(self, packet: wire.Control) -> None:
        version = self._broker.version
        if packet.kind == wire.CONNACK:
            answer = wire.connect_answer(version, packet.body)
            if answer.reason:
                text, is_final = wire.connect_reason(version, answer.reason)
                if is_final:
                    raise Rejected(f"the broker rejects the client: {text}")
                raise ConnectionLost(f"the broker rejects the connection: {text}")
            if answer.keep_alive_seconds is not None:
                self._keep_alive_seconds = answer.keep_alive_seconds
            self.was_accepted = True
            self.on_accepted(answer.has_session)
            self._queue(wire.subscribe_packet(version, self._session.filters, self._session.qos))
        elif packet.kind == wire.SUBACK:
            codes = wire.subscribe_answer(version, packet.body)
            refused = [each for each, code in zip(self._session.filters, codes, strict=False) if code >= wire.FAILURE]
            if refused:
                raise Rejected(f"the broker rejects the subscription to {', '.join(refused)}")
            self.on_subscribed()
        elif packet.kind == wire.RELEASE:
            self.unreleased.discard(packet.body[:2])
            self._queue(wire.COMPLETE + packet.body[:2])
        elif packet.kind == wire.GOODBYE:
            raise ConnectionLost(wire.goodbye_reason(packet.body))
        elif packet.kind != wire.PING_ANSWER:
            raise ConnectionLost(f"the broker sent a packet of an unexpected kind: {packet.kind:#04x}")
