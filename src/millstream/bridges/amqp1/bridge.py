"""Messages of an AMQP 1.0 broker into a topic: those of a queue, or of a durable subscription."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from millstream.bridges.amqp1 import wire
from millstream.bridges.amqp1.client import Amqp1Broker, Amqp1Connection
from millstream.bridges.amqp1.message import Amqp1Message, decoded
from millstream.bridges.amqp1.types import BrokenValue, Described, Symbol, UInt, ULong
from millstream.bridges.arrivals import Arrival
from millstream.bridges.brokers.queue_bridge import Delivery, QueueBridge, QueueSource
from millstream.bridges.landing import Landing
from millstream.errors import InvalidInput

PREFETCH_MAX = 1_000_000
SECTIONS_BYTES = 1 << 16
"""Of what stands before the body of a message that is cut."""
MESSAGE_ID = "message-id"
KEPT = frozenset({"subject", "correlation-id", "content-type", "reply-to", "to"})
"""Properties that become headers of a record."""
DURABLE = UInt(2)
SUBSCRIPTION_FOREVER = Symbol("never")


class Amqp1Source(QueueSource):
    broker: Amqp1Broker
    kind: ClassVar[str] = "amqp1"

    def __post_init__(self) -> None:
        if not self.destination:
            raise InvalidInput("an AMQP bridge needs an address", next_step="give the name of a queue")
        if not 1 <= self.prefetch <= PREFETCH_MAX:
            raise InvalidInput(f"prefetch cannot be {self.prefetch}", next_step=f"from 1 to {PREFETCH_MAX:,}")

    def terminus(self) -> Described:
        filters: dict[Any, Any] = {}
        if self.selector is not None:
            filters[Symbol("apache.org:selector-filter:string")] = Described(ULong(wire.SELECTOR), self.selector)
        is_kept = self.subscription is not None
        capability = Symbol("topic" if is_kept else "queue")
        fields: list[Any] = [self.destination, DURABLE if is_kept else None, SUBSCRIPTION_FOREVER if is_kept else None]
        return wire.described(wire.SOURCE, [*fields, None, None, None, None, filters or None, None, None, capability])


class Amqp1Bridge(QueueBridge):
    def __init__(self, source: Amqp1Source, landing: Landing, topic: str) -> None:
        super().__init__(lambda: _Link(source, topic), landing, f"{source.broker} {source.destination}")


class _Unfinished:
    """A message of which not all frames have come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.is_cut = False


class _Link:
    def __init__(self, source: Amqp1Source, topic: str) -> None:
        self._source = source
        self._topic = topic
        self._arrived: list[Delivery] = []
        self._unfinished: _Unfinished | None = None
        self._unsettled: deque[int] = deque()
        self._count = 0
        name = source.subscription or "millstream"
        self._connection = Amqp1Connection(source.broker, self._on_frame, source.subscription or "")
        try:
            target = wire.described(wire.TARGET, [source.destination])
            self._attached = self._connection.attach(name, receives=True, source=source.terminus(), target=target)
            self._grant()
        except BaseException:
            self._connection.close()
            raise

    def receive(self, seconds: float) -> Sequence[Delivery]:
        self._connection.receive(seconds)
        arrived, self._arrived = self._arrived, []
        return arrived

    def acknowledge(self, last: Delivery) -> None:
        first = self._unsettled[0]
        while self._unsettled and self._unsettled.popleft() != last.tag:
            pass
        self._connection.settle(first, last.tag)
        self._grant()

    def close(self) -> None:
        self._connection.close()

    def _grant(self) -> None:
        self._connection.flow(self._attached.ours, self._count, max(self._source.prefetch - len(self._unsettled), 0))

    def _on_frame(self, each: wire.Performative) -> None:
        if each.code != wire.TRANSFER:
            return
        if self._unfinished is None:
            self._unfinished = _Unfinished(each.field(1))
        message, keeps = self._unfinished, self._source.bytes_max + SECTIONS_BYTES
        room = keeps - len(message.data)
        message.is_cut |= len(each.payload) > room
        message.data += each.payload[: max(room, 0)]
        if each.field(5, False):
            return
        self._unfinished = None
        self._count += 1
        if not each.field(9, False):  # its sender has taken it back
            self._unsettled.append(message.number)
            self._arrived.append(Delivery(message.number, self._arrival(message)))

    def _arrival(self, message: _Unfinished) -> Arrival:
        origin = f"amqp1 {self._source.destination}"
        try:
            given = decoded(message.data, is_cut=message.is_cut)
        except BrokenValue as error:
            fault = f"it is not a message of AMQP 1.0: {error}"
            made = Arrival(self._topic, bytes(message.data), origin=origin, fault=fault)
        else:
            made = self._made(given, origin)
        return made.cut_to(self._source.bytes_max, is_cut=message.is_cut)

    def _made(self, given: Amqp1Message, origin: str) -> Arrival:
        headers = [("amqp-address", self._source.destination.encode())]
        headers += [(name, _as_bytes(value)) for name, value in given.properties.items() if name in KEPT]
        headers += [(name, _as_bytes(value)) for name, value in given.application.items() if value is not None]
        group, name = given.properties.get("group-id"), self._source.id_property
        id = None
        if name is not None:
            id = given.properties.get(MESSAGE_ID) if name == MESSAGE_ID else given.application.get(name)
        key = None if group is None else _as_bytes(group)
        return Arrival(self._topic, given.body, key, None if id is None else str(id), tuple(headers), origin)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
