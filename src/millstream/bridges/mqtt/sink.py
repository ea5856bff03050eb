"""A sink that publishes every row to an MQTT broker: a batch is complete when the broker has acknowledged all of it.

At least once: a message that is repeated has the same id. With `retain` the broker keeps the newest message of every
MQTT topic, so the rows of a table are there for whichever client subscribes later.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.bridges.arrivals import ID_HEADER
from millstream.bridges.brokers.answered_sink import AnsweredEndpoint, AnsweredSink, Answers, Outgoing
from millstream.bridges.identified import Identified, identified
from millstream.bridges.mqtt.client import MqttBroker, Will, installed, is_final
from millstream.bridges.mqtt.client_loop import ClientLoop
from millstream.bridges.topic_pattern import TopicPattern
from millstream.connectors import arguments
from millstream.connectors.connector import Writing
from millstream.connectors.sink import Sink
from millstream.errors import MillstreamError, SinkFailed, SinkUnavailable
from millstream.secrets import Secret

if TYPE_CHECKING:
    from paho.mqtt.client import Client

EXAMPLE = "mqtt('mqtt://127.0.0.1', 'devices/{device}/command')"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
PASSING_REASONS = frozenset({131, 136, 137, 147, 151})
"""Of MQTT 5: the same message may be accepted later."""


@dataclass(frozen=True)
class Mqtt(AnsweredEndpoint):
    broker: MqttBroker
    pattern: TopicPattern
    payload: str | None = None
    qos: int = 1
    retain: bool = False

    def open_sink(self, writing: Writing) -> Sink:
        installed()
        return MqttSink(self, writing)


def mqtt(
    address: str,
    topic: str,
    *,
    payload: str | None = None,
    qos: int = 1,
    retain: bool = False,
    version: int = 5,
    password: str | Secret | None = None,
    ca_file: str | None = None,
    certificate: tuple[str, str] | None = None,
    will: tuple[str, str] | None = None,
) -> Mqtt:
    """A sink that publishes every row to an MQTT broker, in order: `mqtt://user@host:1883`, or `mqtts://` for TLS.

    Columns in braces are part of the topic: `devices/{device}/command`. A message is the row as JSON, or the column
    `payload` as it is. With `retain`, the broker keeps the newest message of every topic, and a row that leaves a table
    clears its topic. `will` is a topic and a text that the broker publishes if this process dies. `certificate` names
    the files with this client's certificate and its key.
    """
    text = arguments.text(topic, "an MQTT topic must be a string", EXAMPLE)
    pattern = TopicPattern(text, EXAMPLE, unusable="/+#\0", separators="/")
    if qos not in (1, 2):
        raise arguments.refused(f"a sink needs acknowledgements, so there is no qos={qos!r}", "use qos=1 or 2")
    broker = MqttBroker(
        arguments.text(address, "the address of a broker must be a string", EXAMPLE),
        version,
        Secret(password) if isinstance(password, str) else password,
        ca_file,
        certificate,
        None if will is None else Will(*will),
    )
    return Mqtt(broker, pattern, payload, qos, retain)


class MqttSink(AnsweredSink):
    def __init__(self, endpoint: Mqtt, writing: Writing) -> None:
        super().__init__(str(endpoint), writing, endpoint.pattern, endpoint.payload)
        self._endpoint = endpoint
        self._connection: Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _outgoing(
        self, batch: int, rows: pa.Table, weights: pa.Array | None, refused: dict[int, str]
    ) -> list[Outgoing]:
        """With `retain`, one message for each topic."""
        if not self._endpoint.retain or weights is None:
            return super()._outgoing(batch, rows, weights, refused)
        topics = self._topic.of(rows, refused)
        messages = identified(self._run, batch, rows, set(refused))
        usable = [row for row in range(rows.num_rows) if row not in refused]
        chosen = _newest(usable, weights.to_pylist(), topics, messages)
        made = [(self._message(row, topics[row], messages[row], rows), is_kept) for row, is_kept in chosen]
        return [each if is_kept else each._replace(payload=b"") for each, is_kept in made]  # empty: clears the topic

    def _send(self, messages: Sequence[Outgoing], answers: Answers) -> None:
        try:
            if self._connection is None:
                self._connection = Connection(self._endpoint.broker, _client_id(self._run))
            self._connection.publish(messages, answers, self._endpoint.qos, retain=self._endpoint.retain)
        except MillstreamError:
            self.close()
            raise


class Connection:
    """A connected client. It is closed and replaced after any failure."""

    def __init__(self, broker: MqttBroker, client_id: str) -> None:
        self._broker = broker
        self._changed = threading.Condition()
        self._connected: Any = None
        self._lost: str | None = None
        self._answers: dict[int, Any] = {}
        self._client: Client = broker.client(client_id, reconnect_on_failure=False)
        self._client.on_connect, self._client.on_disconnect = self._on_connect, self._on_disconnect
        self._client.on_publish = self._on_publish
        self._client.connect_timeout = CONNECT_SECONDS
        self._loop = ClientLoop(self._client)
        try:
            self._client.connect(broker.host, broker.port, broker.keep_alive_seconds)
        except OSError as error:
            self._loop.stop()
            raise self._unavailable(f"the broker cannot be reached: {error}") from error
        self._loop.start()
        try:
            self._wait(lambda: self._connected is not None, CONNECT_SECONDS)
            self._check(self._connected)
        except MillstreamError:
            self.close()
            raise

    def _check(self, answer: Any) -> None:
        if answer.is_failure:
            what = f"the broker rejects the connection: {answer}"
            if is_final(answer):
                raise SinkFailed(what, where=str(self._broker), next_step="check the user and the password")
            raise self._unavailable(what)

    def publish(self, messages: Sequence[Outgoing], answered: Answers, qos: int, *, retain: bool) -> None:
        ids: dict[int, str] = {}
        for message in messages:
            sent = self._client.publish(message.topic, message.payload, qos, retain, self._properties(message.id))
            ids[sent.mid] = message.id
        try:
            self._wait(lambda: ids.keys() <= self._answers.keys(), ANSWER_SECONDS)
        finally:
            waits = None
            with self._changed:
                for number, id in ids.items():
                    reason = self._answers.pop(number, None)
                    if reason is not None and reason.is_failure and reason.value in PASSING_REASONS:
                        waits = reason
                    elif reason is not None:
                        refusal = f"the broker rejects the message: {reason}" if reason.is_failure else None
                        answered[id] = refusal
        if waits is not None:
            raise self._unavailable(f"the broker does not accept more: {waits}")

    def close(self) -> None:
        with suppress(ValueError):  # it never was connected
            self._client.disconnect()
        self._loop.stop()

    def _properties(self, id: str) -> Any:
        if self._broker.version != 5:
            return None
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        made: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        made.UserProperty = (ID_HEADER, id)
        return made

    def _wait(self, holds: Callable[[], bool], seconds: float) -> None:
        """As long as there are answers, it waits for more."""
        with self._changed:
            while not holds():
                before = len(self._answers)
                self._changed.wait_for(lambda: holds() or self._lost is not None, seconds)
                if self._lost is not None:
                    raise self._unavailable(f"the connection to the broker ended: {self._lost}")
                if not holds() and len(self._answers) == before:
                    raise self._unavailable(f"the broker did not answer in {seconds:g} s")

    def _unavailable(self, what: str) -> SinkUnavailable:
        return SinkUnavailable(what, where=str(self._broker), next_step="check the broker; it is tried again")

    # ------------------------------------------------------------ the client's thread

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self._connected = reason
            self._changed.notify_all()

    def _on_disconnect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self._lost = str(reason)
            self._changed.notify_all()

    def _on_publish(self, client: Any, data: Any, number: int, reason: Any, properties: Any) -> None:
        with self._changed:
            self._answers[number] = reason
            self._changed.notify_all()


def _newest(
    rows: Iterable[int], weights: Sequence[int], topics: Sequence[str], messages: Sequence[Identified]
) -> list[tuple[int, bool]]:
    """The row that decides over each topic, and whether the topic has a message from now on."""
    found: dict[str, tuple[int, bool]] = {}
    for row in rows:
        last, is_kept = found.get(topics[row], (row, False))
        if weights[row] > 0:
            found[topics[row]] = (row, True)
        elif not is_kept or messages[last].body == messages[row].body:  # else it retracts what was replaced already
            found[topics[row]] = (row, False)
    return list(found.values())


def _client_id(run: str) -> str:
    """The same for every process of a run: the broker disconnects one that was replaced."""
    return f"ms{hashlib.blake2s(run.encode(), digest_size=10).hexdigest()}"
