"""One thing goes wrong: an unreadable record, a missing coordinator, a lost answer. Everything else continues."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import confluent_kafka
import numpy as np
import pytest

from kafka_cluster import KafkaCluster
from millstream.connectors.kafka.reader import PartitionReader
from millstream.errors import (
    InvalidInput,
    InvalidRecord,
    KafkaUnavailable,
    NoAccess,
    OffsetLost,
    TransactionAborted,
    UnknownTopic,
)
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka import groups
from millstream.log.kafka.column_producer import Answers, Note, Outgoing
from millstream.log.kafka.group_member import KafkaMember
from millstream.log.kafka.log import KafkaLog
from millstream.log.kafka.topics import change_settings
from millstream.log.kafka.transactions import Transactions
from waiting import until

from .support import all_of, filled, new, numbers, polled

FETCH_S = 1.0  # within which the client has usually fetched all there is, so that one look finds it together


def written(log: KafkaLog, values: Iterable[tuple[int, bytes]], **settings: object) -> str:
    """A topic with values by partition that did not come through Millstream."""
    topic = new()
    log.create_topic(topic, **settings)
    producer = log.clients.producer()
    for partition, value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0
    return topic


def read(log: KafkaLog, topic: str) -> list[bytes]:
    with log.consumer(topic) as consumer:
        return [record.value for record in all_of(consumer)]


class Away:
    """In the place of what asks the coordinator: nobody answers until it is back."""

    def __init__(self, real: Callable[..., dict[TopicPartition, int]]) -> None:
        self.real = real
        self.is_back = False

    def __get__(self, member: KafkaMember, kind: object) -> Callable[..., Mapping[TopicPartition, int]]:
        def committed(places: Iterable[TopicPartition], *seconds: float) -> Mapping[TopicPartition, int]:
            asked = list(places)
            if asked and not self.is_back:
                raise KafkaUnavailable("the coordinator is away")
            return self.real(member, asked, *seconds)

        return committed


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    made = Away(KafkaMember.committed)
    monkeypatch.setattr(KafkaMember, "committed", made)
    return made


# ---------------------------------------------------------------- reading


@pytest.mark.more
def test_an_unreadable_record_raises_however_much_was_fetched_after_it(log: KafkaLog) -> None:
    values = [(0, b"bad!" if number == 3 else b'{"a": %d}' % number) for number in range(10)]
    topic = written(log, values, schema="a int")
    with log.consumer(topic) as consumer:
        time.sleep(FETCH_S)
        assert [record.offset for record in polled(consumer, 3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(InvalidRecord, match="does not fit the schema"):
                consumer.poll(5)
            assert consumer.position(topic, 0) == 3
        consumer.seek(4)
        assert [record.offset for record in polled(consumer, 6)] == [4, 5, 6, 7, 8, 9]


@pytest.mark.more
def test_an_unreadable_record_costs_the_other_partitions_nothing(log: KafkaLog) -> None:
    values = [(0, b"bad!"), (1, b"bad!"), *((2, b'{"a": %d}' % number) for number in range(10))]
    topic = written(log, values, schema="a int", partitions=3)
    found: list[int] = []
    reported: set[int] = set()
    with log.consumer(topic) as consumer:
        time.sleep(FETCH_S)
        while len(found) < 10 or len(reported) < 2:
            try:
                records = consumer.poll(5)
            except InvalidRecord as error:
                number = int(str(error.where)[len(topic) + 1])
                reported.add(number)
                consumer.seek(1, partition=number)
            else:
                assert records, f"nothing more came after {found}, reported {reported}"
                found += [record.offset for record in records]
    assert found == list(range(10))
    assert reported == {0, 1}


def test_a_lost_offset_raises_for_every_partition(log: KafkaLog) -> None:
    topic = written(log, [(number % 2, b"x") for number in range(10)], partitions=2)
    gone = [confluent_kafka.TopicPartition(topic, number, 2) for number in range(2)]
    log.clients.answered(lambda: log.clients.admin.delete_records(gone), topic)
    reported: list[int] = []
    said: list[str] = []
    found: list[int] = []
    with log.consumer(topic, start={0: 0, 1: 0}) as consumer:
        while len(reported) < 2 or len(found) < 6:  # records of the one may come before the other is known to be gone
            try:
                found += [record.offset for record in polled(consumer, 1)]
            except OffsetLost as lost:
                said.append(lost.what)
                reported.append(int(str(lost.where)[-1]))
                consumer.seek(2, partition=reported[-1])
    assert sorted(reported) == [0, 1]
    assert all("offset 0 was deleted" in each for each in said)
    assert sorted(found) == [2, 2, 3, 3, 4, 4]


@pytest.mark.more
def test_a_partition_assigned_while_the_coordinator_is_away_starts_later(log: KafkaLog, away: Away) -> None:
    topic = filled(log, 5)
    with log.consumer(topic, group=new("g")) as consumer:
        assert consumer.poll(0.5) == []
        assert consumer.assignment == []
        away.is_back = True
        assert numbers(polled(consumer, 5)) == [0, 1, 2, 3, 4]


def test_a_partition_that_was_never_started_can_move_to_another(log: KafkaLog, away: Away) -> None:
    topic, group = filled(log, 5), new("g")
    with log.consumer(topic, group=group):
        pass
    away.is_back = True
    with log.consumer(topic, group=group) as other:
        assert numbers(polled(other, 5)) == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- groups and transactions


@pytest.mark.more
def test_work_given_up_is_not_committed_when_the_way_back_was_unknown(log: KafkaLog, away: Away) -> None:
    source, target, group = filled(log, 6), new(), new("g")
    log.create_topic(target)
    away.is_back = True
    with (
        log.producer(name=new("p")) as producer,
        log.consumer(source, group=group, delivery="exactly_once") as consumer,
    ):

        def work() -> None:
            for record in polled(consumer, 3):
                producer.send(target, record.value)

        def work_and_fail() -> None:
            work()
            away.is_back = False
            raise ValueError

        with pytest.raises(KafkaUnavailable, match="away"), producer.transaction(consumer):
            work_and_fail()
        with pytest.raises(KafkaUnavailable, match="away"), producer.transaction(consumer):
            consumer.poll(1)
        with pytest.raises(TransactionAborted, match="was aborted"):
            consumer.commit_with(cast(Any, None))
        away.is_back = True
        for _ in range(2):
            with producer.transaction(consumer):
                work()
    assert sorted(read(log, target)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_an_active_group_refuses_new_offsets_with_an_error(log: KafkaLog) -> None:
    topic, other, group = filled(log, 3), filled(log, 3), new("g")
    with log.consumer(topic, group=group) as consumer:
        polled(consumer, 3)
        with pytest.raises(InvalidInput, match="has active members"):
            groups.store_offsets(log.clients, group, {TopicPartition(other, 0): 2})
    groups.store_offsets(log.clients, group, {TopicPartition(other, 0): 2})
    assert groups.committed_offsets(log.clients, group)[TopicPartition(other, 0)] == 2


def test_a_broker_that_does_not_list_groups_in_time_raises_our_error(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "ANSWER_SECONDS", 0.0)
    with pytest.raises(KafkaUnavailable, match="did not answer"):
        log.groups()


class Stopped:
    """Freezes the brokers at the next commit."""

    def __init__(self, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pid = kafka.pid(1)
        self.armed = False
        real = Transactions.commit

        def commit(transactions: Transactions, work: Callable[[Any], None]) -> None:
            if self.armed:
                self.armed = False
                self.stop()
            real(transactions, work)

        monkeypatch.setattr("millstream.log.kafka.transactions.ANSWER_SECONDS", 1.0)
        monkeypatch.setattr(Transactions, "commit", commit)

    def stop(self) -> None:
        os.killpg(self._pid, signal.SIGSTOP)
        until(self._is_frozen, "every thread of the broker is frozen")  # until then some may still answer

    def _is_frozen(self) -> bool:
        states = [
            task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{self._pid}/task").glob("*/stat")
        ]
        return set(states) == {"T"}

    def resume(self) -> None:
        os.killpg(self._pid, signal.SIGCONT)


@pytest.fixture
def stopped(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopped]:
    made = Stopped(kafka, monkeypatch)
    try:
        yield made
    finally:
        made.resume()


@pytest.mark.more
def test_a_commit_that_was_not_answered_is_finished_by_the_next_transaction(log: KafkaLog, stopped: Stopped) -> None:
    topic = filled(log, 0)
    with log.producer(name=new("p")) as producer:
        with producer.transaction():
            producer.send(topic, b"1")
        stopped.armed = True
        with pytest.raises(KafkaUnavailable, match="did not confirm that"), producer.transaction():
            producer.send(topic, b"2")
        stopped.resume()
        with producer.transaction():
            producer.send(topic, b"3")
    assert read(log, topic) == [b"1", b"2", b"3"]


@pytest.mark.more
def test_records_of_a_commit_that_was_not_answered_are_stored_once(log: KafkaLog, stopped: Stopped) -> None:
    topic = filled(log, 0)
    with log.producer(name=new("p")) as producer:
        producer.send(topic, b"1").wait()
        stopped.armed = True
        receipt = producer.send(topic, b"2")
        later = threading.Timer(4, stopped.resume)
        later.start()
        until(lambda: receipt.done, "the commit was answered")
        assert receipt.error is None
        assert producer.send(topic, b"3").wait().offset > receipt.offset
        later.join()
    assert read(log, topic) == [b"1", b"2", b"3"]


# ---------------------------------------------------------------- sending


def test_a_future_time_is_accepted(log: KafkaLog) -> None:
    topic, tomorrow = filled(log, 0), datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    with log.producer() as producer:
        producer.send(topic, b"x", timestamp=tomorrow).wait()
    with log.consumer(topic) as consumer:
        assert [record.timestamp for record in all_of(consumer)] == [tomorrow]


def test_one_record_that_the_broker_refuses_is_refused_alone(log: KafkaLog) -> None:
    topic, tomorrow = filled(log, 0, partitions=2), datetime.now(UTC) + timedelta(days=1)
    change_settings(log.clients, topic, {"message.timestamp.after.max.ms": "3600000"})
    bad = {7, 100, 101, 299}
    producer = log.producer(linger="200 milliseconds")
    receipts = [
        producer.send(topic, str(number), timestamp=tomorrow if number in bad else None, partition=number % 2)
        for number in range(300)
    ]
    with pytest.raises(InvalidRecord, match="and 3 more failures"):
        producer.flush()
    assert {number for number, receipt in enumerate(receipts) if receipt.error is not None} == bad
    with log.consumer(topic) as consumer:
        assert numbers(all_of(consumer)) == sorted(set(range(300)) - bad)
    producer.close()


class Denying:
    """A client whose broker lets this user write some of the records and not others."""

    def __init__(self, client: Any) -> None:
        self._produce, self._serve = client.produce, client.serve
        client.produce, client.serve = self.produce, self.serve
        self.denied = 0

    def produce(self, records: Outgoing, begin: int, tag: int) -> tuple[int, int]:
        self._is_denied = np.array([value == b"denied" for value in records.values.to_pylist()])
        sent: tuple[int, int] = self._produce(records, begin, tag)
        return sent

    def serve(self, seconds: float, note: Note) -> None:
        def report(answers: Answers) -> None:
            is_denied = self._is_denied[answers.positions]
            self.denied += int(is_denied.sum())
            denied = confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
            note(answers._replace(codes=np.where(is_denied, denied, answers.codes)))

        self._serve(seconds, report)


def test_a_producer_without_permission_raises_and_stores_nothing_twice(log: KafkaLog) -> None:
    topic = filled(log, 0)
    producer: Any = log.producer(linger="200 milliseconds")
    client = Denying(producer._storing.client)
    fine, denied = producer.send(topic, b"fine"), producer.send(topic, b"denied")
    with pytest.raises(NoAccess, match="may not do that"):
        producer.flush(20)
    assert fine.error is None
    assert isinstance(denied.error, NoAccess)
    producer.close()
    assert client.denied == 1
    assert read(log, topic) == [b"fine", b"denied"]  # that one came through, as far as the broker is concerned


# ---------------------------------------------------------------- what passes


def test_a_refusal_is_forgotten_with_the_next_answer(log: KafkaLog) -> None:
    topic = filled(log, 1)
    log.clients.refused = NoAccess("for a moment")
    assert topic in log.topics()
    assert log.clients.refused is None
    log.clients.refused = NoAccess("for a moment")
    with pytest.raises(UnknownTopic):
        log.topic(new(), fresh=True)
    with log.producer() as producer:
        producer.send(topic, b"x").wait()
        log.clients.refused = NoAccess("for a moment")
        producer.send(topic, b"x").wait()
        assert log.clients.refused is None


@pytest.fixture
def reader(log: KafkaLog) -> Iterator[PartitionReader]:
    """Of a partition with five records."""
    made = PartitionReader(log.clients, filled(log, 5), 0, "here", lambda: None)
    yield made
    made.close()


def test_a_reader_continues_after_a_temporary_refusal(log: KafkaLog, reader: PartitionReader) -> None:
    log.clients.refused = NoAccess("for a moment")
    assert [number for _, found in reader.read(0, 5) for number in found] == [0, 1, 2, 3, 4]
    assert log.clients.refused is None


def test_a_reader_reports_a_lasting_refusal(
    log: KafkaLog, reader: PartitionReader, stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.connectors.kafka.reader.REFUSED_SECONDS", 0.5)
    stopped.stop()
    log.clients.refused = NoAccess("for good")
    with pytest.raises(NoAccess, match="for good"):
        list(reader.read(0, 5))
    stopped.resume()


def test_an_unreadable_description_is_skipped(log: KafkaLog, caplog: pytest.LogCaptureFixture) -> None:
    name = new()
    log.descriptions.write("test", name, {"first": True})
    producer = log.clients.producer()
    for value in (b"{broken", b"[1]"):
        producer.produce("_millstream", value, f"test/{name}")
    producer.produce("_millstream", json.dumps({"then": True}), f"test/{name}2")
    assert producer.flush(30) == 0
    documents = log.descriptions.of("test")
    assert (documents[name], documents[f"{name}2"]) == ({"first": True}, {"then": True})
    assert caplog.text.count(f"'test/{name}' cannot be read") == 1  # of the newest, which nothing has replaced
    log.descriptions.write("test", name, None)
    caplog.clear()
    with KafkaLog(log.address) as other:
        assert name not in other.descriptions.of("test")
    assert "cannot be read" not in caplog.text
