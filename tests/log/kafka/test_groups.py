"""Groups on both brokers: processed records stay processed, others are redelivered, and dead members are replaced."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kafka_cluster import KafkaCluster
from millstream.errors import InvalidInput, InvalidSetting, UnknownGroup
from millstream.log import Broker, connect
from millstream.log.consumer import Consumer
from waiting import until

from .support import WAIT_S, all_of, filled, new, numbers, polled

MEMBER = """
import sys, time
from millstream.log import connect
log = connect(sys.argv[1])
consumer = log.consumer(sys.argv[2], group=sys.argv[3])
while not consumer.assignment:
    consumer.poll(0.1, max_records=1)
found = []
while not found:
    found = consumer.poll(1, max_records=1)
print("reads", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture(params=["embedded", "kafka"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "embedded":
        return str(tmp_path / "log")
    cluster: KafkaCluster = request.getfixturevalue("kafka")
    return f"kafka://{cluster.bootstrap}?session.timeout.ms=3000&heartbeat.interval.ms=500"


@pytest.fixture
def log(address: str) -> Iterator[Broker]:
    with connect(address) as opened:
        yield opened


def progress(log: Broker, group: str) -> int:
    return sum(part.next_offset or 0 for part in log.describe_group(group).partitions)


@pytest.mark.more
def test_what_was_handed_out_is_done_when_more_is_asked_for(log: Broker) -> None:
    topic, group = filled(log, 10), new("g")
    with log.consumer(topic, group=group) as consumer:
        assert numbers(polled(consumer, 3)) == [0, 1, 2]
        done = progress(log, group)  # of three polls at most
        assert done < 3
        assert numbers(polled(consumer, 2)) == [3, 4]
        assert 3 <= progress(log, group) < 5
    with log.consumer(topic, group=group) as consumer:  # those handed out last were not done
        assert numbers(polled(consumer, 1)) == [3]
        consumer.commit()
    with log.consumer(topic, group=group) as consumer:
        assert numbers(all_of(consumer)) == [4, 5, 6, 7, 8, 9]
    assert log.describe_group(group).lag == 0


def test_a_record_of_a_loop_is_done_when_the_next_is_asked_for(log: Broker) -> None:
    topic, group = filled(log, 10), new("g")
    with log.consumer(topic, group=group) as consumer:
        for record in consumer:
            if record.value == b"4":
                break
    assert progress(log, group) == 4


def test_at_most_once_is_done_before_it_is_handed_out(log: Broker) -> None:
    topic, group = filled(log, 10), new("g")
    with log.consumer(topic, group=group, delivery="at_most_once") as consumer:
        assert numbers(polled(consumer, 3)) == [0, 1, 2]
        assert progress(log, group) == 3
    with log.consumer(topic, group=group, delivery="at_most_once") as consumer:
        assert numbers(polled(consumer, 7)) == [3, 4, 5, 6, 7, 8, 9]


def test_a_group_that_starts_at_the_end_misses_nothing_from_then_on(log: Broker) -> None:
    topic, group = filled(log, 3), new("g")
    log.consumer(topic, group=group, start="latest").close()
    with log.producer() as producer:
        producer.send(topic, b"3")
    with log.consumer(topic, group=group, start="latest") as consumer:
        assert numbers(polled(consumer, 1)) == [3]


def test_members_share_the_partitions(log: Broker) -> None:
    topic, group = filled(log, 100, partitions=4), new("g")
    found: list[int] = []

    def read(*members: Consumer) -> None:
        for member in members:
            found.extend(numbers(member.poll(0.05, max_records=5)))

    with log.consumer(topic, group=group) as first:
        assert len(first.assignment) == 4
        with log.consumer(topic, group=group) as second:

            def shared() -> bool:
                read(first, second)
                return len(first.assignment) == len(second.assignment) == 2

            until(shared, "each had two partitions")
            assert not set(first.assignment) & set(second.assignment)
            owners = {part.owner for part in log.describe_group(group).partitions}
            assert owners == {first.member, second.member}
            assert set(log.describe_group(group).members) == owners

        def alone() -> bool:
            read(first)
            return len(first.assignment) == 4 and first.lag() == 0

        until(alone, "the first had all of them")
    assert set(found) == set(range(100))


def test_another_takes_over_from_a_killed_member(log: Broker, address: str) -> None:
    topic, group = filled(log, 20), new("g")
    program = [sys.executable, "-c", MEMBER, address, topic, group]
    member = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert member.stdout is not None
    assert member.stdout.readline() == "reads\n"
    member.send_signal(signal.SIGKILL)
    member.wait(WAIT_S)
    with log.consumer(topic, group=group) as consumer:
        assert numbers(polled(consumer, 20)) == list(range(20))  # what the dead one had was not done


def test_groups_are_listed_reset_and_deleted(log: Broker) -> None:
    topic, group = filled(log, 10), new("g")
    with pytest.raises(UnknownGroup, match="there is no group"):
        log.describe_group(group)
    with log.consumer(topic, group=group) as consumer:
        assert len(all_of(consumer)) == 10
        assert group in log.groups()
        with pytest.raises(InvalidInput, match="1 active members"):
            log.reset_group(group, topic, "earliest")
    assert log.describe_group(group).lag == 0
    assert log.reset_group(group, topic, 7).lag == 3
    with log.consumer(topic, group=group) as consumer:
        assert numbers(all_of(consumer)) == [7, 8, 9]
    log.delete_group(group)
    assert group not in log.groups()


@pytest.mark.more
def test_readers_follow_a_switch_and_back(log: Broker) -> None:
    old, new_one, group = filled(log, 3), filled(log, 5), new("g")
    name = new("n")
    log.switch(name, old)
    with log.consumer(name, group=group) as member, log.consumer(name) as alone:
        assert len(all_of(member)) == len(all_of(alone)) == 3
        log.switch(name, new_one)
        assert log.resolve(name) == new_one
        for consumer in (member, alone):
            assert [record.topic for record in polled(consumer, 5)] == [new_one] * 5
            assert consumer.topics == [new_one]
        log.switch_back(name)
        with log.producer() as producer:
            producer.send(old, b"3")
        for consumer in (member, alone):
            assert numbers(polled(consumer, 1)) == [3]  # each resumes where it was
    assert [version.topic for version in log.topic_versions(name)] == [old, new_one]
    assert log.describe_topic(old).serves == (name,)
    with pytest.raises(InvalidInput, match="readers of"):
        log.delete_topic(old)
    log.unswitch(name)
    log.delete_topic(old)


def test_kafka_rejects_intervals_that_are_too_short(kafka: KafkaCluster) -> None:
    with connect(f"kafka://{kafka.bootstrap}") as log:
        topic = filled(log, 0)
        with pytest.raises(InvalidSetting, match="at least 6 s"):
            log.consumer(topic, group="g", max_poll_interval="2 seconds")


def test_the_lag_of_a_group_counts_records(log: Broker) -> None:
    """Markers of transactions and aborted records have offsets, too, but nobody is behind by them."""
    topic, group = new(), new("g")
    log.create_topic(topic)
    with log.producer(name=new("p")) as producer:
        for _ in range(2):
            with producer.transaction():
                for number in range(3):
                    producer.send(topic, str(number))
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"aborted")
            producer.flush()
            raise ZeroDivisionError
    with log.consumer(topic, group=group) as consumer:
        first = polled(consumer, 2)
        consumer.commit()
        assert numbers(first) == [0, 1]
        assert log.describe_group(group).lag == consumer.lag() == 4
        polled(consumer, 4)
        consumer.commit()
        assert log.describe_group(group).lag == consumer.lag() == 0
        assert all_of(consumer) == []
    [partition] = log.describe_group(group).partitions
    assert (partition.next_offset, partition.lag) == (partition.end_offset, 0)


def test_a_part_of_what_was_handed_out_is_committed(log: Broker) -> None:
    topic, group = filled(log, 5), new("g")
    with log.consumer(topic, group=group) as consumer:
        polled(consumer, 5)
        [place] = consumer.assignment
        with pytest.raises(InvalidInput, match="cannot be committed"):
            consumer.commit({place: 6})
        consumer.commit({place: 2})
    assert [partition.next_offset for partition in log.describe_group(group).partitions] == [2]
