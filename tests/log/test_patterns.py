"""Consumers of all topics that match a pattern, also of those created while they run."""

from __future__ import annotations

import time

import pytest

from millstream.errors import InvalidInput


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.more)])
def broker(request):
    return request.getfixturevalue("log" if request.param == "embedded" else "kafka_log")


@pytest.fixture
def prefix(request):
    return f"{abs(hash(request.node.name))}x{time.time_ns()}"  # all tests share one Kafka


def send(broker, topic, *values):
    with broker.producer() as producer:
        for value in values:
            producer.send(topic, value)


def collect(consumer, count):
    found, deadline = [], time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [(record.topic.rpartition(".")[2], record.value) for record in consumer.poll(1.0)]
    return found


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_new_topics_are_found_and_read_from_their_beginning(broker, prefix, group, start):
    for name in ("a", "b"):
        broker.create_topic(f"{prefix}.{name}")
        send(broker, f"{prefix}.{name}", "old")
    broker.create_topic(f"{prefix}-other")
    send(broker, f"{prefix}-other", "not for us")
    settings = {} if group is None else {"group": f"{prefix}.{group}"}
    with broker.consumer(pattern=rf"{prefix}\..*", start=start, **settings) as consumer:
        old = [("a", b"old"), ("b", b"old")] if start == "earliest" else []
        assert sorted(collect(consumer, len(old))) == old
        broker.create_topic(f"{prefix}.c", partitions=2)
        send(broker, f"{prefix}.c", "first", "second")
        send(broker, f"{prefix}.a", "new")
        expected = [("a", b"new"), ("c", b"first"), ("c", b"second")]
        assert sorted(collect(consumer, 3)) == expected
        consumer.poll()
        assert sorted(topic.rpartition(".")[2] for topic in consumer.topics) == ["a", "b", "c"]
    if group is not None:
        with broker.consumer(pattern=rf"{prefix}\..*", **settings) as consumer:
            send(broker, f"{prefix}.c", "third")
            assert collect(consumer, 1) == [("c", b"third")]


def test_a_deleted_topic_is_dropped(broker, prefix):
    for name in ("a", "b"):
        broker.create_topic(f"{prefix}.{name}")
    with broker.consumer(pattern=rf"{prefix}\..*") as consumer:
        consumer.poll()
        broker.delete_topic(f"{prefix}.a")
        send(broker, f"{prefix}.b", "still")
        assert collect(consumer, 1) == [("b", b"still")]
        deadline = time.monotonic() + 30
        while consumer.topics != [f"{prefix}.b"]:
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        broker.delete_topic(f"{prefix}.b")
        broker.create_topic(f"{prefix}.b")
        send(broker, f"{prefix}.b", "another")
        assert collect(consumer, 1) == [("b", b"another")]


@pytest.mark.parametrize("group", [None, "readers"])
def test_there_may_be_no_topic_yet(broker, prefix, group):
    with broker.consumer(pattern=rf"{prefix}\..*", group=group and f"{prefix}.{group}") as consumer:
        assert consumer.poll(0.1) == []
        broker.create_topic(f"{prefix}.a")
        send(broker, f"{prefix}.a", "first")
        assert collect(consumer, 1) == [("a", b"first")]


def test_a_pattern_is_a_regular_expression_instead_of_names(broker):
    for wrong in ({}, {"pattern": "("}, {"pattern": 5}, {"topics": "a", "pattern": "a"}):
        with pytest.raises(InvalidInput):
            broker.consumer(**wrong)
