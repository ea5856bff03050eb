"""Goal: a consumer starts where it is asked to, reads without loss, repetition or busy waiting, and can seek."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from millstream.errors import (
    ClosedError,
    InvalidInput,
    InvalidRecord,
    InvalidSetting,
    OffsetLost,
    UnknownPartition,
    UnknownTopic,
)

from .processes import follow_idly, lines, run, wait_idly_for_messages, wait_until

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def ten(log):
    """A topic with the numbers 0 to 9, one each minute from noon on, in several frames."""
    log.create_topic("t")
    with log.producer(linger="0 seconds") as producer:
        for number in range(10):
            producer.send("t", b"%d" % number, timestamp=NOON + timedelta(minutes=number)).wait()
    return log


def numbers(records):
    return [int(record.value) for record in records]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", None),
        (0, 0),
        (7, 7),
        (10, None),
        ({0: 4}, 4),
        ({}, 0),
        (NOON, 0),
        (NOON + timedelta(minutes=3), 3),
        (NOON + timedelta(minutes=3, microseconds=1), 4),
        (NOON - timedelta(days=1), 0),
        (NOON + timedelta(days=1), None),
    ],
)
def test_where_to_start(ten, start, first):
    with ten.consumer("t", start=start) as consumer:
        assert numbers(consumer.until_caught_up()) == ([] if first is None else list(range(first, 10)))
        consumer.seek("earliest")
        consumer.seek(start)
        assert numbers(consumer.until_caught_up()) == ([] if first is None else list(range(first, 10)))


@pytest.mark.parametrize("start", ["first", -1, True, None, 1.5, [1], {0: -1}, datetime(2024, 5, 1)])
def test_invalid_starts_are_refused_and_leave_no_member_behind(ten, start):
    for settings in ({}, {"group": "g"}):
        with pytest.raises((InvalidSetting, InvalidRecord)):
            ten.consumer("t", start=start, **settings)
    assert ten.groups() == [] or ten.describe_group("g").members == ()
    with ten.consumer("t") as consumer:
        with pytest.raises((InvalidSetting, InvalidRecord)):
            consumer.seek(start)
        assert numbers(consumer.poll(1)) == [0]


@pytest.mark.parametrize(
    "settings",
    [
        {"delivery": "maybe"},
        {"isolation": "none"},
        {"on_lost": "shrug"},
        {"delivery": "exactly_once"},
        {"delivery": "at_most_once"},
        {"group": "g", "partitions": [0]},
        {"group": "g", "max_poll_interval": "0 seconds"},
        {"group": "g", "max_poll_interval": "10 milliseconds"},
    ],
)
def test_settings_that_make_no_sense_are_refused(ten, settings):
    with pytest.raises(InvalidInput):
        ten.consumer("t", **settings)


def test_what_does_not_exist_is_refused(ten):
    with pytest.raises(UnknownTopic, match="t"):
        ten.consumer("nothing")
    with pytest.raises(UnknownTopic):
        ten.consumer(["t", "nothing"], group="g")
    with pytest.raises(UnknownPartition):
        ten.consumer("t", partitions=[1])
    with pytest.raises(InvalidInput):
        ten.consumer([])
    with ten.consumer("t") as consumer:
        for place in ({"partition": 3}, {"topic": "other"}):
            with pytest.raises(UnknownPartition):
                consumer.seek(0, **place)
        with pytest.raises(UnknownPartition):
            consumer.position("t", 3)
        with pytest.raises(InvalidInput):
            consumer.commit()


@pytest.mark.parametrize("start", [11, {0: 11}, {9: 1}, {0: "latest"}, {0: -1}])
def test_an_offset_that_is_not_there_yet_is_refused(ten, start):
    with pytest.raises((InvalidSetting, UnknownPartition)):
        ten.consumer("t", start=start)
    with ten.consumer("t") as consumer, pytest.raises((InvalidSetting, UnknownPartition)):
        consumer.seek(start)


def test_a_consumer_can_start_at_the_end(ten):
    with ten.consumer("t", start=10) as consumer:
        assert consumer.poll(0.1) == []


def test_a_group_learns_that_its_topic_was_deleted(log, other):
    log.create_topic("t", partitions=2)
    with other.consumer("t", group="g") as consumer:
        consumer.poll(0.1)
        log.delete_topic("t")
        with pytest.raises(UnknownTopic):
            wait_until(lambda: consumer.poll(0.1))


def test_a_consumer_is_used_by_one_thread_at_a_time(ten):
    with ten.consumer("t", start="latest") as consumer:
        waiting = threading.Thread(target=consumer.poll, args=(2.0,))
        waiting.start()
        time.sleep(0.2)
        with pytest.raises(InvalidInput, match="thread"):
            consumer.poll(0.1)
        waiting.join()


def test_seek_and_replay_in_one_partition(log):
    log.create_topic("t", partitions=2)
    with log.producer() as producer:
        for number in range(10):
            producer.send("t", b"%d" % number, partition=number % 2)
    with log.consumer("t") as consumer:
        assert sorted(numbers(consumer.until_caught_up())) == list(range(10))
        consumer.seek(3, partition=1)
        assert numbers(consumer.until_caught_up()) == [7, 9]
        consumer.seek("earliest", topic="t")
        assert sorted(numbers(consumer.until_caught_up())) == list(range(10))
        assert consumer.lag() == 0


def test_seek_inside_a_loop(ten):
    with ten.consumer("t") as consumer:
        seen = []
        for record in consumer.until_caught_up():
            seen.append(int(record.value))
            if seen == [0, 1, 2, 3]:
                consumer.seek(2)
    assert seen == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.fixture
def hundred(log):
    """A topic with a hundred numbers in two frames."""
    log.create_topic("t")
    with log.producer(linger="1 second") as producer:
        for number in range(100):
            producer.send("t", b"%d" % number)
            if number == 49:
                producer.flush()
    return log


@pytest.mark.parametrize("group", [None, "g"])
def test_leaving_a_loop_and_coming_back_loses_nothing(hundred, group):
    with hundred.consumer("t", group=group) as consumer:
        seen = []
        while len(seen) < 100:
            for record in consumer:
                seen.append(int(record.value))
                if len(seen) % 7 == 0 or len(seen) == 100:
                    break
            seen += numbers(consumer.poll(0, max_records=3))
        assert seen == list(range(100))


def test_position_and_lag_are_true_inside_a_loop(hundred):
    with hundred.consumer("t") as consumer:
        for record in consumer.until_caught_up():
            assert consumer.position("t", 0) == record.offset + 1
            assert consumer.lag() == 99 - record.offset


def test_polling_inside_a_loop_and_loops_in_loops_lose_nothing(hundred):
    with hundred.consumer("t") as consumer:
        seen = []
        for record in consumer.until_caught_up():
            seen.append(int(record.value))
            if record.offset == 10:
                seen += numbers(consumer.poll(0, max_records=5))
            if record.offset == 30:
                for inner in consumer:
                    seen.append(int(inner.value))
                    if inner.offset == 40:
                        break
        assert seen == list(range(100))


def test_a_loop_ends_when_its_consumer_is_closed(hundred):
    consumer = hundred.consumer("t", group="g")
    seen = []
    for record in consumer:
        seen.append(record)
        if len(seen) == 3:
            consumer.close()
    assert len(seen) == 3
    consumer.close()
    for use in (consumer.poll, consumer.commit, lambda: next(consumer.until_caught_up())):
        with pytest.raises(ClosedError):
            use()


def test_batches_come_in_columns(log):
    log.create_topic("t", schema="n int")
    with log.producer() as producer:
        for number in range(5):
            producer.send("t", {"n": number}, key=str(number))
        producer.send("t", None, key="0")
    with log.consumer("t") as consumer:
        (batch,) = consumer.poll_batches(1)
    assert batch.to_polars()["n"].to_list() == [0, 1, 2, 3, 4, None]
    assert batch.columns.column("key").to_pylist() == [b"0", b"1", b"2", b"3", b"4", b"0"]
    assert (batch.next_offset, len(batch)) == (6, 6)
    assert [record.value for record in batch.records()][-2:] == [{"n": 4}, None]


def test_following_sees_what_comes_later(log):
    log.create_topic("t", partitions=3)
    with log.producer(linger="0 seconds", partition_by="round_robin") as producer, log.consumer("t") as consumer:

        def send():
            for number in range(50):
                producer.send("t", b"%d" % number)
                time.sleep(0.002)

        thread = threading.Thread(target=send)
        thread.start()
        seen = []
        for record in consumer:
            seen.append(int(record.value))
            if len(seen) == 50:
                break
        thread.join()
    assert sorted(seen) == list(range(50))


def test_partitions_are_read_in_turn(log):
    log.create_topic("t", partitions=3)
    with log.producer(linger="0 seconds") as producer:
        for number in range(30):
            producer.send("t", b"%d" % number, partition=number % 3).wait()
    with log.consumer("t") as consumer:
        consumer.poll_batches(0, max_bytes=1)
        assert {batch.partition for _ in range(2) for batch in consumer.poll_batches(0, max_bytes=1)} == {1, 2}


@pytest.mark.parametrize("group", [None, "g"])
def test_an_idle_follower_does_not_keep_the_processor_busy(tmp_path, log, group):
    log.create_topic("t")
    assert run(follow_idly, log.path, tmp_path / "diary", group, 2.0) == 0
    assert float(lines(tmp_path / "diary")[0]) < 0.7


def test_an_idle_queue_does_not_keep_the_processor_busy(tmp_path, log):
    log.create_topic("t")
    log.create_queue("q", "t")
    assert run(wait_idly_for_messages, log.path, tmp_path / "diary", "q", 2.0) == 0
    assert float(lines(tmp_path / "diary")[0]) < 0.7


def test_records_deleted_before_they_were_read(log):
    log.create_topic("t", segment_bytes=4096, retention_bytes=4096)
    with log.producer(linger="0 seconds") as producer:
        for number in range(20):
            producer.send("t", b"%d" % number + b" " * 1000).wait()
    log.clean("t")
    start = log.describe_topic("t").partitions[0].start_offset
    assert start > 0
    with log.consumer("t", start=0) as consumer, pytest.raises(OffsetLost, match="offset 0"):
        consumer.poll(1)
    with log.consumer("t", start=0, on_lost="earliest") as consumer:
        assert numbers(consumer.until_caught_up()) == list(range(start, 20))
        assert [(lost.from_offset, lost.to_offset) for lost in consumer.lost] == [(0, start)]
    with log.consumer("t", start=0, on_lost="latest") as consumer:
        assert consumer.poll(0.1) == []
        assert consumer.lost[0].to_offset == 20


def test_a_group_at_the_latest_record_reads_all_that_comes_from_then_on(log):
    """Also when the member that began dies, lets go or is rewound before it has committed anything."""
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", b"0").wait()
        consumer = log.consumer("t", group="g", start="latest")
        producer.send("t", b"1").wait()
        assert numbers(consumer.poll(1)) == [1]
        consumer._agreeing._membership._participant.close()  # as a death does
        with log.consumer("t", group="g", start="latest") as successor:
            assert numbers(wait_until(lambda: successor.poll(0.2))) == [1]
        eager = log.consumer("t", group="e", start="latest", delivery="exactly_once")
        producer.send("t", b"2").wait()
        assert numbers(eager.poll(1)) == [2]
        eager.rewind()
        assert numbers(eager.poll(1)) == [2]
        eager.close()
