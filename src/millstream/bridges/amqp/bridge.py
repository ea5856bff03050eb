"""Messages of an AMQP 0.9.1 queue into a topic: each is acknowledged to the broker when it is durable.

The broker sends at most `prefetch` messages that are not acknowledged: that is how a slow disk holds it back. What was
stored, but whose acknowledgement was lost, is delivered again: with an id it is stored once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from millstream import terminal
from millstream.bridges.amqp.client import AmqpBroker, installed, is_final, reason_of
from millstream.bridges.arrivals import Arrival
from millstream.bridges.brokers.queue_bridge import PREFETCH, RECONNECT_SECONDS, RECONNECT_SECONDS_MAX, TAKE_SECONDS
from millstream.bridges.landing import Landing
from millstream.bridges.reports import Behind
from millstream.bridges.taking import drop, take
from millstream.errors import InvalidInput, MillstreamError, SourceUnavailable

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

ExchangeKind = Literal["direct", "fanout", "topic", "headers"]
KINDS = ("direct", "fanout", "topic", "headers")
PREFETCH_MAX = 65_535
TOGETHER_MAX = 1000
COUNT_SECONDS = 10.0
NOT_FOUND = 404
MESSAGE_ID = "message-id"
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class AmqpSource:
    """Which messages of which broker."""

    broker: AmqpBroker
    queue: str
    """Created as a durable one, unless it exists."""
    exchange: str | None = None
    """Where the queue gets its messages from; None: it is filled by others. Created as durable, unless it exists."""
    exchange_kind: ExchangeKind = "topic"
    bindings: Sequence[str] = ()
    """The routing keys to receive, such as `orders.#`."""
    prefetch: int = PREFETCH
    id_property: str | None = None
    """`message-id`, or the header with a message's stable id."""
    bytes_max: int = 1 << 20
    """A larger message becomes a dead letter."""

    def __post_init__(self) -> None:
        if not self.queue:
            raise InvalidInput("an AMQP bridge needs a queue", next_step="give its name")
        if self.exchange_kind not in KINDS:
            raise InvalidInput(f"there is no kind '{self.exchange_kind}'", next_step=f"use one of {', '.join(KINDS)}")
        if not 1 <= self.prefetch <= PREFETCH_MAX:
            raise InvalidInput(f"prefetch cannot be {self.prefetch}", next_step=f"from 1 to {PREFETCH_MAX:,}")
        if (self.exchange is None) != (not self.bindings):
            raise InvalidInput(
                "an exchange and routing keys belong together", next_step="for all messages of it, bind the key '#'"
            )


class _Delivery(NamedTuple):
    channel: BlockingChannel
    """Its acknowledgement is only valid there."""
    tag: int
    arrival: Arrival


class AmqpBridge:
    """Receives in a thread of its own, which also answers heartbeats, and stores in the caller's."""

    def __init__(self, source: AmqpSource, landing: Landing, topic: str) -> None:
        installed()
        self._source = source
        self._landing = landing
        self._topic = topic
        self._waiting: queue.SimpleQueue[_Delivery] = queue.SimpleQueue()  # as many as the broker may send
        self._stopped = threading.Event()
        self._done = threading.Event()
        """Nothing more is stored, and what was stored is to be acknowledged."""
        self._refusal: MillstreamError | None = None
        self._behind: Behind | None = None
        self.on_ready: Callable[[], None] = lambda: None
        """Called whenever the broker has accepted the consumer."""
        landing.on_failure = self.stop

    def run(self) -> None:
        """Until it is stopped. A broker that is away is waited for."""
        receiving = threading.Thread(target=self._receive, name="millstream-amqp", daemon=True)
        receiving.start()
        try:
            while not self._stopped.is_set():
                self._store(take(self._waiting, TOGETHER_MAX, TAKE_SECONDS))
        finally:
            self._stopped.set()
            self._done.set()
            receiving.join()
        if self._refusal is not None:
            raise self._refusal
        if self._landing.failure is not None:
            raise self._landing.failure

    def stop(self) -> None:
        self._stopped.set()

    def behind(self) -> Behind | None:
        return self._behind

    # ------------------------------------------------------------ the caller's thread

    def _store(self, deliveries: Sequence[_Delivery]) -> None:
        if not deliveries:
            return
        stored: dict[BlockingChannel, int] = {}
        for delivery, outcome in zip(
            deliveries, self._landing.land([each.arrival for each in deliveries]), strict=True
        ):
            if isinstance(outcome, MillstreamError):
                self._refusal = outcome
                self.stop()
                break  # neither this one nor those after it are acknowledged: they are delivered again
            stored[delivery.channel] = delivery.tag
        for channel, tag in stored.items():
            self._acknowledge(channel, tag)

    def _acknowledge(self, channel: BlockingChannel, tag: int) -> None:
        """All of its messages up to this one. On a connection that has ended, they are delivered again."""
        from pika.exceptions import AMQPError

        def acknowledge() -> None:
            if channel.is_open:
                channel.basic_ack(tag, multiple=True)

        try:
            channel.connection.add_callback_threadsafe(acknowledge)
        except AMQPError:
            return

    # ------------------------------------------------------------ the receiving thread

    def _receive(self) -> None:
        from pika.exceptions import AMQPError

        pause = RECONNECT_SECONDS
        while not self._stopped.is_set():
            try:
                with installed().BlockingConnection(self._source.broker.parameters()) as connection:
                    self._consume(connection)
                    pause = RECONNECT_SECONDS
                    self._serve(connection)
            except (AMQPError, OSError) as error:
                if self._stopped.is_set():
                    return
                if is_final(error):
                    self._refuse(f"the broker rejects the bridge: {reason_of(error)}")
                    return
                logger.warning("the connection to the AMQP broker ended: %s; connecting again", reason_of(error))
                self._stopped.wait(pause)
                pause = min(2 * pause, RECONNECT_SECONDS_MAX)
            except Exception as error:
                self._refuse(f"the client fails: {type(error).__name__}: {error}")
                raise

    def _consume(self, connection: Any) -> None:
        source = self._source
        self._declare(connection, lambda channel, **how: channel.queue_declare(source.queue, **how), durable=True)
        if source.exchange:
            exchange, kind = source.exchange, source.exchange_kind
            self._declare(
                connection,
                lambda channel, **how: channel.exchange_declare(exchange, **how),
                durable=True,
                exchange_type=kind,
            )
        channel: BlockingChannel = connection.channel()
        for key in source.bindings:
            channel.queue_bind(source.queue, source.exchange or "", key)
        channel.basic_qos(prefetch_count=source.prefetch)
        channel.add_on_cancel_callback(lambda _: connection.close())  # the queue was deleted
        channel.basic_consume(source.queue, self._received)
        self.on_ready()

    def _declare(self, connection: Any, declare: Callable[..., Any], **settings: Any) -> None:
        """One that exists is used as it is, whichever settings it has."""
        from pika.exceptions import ChannelClosedByBroker

        channel = connection.channel()
        try:
            declare(channel, passive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code != NOT_FOUND:
                raise
            channel = connection.channel()
            declare(channel, **settings)
        channel.close()

    def _serve(self, connection: Any) -> None:
        count_at = 0.0
        try:
            while not self._done.is_set():
                connection.process_data_events(TAKE_SECONDS)
                if time.monotonic() >= count_at:
                    self._count(connection)
                    count_at = time.monotonic() + COUNT_SECONDS
            connection.process_data_events(0)
        finally:
            drop(self._waiting)

    def _count(self, connection: Any) -> None:
        """What waits in the queue."""
        channel = connection.channel()
        answer = channel.queue_declare(self._source.queue, passive=True)
        self._behind = Behind(answer.method.message_count, "messages")
        channel.close()

    def _refuse(self, what: str) -> None:
        step = "check the user, the password, the queue and the exchange"
        self._refusal = SourceUnavailable(what, where=str(self._source.broker), next_step=step)
        self.stop()

    def _received(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        self._waiting.put(_Delivery(channel, method.delivery_tag, self._arrival(method, properties, body)))

    def _arrival(self, method: Any, properties: Any, body: bytes) -> Arrival:
        key = method.routing_key.encode()
        given = {str(name): value for name, value in (properties.headers or {}).items()}
        headers = [("amqp-exchange", method.exchange.encode()), ("amqp-routing-key", key)]
        if properties.content_type:
            headers.append(("content-type", properties.content_type.encode()))
        headers += [(name, _as_bytes(value)) for name, value in given.items()]
        name = self._source.id_property
        id = None if name is None else properties.message_id if name == MESSAGE_ID else given.get(name)
        origin = f"amqp {self._source.queue}"
        made = Arrival(self._topic, body, key or None, None if id is None else str(id), tuple(headers), origin)
        return made.cut_to(self._source.bytes_max)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
