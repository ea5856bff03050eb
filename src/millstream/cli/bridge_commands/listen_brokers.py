"""`millstream listen amqp1` and `stomp`: queues and topics of brokers such as ActiveMQ and Artemis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from millstream.cli.bridge_commands.listen_queues import (
    ClientTls,
    KeepIds,
    MaxMessage,
    Running,
    Topic,
    password_in,
    run_until_stopped,
)
from millstream.cli.session import Options, Session

if TYPE_CHECKING:
    from millstream.bridges.brokers.address import BrokerAddress
    from millstream.bridges.brokers.queue_bridge import QueueSource
    from millstream.bridges.landing import Landing

    Broker = TypeVar("Broker", bound=BrokerAddress)


@dataclass(frozen=True)
class Received(Options):
    """Which messages of a queue or a topic, and how many at a time."""

    selector: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Only messages that fit, such as \"region = 'north'\".")
    ] = None
    subscription: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="For a topic of the broker: the name by which it keeps what comes meanwhile."
        ),
    ] = None
    prefetch: Annotated[int, typer.Option(min=1, help="How many messages may be on the way to the disk.")] = 1000
    max_message: MaxMessage = "1 MiB"
    keep_ids: KeepIds = "1 day"

    def settings(self) -> dict[str, Any]:
        """Of a source."""
        from millstream.records import size_bytes

        return {
            "selector": self.selector,
            "subscription": self.subscription,
            "prefetch": self.prefetch,
            "bytes_max": size_bytes(self.max_message),
        }


def amqp1(
    session: Session,
    topic: Topic,
    *,
    at: Annotated[str, typer.Option(metavar="ADDRESS", help="The broker: amqp://USER@HOST:5672, or amqps:// for TLS.")],
    queue: Annotated[str, typer.Option(help="The queue to receive from, or a topic of the broker.")],
    received: Received,
    id_property: Annotated[
        str | None, typer.Option(metavar="NAME", help="message-id, or the application property with a message's id.")
    ] = None,
    tls: ClientTls,
) -> None:
    """Receive messages of an AMQP 1.0 broker, such as Artemis, until Ctrl-C: acknowledged when safe on disk.

    The key of a record is the group of its message. The password is in MILLSTREAM_AMQP_PASSWORD.

    \b
    Example:
      millstream listen amqp1 orders --at amqp://shop@127.0.0.1 --queue orders --selector "region = 'north'"
    """
    from millstream.bridges.amqp1.bridge import Amqp1Bridge, Amqp1Source
    from millstream.bridges.amqp1.client import Amqp1Broker

    source = Amqp1Source(_broker(Amqp1Broker, at, tls), queue, id_property=id_property, **received.settings())
    _receive(session, topic, at, source, received, lambda landing: Amqp1Bridge(source, landing, topic))


def stomp(
    session: Session,
    topic: Topic,
    *,
    at: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The broker: stomp://USER@HOST:61613/HOST, or stomps:// for TLS.")
    ],
    destination: Annotated[str, typer.Option(help="What to receive, such as /queue/orders or /topic/orders.")],
    received: Received,
    id_header: Annotated[
        str | None, typer.Option(metavar="NAME", help="The header with the stable id of a message.")
    ] = None,
    tls: ClientTls,
) -> None:
    """Receive messages of a STOMP broker, such as ActiveMQ, until Ctrl-C: acknowledged when safe on disk.

    The key of a record is the header JMSXGroupID. The password is in MILLSTREAM_STOMP_PASSWORD.

    \b
    Example:
      millstream listen stomp orders --at stomp://shop@127.0.0.1 --destination /queue/orders
    """
    from millstream.bridges.stomp.bridge import StompBridge, StompSource
    from millstream.bridges.stomp.client import StompBroker

    source = StompSource(_broker(StompBroker, at, tls), destination, id_property=id_header, **received.settings())
    _receive(session, topic, at, source, received, lambda landing: StompBridge(source, landing, topic))


def _broker(kind: type[Broker], at: str, tls: ClientTls) -> Broker:
    return kind(at, password_in(kind.password_variable), tls.ca_file, tls.certificate)


def _receive(
    session: Session, topic: str, at: str, source: QueueSource, received: Received, bridge: Callable[[Landing], Running]
) -> None:
    from millstream.bridges.landing import Landing
    from millstream.bridges.sockets.running import bridge_name

    name = bridge_name(source.kind, f"{at} {source.destination} {source.subscription}")
    with session.log() as log, Landing(log, name, [topic], keep_ids=received.keep_ids) as landing:
        what = f"'{source.destination}' for topic '{topic}'"
        run_until_stopped(log, source.kind, bridge(landing), landing, what)


COMMANDS: tuple[Callable[..., None], ...] = (amqp1, stomp)
