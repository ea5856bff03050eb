"""The protocols that Artemis speaks, as tests use them: a bridge, a sink, and a client at the other end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import millstream as ms
from artemis_server import PASSWORD, USER, ArtemisServer
from millstream.bridges.amqp1.bridge import Amqp1Bridge, Amqp1Source, _Link
from millstream.bridges.amqp1.client import Amqp1Broker
from millstream.bridges.arrivals import Arrival
from millstream.bridges.brokers.address import BrokerAddress
from millstream.bridges.brokers.answered_sink import Outgoing
from millstream.bridges.brokers.failures import ConnectionLost, Declined
from millstream.bridges.brokers.queue_bridge import QueueBridge
from millstream.bridges.landing import Landing
from millstream.bridges.stomp.bridge import StompBridge, StompSource
from millstream.bridges.stomp.client import StompBroker, StompConnection
from millstream.bridges.stomp.sink import _Sender
from millstream.connectors import Connector
from millstream.secrets import Secret

PATIENCE_S = 300
QUIET_S = 0.5
LARGE_BYTES_MAX = 64 << 20


class Sent(NamedTuple):
    """A message of another program. Repeated ids are sent as they are: Artemis only knows those of `_AMQ_DUPL_ID`."""

    body: bytes
    id: str | None = None
    properties: Mapping[str, str] = {}


@dataclass(frozen=True)
class Protocol:
    name: str
    scheme: str
    kind: type[BrokerAddress]
    queue: str
    """The name of a queue, with {}."""
    topic: str
    bridge: Callable[..., QueueBridge]
    """Of a broker, a landing, and where to receive."""
    sink: Callable[..., Connector]

    def broker(self, port: int, password: str = PASSWORD, beat_seconds: float = 1.0) -> Any:
        address = f"{self.scheme}://{USER}@127.0.0.1:{port}"
        return self.kind(address, Secret(password), heartbeat_seconds=beat_seconds)


def _amqp1_bridge(broker: Amqp1Broker, landing: Landing, topic: str, at: str, **settings: Any) -> QueueBridge:
    return Amqp1Bridge(Amqp1Source(broker, at, id_property="id", **settings), landing, topic)


def _stomp_bridge(broker: StompBroker, landing: Landing, topic: str, at: str, **settings: Any) -> QueueBridge:
    return StompBridge(StompSource(broker, at, id_property="id", **settings), landing, topic)


AMQP1 = Protocol("amqp1", "amqp", Amqp1Broker, "{}", "{}", _amqp1_bridge, ms.amqp1)
STOMP = Protocol("stomp", "stomp", StompBroker, "/queue/{}", "/topic/{}", _stomp_bridge, ms.stomp)
PROTOCOLS = (AMQP1, STOMP)


def send(server: ArtemisServer, to: str, messages: Sequence[Sent]) -> None:
    """Returns when the broker has them, also if it restarts meanwhile."""
    deadline, left = time.monotonic() + PATIENCE_S, list(messages)
    while left:
        try:
            with closing(_Sender(StompConnection(STOMP.broker(server.port)), is_json=False)) as sender:
                while left:
                    sender.send(_outgoing(to, left[0]))
                    left.pop(0)
        except (ConnectionLost, Declined):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _outgoing(to: str, message: Sent) -> Outgoing:
    unique = f"{time.monotonic_ns()}"  # the broker would drop what is sent again with the same one
    own = {"id": message.id} if message.id is not None else {}
    return Outgoing(0, unique, to, message.body, tuple({**own, **message.properties}.items()))


def taken(server: ArtemisServer, queue: str, selector: str | None = None) -> list[Arrival]:
    """What a queue has; it has them no more."""
    found: list[Arrival] = []
    source = Amqp1Source(AMQP1.broker(server.port), queue, selector, bytes_max=LARGE_BYTES_MAX)
    with closing(_Link(source, "taken")) as link:
        last = time.monotonic()
        while time.monotonic() - last < QUIET_S:
            deliveries = link.receive(QUIET_S / 5)
            if deliveries:
                found += [each.arrival for each in deliveries]
                link.acknowledge(deliveries[-1])
                last = time.monotonic()
    return found
