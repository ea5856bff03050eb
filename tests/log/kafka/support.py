"""What the tests of Kafka as a broker share: names of their own, and both brokers behind one fixture's name."""

from __future__ import annotations

import uuid

from millstream.log import Broker, Record
from millstream.log.consumer import Consumer
from waiting import until

WAIT_S = 60


def new(prefix: str = "t") -> str:
    """A unique name: all tests share the brokers."""
    return f"{prefix}{uuid.uuid4().hex[:12]}"


def filled(log: Broker, count: int, **settings: object) -> str:
    """A new topic with records '0', '1', …, each its own key."""
    topic = new()
    log.create_topic(topic, **settings)
    with log.producer() as producer:
        for number in range(count):
            producer.send(topic, str(number), key=str(number))
    return topic


def numbers(records: list[Record]) -> list[int]:
    return sorted(int(record.value) for record in records)


def all_of(consumer: Consumer) -> list[Record]:
    return list(consumer.until_caught_up())


def polled(consumer: Consumer, count: int) -> list[Record]:
    """The next `count` records, in as many polls as needed."""
    found: list[Record] = []
    until(
        lambda: found.extend(consumer.poll(1, max_records=count - len(found))) or len(found) == count, f"{count} came"
    )
    return found
