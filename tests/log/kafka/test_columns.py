"""Goal: columns copied out of librdkafka's memory are what confluent-kafka's objects say, and its memory is given back.

Method: the same partitions are read in both ways and compared field by field.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors.kafka.raw import Record, put
from connectors.kafka.support import Transactions, cut_before, made, send
from kafka_cluster import KafkaCluster
from millstream.connectors.kafka.reader import FETCHING
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka import columns, handle, librdkafka, loops, received
from millstream.log.kafka.column_client import ColumnConsumer, ObjectConsumer, column_consumer
from millstream.log.kafka.received import ALL, Event, Received, Wanted

Consumer = ColumnConsumer | ObjectConsumer
WAIT_S = 30.0


@pytest.fixture(params=["in C", "through ctypes"])
def either_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "through ctypes":
        monkeypatch.setattr(loops, "compiled_loops", None)
    elif loops.compiled_loops is None:
        pytest.skip("the loops in C were not built here")


def settings(kafka: KafkaCluster, **more: Any) -> dict[str, Any]:
    return {**FETCHING, "bootstrap.servers": kafka.bootstrap, "log_level": 0, **more}


def by_columns(kafka: KafkaCluster, wanted: Wanted = ALL, **more: Any) -> ColumnConsumer:
    found = column_consumer(settings(kafka, **more), wanted)
    assert found is not None, "the wheel of these tests has the library"
    return found


def by_objects(kafka: KafkaCluster, wanted: Wanted = ALL, **more: Any) -> ObjectConsumer:
    return ObjectConsumer(confluent_kafka.Consumer(settings(kafka, **more)), wanted)


def everything(consumer: Consumer, starts: dict[TopicPartition, int]) -> tuple[dict[TopicPartition, Any], list[Any]]:
    """The records of each partition until all have reported their end, and every event."""
    consumer.assign(starts)
    records: dict[TopicPartition, list[Any]] = {}
    events: list[Any] = []
    ended: set[TopicPartition] = set()
    while ended != starts.keys():
        for taken in consumer.take(1000, 0.2):
            if isinstance(taken, Event):
                events.append((taken.place, taken.offset, taken.error.name()))
                ended.add(taken.place)
            else:
                records.setdefault(taken.place, []).extend(listed(taken))
    consumer.close()
    return records, sorted(events)


def listed(taken: Received) -> list[Any]:
    parts = (
        taken.offsets.tolist(),
        taken.values.to_pylist(),
        [None] * len(taken) if taken.keys is None else taken.keys.to_pylist(),
        [None] * len(taken) if taken.times_ms is None else taken.times_ms.tolist(),
        [None] * len(taken) if taken.headers is None else taken.headers,
        [place in taken.bad_headers for place in range(len(taken))],
    )
    return list(zip(*parts, strict=True))


def assert_both_alike(kafka: KafkaCluster, starts: dict[TopicPartition, int], **more: Any) -> Any:
    fast, slow = (everything(make(kafka, **more), starts) for make in (by_columns, by_objects))
    assert fast == slow
    return fast


def test_records_of_every_kind(kafka: KafkaCluster, either_loop: None) -> None:
    topics = [made(kafka.bootstrap, 3) for _ in range(2)]
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": "lz4", "linger.ms": 20})
    values = [b"", None, b"v", b"\x00\xff", b"x" * 70_000, "é".encode(), b"y" * 3]
    keys = [None, b"", b"k", b"\x00"]
    headers: list[Any] = [[], [("a", b"1"), ("a", None), ("b", b"")], [("é", b"\xff")]]
    for number in range(2000):
        producer.produce(
            topics[number % 2],
            values[number % 7],
            keys[number % 4],
            partition=number % 3,
            timestamp=1_700_000_000_000 + number,
            headers=headers[number % 3],
        )
    assert producer.flush(WAIT_S) == 0
    starts = {TopicPartition(topic, number): 0 for topic in topics for number in range(3)}
    records, events = assert_both_alike(kafka, starts)
    assert sum(map(len, records.values())) == 2000
    assert {name for _, _, name in events} == {"_PARTITION_EOF"}


def test_parts_that_are_not_wanted_are_left_out(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [b"a", b"b"], key=b"k")
    for wanted in (Wanted(False, False, False), Wanted(True, False, False), Wanted(False, True, True)):
        assert_both_alike(kafka, {TopicPartition(topic, 0): 0}, wanted=wanted)


def test_odd_headers_and_times(kafka: KafkaCluster, either_loop: None) -> None:
    topic = made(
        kafka.bootstrap, message_timestamp_before_max_ms=str(2**63 - 1), message_timestamp_after_max_ms=str(2**63 - 1)
    )
    odd = [(b"\xff", b"1")], [(b"a\0b", None), (b"", b""), (b"a", b"x" * 100)]
    put(kafka.bootstrap, topic, *(Record(b"v", b"k", time, each) for time in (-1, 0, 2**50) for each in odd))
    assert_both_alike(kafka, {TopicPartition(topic, 0): 0})


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions(kafka: KafkaCluster, level: str) -> None:
    topic = made(kafka.bootstrap)
    writer = Transactions(kafka.bootstrap, topic)
    for number, end in enumerate((writer.commit, writer.abort, writer.commit)):
        writer.begin([b"%d-%d" % (number, each) for each in range(3)])
        end()
    records, _ = assert_both_alike(kafka, {TopicPartition(topic, 0): 0}, **{"isolation.level": level})
    [found] = records.values()
    assert len(found) == (6 if level == "read_committed" else 9)


def test_offsets_that_are_gone(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [b"%d" % number for number in range(10)])
    cut_before(kafka.bootstrap, topic, 0, 5)
    for start in (2, 50):
        _, events = assert_both_alike(kafka, {TopicPartition(topic, 0): start})
        assert "_AUTO_OFFSET_RESET" in {name for _, _, name in events}


# ---------------------------------------------------------------- memory


@pytest.fixture
def destroyed(either_loop: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many messages were given back; each only once."""
    library = librdkafka.library()
    assert library is not None
    given: list[int] = []
    real = library.message_destroy

    def destroy(message: int) -> None:
        given.append(message)
        real(message)

    as_c_function = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(destroy)
    monkeypatch.setattr(library, "message_destroy", as_c_function)
    return lambda: len(given)


def filled(kafka: KafkaCluster, count: int) -> dict[TopicPartition, int]:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [b"%d" % number for number in range(count)])
    return {TopicPartition(topic, 0): 0}


def taken_at_once(consumer: Consumer, starts: dict[TopicPartition, int], count: int) -> Iterator[Received | Event]:
    consumer.assign(starts)
    return consumer.take(count, WAIT_S)


def test_every_message_is_given_back_once(kafka: KafkaCluster, destroyed: Callable[[], int]) -> None:
    starts = filled(kafka, 300)
    everything(by_columns(kafka), starts)
    assert destroyed() == 301  # and the event at the end


def test_messages_that_nobody_looked_at_are_given_back(kafka: KafkaCluster, destroyed: Callable[[], int]) -> None:
    starts, consumer = filled(kafka, 10), by_columns(kafka)
    found = taken_at_once(consumer, starts, 10)
    assert destroyed() == 0
    consumer.close()  # librdkafka would wait for them
    assert destroyed() == 10
    assert list(found) == []
    gc.collect()
    assert destroyed() == 10


def test_pieces_outlive_their_messages(
    kafka: KafkaCluster, destroyed: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PIECE_BYTES", 3)
    starts, consumer = filled(kafka, 10), by_columns(kafka)
    found = taken_at_once(consumer, starts, 10)
    first = next(found)
    assert isinstance(first, Received)
    assert destroyed() == len(first) == 3
    consumer.close()
    assert destroyed() == 10
    assert first.values.to_pylist() == [b"0", b"1", b"2"]
    assert list(found) == []


def test_an_exception_right_after_the_call_loses_no_message(
    kafka: KafkaCluster, destroyed: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, consumer = filled(kafka, 10), by_columns(kafka)
    library = librdkafka.library()
    assert library is not None
    real = library.consume_batch_queue

    def interrupted(*arguments: Any) -> int:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "consume_batch_queue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        taken_at_once(consumer, starts, 10)
    consumer.close()
    assert destroyed() == 10


def test_partitions_are_added_and_removed(kafka: KafkaCluster, either_way: str) -> None:
    first, second = filled(kafka, 10), filled(kafka, 10)
    consumer = by_columns(kafka) if either_way == "columns" else by_objects(kafka)
    consumer.add(first)
    consumer.add(second)
    assert consumer.assignment() == first.keys() | second.keys()
    found: list[Received] = []
    while sum(map(len, found)) < 20:
        found += [each for each in consumer.receive(WAIT_S, 100) if isinstance(each, Received)]
    assert {each.place for each in found} == first.keys() | second.keys()
    consumer.remove(first)
    assert consumer.assignment() == second.keys()
    with pytest.raises(confluent_kafka.KafkaException):
        consumer.add(second)
    consumer.close()


def test_parts_of_a_partition_are_joined(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received, "PIECE_BYTES", 3)
    starts, consumer = filled(kafka, 10), by_columns(kafka)
    parts = [each for each in taken_at_once(consumer, starts, 10) if isinstance(each, Received)]
    consumer.close()
    assert len(parts) > 1
    assert listed(Received.joined(parts)) == [row for part in parts for row in listed(part)]


def test_a_forked_child_leaves_the_handle_alone(kafka: KafkaCluster) -> None:
    starts, consumer = filled(kafka, 10), by_columns(kafka)
    found = taken_at_once(consumer, starts, 10)
    child = os.fork()
    if not child:
        try:
            del found
            consumer.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert sum(len(each) for each in found if isinstance(each, Received)) == 10
    consumer.close()
    consumer.close()


def at(texts: list[bytes | None]) -> tuple[Any, Any, Any]:
    """Addresses and lengths of these bytes, and what keeps them."""
    kept = [None if text is None else np.frombuffer(text + b"\0", np.uint8) for text in texts]
    addresses = [0 if each is None else each.ctypes.data for each in kept]
    lengths = [0 if text is None else len(text) for text in texts]
    return np.array(addresses, np.uint64), np.array(lengths, np.uint64), kept


@pytest.mark.parametrize("texts", [[], [None], [None, None], [b""], [b"a", None, b"", b"bc"], [b"x" * 99, b"y"] * 500])
def test_bytes_anywhere_in_memory(texts: list[bytes | None]) -> None:
    addresses, lengths, kept = at(texts)
    for order in (np.arange(len(texts)), np.arange(len(texts))[::-1]):
        found = columns.copied(addresses[order], lengths[order])
        assert found.type == pa.binary()
        assert found.to_pylist() == [texts[place] for place in order]
    assert len(kept) == len(texts)


def test_bytes_that_overlap() -> None:
    addresses, lengths, _kept = at([b"abcdef"])
    twice = np.concatenate([addresses, addresses + np.uint64(2)])
    assert columns.copied(twice, np.array([6, 3], np.uint64)).to_pylist() == [b"abcdef", b"cde"]
    assert lengths.tolist() == [6]


def test_pieces_cover_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received, "PIECE_BYTES", 10)
    for sizes in ([], [0], [3, 3, 3, 3], [100], [1, 100, 1], [10, 10], [0, 0, 11, 0]):
        bounds = list(received.pieces(sizes))
        assert [place for begin, end in bounds for place in range(begin, end)] == list(range(len(sizes)))
        assert all(sum(sizes[begin : end - 1]) < 10 for begin, end in bounds)


# ---------------------------------------------------------------- settings and errors


def test_what_only_confluent_understands_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0}
    for more in (
        {"sasl.mechanism": "OAUTHBEARER"},
        {"sasl.mechanisms": "oauthbearer"},
        {"oauth_cb": lambda text: ("token", 1.0)},
        {"default.topic.config": {}},
        {"plugin.library.paths": "x"},
    ):
        assert column_consumer({**plain, **more}, ALL) is None
    monkeypatch.setattr(handle, "library", lambda: None)
    assert column_consumer(plain, ALL) is None


@pytest.mark.parametrize(("name", "value"), [("no.such.setting", "1"), ("fetch.wait.max.ms", "soon")])
def test_a_setting_that_is_refused(name: str, value: str) -> None:
    wrong = {"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0, name: value}
    with pytest.raises(confluent_kafka.KafkaException) as slow:
        confluent_kafka.Consumer(wrong)
    with pytest.raises(confluent_kafka.KafkaException) as fast:
        column_consumer(wrong, ALL)
    assert fast.value.args[0].name() == slow.value.args[0].name()
    assert fast.value.args[0].str() == slow.value.args[0].str()


def test_a_consumer_needs_the_name_of_a_group() -> None:
    """Without one, confluent-kafka ends the process."""
    with pytest.raises(confluent_kafka.KafkaException, match="group"):
        column_consumer({"bootstrap.servers": "localhost:1", "log_level": 0}, ALL)


def test_errors_and_log_lines_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []
    logger = logging.getLogger("test.columns")
    made_with = {"bootstrap.servers": "localhost:1", "group.id": "g", "error_cb": heard.append, "logger": logger}
    consumer = column_consumer(made_with, ALL)
    assert consumer is not None
    consumer.assign({TopicPartition("t", 0): 0})
    for _ in range(100):
        list(consumer.take(10, 0.1))
        if heard and caplog.records:
            break
    consumer.close()
    assert "_TRANSPORT" in {error.name() for error in heard}
    assert any("Connect" in record.getMessage() for record in caplog.records)
