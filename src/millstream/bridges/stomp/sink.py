"""A sink that sends every row to a broker over STOMP 1.2, many in a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.bridges.brokers.answered_sink import Outgoing
from millstream.bridges.brokers.failures import Declined, is_too_large
from millstream.bridges.brokers.transacted_sink import QueueEndpoint, Sending, properties_of
from millstream.bridges.stomp.client import StompBroker, StompConnection
from millstream.bridges.stomp.wire import Frame
from millstream.bridges.topic_pattern import TopicPattern
from millstream.connectors import arguments
from millstream.secrets import Secret

HEAD_BYTES_MAX = 200_000
"""Artemis takes no more, and its answer does not say why."""
TOO_LONG = f"its properties are longer than {HEAD_BYTES_MAX:,} bytes"
EXAMPLE = "stomp('stomp://127.0.0.1', '/queue/orders.{region}')"


class Stomp(QueueEndpoint):
    def connect(self) -> Sending:
        assert isinstance(self.broker, StompBroker)
        return _Sender(StompConnection(self.broker), is_json=self.payload is None)


def stomp(
    address: str,
    destination: str,
    *,
    payload: str | None = None,
    properties: Sequence[str] = (),
    password: str | Secret | None = None,
    ca_file: str | None = None,
    certificate: tuple[str, str] | None = None,
) -> Stomp:
    """A sink that sends every row to a broker over STOMP 1.2, such as ActiveMQ or Artemis: `stomp://user@host:61613`.

    Columns in braces are part of `destination`, such as `/queue/orders.{region}`. A message is the row as JSON, or the
    column `payload` as it is, and persistent. The columns of `properties` become headers, by which consumers select.
    Messages are sent in transactions. `stomps://` is TLS; `certificate` names the files with this client's certificate
    and its key.
    """
    broker = StompBroker.given(address, password, ca_file, certificate, EXAMPLE)
    text = arguments.text(destination, "a destination must be a string", EXAMPLE)
    pattern = TopicPattern(text, EXAMPLE, unusable="/*>#,?\0\r\n", separators="/?")
    return Stomp(broker, pattern, payload, tuple(properties))


class _Sender:
    def __init__(self, connection: StompConnection, *, is_json: bool) -> None:
        self._connection = connection
        self._is_json = is_json

    def send_together(self, messages: Sequence[Outgoing]) -> None:
        if any(_head_bytes(each) > HEAD_BYTES_MAX for each in messages):
            raise Declined(TOO_LONG)
        self._connection.send_together([self._frame(each) for each in messages])

    def send(self, message: Outgoing) -> str | None:
        if _head_bytes(message) > HEAD_BYTES_MAX:
            return TOO_LONG
        try:
            self._connection.send(self._frame(message))
        except Declined as error:
            if is_too_large(str(error)):
                return f"the broker rejects it: {error}"
            raise
        return None

    def close(self) -> None:
        self._connection.close()

    def _frame(self, message: Outgoing) -> Frame:
        """Without its length it is text for consumers with JMS; with it, bytes."""
        headers = {"destination": message.topic, "persistent": "true", **properties_of(message)}
        if self._is_json:
            headers["content-type"] = "application/json"
        else:
            headers["content-length"] = str(len(message.payload))
        return Frame("SEND", headers, message.payload)


def _head_bytes(message: Outgoing) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in message.properties)
