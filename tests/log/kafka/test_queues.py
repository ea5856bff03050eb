"""Queues on Kafka: each message goes to one consumer, is redelivered until acknowledged, and finally a dead letter."""

from __future__ import annotations

import pytest

from millstream.errors import AlreadyExists, DeliveryExpired, InvalidInput, InvalidSetting, UnknownQueue
from millstream.log import Broker, Message, Queue
from waiting import until

from .support import all_of, filled, new


def received(queue: Queue, count: int) -> list[Message]:
    found: list[Message] = []
    until(lambda: found.extend(queue.receive_many(count - len(found), 1)) or len(found) == count, f"{count} came")
    return found


def buried(log: Broker, name: str) -> list[dict[str, object]]:
    with log.consumer(f"{name}.dead") as consumer:
        return [record.value for record in all_of(consumer)]


@pytest.mark.more
def test_messages_are_acknowledged_redelivered_and_become_dead_letters(log: Broker) -> None:
    topic, name = filled(log, 2, partitions=2), new("q")  # what is there before the queue is not for it
    log.create_queue(name, topic, timeout="3 seconds", max_tries=2, start="latest")
    with log.producer() as producer:
        for value in (b"good", b"bad", b"worse", b"slow"):
            producer.send(topic, value, key=value, partition=0)
    with log.queue(name) as queue:
        messages = {message.value: message for message in received(queue, 4)}
        assert [message.tries for message in messages.values()] == [1, 1, 1, 1]
        messages[b"good"].acknowledge()
        with pytest.raises(DeliveryExpired, match="settled before"):
            messages[b"good"].acknowledge()
        messages[b"bad"].refuse("no")
        messages[b"worse"].refuse("never", dead=True)
        again = {message.value: message for message in received(queue, 2)}  # slow: its time is over
        assert {value: message.tries for value, message in again.items()} == {b"bad": 2, b"slow": 2}
        with pytest.raises(DeliveryExpired):
            messages[b"slow"].acknowledge()
        again[b"slow"].acknowledge()
        again[b"bad"].refuse("still no")
        assert queue.receive(0.5) is None
    letters = {letter["value"]: letter for letter in buried(log, name)}
    assert letters.keys() == {b"bad", b"worse"}
    assert letters[b"bad"]["reason"] == "2 tries; the last one: still no"
    assert (letters[b"worse"]["topic"], letters[b"worse"]["partition"]) == (topic, 0)
    with pytest.raises(InvalidInput, match="delete the queue first"):
        log.delete_topic(topic)
    log.delete_queue(name)
    with pytest.raises(UnknownQueue):
        log.queue(name)


@pytest.mark.soak
def test_consumers_share_the_messages_and_what_one_held_others_get(log: Broker) -> None:
    topic, name = filled(log, 10), new("q")
    log.create_queue(name, topic, max_tries=4)
    first = log.queue(name)
    held = received(first, 10)
    held[0].acknowledge()
    first.close()
    with log.queue(name) as second:
        values = [message.value for message in received(second, 9)]
    assert sorted(values) == sorted(message.value for message in held[1:])


@pytest.mark.soak
def test_more_is_received_while_something_is_unanswered(log: Broker) -> None:
    topic, name = filled(log, 1), new("q")
    log.create_queue(name, topic)
    with log.queue(name) as queue:
        [first] = received(queue, 1)
        with log.producer() as producer:
            producer.send(topic, b"next")
        [second] = received(queue, 1)
        assert second.value == b"next"
        queue.acknowledge([first, second])


@pytest.mark.soak
def test_messages_of_a_topic_with_a_schema_are_rows(log: Broker) -> None:
    topic, name = new(), new("q")
    log.create_topic(topic, schema="n int")
    with log.producer() as producer:
        producer.send(topic, {"n": 1})
    log.create_queue(name, topic, max_tries=1)
    with log.queue(name) as queue:
        [message] = received(queue, 1)
        assert message.value == {"n": 1}
        message.refuse("no")
    assert [letter["value"] for letter in buried(log, name)] == [b'{"n":1}']


@pytest.mark.more
def test_what_kafkas_queues_cannot_do_is_refused_by_name(log: Broker) -> None:
    topic, name = filled(log, 1), new("q")
    info = log.create_queue(name, topic)
    assert (info.topic, info.settings.max_tries) == (topic, 5)
    assert name in [each.name for each in log.queues()]
    with pytest.raises(AlreadyExists):
        log.create_queue(name, topic)
    with pytest.raises(InvalidSetting, match=r"group\.share\.max\.delivery\.count\.limit"):
        log.create_queue(new("q"), topic, max_tries=1000)
    with pytest.raises(InvalidSetting):
        log.create_queue(new("q"), topic, timeout="1 day")
    with log.queue(name) as queue:
        [message] = received(queue, 1)
        with pytest.raises(InvalidInput, match="cannot delay redelivery"):
            message.refuse(delay="1 second")
        with pytest.raises(InvalidInput, match="cannot extend"):
            message.extend("1 minute")
        with pytest.raises(InvalidInput, match="cannot include messages of a queue"):
            queue.acknowledging([message])
        message.acknowledge()
        assert queue.receive() is None
