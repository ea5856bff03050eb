"""Clients of an AMQP broker, as other services are, and a broker that several tests share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pika
from pika.exceptions import AMQPError

from rabbitmq_server import RabbitMq

PATIENCE_S = 300


@contextmanager
def channel_of(broker: RabbitMq) -> Iterator[Any]:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0)) as connection:
        yield connection.channel()


def publish(
    broker: RabbitMq, key: str, bodies: Sequence[bytes], *, exchange: str = "", ids: Sequence[str] = (), **headers: Any
) -> None:
    """Returns when the broker has them, also if it restarts meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    left = [
        (body, pika.BasicProperties(delivery_mode=2, message_id=id, headers=headers or None))
        for body, id in zip(bodies, ids or [None] * len(bodies), strict=True)
    ]
    while left:
        try:
            with channel_of(broker) as channel:
                channel.confirm_delivery()
                while left:
                    channel.basic_publish(exchange, key, *left[0])
                    left.pop(0)
        except (AMQPError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def taken(broker: RabbitMq, queue: str) -> list[tuple[Any, bytes]]:
    """What a queue has, as properties and bodies; it has them no more."""
    found = []
    with channel_of(broker) as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))


def waiting_count(broker: RabbitMq, queue: str) -> int:
    """How many messages wait in a queue that no consumer has."""
    with channel_of(broker) as channel:
        count: int = channel.queue_declare(queue, passive=True).method.message_count
        return count
