"""Goal: topics can be made, listed, described, changed and deleted, also under those who use them; nonsense is refused.

Method: two handles on one log stand for two processes; threads do at once what must not get into each other's way.
"""

import os
import threading
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from millstream.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidName,
    InvalidSchema,
    InvalidSetting,
    MillstreamError,
    UnknownPartition,
    UnknownTopic,
)
from millstream.log import EmbeddedLog, TopicPartition

from .processes import wait_until


def test_a_topic_is_created_listed_described_changed_and_deleted(log):
    made = log.create_topic(
        "clicks",
        partitions=3,
        schema="user string, n int",
        codec="json",
        retention="7 days",
        retention_bytes="1 GiB",
        segment_bytes="1 MiB",
        compaction=True,
        tombstone_retention="1 hour",
    )
    assert log.topics() == ["clicks"]
    assert made == log.describe_topic("clicks")
    assert [p.number for p in made.partitions] == [0, 1, 2]
    assert made.settings.retention == timedelta(days=7)
    assert (made.settings.retention_bytes, made.settings.segment_bytes) == (2**30, 2**20)
    changed = log.change_topic("clicks", retention=None, partitions=5, compaction=False)
    assert changed.settings.retention is None
    assert len(changed.partitions) == 5
    log.delete_topic("clicks")
    assert log.topics() == []
    with pytest.raises(UnknownTopic, match="clicks"):
        log.describe_topic("clicks")


def test_settings_survive_another_opening(log, other):
    made = log.create_topic("t", partitions=2, schema="a int NOT NULL, b array<string>", retention="90 minutes")
    assert other.describe_topic("t").settings == made.settings


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../a", "/etc", "a..b", ".hidden", "-dash", "a b", "a\n", "ä", "x" * 250, None, 7, b"t"],
)
def test_names_that_could_lead_elsewhere_are_refused(log, name):
    for use in (
        log.create_topic,
        log.describe_topic,
        log.delete_topic,
        lambda name: log.producer(name=name) if name is not None else log.topic(name),
        lambda name: log.create_queue(name, "t"),
        lambda name: log.consumer("t", group=name) if name is not None else log.topic(name),
        lambda name: log.consumer([name]),
    ):
        with pytest.raises(InvalidName):
            use(name)
    assert log.topics() == []


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"partitions": 0}, InvalidSetting),
        ({"partitions": -1}, InvalidSetting),
        ({"partitions": 1.5}, InvalidSetting),
        ({"partitions": True}, InvalidSetting),
        ({"partitions": "3"}, InvalidSetting),
        ({"partitions": None}, InvalidSetting),
        ({"partitions": 10_001}, InvalidSetting),
        ({"retention": "0 seconds"}, InvalidSetting),
        ({"retention": "-1 day"}, InvalidInput),
        ({"retention": "soon"}, InvalidInput),
        ({"retention": 5}, InvalidInput),
        ({"retention_bytes": 10}, InvalidSetting),
        ({"segment_bytes": 10}, InvalidSetting),
        ({"segment_bytes": "1 TB"}, InvalidSetting),
        ({"segment_bytes": None}, InvalidSetting),
        ({"compaction": "yes"}, InvalidSetting),
        ({"compaction": None}, InvalidSetting),
        ({"tombstone_retention": None}, InvalidSetting),
        ({"schema": "a int, a string"}, InvalidSchema),
        ({"schema": "a nonsense"}, InvalidSchema),
        ({"schema": ""}, InvalidInput),
        ({"schema": 5}, InvalidSchema),
        ({"codec": "morse"}, MillstreamError),
        ({"colour": "red"}, InvalidSetting),
    ],
)
def test_settings_that_make_no_sense_are_refused(log, settings, error):
    with pytest.raises(error) as refusal:
        log.create_topic("t", **settings)
    assert str(refusal.value)
    assert log.topics() == []


def test_a_topic_is_not_made_twice(log, other):
    log.create_topic("t")
    for handle in (log, other):
        with pytest.raises(AlreadyExists):
            handle.create_topic("t", partitions=2)
    assert len(log.describe_topic("t").partitions) == 1


def test_one_of_many_concurrent_creations_succeeds(log):
    outcomes = []

    def create():
        try:
            log.create_topic("t", partitions=4)
            outcomes.append("made")
        except AlreadyExists:
            outcomes.append("there")

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["there"] * 5


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 1},
        {"schema": None},
        {"schema": "a string"},
        {"schema": "a int, b int NOT NULL"},
        {"segment_bytes": 1},
        {"colour": "red"},
    ],
)
def test_a_change_that_stored_records_contradict_is_refused(log, change):
    before = log.create_topic("t", partitions=2, schema="a int")
    with log.producer() as producer:
        producer.send("t", {"a": 1})
    with pytest.raises(InvalidSetting):
        log.change_topic("t", **change)
    assert log.describe_topic("t").settings == before.settings


def test_an_empty_topic_may_change_its_schema_altogether(log, other, read):
    log.create_topic("t", schema="a int")
    with other.producer() as producer, other.consumer("t") as consumer:
        with pytest.raises(InvalidInput):
            producer.send("t", {"b": "x"})
        log.change_topic("t", schema="b string")
        producer.send("t", {"b": "x"}).wait()
        assert [record.value for record in consumer.until_caught_up()] == [{"b": "x"}]
        log.create_topic("bytes")
        producer.send_batch("bytes", pa.table({"value": pa.array([], pa.binary())})).wait()
        log.change_topic("bytes", schema="b string")
        producer.send("bytes", {"b": "y"}).wait()
    assert read(log, "bytes") == [{"b": "y"}]


def test_readers_and_writers_at_work_see_a_schema_grow(log, other):
    log.create_topic("t", schema="a int")
    with other.producer() as producer, other.consumer("t") as consumer:
        producer.send("t", {"a": 1}).wait()
        assert [r.value for r in consumer.until_caught_up()] == [{"a": 1}]
        log.change_topic("t", schema="a long, b string")
        producer.send("t", {"a": 2**40, "b": "new"}).wait()
        producer.send("t", b'{"a": 3, "b": "bytes"}').wait()
        producer.send_batch("t", pa.table({"a": [4], "b": ["batch"]})).wait()
        assert [r.value for r in consumer.until_caught_up()] == [
            {"a": 2**40, "b": "new"},
            {"a": 3, "b": "bytes"},
            {"a": 4, "b": "batch"},
        ]
        consumer.seek("earliest")
        assert next(consumer.until_caught_up()).value == {"a": 1, "b": None}


def test_partitions_added_while_producers_and_consumers_run(log, other):
    log.create_topic("t")
    with (
        other.producer(partition_by="round_robin") as producer,
        other.consumer("t", start="latest") as alone,
        other.consumer("t", group="g", start="latest") as member,
    ):
        producer.send("t", b"first").wait()
        with pytest.raises(UnknownPartition):
            producer.send("t", b"x", partition=3)
        log.change_topic("t", partitions=4)
        assert producer.send("t", b"explicit", partition=3).partition == 3
        for number in range(8):
            producer.send("t", b"%d" % number)
        producer.flush()
        expected = sorted([b"first", b"explicit", *(b"%d" % number for number in range(8))])
        for consumer in (alone, member):
            seen = []
            wait_until(lambda consumer=consumer, seen=seen: seen.extend(consumer.poll(0.1)) or len(seen) >= 10)
            assert sorted(record.value for record in seen) == expected
            assert len(consumer.assignment) == 4


def test_what_groups_remember_goes_with_a_deleted_topic(log, read):
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", b"old").wait()
        assert read(log, "t", group="g") == [b"old"]
        assert log.describe_group("g").partitions[0].next_offset == 1
        log.delete_topic("t")
        assert log.describe_group("g").partitions == ()
        log.create_topic("t")
        producer.send("t", b"new").wait()
    assert read(log, "t", group="g") == [b"new"]


def test_a_writer_and_a_reader_learn_that_their_topic_was_deleted(log, other):
    log.create_topic("t")
    with other.producer() as producer, other.consumer("t") as consumer:
        producer.send("t", b"x").wait()
        consumer.poll(1)
        log.delete_topic("t")
        with pytest.raises(UnknownTopic):
            producer.send("t", b"y").wait()
        with pytest.raises(UnknownTopic):
            wait_until(lambda: consumer.poll(0.1))
        log.create_topic("t")
        assert producer.send("t", b"z").offset == 0
        with pytest.raises(UnknownTopic):
            producer.flush()
        with other.consumer("t") as again:
            assert [r.value for r in again.poll(1)] == [b"z"]


def test_a_batch_sent_before_its_topic_was_recreated_does_not_poison_it(tmp_path, read):
    from .disks import GatedDisk

    disk = GatedDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as slow, EmbeddedLog(tmp_path, upkeep=False) as log:
        log.create_topic("t", schema="a int")
        log.create_topic("first")
        with slow.producer() as producer:
            disk.gate.clear()
            producer.send("first", b"x")
            receipt = producer.send_batch("t", pa.table({"a": pa.array([1, 2], pa.int32())}))
            log.delete_topic("t")
            log.create_topic("t", schema="other string")
            disk.gate.set()
            with pytest.raises(MillstreamError):
                receipt.wait(10)
            producer.send("t", {"other": "fits"}).wait()
            with pytest.raises(MillstreamError):
                producer.flush()
        assert read(log, "t") == [{"other": "fits"}]


def test_a_member_of_a_group_continues_with_a_recreated_topic(log, other):
    log.create_topic("t")
    with other.consumer("t", group="g") as consumer, log.producer() as producer:
        producer.send("t", b"old").wait()
        assert [r.value for r in consumer.poll(1)] == [b"old"]
        log.delete_topic("t")
        log.create_topic("t")
        producer.send("t", b"new").wait()

        def polled():
            try:
                return [record.value for record in consumer.poll(0.1)]
            except UnknownTopic:
                return []

        assert wait_until(polled) == [b"new"]


def test_deleting_twice_at_once_deletes_what_was_meant(log, other):
    log.create_topic("t")
    other.topic("t").partition(0)
    with log.topic("t").partition(0).lock:
        waiting = threading.Thread(target=lambda: outcome.append(_error_of(lambda: other.delete_topic("t"))))
        outcome = []
        waiting.start()
        time.sleep(0.3)  # by now it waits for the lock
        (log.path / "topics" / "t").rename(log.path / "topics" / ".deleted-by-hand")
        for path in sorted((log.path / "topics" / ".deleted-by-hand").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        log.create_topic("t")
    waiting.join()
    assert [type(error) for error in outcome] == [UnknownTopic]
    assert log.topics() == ["t"]


def _error_of(act):
    try:
        act()
    except MillstreamError as error:
        return error
    return None


def test_others_work_on_while_topics_come_and_go(log, other):
    log.create_topic("steady", partitions=2)
    stop = threading.Event()

    def come_and_go():
        number = 0
        while not stop.is_set():
            log.create_topic(f"brief-{number % 3}")
            log.delete_topic(f"brief-{number % 3}")
            number += 1

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        with other.consumer("steady", group="g") as consumer, other.producer() as producer:
            seen = []
            for number in range(60):
                producer.send("steady", b"%d" % number, partition=number % 2)
                seen += consumer.poll(0.02)
                other.topics()
                other.describe_group("g")
            wait_until(lambda: seen.extend(consumer.poll(0.1)) or len(seen) == 60)
    finally:
        stop.set()
        thread.join()


def test_a_topic_recreated_at_once_is_seen_by_other_handles(log, other):
    log.create_topic("t")
    with other.producer() as producer:
        for number in range(20):
            assert producer.send("t", b"%d" % number).offset == 0
            log.delete_topic("t")
            log.create_topic("t")


def test_a_change_within_one_tick_of_the_clock_is_seen_by_other_handles(log, other):
    description = log.create_topic("t").folder / "topic.json"
    before = description.stat().st_mtime_ns
    assert len(other.describe_topic("t").partitions) == 1
    log.change_topic("t", partitions=2)
    os.utime(description, ns=(before, before))
    assert len(other.describe_topic("t").partitions) == 2


def test_a_member_continues_with_the_topics_that_are_left(log, other):
    for topic in ("t", "gone"):
        log.create_topic(topic)
    with other.consumer(["t", "gone"], group="g") as consumer, log.producer() as producer:
        assert len(consumer.assignment) == 2
        log.delete_topic("gone")
        for number in range(4):  # over several looks at the group
            producer.send("t", b"%d" % number).wait()
            assert [record.value for record in consumer.poll(1)] == [b"%d" % number]
            time.sleep(0.15)
        assert consumer.assignment == [TopicPartition("t", 0)]


def test_changes_in_quick_succession_are_all_seen_by_other_handles(log, other):
    log.create_topic("t")
    for count in range(2, 30):
        log.change_topic("t", partitions=count)
        assert len(other.describe_topic("t").partitions) == count


def test_retention_and_compaction_are_applied_on_demand(log, read):
    log.create_topic("t", segment_bytes=4096, retention_bytes=4096)
    log.create_topic("c", segment_bytes=4096, compaction=True)
    with log.producer(linger="0 seconds") as producer:
        for number in range(40):
            producer.send("t", b"%d" % number * 200).wait()
            producer.send("c", b"%d" % number, key="k" + "x" * 200).wait()
    log.clean()
    assert log.describe_topic("t").partitions[0].start_offset > 0
    assert len(read(log, "c")) < 40
    assert read(log, "c")[-1] == b"39"
    with log.consumer("t", start=0, on_lost="earliest") as consumer:
        assert next(consumer.until_caught_up()).offset == log.describe_topic("t").partitions[0].start_offset
        assert consumer.lost[0].from_offset == 0


def test_a_topic_that_feeds_a_queue_or_takes_its_dead_letters_is_not_deleted(log):
    log.create_topic("t")
    log.create_queue("q", "t")
    for topic in ("t", "q.dead"):
        with pytest.raises(InvalidInput, match="q"):
            log.delete_topic(topic)
    log.delete_queue("q")
    log.delete_topic("t")
    log.delete_topic("q.dead")


def test_a_failed_creation_leaves_nothing_behind(tmp_path):
    from .disks import FailingDisk

    disk = FailingDisk("half")
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        disk.fail(2)
        with pytest.raises(MillstreamError):
            log.create_topic("t", partitions=3)
        assert list((tmp_path / "topics").iterdir()) == []
        log.create_topic("t", partitions=3)


def test_records_older_than_the_retention_go(log, read):
    log.create_topic("t", retention="1 hour", segment_bytes=4096)
    old = datetime.now(UTC) - timedelta(hours=2)
    with log.producer(linger="0 seconds") as producer:
        for _ in range(10):
            producer.send("t", b"old" * 400, timestamp=old).wait()
        log.clean("t")
        assert read(log, "t") == []
        producer.send("t", b"new").wait()
        log.clean("t")
    assert read(log, "t") == [b"new"]


@pytest.mark.parametrize("setting", ["replication_factor", "min_insync_replicas"])
def test_the_embedded_log_stays_on_one_machine(log, setting):
    with pytest.raises(InvalidSetting, match="one machine"):
        log.create_topic("t", **{setting: 2})
    log.create_topic("t")
    with pytest.raises(InvalidSetting, match="one machine"):
        log.change_topic("t", **{setting: 2})
