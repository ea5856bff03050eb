"""A sink that publishes every row to an AMQP 0.9.1 broker: a batch is complete when the broker has confirmed all of it.

At least once: a message that is repeated has the same id. A message that no queue would get is a dead letter.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.bridges.amqp.client import CONNECT_SECONDS, AmqpBroker, installed, is_final, reason_of
from millstream.bridges.arrivals import ID_HEADER
from millstream.bridges.brokers.answered_sink import AnsweredEndpoint, AnsweredSink, Answers, Outgoing
from millstream.bridges.topic_pattern import TopicPattern
from millstream.connectors import arguments
from millstream.connectors.connector import Writing
from millstream.connectors.sink import Sink
from millstream.errors import MillstreamError, SinkFailed, SinkUnavailable
from millstream.secrets import Secret

EXAMPLE = "amqp('amqp://127.0.0.1', 'orders.{region}', exchange='orders')"
ANSWER_SECONDS = 30.0
CLOSE_SECONDS = 2.0
KEY_BYTES_MAX = 255
PERSISTENT = 2
TOO_LARGE = re.compile(r"message size \d+ (?:is )?larger than (?:configured )?max size (\d+)")
"""As RabbitMQ says it."""
NO_QUEUE = "no queue is bound to its routing key"


@dataclass(frozen=True)
class Amqp(AnsweredEndpoint):
    broker: AmqpBroker
    pattern: TopicPattern
    exchange: str = ""
    payload: str | None = None
    mandatory: bool = True

    @property
    def name(self) -> str:
        return f"amqp {self.exchange or self.pattern.text}"

    def open_sink(self, writing: Writing) -> Sink:
        installed()
        return AmqpSink(self, writing)

    def __str__(self) -> str:
        return f"amqp({self.broker}, {self.exchange}, {self.pattern.text})"


def amqp(
    address: str,
    key: str,
    *,
    exchange: str = "",
    payload: str | None = None,
    mandatory: bool = True,
    password: str | Secret | None = None,
    ca_file: str | None = None,
    certificate: tuple[str, str] | None = None,
) -> Amqp:
    """A sink that publishes every row to an AMQP 0.9.1 broker, such as RabbitMQ: `amqp://user@host/virtual-host`.

    `key` is the routing key, or without an exchange the name of a queue; columns in braces are part of it. A message is
    the row as JSON, or the column `payload` as it is, and persistent. The exchange must exist. A message that no queue
    would get is a dead letter, or with `mandatory=False` dropped by the broker. `amqps://` is TLS; `certificate` names
    the files with this client's certificate and its key.
    """
    text = arguments.text(key, "a routing key must be a string", EXAMPLE)
    if not isinstance(exchange, str):
        raise arguments.refused(f"an exchange must be a string, not {exchange!r}", f"for example {EXAMPLE}")
    broker = AmqpBroker(
        arguments.text(address, "the address of a broker must be a string", EXAMPLE),
        Secret(password) if isinstance(password, str) else password,
        ca_file,
        certificate,
    )
    pattern = TopicPattern(text, EXAMPLE, unusable="*#\0", bytes_max=KEY_BYTES_MAX)
    return Amqp(broker, pattern, exchange, payload, mandatory)


class AmqpSink(AnsweredSink):
    def __init__(self, endpoint: Amqp, writing: Writing) -> None:
        super().__init__(str(endpoint), writing, endpoint.pattern, endpoint.payload)
        self._endpoint = endpoint
        self._publisher: Publisher | None = None

    def _send(self, messages: Sequence[Outgoing], answers: Answers) -> None:
        waiting = messages
        while waiting:
            try:
                if self._publisher is None:
                    self._publisher = Publisher(self._endpoint)
                self._publisher.publish(waiting, answers)
            except MessageTooLarge as error:
                self.close()
                large = [each.id for each in waiting if len(each.payload) > error.bytes_max]
                if not large:
                    raise
                reason = f"the broker takes messages of up to {error.bytes_max:,} bytes"
                answers.update(dict.fromkeys(large, reason))
            except MillstreamError:
                self.close()
                raise
            waiting = [each for each in waiting if each.id not in answers]

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None


class MessageTooLarge(SinkFailed):
    """The broker has closed the channel because of one message, which may be any that is larger than this."""

    bytes_max = 0


class Publisher:
    """A connection whose messages are confirmed, many at a time. It is closed and replaced after any failure."""

    def __init__(self, endpoint: Amqp) -> None:
        self._endpoint = endpoint
        self._changed = threading.Condition()
        self._channel: Any = None
        self._failure: BaseException | None = None
        self._tags: dict[int, str] = {}
        self._last_tag = 0
        self._answers: Answers = {}
        self._declined: set[str] = set()
        connection = installed().SelectConnection
        self._connection = connection(
            endpoint.broker.parameters(),
            on_open_callback=lambda opened: opened.channel(on_open_callback=self._on_channel),
            on_open_error_callback=lambda _, error: self._fail(error),
            on_close_callback=lambda _, error: self._fail(error),
        )
        self._thread = threading.Thread(target=self._connection.ioloop.start, name="millstream-amqp", daemon=True)
        self._thread.start()
        try:
            self._wait(lambda: self._channel is not None, CONNECT_SECONDS)
        except MillstreamError:
            self.close()
            raise

    def publish(self, messages: Sequence[Outgoing], answers: Answers) -> None:
        self._answers, self._declined = {}, set()
        self._connection.ioloop.add_callback_threadsafe(lambda: self._publish(messages))
        waiting = {message.id for message in messages}
        try:
            self._wait(lambda: waiting <= self._answers.keys() | self._declined, ANSWER_SECONDS)
        finally:
            with self._changed:
                answers.update(self._answers)
        if self._declined:
            raise self._unavailable("the broker does not accept more at the moment")

    def close(self) -> None:
        loop = self._connection.ioloop
        loop.add_callback_threadsafe(self._close)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():  # the broker does not say goodbye
            loop.add_callback_threadsafe(loop.stop)
            self._thread.join()
        if not self._connection.is_closed:
            self._connection.ioloop.close()

    def _wait(self, holds: Callable[[], bool], seconds: float) -> None:
        """As long as there are answers, it waits for more."""
        with self._changed:
            while not holds():
                before = len(self._answers)
                self._changed.wait_for(lambda: holds() or self._failure is not None, seconds)
                if self._failure is not None:
                    raise self._error_of(self._failure)
                if not holds() and len(self._answers) == before:
                    raise self._unavailable(f"the broker did not answer in {seconds:g} s")

    def _error_of(self, failure: BaseException) -> MillstreamError:
        if (found := TOO_LARGE.search(reason_of(failure))) is not None:
            made = MessageTooLarge(f"the broker rejects a message: {reason_of(failure)}", where=str(self._endpoint))
            made.bytes_max = int(found[1])
            return made
        if is_final(failure):
            what = f"the broker rejects the messages: {reason_of(failure)}"
            step = "check the user, the password and the exchange"
            return SinkFailed(what, where=str(self._endpoint), next_step=step)
        return self._unavailable(f"the broker cannot be reached: {reason_of(failure)}")

    def _unavailable(self, what: str) -> SinkUnavailable:
        return SinkUnavailable(what, where=str(self._endpoint), next_step="check the broker; it is tried again")

    # ------------------------------------------------------------ the connection's thread

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(lambda _, error: self._fail(error))
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirmation, callback=lambda _: self._on_ready(channel))

    def _on_ready(self, channel: Any) -> None:
        with self._changed:
            self._channel = channel
            self._changed.notify_all()

    def _publish(self, messages: Sequence[Outgoing]) -> None:
        properties, endpoint = installed().BasicProperties, self._endpoint
        kind = "application/json" if endpoint.payload is None else None
        try:
            for message in messages:
                self._last_tag += 1
                self._tags[self._last_tag] = message.id
                described = properties(
                    content_type=kind,
                    delivery_mode=PERSISTENT,
                    message_id=message.id,
                    headers={ID_HEADER: message.id},
                )
                self._channel.basic_publish(
                    endpoint.exchange, message.topic, message.payload, described, mandatory=endpoint.mandatory
                )
        except installed().exceptions.AMQPError as error:
            self._fail(error)

    def _on_return(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """It comes before the confirmation of its message."""
        with self._changed:
            self._answers[properties.message_id] = NO_QUEUE

    def _on_confirmation(self, frame: Any) -> None:
        method = frame.method
        is_accepted = method.NAME == "Basic.Ack"
        tags = [tag for tag in self._tags if tag <= method.delivery_tag] if method.multiple else [method.delivery_tag]
        with self._changed:
            for id in [self._tags.pop(tag) for tag in tags]:
                if is_accepted:
                    self._answers.setdefault(id, None)
                else:
                    self._declined.add(id)
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _close(self) -> None:
        if self._connection.is_open:
            self._connection.add_on_close_callback(lambda *_: self._connection.ioloop.stop())
            self._connection.close()
        else:
            self._connection.ioloop.stop()
