"""A sink that sends every row to a broker over AMQP 1.0, many in a transaction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from millstream.bridges.amqp1 import wire
from millstream.bridges.amqp1.client import Amqp1Broker, Amqp1Connection, Attached, BrokerError
from millstream.bridges.amqp1.message import VALUE, Amqp1Message
from millstream.bridges.amqp1.types import Described, Symbol, ULong, encoded
from millstream.bridges.brokers.answered_sink import Outgoing
from millstream.bridges.brokers.failures import Declined, Rejected, is_not_permitted, is_too_large
from millstream.bridges.brokers.transacted_sink import QueueEndpoint, Sending, properties_of
from millstream.bridges.topic_pattern import TopicPattern
from millstream.connectors import arguments
from millstream.secrets import Secret

EXAMPLE = "amqp1('amqp://127.0.0.1', 'orders.{region}')"
UNAUTHORIZED = "amqp:unauthorized-access"
LINKS_MAX = 255


class Amqp1(QueueEndpoint):
    def connect(self) -> Sending:
        assert isinstance(self.broker, Amqp1Broker)
        return Sender(self.broker, "application/json" if self.payload is None else None)


def amqp1(
    address: str,
    to: str,
    *,
    payload: str | None = None,
    properties: Sequence[str] = (),
    password: str | Secret | None = None,
    ca_file: str | None = None,
    certificate: tuple[str, str] | None = None,
) -> Amqp1:
    """A sink that sends every row to a broker over AMQP 1.0, such as ActiveMQ or Artemis: `amqp://user@host:5672`.

    Columns in braces are part of `to`, the name of a queue, such as `orders.{region}`. A message is the row as JSON, or
    the column `payload` as it is, and durable. The columns of `properties` become application properties, by which
    consumers select. Messages are sent in transactions. `amqps://` is TLS; `certificate` names the files with this
    client's certificate and its key. For AMQP 0.9.1 there is `ms.amqp`.
    """
    broker = Amqp1Broker.given(address, password, ca_file, certificate, EXAMPLE)
    text = arguments.text(to, "the name of a queue must be a string", EXAMPLE)
    pattern = TopicPattern(text, EXAMPLE, unusable="*#>,?\0\r\n", separators=":?")
    return Amqp1(broker, pattern, payload, tuple(properties))


class _Link:
    """Over which messages go to one address."""

    def __init__(self, attached: Attached) -> None:
        self.attached = attached
        self.sent = 0
        self.sent_max = 0
        """As the broker allows it."""


class Sender:
    def __init__(self, broker: Amqp1Broker, content_type: str | None) -> None:
        self._content_type = content_type
        self._links: OrderedDict[str | None, _Link] = OrderedDict()
        """By address; None is that of transactions."""
        self._flows: dict[int, wire.Performative] = {}
        """The newest one of a link that is not known yet."""
        self._outcomes: dict[int, Described] = {}
        """What became of deliveries, by number."""
        self._connection = Amqp1Connection(broker, self._on_frame)

    def send_together(self, messages: Sequence[Outgoing]) -> None:
        transaction = self._coordinate(wire.DECLARE, [None])
        if transaction.code != wire.DECLARED:
            raise Declined(_reason(transaction).text)
        number = transaction.value[0]
        state = wire.described(wire.TRANSACTIONAL, [number])
        sent = [self._transfer(message.topic, self._encoded(message), state) for message in messages]
        outcomes = self._answers(sent)
        refused = next((each for each in outcomes if each.code != wire.ACCEPTED), None)
        ended = self._coordinate(wire.DISCHARGE, [number, refused is not None])
        if refused is not None or ended.code != wire.ACCEPTED:
            raise Declined(_reason(refused or ended).text)

    def send(self, message: Outgoing) -> str | None:
        [outcome] = self._answers([self._transfer(message.topic, self._encoded(message), None)])
        if outcome.code == wire.ACCEPTED:
            return None
        error = _reason(outcome)
        is_large = is_too_large(f"{error.condition} {error.text}")
        if not error.is_final and not is_large:
            raise Declined(error.text)
        if error.condition == UNAUTHORIZED or is_not_permitted(error.text):
            raise Rejected(error.text)
        return f"the broker rejects it: {error.text}"

    def close(self) -> None:
        self._connection.close()

    # ------------------------------------------------------------ links and transfers

    def _coordinate(self, code: int, fields: Sequence[Any]) -> Described:
        """The outcome of a request to the broker's transactions."""
        request = encoded(Described(ULong(VALUE), wire.described(code, fields)))
        [outcome] = self._answers([self._transfer(None, request, None)])
        return outcome

    def _transfer(self, address: str | None, message: bytes, state: Described | None) -> int:
        link = self._link(address)
        self._connection.wait(lambda: link.sent < link.sent_max)
        tag = str(self._connection.next_delivery).encode()
        link.sent += 1
        return self._connection.transfer(link.attached.ours, tag, message, state)

    def _link(self, address: str | None) -> _Link:
        if address in self._links:
            return self._links[address]
        if len(self._links) > LINKS_MAX:
            raise Declined(f"rows of one batch go to more than {LINKS_MAX} queues")
        if address is None:
            target = wire.described(wire.COORDINATOR, [Symbol("amqp:local-transactions")])
        else:
            target = wire.described(wire.TARGET, [address, None, None, None, None, None, Symbol("queue")])
        source = wire.described(wire.SOURCE, [None])
        name = "transactions" if address is None else f"to {address}"
        link = _Link(self._connection.attach(name, receives=False, source=source, target=target))
        self._links[address] = link
        if (flow := self._flows.pop(link.attached.theirs, None)) is not None:
            link.sent_max = flow.field(5, 0) + flow.field(6, 0)
        return link

    def _answers(self, deliveries: Sequence[int]) -> list[Described]:
        self._connection.wait(lambda: all(each in self._outcomes for each in deliveries))
        return [self._outcomes.pop(each) for each in deliveries]

    def _on_frame(self, each: wire.Performative) -> None:
        if each.code == wire.FLOW and (handle := each.field(4)) is not None:
            for link in self._links.values():
                if link.attached.theirs == handle:
                    link.sent_max = each.field(5, 0) + each.field(6, 0)
                    return
            self._flows[handle] = each
        elif each.code == wire.DISPOSITION and each.field(0):
            outcome = each.field(4)
            if isinstance(outcome, Described) and outcome.code == wire.TRANSACTIONAL:
                outcome = outcome.value[1] if len(outcome.value) > 1 else None
            first = each.field(1)
            for number in range(first, each.field(2, first) + 1):
                self._outcomes[number] = outcome if outcome is not None else wire.described(wire.RELEASED, [])

    def _encoded(self, message: Outgoing) -> bytes:
        properties = {"message-id": message.id, "to": message.topic}
        if self._content_type is not None:
            properties["content-type"] = self._content_type
        return Amqp1Message(message.payload, properties, properties_of(message)).encoded()


def _reason(outcome: Described) -> BrokerError:
    if outcome.code == wire.REJECTED and outcome.value:
        return BrokerError.of(outcome.value[0])
    return BrokerError("", "the broker has given a message back")
