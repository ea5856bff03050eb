"""Goal: records sent from columns are those that confluent-kafka's producer sends, and each gets its own answer.

Method: the same batch is sent in both ways and read by confluent-kafka.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from connectors.kafka.support import made
from kafka_cluster import KafkaCluster
from millstream.errors import InvalidRecord
from millstream.log import connect
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka import column_producer, handle
from millstream.log.kafka.column_producer import Answers, ColumnProducer, Outgoing, addresses_of, new_tag
from millstream.log.storage.layout import HEADERS, TIMESTAMP
from waiting import until

from .support import all_of, filled, new
from .test_columns import by_objects, everything

EPOCH_US = 1_700_000_000_000_000


def opened(kafka: KafkaCluster, **more: Any) -> ColumnProducer:
    found = column_producer.column_producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, **more})
    assert found is not None, "the wheel of these tests has the library"
    return found


def of_every_kind(count: int) -> pa.RecordBatch:
    values = [b"", None, b"v", b"\x00\xff", b"x" * 5000, "é".encode()]
    keys = [None, b"", b"k", b"\x00"]
    headers: list[Any] = [None, [], [("a", b"1"), ("a", b""), ("b", b"\x00")], [("é", b"\xff")]]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([keys[number % 4] for number in range(count)], pa.binary()),
            pa.array([values[number % 6] for number in range(count)], pa.binary()),
            pa.array([EPOCH_US + number * 1000 for number in range(count)], pa.int64()).cast(TIMESTAMP),
            pa.array([headers[number % 5 % 4] for number in range(count)], HEADERS),
        ],
        names=["key", "value", "timestamp", "headers"],
    )


@pytest.mark.parametrize("has_headers", [True, False])
def test_both_ways_send_the_same(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, has_headers: bool) -> None:
    batch, found = of_every_kind(2000), []
    if not has_headers:
        batch = batch.select(["key", "value", "timestamp"])
    for way in ("columns", "objects"):
        if way == "objects":
            monkeypatch.setattr(handle, "library", lambda: None)
        topic = made(kafka.bootstrap, 3)
        with connect(f"kafka://{kafka.bootstrap}") as log, log.producer() as producer:
            receipts = [producer.send_batch(topic, batch, partition=number) for number in range(3)]
            places = [(receipt.partitions.tolist(), receipt.offsets.tolist()) for receipt in receipts]
            assert isinstance(producer._storing.client, ColumnProducer) == (way == "columns")  # type: ignore[attr-defined]
        records, _ = everything(by_objects(kafka), {TopicPartition(topic, number): 0 for number in range(3)})
        found.append((places, sorted((place.partition, rows) for place, rows in records.items())))
    assert found[0] == found[1]
    assert [len(rows) for _, rows in found[0][1]] == [2000] * 3


def test_a_full_queue_is_waited_for(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    with connect(f"kafka://{kafka.bootstrap}?queue.buffering.max.messages=7&linger.ms=0") as log:
        with log.producer() as producer:
            receipt = producer.send_batch(topic, pa.table({"value": [str(number) for number in range(500)]}))
            assert receipt.offsets.tolist() == list(range(500))
        with log.consumer(topic) as reader:
            assert [int(record.value) for record in all_of(reader)] == list(range(500))


def test_records_that_the_client_refuses_are_left_out(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    values = [b"a", b"x" * 5000, b"b", b"y" * 5000, b"c", b"early"]
    times = [datetime(2025, 1, 1, tzinfo=UTC)] * 5 + [datetime(1969, 1, 1, tzinfo=UTC)]
    with connect(f"kafka://{kafka.bootstrap}?message.max.bytes=2000") as log:
        producer = log.producer()
        receipt = producer.send_batch(topic, pa.table({"value": values, "timestamp": times}))
        assert receipt.offsets.tolist() == [0, -1, 1, -1, 2, -1]
        with pytest.raises(InvalidRecord, match=r"before 1970.* 2 more failures"):
            producer.flush()
        producer.close()
        with log.consumer(topic) as reader:
            assert [record.value for record in all_of(reader)] == [b"a", b"b", b"c"]


def test_answers_come_with_positions_and_tags(kafka: KafkaCluster) -> None:
    topic, producer, tags = made(kafka.bootstrap, 2), opened(kafka), (new_tag(), new_tag())
    count = 3000  # more than are laid out at a time
    found: dict[int, list[Answers]] = {tag: [] for tag in tags}
    for tag in tags:
        values = pa.array([b"%d" % number for number in range(count)], pa.binary())
        whole = Outgoing(topic, np.arange(count) % 2, values, values, np.full(count, 1000), None, np.arange(count))
        some = whole.taken(np.arange(1, count, 2))
        assert producer.produce(some, 0, tag) == (count // 2, 0)
    until(
        lambda: (
            producer.serve(0.1, lambda answers: found[answers.tag].append(answers))
            or all(sum(len(each.positions) for each in parts) == count // 2 for parts in found.values())
        ),
        "all answers came",
    )
    producer.close()
    producer.close()
    for parts in found.values():
        assert sorted(np.concatenate([each.positions for each in parts]).tolist()) == list(range(1, count, 2))
        assert all((each.partitions == 1).all() and not each.codes.any() for each in parts)


def test_what_is_given_up_is_answered(kafka: KafkaCluster) -> None:
    heard: list[Any] = []
    logger = logging.getLogger("test.column_producer")
    producer = opened(kafka, **{"bootstrap.servers": "localhost:1", "error_cb": heard.append, "logger": logger})
    nothing = pa.nulls(3, pa.binary())
    records = Outgoing("t", np.zeros(3, np.int64), nothing, nothing, np.ones(3, np.int64), None, np.arange(3))
    assert producer.produce(records, 1, 5) == (2, 0)
    until(lambda: producer.poll(0.1) or heard, "an error was reported")
    producer.purge()
    answers: list[Answers] = []
    until(lambda: producer.serve(0.1, answers.append) or sum(len(each.positions) for each in answers) == 2, "answers")
    assert sorted(np.concatenate([each.positions for each in answers]).tolist()) == [1, 2]
    assert all(each.codes.all() for each in answers)
    assert "_TRANSPORT" in {error.name() for error in heard}
    producer.close()


def test_a_forked_child_leaves_the_handle_alone(kafka: KafkaCluster) -> None:
    producer = opened(kafka)
    child = os.fork()
    if not child:
        try:
            producer.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    producer.close()


@pytest.mark.parametrize("values", [[b""], [None], [b"", None, b"a"], [b"abc", b"", None, b"d" * 100], [None, b"x"]])
def test_addresses_of_bytes(values: list[bytes | None]) -> None:
    whole = pa.array([b"before", *values, b"after"], pa.binary())
    for column in (pa.array(values, pa.binary()), whole.slice(1, len(values))):
        addresses, sizes = addresses_of(column)
        buffers = [
            pa.foreign_buffer(int(address), int(size)).to_pybytes() if address else None
            for address, size in zip(addresses, sizes, strict=True)
        ]
        assert buffers == values


@pytest.mark.more
def test_members_of_a_group_read_columns(kafka: KafkaCluster) -> None:
    """What a partition's reader has received is dropped when the partition goes to another member."""
    with connect(f"kafka://{kafka.bootstrap}") as log:
        topic, group = filled(log, 2000, partitions=4), new("g")
        got: list[int] = []
        with log.consumer(topic, group=group) as first:
            assert type(first._fetching.client).__name__ == "GroupConsumer"  # type: ignore[attr-defined]
            until(lambda: got.extend(int(each.value) for each in first.poll(1, max_records=100)) or got, "some came")
            with log.consumer(topic, group=group) as second:

                def more() -> bool:
                    for member in (first, second):
                        got.extend(int(record.value) for record in member.poll(0.1, max_records=100))
                    return len(got) >= 2000

                until(more, "all came")
                assert first.assignment
                assert second.assignment
        assert sorted(got) == list(range(2000))
