"""Goal: what a user reads when something of a log is missing or cannot be written names that thing and what to do."""

import errno
import resource
from pathlib import Path

import pytest

from millstream.errors import DamagedLog, DiskFull, InvalidSetting, NoAccess, NotALog, UnknownTopic
from millstream.log import EmbeddedLog
from millstream.log.topics import EMBEDDED_PARTITIONS_MAX

from .disks import SickDisk


def reopened(log, **settings):
    return EmbeddedLog(log.path, upkeep=False, **settings)


def test_a_topic_without_its_description(log):
    log.create_topic("t")
    (log.path / "topics" / "t" / "topic.json").unlink()
    with pytest.raises(DamagedLog, match="topic 't' has no description") as raised:
        log.topic("t")
    assert raised.value.where == str(log.path / "topics" / "t" / "topic.json")
    with pytest.raises(UnknownTopic, match="there is no topic 'u'"):
        log.topic("u")


def test_a_partition_without_its_folder(log):
    log.create_topic("t", partitions=2)
    with log.producer() as producer:
        for _ in range(5):
            producer.send("t", b"x", partition=1)
    with log.consumer("t", group="g") as consumer:
        assert len(list(consumer.until_caught_up())) == 5
    log.close()
    folder = log.path / "topics" / "t" / "1"
    folder.rename(log.path / "elsewhere")
    with reopened(log) as opened:
        with pytest.raises(DamagedLog, match="the folder of partition 1 is missing") as raised:
            opened.consumer("t")
        assert raised.value.where == str(folder)
        first, second = opened.repair_topic("t")
        assert (first.lost, second.lost) == ((), ((0, 5),))  # as far as the group had come
        with opened.producer() as producer:
            assert producer.send("t", b"new", partition=1).offset == 5
        with opened.consumer("t", group="g") as consumer:
            assert [record.value for record in consumer.until_caught_up()] == [b"new"]


def test_a_folder_where_the_coordinator_should_be(tmp_path):
    with EmbeddedLog(tmp_path / "log", upkeep=False):
        pass
    for path in (tmp_path / "log").glob("coordinator.sqlite*"):
        path.unlink()
    (tmp_path / "log" / "coordinator.sqlite").mkdir()
    with pytest.raises(NotALog, match="a folder where a file should be"):
        EmbeddedLog(tmp_path / "log", upkeep=False)


def test_a_mount_that_is_read_only(log):
    disk = SickDisk()
    with reopened(log, disk=disk) as opened:
        disk.error = errno.EROFS
        with pytest.raises(NoAccess, match="mounted read-only") as raised:
            opened.create_topic("t")
        assert "rights" not in str(raised.value)


def test_a_full_disk_says_what_it_means_for_whom(log):
    disk = SickDisk()
    with reopened(log, disk=disk) as opened:
        opened.create_topic("t")
        disk.error = errno.ENOSPC
        with pytest.raises(DiskFull) as raised:
            opened.create_topic("u")
        assert "producer" not in str(raised.value)
        with opened.producer() as producer:
            producer.send("t", b"x")
            with pytest.raises(DiskFull, match="the producer keeps the records"):
                producer.flush()
            disk.error = None
        assert opened.topics() == ["t"]


def test_other_things_beside_the_topics(log):
    log.create_topic("t")
    (log.path / "topics" / "my notes").mkdir()
    (log.path / "topics" / "notes.txt").write_text("x")
    (log.path / "topics" / "stray").mkdir()
    assert log.topics() == ["stray", "t"]
    with pytest.raises(DamagedLog, match="topic 'stray' has no description"):
        log.describe_topic("stray")
    with pytest.raises(UnknownTopic):
        log.topic("notes.txt")


def test_more_partitions_than_can_be_used_are_refused_before_anything_is_made(log, monkeypatch):
    with pytest.raises(InvalidSetting, match=f"at most {EMBEDDED_PARTITIONS_MAX} partitions"):
        log.create_topic("t", partitions=10_000)
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    with pytest.raises(InvalidSetting, match="this process may open 256"):
        log.create_topic("t", partitions=100)
    log.create_topic("u", partitions=10)
    with pytest.raises(InvalidSetting, match="open files"):
        log.change_topic("u", partitions=100)
    assert log.topics() == ["u"]
    assert [path.name for path in (log.path / "topics").iterdir()] == ["u"]


def test_a_topic_of_many_partitions_is_described_one_by_one(log):
    """So it needs few files at once."""
    log.create_topic("t", partitions=50)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 20, before[1]))
    try:
        assert len(log.describe_topic("t").partitions) == 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
