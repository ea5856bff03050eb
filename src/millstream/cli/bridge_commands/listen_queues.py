"""`millstream listen amqp`, `sqs` and `kinesis`: what is stored is acknowledged to the service that it came from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from millstream.cli.bridge_commands.stopping import on_stop
from millstream.cli.output import show_note
from millstream.cli.session import Options, Session, complete_topics
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.bridges.reports import Behind, Entrance
    from millstream.log import Broker
    from millstream.secrets import Secret

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)]
MaxMessage = Annotated[str, typer.Option(metavar="SIZE", help="The largest message; a larger one is a dead letter.")]
KeepIds = Annotated[
    str, typer.Option(metavar="'1 day'", help="How long an id is remembered: a repeated one is not stored again.")
]

Region = Annotated[str | None, typer.Option(help="Of AWS; default: that of boto3's configuration.")]
Endpoint = Annotated[str | None, typer.Option(metavar="URL", help="Of a service that is not Amazon's.")]


@dataclass(frozen=True)
class ClientTls(Options):
    """How a bridge that connects to a broker encrypts, and shows who it is."""

    tls_ca: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificates to trust, if not the system's.")] = (
        None
    )
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="This client's certificate, if the broker wants one.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key of the certificate.")] = None

    @property
    def ca_file(self) -> str | None:
        return None if self.tls_ca is None else str(self.tls_ca)

    @property
    def certificate(self) -> tuple[str, str] | None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInput("a certificate and its key belong together", next_step="give --tls-cert and --tls-key")
        return None if self.tls_cert is None else (str(self.tls_cert), str(self.tls_key))


class Running(Protocol):
    on_ready: Callable[[], None]

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def behind(self) -> Behind | None: ...


def amqp(
    session: Session,
    topic: Topic,
    *,
    at: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The broker: amqp://USER@HOST:5672/VHOST, or amqps:// for TLS.")
    ],
    queue: Annotated[str, typer.Option(help="The queue to receive from; created as a durable one, if it is missing.")],
    exchange: Annotated[
        str | None, typer.Option(help="Where the queue gets its messages from; created if it is missing.")
    ] = None,
    exchange_type: Annotated[
        Literal["direct", "fanout", "topic", "headers"], typer.Option(help="Of an exchange that is created.")
    ] = "topic",
    bind: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Routing keys to receive, such as 'orders.#'; repeatable.")
    ] = None,
    prefetch: Annotated[
        int, typer.Option(min=1, max=65535, help="How many messages may be on the way to the disk.")
    ] = 1000,
    id_property: Annotated[
        str | None, typer.Option(metavar="NAME", help="message-id, or the header with the id of a message.")
    ] = None,
    tls: ClientTls,
    max_message: MaxMessage = "1 MiB",
    keep_ids: KeepIds = "1 day",
) -> None:
    """Receive messages of an AMQP 0.9.1 broker, such as RabbitMQ, until Ctrl-C: acknowledged when safe on disk.

    The key of a record is the routing key. The password is in MILLSTREAM_AMQP_PASSWORD. Needs: pip install
    'millstream[amqp]'

    \b
    Example:
      millstream listen amqp orders --at amqp://127.0.0.1 --queue orders --exchange shop --bind 'orders.#'
    """
    from millstream.bridges.amqp.bridge import AmqpBridge, AmqpSource
    from millstream.bridges.amqp.client import PASSWORD_VARIABLE, AmqpBroker
    from millstream.bridges.landing import Landing
    from millstream.bridges.sockets.running import bridge_name
    from millstream.records import size_bytes

    broker = AmqpBroker(at, password_in(PASSWORD_VARIABLE), tls.ca_file, tls.certificate)
    source = AmqpSource(
        broker, queue, exchange, exchange_type, bind or (), prefetch, id_property, size_bytes(max_message)
    )
    name = bridge_name("amqp", f"{at} {queue}")
    with session.log() as log, Landing(log, name, [topic], keep_ids=keep_ids) as landing:
        bridge = AmqpBridge(source, landing, topic)
        run_until_stopped(log, "amqp", bridge, landing, f"queue '{queue}' for topic '{topic}'")


def sqs(
    session: Session,
    topic: Topic,
    queue: Annotated[str, typer.Option(help="The name of the queue.")],
    visibility: Annotated[
        int, typer.Option(min=1, max=43200, metavar="SECONDS", help="How long a received message is hidden.")
    ] = 60,
    id_attribute: Annotated[
        str | None, typer.Option(metavar="NAME", help="The attribute with the id of a message; default: that of SQS.")
    ] = None,
    sns: Annotated[bool, typer.Option("--sns", help="Bodies are notifications of SNS: store their messages.")] = False,
    region: Region = None,
    endpoint: Endpoint = None,
    max_message: MaxMessage = "1 MiB",
    keep_ids: KeepIds = "1 day",
) -> None:
    """Receive messages of an SQS queue until Ctrl-C: each is deleted from the queue when it is safe on disk.

    Keys are those that boto3 finds. Needs: pip install 'millstream[aws]'

    \b
    Example:
      millstream listen sqs orders --queue orders
    """
    from millstream.bridges.aws.client import AwsAccount
    from millstream.bridges.aws.sqs import SqsBridge, SqsSource
    from millstream.bridges.landing import Landing
    from millstream.bridges.sockets.running import bridge_name
    from millstream.records import size_bytes

    account = AwsAccount(region, endpoint)
    source = SqsSource(account, queue, visibility, id_attribute, sns, size_bytes(max_message))
    name = bridge_name("sqs", f"{region} {endpoint} {queue}")
    with session.log() as log, Landing(log, name, [topic], keep_ids=keep_ids) as landing:
        bridge = SqsBridge(source, landing, topic)
        run_until_stopped(log, "sqs", bridge, landing, f"queue '{queue}' for topic '{topic}'")


def kinesis(
    session: Session,
    topic: Topic,
    stream: Annotated[str, typer.Option(help="The name of the stream.")],
    region: Region = None,
    endpoint: Endpoint = None,
    max_message: MaxMessage = "1 MiB",
    when_recreated: Annotated[
        Literal["error", "earliest"],
        typer.Option(help="If the stream was deleted and created again: end, or read it from its beginning."),
    ] = "error",
) -> None:
    """Receive records of a Kinesis stream until Ctrl-C: records and positions are one transaction, so exactly once.

    Keys are those that boto3 finds. Needs: pip install 'millstream[aws]'

    \b
    Example:
      millstream listen kinesis clicks --stream clicks
    """
    from millstream.bridges.aws.client import AwsAccount
    from millstream.bridges.aws.kinesis import KinesisBridge, KinesisSource
    from millstream.bridges.growing_files.positioned import PositionedLanding
    from millstream.bridges.sockets.running import bridge_name
    from millstream.records import size_bytes

    source = KinesisSource(AwsAccount(region, endpoint), stream, size_bytes(max_message), when_recreated)
    name = bridge_name("kinesis", f"{region} {endpoint} {stream}")
    with session.log() as log, PositionedLanding(log, name, topic) as landing:
        bridge = KinesisBridge(source, landing)
        run_until_stopped(log, "kinesis", bridge, landing, f"stream '{stream}' for topic '{topic}'")


def password_in(variable: str) -> Secret | None:
    from millstream.secrets import Secret

    given = os.environ.get(variable)
    return None if given is None else Secret(given)


def run_until_stopped(log: Broker, kind: str, bridge: Running, landing: Entrance, what: str) -> None:
    """By Ctrl-C or SIGTERM, or because it fails."""
    from millstream.bridges.reports import reported

    bridge.on_ready = lambda: show_note(f"receiving {what} until Ctrl-C")
    on_stop(bridge.stop)
    try:
        with reported(log, kind, landing, bridge.behind):
            bridge.run()
    finally:
        show_note(landing.counts.summary())


COMMANDS: tuple[Callable[..., None], ...] = (amqp, sqs, kinesis)
