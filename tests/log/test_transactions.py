"""Goal: of a transaction committed readers see all or nothing, whatever happens to who makes it.

Method: a real process is killed at step 1, 2, 3 … of disk and coordinator until a run comes through; after each death
readers and a new producer of the same name must find the same truth in every partition.
"""

# ruff: noqa: PT012 - what is raised has to leave a whole block: a transaction, or sending until there is no room

import errno
import itertools

import pytest

from millstream.errors import InvalidInput, MillstreamError, ProducerFenced, StorageError, UnknownTopic
from millstream.log import EmbeddedLog

from .disks import SickDisk
from .processes import (
    die_after_verdict,
    lines,
    open_transaction,
    run,
    running,
    start,
    transactions_until_step,
    wait_until,
)


def test_a_transaction_over_topics_and_partitions_is_seen_whole_or_not_at_all(log, other, read):
    log.create_topic("a", partitions=2)
    log.create_topic("b", schema="n int")
    with log.producer(name="p") as producer:
        with producer.transaction():
            producer.send("a", b"1", partition=0)
            producer.send("a", b"1", partition=1)
            producer.send("b", {"n": 1})
            producer.flush()
            assert read(other, "a") == read(other, "b") == []
            assert len(read(other, "a", isolation="read_uncommitted")) == 2
        assert read(other, "a") == [b"1", b"1"]
        assert read(other, "b") == [{"n": 1}]
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("a", b"2", partition=0)
            producer.flush()
            raise ZeroDivisionError
        with producer.transaction():
            producer.send("a", b"3", partition=0)
        producer.send("a", b"outside", partition=0)
    assert read(other, "a", partitions=[0]) == [b"1", b"3", b"outside"]
    assert read(other, "a", partitions=[0], isolation="read_uncommitted") == [b"1", b"2", b"3", b"outside"]


@pytest.mark.parametrize("settings", [{"retention_bytes": 4096}, {"compaction": True}], ids=["deleted", "compacted"])
def test_aborted_transactions_are_forgotten_with_their_segments(log, other, read, settings):
    """Also those of a reader with an older count, of the next process, and after a repair."""
    log.create_topic("t", segment_bytes=4096, **settings)
    sizes = []
    with log.producer(name="p") as producer:
        for number in range(60):
            with producer.transaction():
                producer.send("t", b"%d" % number + b"x" * 300, key=b"%d" % (number % 7))
            with pytest.raises(ZeroDivisionError), producer.transaction():
                producer.send("t", b"aborted" + b"x" * 300, key=b"%d" % (number % 7))
                producer.flush()
                raise ZeroDivisionError
            if number % 10 == 9:
                other.clean("t")
                sizes.append((other.topic("t").partition(0).folder / "aborted").stat().st_size)
                for handle in (log, other):
                    assert not [value for value in read(handle, "t") if value.startswith(b"aborted")]
    kept = read(other, "t")
    assert max(sizes) < 40 * 24  # of 60
    assert kept[-1].startswith(b"59")
    with EmbeddedLog(log.path, upkeep=False) as next_process:
        assert read(next_process, "t") == kept
        next_process.repair_topic("t")
        assert read(next_process, "t") == kept
        with next_process.producer(name="q") as producer, pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("t", b"aborted", key=b"1")
            producer.flush()
            raise ZeroDivisionError
        assert read(next_process, "t") == kept


class Foreign:
    """Progress on a broker of another kind."""

    must_rewind = False
    transaction_type = int

    def commit_with(self, transaction):
        raise AssertionError("it cannot be part of this transaction")

    committed_elsewhere = rewind = commit_with


def test_the_progress_of_another_broker_is_refused_before_anything_is_sent(log, read):
    log.create_topic("a")
    with log.producer(name="p") as producer:
        with pytest.raises(InvalidInput, match="of the same broker"), producer.transaction(Foreign()):
            producer.send("a", b"1")
        with producer.transaction():
            producer.send("a", b"2")
    assert len(read(log, "a")) == 1


def test_an_open_transaction_holds_back_committed_readers_and_no_others(log, read):
    log.create_topic("t")
    with log.producer(name="p") as producer, log.producer() as plain:
        with producer.transaction():
            producer.send("t", b"inside").wait()
            plain.send("t", b"plain").wait()
            assert read(log, "t") == []
            assert read(log, "t", isolation="read_uncommitted") == [b"inside", b"plain"]
            assert log.describe_topic("t").partitions[0].open_transactions == 1
        assert read(log, "t") == [b"inside", b"plain"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_leaves_the_block_aborts(log, read, error):
    log.create_topic("t")
    with log.producer(name="p", linger="10 minutes") as producer:
        with pytest.raises(error), producer.transaction():
            stored = producer.send("t", b"stored").wait()
            waiting = producer.send("t", b"waiting")
            raise error
        assert stored.error is None
        with pytest.raises(MillstreamError):
            waiting.wait(5)
        assert read(log, "t") == []
        with producer.transaction():
            producer.send("t", b"next")
    assert read(log, "t") == [b"next"]


def test_a_refused_record_aborts_its_transaction(log, read):
    log.create_topic("t", schema="n int NOT NULL")
    with log.producer(name="p") as producer:
        with pytest.raises(MillstreamError), producer.transaction():
            producer.send("t", {"n": 1})
            producer.send("t", {"n": None})
        assert read(log, "t") == []
        with producer.transaction():
            producer.send("t", {"n": 2})
    assert read(log, "t") == [{"n": 2}]


def test_empty_transactions_and_long_rows_of_them(log, read):
    log.create_topic("t")
    with log.producer(name="p", linger="0 seconds") as producer:
        for number in range(30):
            with producer.transaction():
                if number % 3:
                    producer.send("t", b"%d" % number)
    assert read(log, "t") == [b"%d" % number for number in range(30) if number % 3]


@pytest.mark.more
def test_a_transaction_killed_at_any_step_is_all_or_nothing(tmp_path, read):
    for last in itertools.count(1):
        folder, diary = tmp_path / str(last), tmp_path / f"diary-{last}"
        with EmbeddedLog(folder, upkeep=False) as log:
            log.create_topic("a", partitions=2)
            log.create_topic("b")
        code = run(transactions_until_step, folder, diary, last)
        with EmbeddedLog(folder, upkeep=False) as log:
            if last % 2:  # else the first to look at it is the next producer
                _check(_seen(log, read), lines(diary))
            with log.producer(name="p") as producer, producer.transaction():
                producer.send("a", b"4", partition=0)
                producer.send("a", b"4", partition=1)
                producer.send("b", b"4")
            seen = _seen(log, read)
            assert seen[-1] == b"4"
            _check(seen[:-1], lines(diary))
            for topic in ("a", "b"):
                assert all(p.open_transactions == 0 for p in log.describe_topic(topic).partitions)
        if code == 0:
            break
        assert code == -9
    assert last > 40


def _seen(log, read):
    found = [read(log, "a", partitions=[0]), read(log, "a", partitions=[1]), read(log, "b")]
    assert found[0] == found[1] == found[2]
    return found[0]


def _check(seen, reported):
    """Everything reported as committed is there; at most one more, whose death came between verdict and report."""
    assert seen in ([], [b"1"], [b"1", b"3"])
    assert len(reported) <= len(seen) <= len(reported) + 1


@pytest.mark.parametrize("use", ["poll", "iterate", "poll without waiting", "group", "queue"])
def test_a_blocked_reader_ends_a_dead_producers_transaction(tmp_path, log, use):
    log.create_topic("t")
    log.create_queue("q", "t")
    child = start(open_transaction, log.path, tmp_path / "diary", "t", b"never", "p")
    with running(child), log.producer() as plain:
        wait_until(lambda: lines(tmp_path / "diary"))
        plain.send("t", b"behind").wait()
        with log.consumer("t") as consumer:
            assert consumer.poll(0.3) == []
        child.kill()
        child.join()
        if use == "queue":
            with log.queue("q") as queue:
                assert queue.receive(30).value == b"behind"
            return
        with log.consumer("t", group="g" if use == "group" else None) as consumer:
            if use == "iterate":
                assert next(iter(consumer)).value == b"behind"
            elif use == "poll without waiting":
                assert [r.value for r in wait_until(consumer.poll)] == [b"behind"]
            else:
                assert [r.value for r in wait_until(lambda: consumer.poll(1))] == [b"behind"]


def test_a_busy_partition_does_not_keep_a_dead_transaction_in_another_from_being_ended(tmp_path, log):
    log.create_topic("t", partitions=2)
    child = start(open_transaction, log.path, tmp_path / "diary", "t", b"never", "p")
    with running(child), log.producer(linger="0 seconds") as plain, log.consumer("t") as consumer:
        wait_until(lambda: lines(tmp_path / "diary"))
        plain.send("t", b"behind", partition=0).wait()
        child.kill()
        child.join()
        seen = set()

        def found():
            plain.send("t", b"busy", partition=1).wait()
            seen.update(record.value for record in consumer.poll(0, max_records=1))
            return b"behind" in seen

        wait_until(found)


def test_a_batch_read_does_not_stop_before_a_dead_transaction(tmp_path, log, read):
    log.create_topic("t")
    child = start(open_transaction, log.path, tmp_path / "diary", "t", b"never", "p")
    with running(child), log.producer() as plain:
        wait_until(lambda: lines(tmp_path / "diary"))
        plain.send("t", b"behind").wait()
    assert read(log, "t") == [b"behind"]


def test_a_verdict_stands_though_its_producer_died_before_telling_anyone(log, read):
    log.create_topic("t")
    assert run(die_after_verdict, log.path, "t", b"committed", "p") == -9
    assert log.describe_topic("t").partitions[0].open_transactions == 1
    assert read(log, "t") == [b"committed"]


def test_a_commit_whose_markers_cannot_be_written_is_a_commit(tmp_path, read):
    disk = SickDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log, EmbeddedLog(tmp_path, upkeep=False) as well:
        log.create_topic("t")
        producer = log.producer(name="p")

        def fall_sick(statement):
            if "committing" in statement:
                disk.error = errno.ENOSPC

        log.coordinator._db.set_trace_callback(fall_sick)
        with producer.transaction():
            producer.send("t", b"1").wait()
        log.coordinator._db.set_trace_callback(None)
        assert read(well, "t") == [b"1"]
        disk.error = None
        with producer.transaction():
            producer.send("t", b"2")
        assert read(well, "t") == [b"1", b"2"]
        producer.close()


def test_an_abort_whose_markers_cannot_be_written_goes_back_to_the_input(tmp_path, read):
    disk = SickDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("in")
        log.create_topic("out")
        with log.producer() as feed:
            for number in range(6):
                feed.send("in", b"%d" % number)
        with log.consumer("in", group="g", delivery="exactly_once") as consumer:
            producer = log.producer(name="p")
            first = consumer.poll(1, max_records=3)
            with pytest.raises((StorageError, ZeroDivisionError)), producer.transaction(consumer):
                for record in first:
                    producer.send("out", record.value).wait()
                disk.error = errno.ENOSPC
                raise ZeroDivisionError
            disk.error = None
            while records := consumer.poll(0.2, max_records=3):
                with producer.transaction(consumer):
                    for record in records:
                        producer.send("out", record.value)
            producer.close()
        assert read(log, "out") == [b"%d" % number for number in range(6)]


def test_a_newer_producer_of_a_name_fences_the_old_one(log, other, read):
    log.create_topic("t")
    old = log.producer(name="p")
    with pytest.raises(ProducerFenced), old.transaction():
        old.send("t", b"old").wait()
        new = other.producer(name="p")
        with new.transaction():
            new.send("t", b"new")
        old.send("t", b"late").wait()
    for _ in range(2):
        with pytest.raises(ProducerFenced), old.transaction():
            pass
    with pytest.raises(ProducerFenced):
        old.send("t", b"plain").wait()
    with pytest.raises(ProducerFenced):
        old.close()
    with new.transaction():
        new.send("t", b"newer")
    new.close()
    assert read(log, "t") == [b"new", b"newer"]


def test_a_fenced_producer_cannot_commit_what_it_stored_before(log, other, read):
    log.create_topic("t")
    old = log.producer(name="p")
    with pytest.raises(ProducerFenced), old.transaction():
        old.send("t", b"old").wait()
        other.producer(name="p").close()
    assert read(log, "t") == []
    old.close()


def test_a_producer_without_a_name_and_a_nested_transaction_are_refused(log, read):
    log.create_topic("t")
    with log.producer() as producer, pytest.raises(InvalidInput, match="name"), producer.transaction():
        pass
    with log.producer(name="p") as producer:
        with producer.transaction():
            producer.send("t", b"outer")
            with pytest.raises(InvalidInput, match="already"), producer.transaction():
                pass
        assert read(log, "t") == [b"outer"]


def test_a_topic_deleted_in_a_transaction_takes_its_records_along_and_nothing_else(log, read):
    log.create_topic("a")
    log.create_topic("b")
    with log.producer(name="p") as producer:
        with producer.transaction():
            producer.send("a", b"1").wait()
            producer.send("b", b"1").wait()
            log.delete_topic("b")
        assert read(log, "a") == [b"1"]
        with pytest.raises(UnknownTopic), producer.transaction():
            producer.send("a", b"2").wait()
            producer.send("b", b"2")
        with producer.transaction():
            producer.send("a", b"3")
    assert read(log, "a") == [b"1", b"3"]


def test_many_transactions_at_once_in_one_partition(log, read):
    log.create_topic("t")
    producers = [log.producer(name=f"p{number}") for number in range(10)]
    blocks = [producer.transaction() for producer in producers]
    for number, (producer, block) in enumerate(zip(producers, blocks, strict=True)):
        block.__enter__()
        producer.send("t", b"%d" % number).wait()
    for number in (5, 1, 9, 0, 7, 3, 2, 8, 6, 4):
        error = None if number % 2 else ValueError()
        blocks[number].__exit__(error and ValueError, error, None)
    assert read(log, "t") == [b"%d" % number for number in range(10) if number % 2]
    for producer in producers:
        producer.close()


def test_compaction_and_retention_leave_an_open_transaction_alone(log, read):
    log.create_topic("t", segment_bytes=4096, compaction=True)
    with log.producer(linger="0 seconds") as plain, log.producer(name="p") as producer:
        for number in range(20):
            plain.send("t", b"x" * 400, key=f"k{number % 3}").wait()
        with producer.transaction():
            producer.send("t", b"inside", key="tx").wait()
            for number in range(20):
                plain.send("t", b"y" * 400, key=f"k{number % 3}").wait()
            log.clean("t")
        log.clean("t")
    assert read(log, "t").count(b"inside") == 1
