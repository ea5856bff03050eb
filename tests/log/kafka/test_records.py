"""The same holds for the embedded log and for Kafka: records are read once, in order, from their partitions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from kafka_cluster import KafkaCluster
from millstream.errors import (
    ClosedError,
    InvalidInput,
    InvalidRecord,
    InvalidSetting,
    OffsetLost,
    ProducerFenced,
    UnknownPartition,
    UnknownTopic,
)
from millstream.log import Broker, connect
from waiting import until

from .support import all_of, filled, new, numbers, polled

pytestmark = pytest.mark.usefixtures("either_way")
BROKERS = ("embedded", "kafka")


@pytest.fixture(params=BROKERS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "embedded":
        address = str(tmp_path / "log")
    else:
        cluster: KafkaCluster = request.getfixturevalue("kafka")
        address = f"kafka://{cluster.bootstrap}"
    with connect(address) as opened:
        yield opened


# ---------------------------------------------------------------- sending and reading


def test_a_record_comes_back_as_it_was_sent(log: Broker) -> None:
    topic, at = new(), datetime(2025, 6, 1, 12, 0, 0, 123000, tzinfo=UTC)
    log.create_topic(topic)
    with log.producer() as producer:
        headers = [("trace", b"1"), ("trace", b"2")]
        receipt = producer.send(topic, b"\x00\xff", key="k", timestamp=at, headers=headers).wait()
        assert (receipt.partition, receipt.offset) == (0, 0)
        assert producer.send(topic, "text").offset == 1
        assert producer.send(topic, None, key=b"k").offset == 2
    with log.consumer(topic) as consumer:
        first, second, third = all_of(consumer)
    assert (first.value, first.key, first.timestamp) == (b"\x00\xff", b"k", at)
    assert first.headers == (("trace", b"1"), ("trace", b"2"))
    assert (second.value, second.key, second.headers) == (b"text", None, ())
    assert (third.value, third.key) == (None, b"k")


def test_a_topic_with_a_schema_takes_and_gives_rows(log: Broker) -> None:
    topic = new()
    log.create_topic(topic, schema="user string, score int, at timestamp, rate double")
    at = datetime(2025, 6, 1, 12, 0, 0, 123456, tzinfo=UTC)
    row = {"user": "ann", "score": 3, "at": at, "rate": float("inf")}
    with log.producer() as producer:
        producer.send(topic, row)
        producer.send(topic, b'{"user": "bob"}', key="b")
        producer.send(topic, None, key="b")
        with pytest.raises(InvalidRecord, match="no column points"):
            producer.send(topic, {"points": 1})
        with pytest.raises(InvalidRecord):
            producer.send(topic, {"user": "eve", "score": "many"}).wait()
        with pytest.raises(InvalidRecord):
            producer.flush()
    with log.consumer(topic) as consumer:
        nobody = {"user": "bob", "score": None, "at": None, "rate": None}
        assert [record.value for record in all_of(consumer)] == [row, nobody, None]
        consumer.seek("earliest")
        assert consumer.poll_batches(10, max_records=1)[0].to_polars().to_dicts() == [row]


def test_batches_go_in_and_come_out_as_columns(log: Broker) -> None:
    topic = new()
    log.create_topic(topic, schema="user string, score long", partitions=3)
    frame = pl.DataFrame({"user": [f"u{n % 10}" for n in range(1000)], "score": list(range(1000))})
    with log.producer() as producer:
        receipt = producer.send_batch(topic, frame, key="user")
        assert np.bincount(receipt.partitions, minlength=3).sum() == 1000
        assert sorted(receipt.offsets[receipt.partitions == receipt.partitions[0]])[0] == 0
        producer.send_batch(topic, pa.table({"user": ["x"], "score": [5]}), partition=2)
    with log.consumer(topic) as consumer:
        found = []
        until(lambda: found.extend(consumer.poll_batches(1)) or sum(map(len, found)) == 1001, "all were read")
    rows = pl.concat([batch.to_polars() for batch in found])
    assert sorted(rows["score"]) == sorted([*range(1000), 5])
    for batch in found:  # one user is in one partition, in the order it was sent in
        scores = batch.to_polars().filter(pl.col("user") == "u3")["score"].to_list()
        assert scores == sorted(scores)


def test_a_key_goes_to_the_same_partition_on_both_brokers(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic, places = new(), {}
    keys = [f"key-{n}" for n in range(200)] + ["", "ü", "a" * 1000]
    for address in (str(tmp_path / "log"), f"kafka://{kafka.bootstrap}"):
        with connect(address) as log:
            log.create_topic(topic, partitions=7)
            with log.producer() as producer:
                receipts = [producer.send(topic, b"", key=key) for key in keys]
                places[address] = [receipt.partition for receipt in receipts]
    first, second = places.values()
    assert first == second
    assert len(set(first)) == 7


def test_partitioners(log: Broker) -> None:
    topic = new()
    log.create_topic(topic, partitions=4)
    with log.producer(partition_by="round_robin") as producer:
        receipts = [producer.send(topic, b"", key="same") for _ in range(8)]
        assert sorted(receipt.partition for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]
    with log.producer(partition_by=lambda key, count: count - 1) as producer:
        assert producer.send(topic, b"").partition == 3
        assert producer.send(topic, b"", partition=1).partition == 1
        with pytest.raises(UnknownPartition, match="choose 0 to 3"):
            producer.send(topic, b"", partition=4)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_way_of_acknowledging(log: Broker, acks: object) -> None:
    topic = new()
    log.create_topic(topic)
    with log.producer(acks=acks) as producer:
        for number in range(100):
            producer.send(topic, str(number))
    with log.consumer(topic) as consumer:
        assert [int(record.value) for record in all_of(consumer)] == list(range(100))


def test_a_full_buffer_drops_or_refuses(log: Broker) -> None:
    topic = new()
    log.create_topic(topic)
    with log.producer(when_full="drop_newest", buffer_bytes=2000, linger="10 seconds") as producer:
        for _ in range(10):
            producer.send(topic, b"x" * 400)
        assert producer.dropped == 6
    with log.consumer(topic) as consumer:
        assert len(all_of(consumer)) == 4


def test_what_cannot_be_is_refused(log: Broker) -> None:
    with pytest.raises(InvalidSetting):
        log.producer(acks=2)
    with pytest.raises(InvalidSetting):
        log.producer(partition_by="chance")
    with log.producer() as producer, pytest.raises(UnknownTopic, match="there is no topic"):
        producer.send("never-made", b"")
    with pytest.raises(ClosedError):
        producer.send("never-made", b"")
    with pytest.raises(UnknownTopic):
        log.consumer("never-made")
    topic = filled(log, 1)
    with pytest.raises(UnknownPartition):
        log.consumer(topic, partitions=[1])
    with pytest.raises(InvalidSetting, match="there is no offset 5 yet"):
        log.consumer(topic, start=5)
    with pytest.raises(InvalidInput, match="group"):
        log.consumer(topic, delivery="exactly_once")


# ---------------------------------------------------------------- where reading begins


def test_reading_starts_at_the_given_position(log: Broker) -> None:
    topic, first = new(), datetime(2025, 6, 1, tzinfo=UTC)
    log.create_topic(topic, partitions=2)
    with log.producer() as producer:
        for number in range(20):
            at = first + timedelta(minutes=number // 2)
            producer.send(topic, str(number), partition=number % 2, timestamp=at)

    def read(**settings: object) -> list[int]:
        with log.consumer(topic, **settings) as consumer:
            return numbers(all_of(consumer))

    assert read() == list(range(20))
    assert read(partitions=[1]) == list(range(1, 20, 2))
    assert read(start=8) == [16, 17, 18, 19]
    assert read(start={0: 9, 1: 10}) == [18]
    assert read(start=first + timedelta(minutes=7, seconds=30)) == [16, 17, 18, 19]
    assert read(start="latest") == []
    assert log.offset_at_time(topic, 0, first + timedelta(minutes=3)) == 3
    assert log.offset_at_time(topic, 0, first + timedelta(days=1)) == 10


def test_a_consumer_seeks_and_knows_where_it_is(log: Broker) -> None:
    topic = filled(log, 10)
    with log.consumer(topic) as consumer:
        assert consumer.lag() == 10
        assert numbers(polled(consumer, 4)) == [0, 1, 2, 3]
        assert (consumer.position(topic, 0), consumer.lag()) == (4, 6)
        consumer.seek(8, topic=topic, partition=0)
        assert numbers(all_of(consumer)) == [8, 9]
        assert consumer.lag() == 0
        consumer.seek("earliest")
        assert numbers(all_of(consumer)) == list(range(10))
        consumer.seek("latest")
        assert consumer.poll() == []
        with pytest.raises(UnknownPartition):
            consumer.seek(0, partition=1)


def test_records_that_are_there_are_read_without_waiting(log: Broker) -> None:
    topic = filled(log, 3)
    with log.consumer(topic) as consumer:
        found = [record for _ in range(3) for record in consumer.poll()]
        assert numbers(found) == [0, 1, 2]
        assert consumer.poll() == []
        with log.producer() as producer:
            producer.send(topic, b"3")
        assert numbers(consumer.poll()) == [3]


@pytest.mark.more
def test_new_partitions_are_read_whole(log: Broker) -> None:
    topic = filled(log, 1)
    with log.consumer(topic, start="latest") as consumer:
        assert consumer.poll() == []
        log.change_topic(topic, partitions=2)
        with log.producer() as producer:
            producer.send(topic, b"7", partition=1).wait()
        found: list[object] = []
        until(lambda: found.extend(consumer.poll(0.2)) or found, "the new partition was read")
        assert [record.value for record in found] == [b"7"]  # type: ignore[attr-defined]


def test_a_loop_that_was_left_resumes_where_it_was(log: Broker) -> None:
    topic = filled(log, 10)
    with log.consumer(topic) as consumer:
        for record in consumer:
            if record.offset == 3:
                break
        assert consumer.position(topic, 0) == 4
        assert numbers(polled(consumer, 6)) == [4, 5, 6, 7, 8, 9]


# ---------------------------------------------------------------- transactions


def test_a_transaction_is_seen_whole_or_not_at_all(log: Broker) -> None:
    topic = new()
    log.create_topic(topic, partitions=2)
    with log.producer(name=new("p")) as producer:  # noqa: SIM117
        with log.consumer(topic) as committed, log.consumer(topic, isolation="read_uncommitted") as anyhow:
            with producer.transaction():
                producer.send(topic, b"1", partition=0)
                producer.send(topic, b"2", partition=1)
                producer.flush()
                assert committed.poll(0.3) == []
                assert numbers(all_of(anyhow)) == [1, 2]
            assert numbers(polled(committed, 2)) == [1, 2]
            until(lambda: committed.lag() == 0, "the ends of the transaction were passed")
            with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012
                producer.send(topic, b"3", partition=0)
                producer.flush()
                raise ZeroDivisionError
            producer.send(topic, b"4", partition=0).wait()
            assert numbers(polled(committed, 1)) == [4]
            assert numbers(polled(anyhow, 2)) == [3, 4]


def test_a_newer_producer_of_a_name_fences_the_older(log: Broker) -> None:
    topic, name = filled(log, 0), new("p")
    older = log.producer(name=name)
    with older.transaction():
        older.send(topic, b"1")
    with log.producer(name=name) as newer:
        with newer.transaction():
            newer.send(topic, b"2")
        with pytest.raises(ProducerFenced), older.transaction():  # noqa: PT012
            older.send(topic, b"3")
            older.flush()
    with log.consumer(topic) as consumer:
        assert numbers(polled(consumer, 2)) == [1, 2]
        assert consumer.poll(0.3) == []


def test_reading_processing_and_writing_once(log: Broker) -> None:
    source, sink, group = filled(log, 20), filled(log, 0), new("g")

    def work(*, fails_after: int | None) -> None:
        with (
            log.producer(name=f"p-{group}") as producer,
            log.consumer(source, group=group, delivery="exactly_once") as consumer,
        ):
            done = 0
            while consumer.lag():
                with producer.transaction(consumer):
                    for record in consumer.poll(5, max_records=3):
                        producer.send(sink, record.value)
                    done += 1
                    if done == fails_after:
                        producer.flush()
                        raise ZeroDivisionError

    for fails_after in (3, 1, 2):
        with pytest.raises(ZeroDivisionError):
            work(fails_after=fails_after)
    work(fails_after=None)
    with log.consumer(sink) as consumer:
        assert numbers(polled(consumer, 20)) == list(range(20))
        assert consumer.poll(0.3) == []
    until(lambda: log.describe_group(group).lag == 0, "the group had come to the end")


def test_a_failed_transaction_reads_the_same_again(log: Broker) -> None:
    source, group = filled(log, 6), new("g")
    with (
        log.producer(name=new("p")) as producer,
        log.consumer(source, group=group, delivery="exactly_once") as consumer,
    ):
        with producer.transaction(consumer):
            assert numbers(consumer.poll(10, max_records=2)) == [0, 1]
        with pytest.raises(ZeroDivisionError), producer.transaction(consumer):  # noqa: PT012
            assert numbers(consumer.poll(10, max_records=2)) == [2, 3]
            raise ZeroDivisionError
        with producer.transaction(consumer):
            assert numbers(polled(consumer, 1)) == [2]


# ---------------------------------------------------------------- what Kafka alone has


def test_what_retention_took_is_an_error_or_passed_over(kafka: KafkaCluster) -> None:
    with connect(f"kafka://{kafka.bootstrap}") as log:
        topic = filled(log, 10)
        with log.consumer(topic, start=2) as consumer, log.consumer(topic, start=2, on_lost="earliest") as careless:
            from confluent_kafka import TopicPartition
            from confluent_kafka.admin import AdminClient

            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
                future.result(30)
            with log.consumer(topic, start=2) as late:
                with pytest.raises(OffsetLost, match="begins at 6"):
                    until(lambda: late.poll(1), "the error came")
                late.seek("earliest")
                assert numbers(all_of(late)) == [6, 7, 8, 9]
            consumer.close()
            careless.seek(3)
            assert numbers(all_of(careless)) == [6, 7, 8, 9]
            assert [(lost.from_offset, lost.to_offset) for lost in careless.lost] == [(3, 6)]
            assert log.describe_topic(topic).partitions[0].start_offset == 6


def test_a_foreign_record_that_does_not_fit_is_reported_and_skipped(kafka: KafkaCluster) -> None:
    from confluent_kafka import Producer

    topic = new()
    with connect(f"kafka://{kafka.bootstrap}") as log:
        log.create_topic(topic, schema="n int")
        stranger = Producer({"bootstrap.servers": kafka.bootstrap})
        for value in (b'{"n": 1}', b"rubbish", b'{"n": 2}'):
            stranger.produce(topic, value)
            stranger.flush()
        with log.consumer(topic) as consumer:
            assert [record.value for record in consumer.poll(10)] == [{"n": 1}]
            for _ in range(2):
                with pytest.raises(InvalidRecord, match=r"does not fit the schema(.|\n)*offset 1"):
                    consumer.poll(10)
            consumer.seek(2)
            assert [record.value for record in consumer.poll(10)] == [{"n": 2}]


def test_a_record_that_is_too_large_is_refused_and_the_others_stored(kafka: KafkaCluster) -> None:
    with connect(f"kafka://{kafka.bootstrap}") as log:
        topic = filled(log, 0)
        with log.producer() as producer:
            small = producer.send(topic, b"small")
            large = producer.send(topic, os.urandom(3_000_000))
            assert small.offset == 0
            with pytest.raises(InvalidRecord):
                large.wait(30)
            with pytest.raises(InvalidRecord):
                producer.flush()
