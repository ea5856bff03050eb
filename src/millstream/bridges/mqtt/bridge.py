"""Messages of an MQTT broker into a topic: each is acknowledged to the broker when it is durable.

The session is kept by the broker: what devices send while the bridge is away is delivered when it is back. A message
that was stored, but whose acknowledgement was lost, is delivered again: with an id in its properties it is stored once.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from millstream import terminal
from millstream.bridges.arrivals import Arrival
from millstream.bridges.brokers.failures import ConnectionLost, Rejected
from millstream.bridges.landing import Landing
from millstream.bridges.mqtt.client import MqttBroker
from millstream.bridges.mqtt.connection import MqttConnection, Session
from millstream.bridges.mqtt.wire import Published
from millstream.bridges.reports import Behind
from millstream.errors import InvalidInput, MillstreamError, SourceUnavailable

WAITING_MAX = 8000
WAITING_BYTES_MAX = 64 << 20
TOGETHER_MAX = 4000
RECONNECT_SECONDS, RECONNECT_SECONDS_MAX = 1.0, 60.0
SESSION_SECONDS = 7 * 86_400
TAKE_SECONDS = 0.2
TOPICS_MAX = 10_000
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class MqttSource:
    """Which messages of which broker."""

    broker: MqttBroker
    filters: Sequence[str]
    """Such as `devices/+/readings`; `$share/GROUP/FILTER` shares the messages with other clients."""
    client_id: str
    """Names the session that the broker keeps."""
    qos: int = 1
    id_property: str | None = None
    """The user property with a message's stable id, in version 5."""
    bytes_max: int = 1 << 20
    """A larger message becomes a dead letter."""

    def __post_init__(self) -> None:
        if not self.filters or not self.client_id:
            raise InvalidInput("an MQTT bridge needs filters and a client id", next_step="devices/# subscribes to all")
        if self.qos not in (0, 1, 2):
            raise InvalidInput(f"there is no QoS {self.qos}", next_step="0, 1 or 2")


class _Received(NamedTuple):
    """Messages that came together, and where they are acknowledged."""

    connection: MqttConnection
    messages: list[Published]
    size_bytes: int


class MqttBridge:
    """Receives in a thread of its own, and stores in the caller's."""

    def __init__(self, source: MqttSource, landing: Landing, topic: str) -> None:
        self._source = source
        self._landing = landing
        self._topic = topic
        self._changed = threading.Condition()
        self._waiting: deque[_Received] = deque()
        self._waiting_count = self._waiting_bytes = 0
        self._stopped = threading.Event()
        self._refusal: MillstreamError | None = None
        self._connection: MqttConnection | None = None
        self._unreleased: set[bytes] = set()
        self._topics: dict[bytes, tuple[tuple[str, bytes], str]] = {}
        self.on_ready: Callable[[], None] = lambda: None
        """Called whenever the broker has accepted the subscriptions."""
        landing.on_failure = self.stop

    def run(self) -> None:
        """Until it is stopped. A broker that is away is waited for."""
        receiving = threading.Thread(target=self._connect, name="millstream-mqtt", daemon=True)
        receiving.start()
        try:
            while not self._stopped.is_set():
                if (received := self._take()) is not None:
                    self._store(received.connection, received.messages)
        finally:
            self.stop()
            receiving.join()
        if self._refusal is not None:
            raise self._refusal
        if self._landing.failure is not None:
            raise self._landing.failure

    def stop(self) -> None:
        self._stopped.set()
        if (connection := self._connection) is not None:
            connection.stop()

    def behind(self) -> Behind | None:
        """What the broker has sent and is not being stored yet; what it keeps for later, it does not tell."""
        return Behind(self._waiting_count, "messages")

    # ------------------------------------------------------------ the caller's thread

    def _take(self) -> _Received | None:
        """What has come since the last time, up to a limit, so that it shares one commit."""
        with self._changed:
            if not self._waiting and not self._changed.wait(TAKE_SECONDS):
                return None
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            messages, size_bytes = first.messages, first.size_bytes
            while self._waiting and len(messages) + len(self._waiting[0].messages) <= TOGETHER_MAX:
                following = self._waiting.popleft()
                messages += following.messages
                size_bytes += following.size_bytes
            self._waiting_count -= len(messages)
            self._waiting_bytes -= size_bytes
        first.connection.wake()  # it may have stopped reading
        return _Received(first.connection, messages, size_bytes)

    def _store(self, connection: MqttConnection, messages: Sequence[Published]) -> None:
        known = connection.unreleased
        new = [message for message in messages if message.mid not in known] if known else messages
        outcomes = self._landing.land([self._arrival(message) for message in new])
        failed = next((n for n, outcome in enumerate(outcomes) if isinstance(outcome, MillstreamError)), None)
        if failed is not None:
            # Neither one that failed nor those after it are acknowledged: they are delivered again.
            self._refusal = cast("MillstreamError", outcomes[failed])
            messages = new = new[:failed]
        known.update(message.mid for message in new if message.is_released and message.mid is not None)
        connection.acknowledge(messages)
        if failed is not None:
            self.stop()

    def _arrival(self, message: Published) -> Arrival:
        if (found := self._topics.get(message.topic)) is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            found = ("mqtt-topic", message.topic), f"mqtt {message.topic.decode(errors='replace')}"
            self._topics[message.topic] = found
        header, origin = found
        headers: tuple[tuple[str, bytes], ...] = (header,)
        if message.is_retained:
            headers = (header, ("mqtt-retain", b"1"))
        id = None
        if message.properties:
            properties = dict(message.properties)
            headers += tuple([(name, value.encode()) for name, value in properties.items()])
            id = properties.get(self._source.id_property) if self._source.id_property else None
        made = Arrival(self._topic, message.payload, message.topic, id, headers, origin)
        return made if len(message.payload) <= self._source.bytes_max else made.cut_to(self._source.bytes_max)

    # ------------------------------------------------------------ the thread that receives

    def _connect(self) -> None:
        pause = RECONNECT_SECONDS
        while not self._stopped.is_set():
            connection = self._connection = self._made()
            if self._stopped.is_set():  # after the connection could have been stopped
                connection.stop()
            try:
                connection.run()
            except Rejected as rejected:
                self._refuse(str(rejected), "check the user, the password and what it may read")
            except ConnectionLost as lost:
                self._drop()
                logger.warning("no connection to the MQTT broker: %s; connecting again", lost)
            except Exception as error:
                self._refuse(
                    f"the client fails: {type(error).__name__}: {error}", "report it, with the traceback in the log"
                )
                logger.exception("the MQTT bridge fails")
            pause = RECONNECT_SECONDS if connection.was_accepted else min(2 * pause, RECONNECT_SECONDS_MAX)
            self._stopped.wait(random.uniform(pause / 2, pause))

    def _refuse(self, what: str, next_step: str) -> None:
        self._refusal = SourceUnavailable(what, where=str(self._source.broker), next_step=next_step)
        self.stop()

    def _made(self) -> MqttConnection:
        source = self._source
        session = Session(source.client_id, source.filters, source.qos, SESSION_SECONDS, WAITING_MAX)
        made = MqttConnection(source.broker, session, self._received)
        made.may_read = self._has_room
        made.on_subscribed = self.on_ready
        made.on_accepted = lambda has_session: self._accepted(made, has_session)
        return made

    def _accepted(self, connection: MqttConnection, has_session: bool) -> None:
        if not has_session:
            self._unreleased = set()
        connection.unreleased = self._unreleased

    def _has_room(self) -> bool:
        return self._waiting_count < WAITING_MAX and self._waiting_bytes < WAITING_BYTES_MAX

    def _received(self, connection: MqttConnection, messages: list[Published]) -> None:
        size_bytes = sum([len(message.payload) for message in messages])
        with self._changed:
            self._waiting.append(_Received(connection, messages, size_bytes))
            self._waiting_count += len(messages)
            self._waiting_bytes += size_bytes
            self._changed.notify()

    def _drop(self) -> None:
        """What was not acknowledged is delivered again, on the next connection."""
        with self._changed:
            self._waiting.clear()
            self._waiting_count = self._waiting_bytes = 0
