"""Messages of a STOMP broker into a topic: those of a queue, or of a durable subscription."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from millstream.bridges.arrivals import Arrival
from millstream.bridges.brokers.queue_bridge import Delivery, QueueBridge, QueueSource
from millstream.bridges.landing import Landing
from millstream.bridges.stomp.client import WINDOW_BYTES, StompBroker, StompConnection
from millstream.bridges.stomp.wire import Frame
from millstream.errors import InvalidInput

GROUP = "JMSXGroupID"
OWN = frozenset(
    {"subscription", "ack", "destination", "content-length", "redelivered", "message-id", "receipt", "transaction"}
)
"""Headers of the protocol, not of the message."""


class StompSource(QueueSource):
    broker: StompBroker
    kind: ClassVar[str] = "stomp"

    def __post_init__(self) -> None:
        if not self.destination:
            raise InvalidInput("a STOMP bridge needs a destination", next_step="for example /queue/orders")
        if self.prefetch < 1:
            raise InvalidInput(f"prefetch cannot be {self.prefetch}", next_step="give 1 or more")

    def headers(self) -> dict[str, str]:
        """Of the subscription. Each broker has its own names for the same things, and ignores the others."""
        made = {"activemq.prefetchSize": str(self.prefetch), "prefetch-count": str(self.prefetch)}
        made["consumer-window-size"] = str(WINDOW_BYTES)
        if self.selector is not None:
            made["selector"] = self.selector
        if self.subscription is not None:
            made |= {"durable-subscription-name": self.subscription, "activemq.subscriptionName": self.subscription}
        return made


class StompBridge(QueueBridge):
    def __init__(self, source: StompSource, landing: Landing, topic: str) -> None:
        super().__init__(lambda: _Subscribed(source, topic), landing, f"{source.broker} {source.destination}")


class _Subscribed:
    def __init__(self, source: StompSource, topic: str) -> None:
        self._source = source
        self._topic = topic
        self._connection = StompConnection(
            source.broker, client_id=source.subscription, body_bytes_max=source.bytes_max
        )
        try:
            self._connection.subscribe(source.destination, source.headers())
        except BaseException:
            self._connection.close()
            raise

    def receive(self, seconds: float) -> Sequence[Delivery]:
        return [Delivery(frame, self._arrival(frame)) for frame in self._connection.messages(seconds)]

    def acknowledge(self, last: Delivery) -> None:
        self._connection.acknowledge(last.tag)

    def close(self) -> None:
        self._connection.close()

    def _arrival(self, frame: Frame) -> Arrival:
        given = frame.headers
        headers = [("stomp-destination", given.get("destination", "").encode())]
        headers += [(name, value.encode()) for name, value in given.items() if name not in OWN]
        group = given.get(GROUP)
        made = Arrival(
            self._topic,
            frame.body,
            None if group is None else group.encode(),
            None if self._source.id_property is None else given.get(self._source.id_property),
            tuple(headers),
            f"stomp {self._source.destination}",
        )
        return made.cut_to(self._source.bytes_max)
