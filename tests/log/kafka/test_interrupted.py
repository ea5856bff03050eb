"""Consumers of Kafka whose polls are interrupted at random moments: what a caller did not get is returned again."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import pytest

from alarms import Alarm, ringing
from millstream.errors import DeliveryExpired
from millstream.log import Broker
from waiting import until

from .support import WAIT_S, all_of, filled, new, polled

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # alarms in finalizers
RAISED = (Alarm, SystemError)  # the latter where Kafka's client did not notice that a handler had raised
COUNT = 3000


@pytest.mark.parametrize("grouped", [False, True])
def test_polls_and_loops(log: Broker, grouped: bool) -> None:
    topic = filled(log, COUNT, partitions=3)
    group = new("g") if grouped else None
    got: list[int] = []

    def read_more(turn: list[int]) -> bool:
        turn.append(1)
        try:
            if len(turn) % 2:
                records = consumer.poll(0.2, max_records=200)
                got.extend(int(record.value) for record in records)
            else:
                for record in consumer.until_caught_up():
                    got.append(int(record.value))
        except RAISED:
            pass
        return len(got) >= COUNT

    turn: list[int] = []
    with log.consumer(topic, group=group) as consumer, ringing(seed=1, seconds_mean=0.05) as alarms:
        until(lambda: read_more(turn) and alarms.count > 0, f"{COUNT} came, and an alarm went off")
    assert sorted(got) == list(range(COUNT))


def test_a_consumer_that_was_interrupted_while_it_looked_up_its_partitions_is_closed(log: Broker) -> None:
    """Right after librdkafka has made a list of them: it does not close a consumer as long as there is one."""

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "raise_code":
            raise Alarm

    consumer = log.consumer(filled(log, 100, partitions=3))
    polled(consumer, 100)
    sys.setprofile(interrupt)
    try:
        with pytest.raises(Alarm):
            consumer.seek("earliest")
    finally:
        sys.setprofile(None)
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()


@pytest.mark.more
def test_transactions(log: Broker) -> None:
    topic, out = filled(log, COUNT, partitions=2), new("out")
    log.create_topic(out)

    def copy_more() -> bool:
        try:
            with producer.transaction(consumer):
                records = consumer.poll(0.2, max_records=500)
                for record in records:
                    producer.send(out, record.value)
            return not records and consumer.lag() == 0
        except RAISED:
            return False

    with (
        log.consumer(topic, group=new("g"), delivery="exactly_once") as consumer,
        log.producer(name=new("p")) as producer,
    ):
        with ringing(seed=2, seconds_mean=0.15) as alarms:
            until(lambda: copy_more() or alarms.count > 5, "alarms went off")
        until(copy_more, "all was read")
    with log.consumer(out) as reader:
        assert sorted(int(record.value) for record in all_of(reader)) == list(range(COUNT))


@pytest.mark.more
def test_a_queue(log: Broker) -> None:
    topic, name = filled(log, 200), new("q")
    log.create_queue(name, topic, timeout="60 seconds")
    got: list[int] = []

    def receive_more() -> bool:
        try:
            messages = queue.receive_many(20, 0.5)
        except RAISED:
            return False
        got.extend(int(message.value) for message in messages)
        for message in messages:
            try:
                message.acknowledge()
            except (*RAISED, DeliveryExpired):
                continue
        return len(set(got)) == 200

    with log.queue(name) as queue, ringing(seed=3, seconds_mean=0.5) as alarms:
        until(receive_more, "all messages came")
        assert alarms.count
