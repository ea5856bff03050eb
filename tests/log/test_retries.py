"""Goal: however the disk fails, a record that was sent is stored once and in order, or its sender gets an error.

Method: a disk that fails call number n, before, half way through or after doing what it was asked, for every n; the
same with two failures in a row; and a process that dies at every step.
"""

# ruff: noqa: PT012 - what is raised has to leave a whole block: a transaction, or sending until there is no room

import itertools
import sqlite3
import time
from types import SimpleNamespace

import pytest

from millstream.errors import DiskFull, StorageError
from millstream.log import EmbeddedLog

from .disks import FailingDisk
from .processes import lines, produce_until_step, run

MOMENTS = ["before", "half", "after"]


def _send_with_failures(folder, moment, acks, numbers, name=None):
    """What is stored when these calls fail, and how many failed."""
    disk = FailingDisk(moment)
    with EmbeddedLog(folder, disk=disk, upkeep=False) as log:
        log.create_topic("t", partitions=2)
        with log.producer(acks=acks, linger="0 seconds", name=name) as producer:
            producer.send("t", b"first", partition=0).wait()
            producer.send("t", b"first", partition=1).wait()
            disk.fail(*numbers)
            receipts = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(4)]
            for receipt in receipts:
                receipt.wait(30)
            failed = disk.failed
            disk.fail()
            producer.send("t", b"last", partition=0).wait(30)
    with EmbeddedLog(folder, upkeep=False) as log:
        stored = []
        for partition in range(2):
            with log.consumer("t", partitions=[partition]) as consumer:
                stored.append([record.value for record in consumer.until_caught_up()])
    return stored, failed


@pytest.fixture
def _quick(monkeypatch):
    monkeypatch.setattr("millstream.log.producer.RETRY_SECONDS", 0.001)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("acks", [1, "all"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_retry_never_duplicates(tmp_path, moment, acks):
    for number in itertools.count(1):
        stored, failed = _send_with_failures(tmp_path / str(number), moment, acks, [number])
        assert stored == [[b"first", b"0", b"2", b"last"], [b"first", b"1", b"3"]], f"call {number}"
        if not failed:
            break
    assert number > 4


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("name", [None, "named"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_several_retries_never_duplicate(tmp_path, moment, name):
    for number in itertools.count(1):
        stored, failed = _send_with_failures(
            tmp_path / str(number), moment, "all", [number, number + 1, number + 3], name
        )
        assert stored == [[b"first", b"0", b"2", b"last"], [b"first", b"1", b"3"]], f"call {number}"
        if not failed:
            break
    assert number > 4


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_retry_after_compaction_stores_nothing_twice(tmp_path, monkeypatch, moment):
    """Method: between a failed attempt and the retry, another process fills segments and compacts them."""

    def meanwhile(_):
        with other.producer() as producer:
            for _ in range(20):
                producer.send("t", b"x" * 500, key=b"filler")
                producer.flush()
            producer.send("t", b"newer", key=b"key")
        other.clean("t")

    monkeypatch.setattr("millstream.log.producer.time", SimpleNamespace(**{**vars(time), "sleep": meanwhile}))
    for number in itertools.count(1):
        folder, disk = tmp_path / str(number), FailingDisk(moment)
        with EmbeddedLog(folder, disk=disk, upkeep=False) as log, EmbeddedLog(folder, upkeep=False) as other:
            log.create_topic("t", compaction=True, segment_bytes=4096)
            with log.producer(acks="all", linger="0 seconds") as producer:
                producer.send("t", b"first", key=b"first").wait(30)
                disk.fail(number)
                place = producer.send("t", b"once", key=b"key").wait(30)
                failed = disk.failed
                disk.fail()
            stored = _stored(other)
            assert [offset for offset, value in stored if value == b"once"] == [place.offset], f"call {number}"
            meanwhile(0)  # nothing keeps compaction away any more
            assert [value for _, value in _stored(other)].count(b"x" * 500) < 20
            assert [value for _, value in _stored(other) if value in (b"once", b"newer")][-1] == b"newer"
        if not failed:
            break
    assert number > 2


def _stored(log):
    with log.consumer("t") as consumer:
        return [(record.offset, record.value) for record in consumer.until_caught_up()]


@pytest.mark.more
@pytest.mark.parametrize("acks", [1, "all"])
def test_a_producer_killed_at_any_step_loses_nothing_acknowledged(tmp_path, read, acks):
    for last in itertools.count(1):
        folder, diary = tmp_path / str(last), tmp_path / f"diary-{last}"
        with EmbeddedLog(folder, upkeep=False) as log:
            log.create_topic("t")
        code = run(produce_until_step, folder, diary, acks, last)
        acknowledged = [int(line) for line in lines(diary)]
        with EmbeddedLog(folder, upkeep=False) as log, log.producer() as producer:
            stored = [int(value) for value in read(log, "t")]
            assert stored == list(range(len(stored)))
            assert acknowledged == list(range(len(acknowledged)))
            assert len(acknowledged) <= len(stored) <= len(acknowledged) + 1
            producer.send("t", b"99").wait()
            after = [int(value) for value in read(log, "t")]
            # Recovery may still keep a whole frame that was written and not acknowledged.
            assert after in ([*stored, 99], [*stored, len(stored), 99])
        if code == 0:
            break
        assert code == -9
    assert last > 20


def test_a_new_producer_of_a_name_is_not_taken_for_the_one_before(tmp_path, read):
    """A frame that the former one left above the mark must not pass for a retry of the new one's first."""
    disk = FailingDisk("after")
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        former = log.producer(name="p", linger="0 seconds")
        partition = log.topic("t").partition(0)
        before = partition.marks.read()
        former.send("t", b"former").wait()
        former._storing.named._participant.close()
        partition.marks.write(before, sync=False)  # the former died between the frame and its mark
        partition.marks.write(before, sync=False)
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        producer = log.producer(name="p", linger="0 seconds")
        disk.moment = "before"
        disk.fail(1)
        producer.send("t", b"new").wait(30)
        producer.close()
        assert read(log, "t")[-1] == b"new"


def test_a_full_disk_refuses_and_everything_is_stored_when_there_is_room(tmp_path, read):
    disk = FailingDisk("before")
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer(linger="0 seconds") as producer:
            disk.fail(*range(1, 4))
            receipts = [producer.send("t", b"%d" % number) for number in range(10)]
            with pytest.raises(DiskFull):
                producer.flush()
            for receipt in receipts:
                receipt.wait(30)
        assert read(log, "t") == [b"%d" % number for number in range(10)]


def test_a_full_coordinator_says_so_and_continues_when_there_is_room(log, read):
    log.create_topic("t")
    producer = log.producer(name="p")
    db = log.coordinator._db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFull), log.coordinator.change() as change:
        for number in range(10_000):
            change.execute("INSERT INTO groups VALUES (?, 0)", (f"{number}" * 20,))
    assert not db.in_transaction
    db.execute("PRAGMA max_page_count = 1000000")
    with producer.transaction():
        producer.send("t", b"x")
    producer.close()
    assert read(log, "t") == [b"x"]
    assert log.groups() == []


def _no_commit(action, what, *_):
    return sqlite3.SQLITE_DENY if (action, what) == (sqlite3.SQLITE_TRANSACTION, "COMMIT") else sqlite3.SQLITE_OK


def test_a_change_that_cannot_be_committed_does_not_block_the_next(log, other):
    log.create_topic("t")
    db = log.coordinator._db
    db.set_authorizer(_no_commit)
    with pytest.raises(StorageError):
        log.producer(name="p")
    assert not db.in_transaction
    other.producer(name="p").close()
    db.set_authorizer(None)
    log.producer(name="p").close()


def test_a_member_that_cannot_say_that_it_leaves_is_found_dead(log, other):
    log.create_topic("t")
    member = log.consumer("t", group="g")
    log.coordinator._db.set_authorizer(_no_commit)
    with pytest.raises(StorageError):
        member.close()
    log.coordinator._db.set_authorizer(None)
    with other.consumer("t", group="g") as heir:
        heir.poll(0.5)
        assert len(heir.assignment) == 1
