"""`millstream listen amqp1` and `stomp`: queues and topics of brokers such as ActiveMQ and Artemis."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from millstream.cli.listen_queues import (
    Certificate,
    CertificateKey,
    KeepIds,
    MaxMessage,
    Topic,
    Trusted,
    run_until_stopped,
)
from millstream.cli.session import Session
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.bridges.broker_address import BrokerAddress

    Broker = TypeVar("Broker", bound=BrokerAddress)

Selector = Annotated[
    str | None, typer.Option(metavar="CONDITION", help="Only messages that fit, such as \"region = 'north'\".")
]
Subscription = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="For a topic of the broker: the name by which it keeps what comes meanwhile."),
]
Prefetch = Annotated[int, typer.Option(min=1, help="How many messages may be on the way to the disk.")]


def amqp1(
    session: Session,
    topic: Topic,
    at: Annotated[str, typer.Option(metavar="ADDRESS", help="The broker: amqp://USER@HOST:5672, or amqps:// for TLS.")],
    queue: Annotated[str, typer.Option(help="The queue to receive from, or a topic of the broker.")],
    selector: Selector = None,
    subscription: Subscription = None,
    prefetch: Prefetch = 1000,
    id_property: Annotated[
        str | None, typer.Option(metavar="NAME", help="message-id, or the application property with a message's id.")
    ] = None,
    tls_ca: Trusted = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    max_message: MaxMessage = "1 MiB",
    keep_ids: KeepIds = "1 day",
) -> None:
    """Receive messages of an AMQP 1.0 broker, such as Artemis, until Ctrl-C: acknowledged when safe on disk.

    The key of a record is the group of its message. The password is in MILLSTREAM_AMQP_PASSWORD.

    \b
    Example:
      millstream listen amqp1 orders --at amqp://shop@127.0.0.1 --queue orders --selector "region = 'north'"
    """
    from millstream.bridges.amqp1 import Amqp1Bridge, Amqp1Source
    from millstream.bridges.amqp1_client import Amqp1Broker
    from millstream.bridges.landing import Landing
    from millstream.bridges.running import bridge_name
    from millstream.records import size_bytes

    broker = _broker(Amqp1Broker, at, tls_ca, tls_cert, tls_key)
    source = Amqp1Source(broker, queue, selector, subscription, id_property, prefetch, size_bytes(max_message))
    name = bridge_name("amqp1", f"{at} {queue} {subscription}")
    with session.log() as log, Landing(log, name, [topic], keep_ids=keep_ids) as landing:
        run_until_stopped(Amqp1Bridge(source, landing, topic), landing.counts, f"'{queue}' for topic '{topic}'")


def stomp(
    session: Session,
    topic: Topic,
    at: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The broker: stomp://USER@HOST:61613/HOST, or stomps:// for TLS.")
    ],
    destination: Annotated[str, typer.Option(help="What to receive, such as /queue/orders or /topic/orders.")],
    selector: Selector = None,
    subscription: Subscription = None,
    prefetch: Prefetch = 1000,
    id_header: Annotated[
        str | None, typer.Option(metavar="NAME", help="The header with the stable id of a message.")
    ] = None,
    tls_ca: Trusted = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    max_message: MaxMessage = "1 MiB",
    keep_ids: KeepIds = "1 day",
) -> None:
    """Receive messages of a STOMP broker, such as ActiveMQ, until Ctrl-C: acknowledged when safe on disk.

    The key of a record is the header JMSXGroupID. The password is in MILLSTREAM_STOMP_PASSWORD.

    \b
    Example:
      millstream listen stomp orders --at stomp://shop@127.0.0.1 --destination /queue/orders
    """
    from millstream.bridges.landing import Landing
    from millstream.bridges.running import bridge_name
    from millstream.bridges.stomp import StompBridge, StompSource
    from millstream.bridges.stomp_client import StompBroker
    from millstream.records import size_bytes

    broker = _broker(StompBroker, at, tls_ca, tls_cert, tls_key)
    source = StompSource(broker, destination, selector, subscription, id_header, prefetch, size_bytes(max_message))
    name = bridge_name("stomp", f"{at} {destination} {subscription}")
    with session.log() as log, Landing(log, name, [topic], keep_ids=keep_ids) as landing:
        run_until_stopped(StompBridge(source, landing, topic), landing.counts, f"'{destination}' for topic '{topic}'")


def _broker(kind: type[Broker], at: str, ca: Path | None, certificate: Path | None, key: Path | None) -> Broker:
    from millstream.secrets import Secret

    if (certificate is None) != (key is None):
        raise InvalidInput("a certificate and its key belong together", next_step="give --tls-cert and --tls-key")
    password = os.environ.get(kind.password_variable)
    return kind(
        at,
        None if password is None else Secret(password),
        None if ca is None else str(ca),
        None if certificate is None else (str(certificate), str(key)),
    )


COMMANDS: tuple[Callable[..., None], ...] = (amqp1, stomp)
