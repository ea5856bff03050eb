"""Goal: what happens to a partition behind the back of those who have it open never costs a record.

Method: a second handle on the same log deletes, changes, repairs or recovers what the first one uses.
"""

import gc
import os
import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.errors import DamagedLog, InvalidInput, InvalidRecord, InvalidSetting, UnknownTopic
from millstream.log import EmbeddedLog
from millstream.log.embedded import folder as log_folder
from millstream.log.storage.compaction import compact
from millstream.log.storage.disk import Disk
from millstream.log.storage.mark import MarkFile
from millstream.log.storage.upkeep import Upkeep

from .support import OTHER_BOOT, frame, keyed, opened, read_all, segments

NEVER = -(2**60)


@pytest.fixture
def log(folder):
    with EmbeddedLog(folder.parent / "log", upkeep=False) as made:
        yield made


@pytest.fixture
def other(log):
    with EmbeddedLog(log.path, upkeep=False) as made:
        yield made


def send(log, topic, *values, acks="all"):
    with log.producer(acks=acks) as producer:
        for value in values:
            producer.send(topic, value)
            producer.flush()


def read(log, topic, **settings):
    with log.consumer(topic, **settings) as consumer:
        return [record.value for record in consumer.until_caught_up()]


def recreate(log, topic="t", **settings):
    log.delete_topic(topic)
    log.create_topic(topic, **settings)


def test_a_stale_partition_does_not_touch_a_recreated_topic(log, other):
    log.create_topic("t")
    send(log, "t", b"old" * 300)
    stale = other.find_partition("t", 0)  # its lock is opened only now, and is the new topic's
    recreate(log)
    send(log, "t", b"1", b"2", b"3")
    for write in (lambda: stale.append([frame(b"x")], sync=True), stale.sync, stale.roll, stale.refresh):
        with pytest.raises(UnknownTopic):
            write()
    assert read(log, "t") == [b"1", b"2", b"3"]


def test_a_stale_partition_notices_a_topic_whose_folder_was_only_moved_away(log, other, monkeypatch):
    """The process that deleted it was killed before it came to the files."""
    log.create_topic("t")
    stale = other.find_partition("t", 0)
    stale.sync()
    monkeypatch.setattr("millstream.log.embedded.log.shutil.rmtree", lambda *_, **__: None)
    recreate(log)
    with pytest.raises(UnknownTopic):
        stale.append([frame(b"x")], sync=True)


@pytest.mark.parametrize("is_open", [True, False])
def test_upkeep_with_outdated_settings_leaves_a_recreated_topic_alone(log, other, is_open):
    log.create_topic("t", segment_bytes=4096, retention_bytes=4096)
    stale = other.topic("t")
    kept = stale.partitions() if is_open else []
    recreate(log, segment_bytes=4096)
    values = [b"%d" % number * 500 for number in range(20)]
    send(log, "t", *values)
    with pytest.raises(UnknownTopic):
        Upkeep(other).clean(stale)
    assert read(log, "t") == values
    assert len(kept) == is_open


def test_what_was_lost_with_the_machine_was_not_read_by_groups_and_queues(log):
    log.create_topic("t")
    log.create_queue("q", "t", timeout="1 hour")
    send(log, "t", b"a0", b"a1")
    send(log, "t", b"b0", b"b1", b"b2", acks=1)
    assert len(read(log, "t", group="g")) == 5
    with log.queue("q") as queue:
        messages = [message for _ in range(5) for message in queue.receive_many(1)]
        assert len(messages) == 5
        queue.acknowledge(messages[2:4])
        queue.acknowledge(messages[:2])
    folder = log.topic("t").folder / "0"
    mark = log.find_partition("t", 0).marks.read()
    log.close()
    os.truncate(segments(folder)[0], mark.synced.position)
    MarkFile.create(folder / "mark", replace(mark, boot=OTHER_BOOT), Disk())
    with EmbeddedLog(log.path, upkeep=False) as again:
        send(again, "t", *(b"c%d" % number for number in range(9)))
        assert read(again, "t", group="g") == [b"c%d" % number for number in range(9)]
        with again.queue("q") as queue:
            messages = [message for _ in range(9) for message in queue.receive_many(1)]
            assert [message.record.offset for message in messages] == list(range(2, 11))


def test_a_group_starts_over_after_an_interrupted_deletion(log, monkeypatch):
    log.create_topic("t")
    send(log, "t", b"old")
    assert read(log, "t", group="g") == [b"old"]

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("millstream.log.embedded.log.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            log.delete_topic("t")
    log.create_topic("t")
    send(log, "t", b"new")
    assert read(log, "t", group="g") == [b"new"]
    leftover = [path for path in (log.path / "topics").iterdir() if path.name.startswith(".deleted-")]
    assert leftover
    monkeypatch.setattr(log_folder, "LEFTOVER_SECONDS", -1.0)
    EmbeddedLog(log.path, upkeep=False).close()
    assert not leftover[0].exists()
    assert read(log, "t") == [b"new"]


def test_a_pending_deletion_does_not_touch_a_recreated_topic(log, other):
    log.create_topic("t")
    partition, outcome = log.find_partition("t", 0), []

    def delete():
        with pytest.raises(UnknownTopic) as refused:
            other.delete_topic("t")
        outcome.append(refused.value)

    with partition.lock:
        waiting = threading.Thread(target=delete)
        waiting.start()
        time.sleep(0.2)
        (log.path / "topics" / "t").rename(log.path / "topics" / ".deleted-by-hand")
        log.create_topic("t")
    waiting.join()
    assert len(outcome) == 1
    assert log.topics() == ["t"]


def test_a_damaged_topic_can_be_deleted(log):
    log.create_topic("t", partitions=2)
    log.create_topic("u")
    log.create_queue("q", "u")
    (log.path / "topics/t/0/mark").unlink()
    (log.path / "topics/u/0/mark").unlink()
    log.delete_topic("t")
    assert "t" not in log.topics()


def test_a_topic_does_not_gain_a_schema_while_a_record_comes_in(log, other):
    log.create_topic("t")
    partition, failures = log.find_partition("t", 0), []

    def change():
        try:
            other.change_topic("t", schema="a int")
        except InvalidSetting as error:
            failures.append(error)

    with partition.lock:
        thread = threading.Thread(target=change)
        thread.start()
        time.sleep(0.2)
        partition.append([frame(b"bytes")], sync=False)
    thread.join()
    assert len(failures) == 1
    assert read(other, "t") == [b"bytes"]


def test_records_laid_out_before_the_topic_had_a_schema_are_refused(log, other):
    log.create_topic("t")
    partition = log.find_partition("t", 0)
    other.change_topic("t", schema="a int")
    with pytest.raises(InvalidRecord, match="schema"):
        partition.append([frame(b"bytes")], sync=False)
    assert partition.end_offset() == 0


def test_an_open_partition_continues_after_a_repair(log, other):
    log.create_topic("t")
    send(log, "t", b"r0", b"r1", b"r2")
    path = segments(log.topic("t").folder / "0")[0]
    partition = log.find_partition("t", 0)
    partition.sync()  # has the damaged file open for writing
    with log.consumer("t") as consumer:
        assert len(list(consumer.until_caught_up())) == 3
        content = bytearray(path.read_bytes())
        content[content.index(b"r1")] ^= 1
        path.write_bytes(content)
        assert other.repair_topic("t")[0].lost == ((1, 2),)
        send(other, "t", b"after")
        assert partition.append([frame(b"here")], sync=True) == [4]
        assert [record.value for record in consumer.until_caught_up()] == [b"after", b"here"]
    assert read(other, "t") == [b"r0", b"r2", b"after", b"here"]


def test_files_are_closed_when_partitions_are_no_longer_used(log):
    log.create_topic("t", partitions=30)
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with log.producer() as producer:
        for number in range(30):
            producer.send("t", b"x", partition=number)
    with log.consumer("t") as consumer:
        assert len(list(consumer.until_caught_up())) == 30
    del producer, consumer
    log.describe_topic("t")
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 6


def test_a_missing_coordinator_is_not_recreated_silently(log):
    log.create_topic("t")
    log.close()
    for path in log.path.glob("coordinator.sqlite*"):
        path.unlink()
    with pytest.raises(DamagedLog, match="coordinator's file is missing") as refused:
        EmbeddedLog(log.path)
    assert "empty file" in refused.value.next_step
    (log.path / "coordinator.sqlite").touch()
    with EmbeddedLog(log.path, upkeep=False) as again:
        assert again.topics() == ["t"]
        assert again.groups() == []


def test_compaction_merges_what_little_is_left_of_many_segments(folder):
    partition = opened(folder)
    for number in range(100):
        partition.append([keyed([(b"%d" % (number % 3), b"%d" % number * 200)])], sync=False)
    partition.roll()
    assert len(segments(folder)) > 10
    newest = {record.key: record for record in read_all(partition)}
    assert compact(partition, tombstones_before_us=NEVER)
    assert len(segments(folder)) == 2  # the compacted one and the active one
    assert read_all(partition) == sorted(newest.values())


def test_requested_compaction_runs_however_little_is_new(folder):
    partition = opened(folder)
    for number in range(12):
        partition.append([keyed([(b"%d" % number, b"x" * 900)])], sync=False)
    partition.roll()
    assert compact(partition, tombstones_before_us=NEVER)
    partition.append([keyed([(b"0", b"new")])], sync=False)
    partition.roll()
    assert not compact(partition, tombstones_before_us=NEVER)
    assert compact(partition, tombstones_before_us=NEVER, forced=True)
    assert [record.offset for record in read_all(partition)] == list(range(1, 13))


def test_a_log_is_not_sent_to_another_process(log):
    with pytest.raises(InvalidInput, match="cannot be sent"):
        pickle.dumps(log)
