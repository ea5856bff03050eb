"""Messages of an MQTT broker into a topic: each is acknowledged to the broker when it is durable.

The session is kept by the broker: what devices send while the bridge is away is delivered when it is back. A message
that was stored, but whose acknowledgement was lost, is delivered again: with an id in its properties it is stored once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream import terminal
from millstream.bridges.arrivals import Arrival
from millstream.bridges.landing import Landing
from millstream.bridges.mqtt_client import MqttBroker, is_final
from millstream.errors import InvalidInput, MillstreamError, SourceUnavailable

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

WAITING_MAX = 2000
TOGETHER_MAX = 1000
RECONNECT_SECONDS, RECONNECT_SECONDS_MAX = 1, 60
SESSION_SECONDS = 7 * 86_400
TAKE_SECONDS = 0.2
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


class MqttBridge:
    """Receives in the client's thread, and stores in the caller's."""

    def __init__(self, source: MqttSource, landing: Landing, topic: str) -> None:
        self._source = source
        self._landing = landing
        self._topic = topic
        # While it is full, the client does not read: the broker keeps the messages.
        self._waiting: queue.Queue[MQTTMessage] = queue.Queue(WAITING_MAX)
        self._stopped = threading.Event()
        self._refusal: MillstreamError | None = None
        self.on_ready: Callable[[], None] = lambda: None
        """Called whenever the broker has accepted the subscriptions."""
        landing.on_failure = self.stop
        self._client = self._made()

    def run(self) -> None:
        """Until it is stopped. A broker that is away is waited for."""
        broker = self._source.broker
        options: dict[str, Any] = {}
        if broker.version == 5:
            options = {"clean_start": False, "properties": _session()}
        self._client.connect_async(broker.host, broker.port, broker.keep_alive_seconds, **options)
        self._client.loop_start()
        try:
            while not self._stopped.is_set():
                self._store(self._taken())
        finally:
            self._stopped.set()
            self._client.disconnect()
            self._client.loop_stop()
        if self._refusal is not None:
            raise self._refusal
        if self._landing.failure is not None:
            raise self._landing.failure

    def stop(self) -> None:
        self._stopped.set()

    # ------------------------------------------------------------ the caller's thread

    def _taken(self) -> list[MQTTMessage]:
        taken: list[MQTTMessage] = []
        try:
            taken.append(self._waiting.get(timeout=TAKE_SECONDS))
            while len(taken) < TOGETHER_MAX:
                taken.append(self._waiting.get_nowait())
        except queue.Empty:
            pass
        return taken

    def _store(self, messages: Sequence[MQTTMessage]) -> None:
        if not messages:
            return
        outcomes = self._landing.land([self._arrival(message) for message in messages])
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, MillstreamError):
                self._refusal = outcome
                self.stop()
                return  # neither this one nor those after it are acknowledged: they are delivered again
            self._client.ack(message.mid, message.qos)

    def _arrival(self, message: MQTTMessage) -> Arrival:
        key = message.topic.encode()
        headers = [("mqtt-topic", key)]
        if message.retain:
            headers.append(("mqtt-retain", b"1"))
        properties = dict(getattr(message.properties, "UserProperty", None) or ())
        headers += [(str(name), str(value).encode()) for name, value in properties.items()]
        id = properties.get(self._source.id_property) if self._source.id_property else None
        value, fault = bytes(message.payload), None
        if len(value) > self._source.bytes_max:
            fault = f"the message is longer than {self._source.bytes_max:,} bytes, and was cut"
            value = value[: self._source.bytes_max]
        return Arrival(self._topic, value, key, id, tuple(headers), f"mqtt {message.topic}", fault)

    # ------------------------------------------------------------ the client's thread

    def _made(self) -> Client:
        source = self._source
        options = {} if source.broker.version == 5 else {"clean_session": False}
        made = source.broker.client(source.client_id, manual_ack=True, **options)
        made.reconnect_delay_set(RECONNECT_SECONDS, RECONNECT_SECONDS_MAX)
        made.on_connect, made.on_message, made.on_subscribe = self._connected, self._received, self._subscribed
        made.on_disconnect = self._disconnected
        return made

    def _connected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            text = str(reason)
            if is_final(reason):
                self._refuse(f"the broker rejects the client: {text}")
            else:
                logger.warning("the MQTT broker rejects the connection: %s; trying again", text)
            return
        client.subscribe([(each, self._source.qos) for each in self._source.filters])

    def _subscribed(self, client: Any, data: Any, mid: int, reasons: Any, properties: Any) -> None:
        refused = [each for each, reason in zip(self._source.filters, reasons, strict=False) if reason.is_failure]
        if refused:
            self._refuse(f"the broker rejects the subscription to {', '.join(refused)}")
        else:
            self.on_ready()

    def _refuse(self, what: str) -> None:
        step = "check the user, the password and what it may read"
        self._refusal = SourceUnavailable(what, where=str(self._source.broker), next_step=step)
        self.stop()

    def _disconnected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        """What was not acknowledged is delivered again, on the next connection."""
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                break
        if not self._stopped.is_set():
            logger.warning("the connection to the MQTT broker ended: %s; connecting again", reason)

    def _received(self, client: Any, data: Any, message: MQTTMessage) -> None:
        while not self._stopped.is_set():
            try:
                self._waiting.put(message, timeout=TAKE_SECONDS)
                return
            except queue.Full:
                continue


def _session() -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    made: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    made.SessionExpiryInterval = SESSION_SECONDS
    made.ReceiveMaximum = WAITING_MAX
    return made
