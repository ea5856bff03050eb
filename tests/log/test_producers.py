"""Goal: records go where and how the settings say, in order, in batches, through a buffer that is really bounded.

Method: a disk with a gate decides how slow storing is; nothing is asserted about speed.
"""

# ruff: noqa: PT012 - what is raised has to leave a whole block: a transaction, or sending until there is no room

import errno
import itertools
import os
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
import pytest

from millstream.errors import (
    BufferFull,
    DiskFull,
    InvalidSetting,
    MillstreamError,
    RecordDropped,
    StorageError,
    UnknownPartition,
)
from millstream.log import EmbeddedLog
from millstream.log.murmur2 import murmur2_all

from .disks import GatedDisk, SickDisk
from .processes import run, wait_until

RECORD = b"x" * 1000


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement_stores_in_order(log, read, acks):
    log.create_topic("t")
    with log.producer(acks=acks) as producer:
        receipts = [producer.send("t", b"%d" % number) for number in range(1000)]
        producer.flush()
        assert [receipt.offset for receipt in receipts] == list(range(1000))
    assert read(log, "t") == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("acks", [2, -1, "none", None, True, False])
def test_other_acknowledgements_are_refused(log, acks):
    with pytest.raises(InvalidSetting):
        log.producer(acks=acks)


@pytest.mark.parametrize(
    "settings",
    [
        {"partition_by": "luck"},
        {"when_full": "panic"},
        {"linger": "later"},
        {"linger": "-1 second"},
        {"buffer_bytes": -5},
        {"batch_bytes": "many"},
        {"wait_at_most": 5},
    ],
)
def test_settings_that_make_no_sense_are_refused(log, settings):
    with pytest.raises(MillstreamError):
        log.producer(**settings)


def test_keys_are_hashed_as_in_kafka(log):
    log.create_topic("t", partitions=7)
    keys = [b"", b"a", b"user-1", b"user-2", "ümläut".encode(), bytes(range(20))]
    with log.producer() as producer:
        for key, value in zip(keys, murmur2_all(pa.array(keys, pa.binary())).tolist(), strict=True):
            assert producer.send("t", b"v", key=key).partition == (value & 0x7FFFFFFF) % 7
        assert producer.send("t", b"v", key="ümläut").partition == producer.send("t", b"v", key=keys[4]).partition


def test_round_robin_gives_to_each_in_turn(log):
    log.create_topic("t", partitions=3)
    with log.producer(partition_by="round_robin") as producer:
        receipts = [producer.send("t", b"v", key="same") for _ in range(30)]
        assert [r.partition for r in receipts[:6]] in ([0, 1, 2, 0, 1, 2], [1, 2, 0, 1, 2, 0], [2, 0, 1, 2, 0, 1])
        assert Counter(r.partition for r in receipts) == {0: 10, 1: 10, 2: 10}


def test_sticky_keeps_a_batch_together_and_changes_between_batches(log):
    log.create_topic("t", partitions=3)
    with log.producer(partition_by="sticky", linger="1 second") as producer:
        batches = []
        for _ in range(20):
            receipts = [producer.send("t", b"v", key=str(number)) for number in range(10)]
            producer.flush()
            batches.append({r.partition for r in receipts})
        assert all(len(partitions) == 1 for partitions in batches)
        assert all(one != next_one for one, next_one in itertools.pairwise(batches))


def test_records_without_a_key_spread_over_partitions(log):
    log.create_topic("t", partitions=3)
    with log.producer() as producer:
        assert {producer.send("t", b"v").partition for _ in range(60)} == {0, 1, 2}


def test_an_explicit_partition_goes_before_any_partitioner(log):
    log.create_topic("t", partitions=3)
    with log.producer() as producer:
        assert {producer.send("t", b"v", key=str(n), partition=2).partition for n in range(20)} == {2}
        assert set(producer.send_batch("t", pa.table({"value": ["a", "b"]}), partition=1).partitions.tolist()) == {1}
        for partition in (3, -1, "0", 1.0, True):
            with pytest.raises(UnknownPartition):
                producer.send("t", b"v", partition=partition)


def test_a_custom_partitioner(log):
    log.create_topic("t", partitions=4)
    with log.producer(partition_by=lambda key, count: (len(key) if key else 0) % count) as producer:
        assert [producer.send("t", b"v", key="k" * n).partition for n in range(6)] == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    "choice",
    [
        7,
        -2,
        None,
        "a",
        1.5,
    ],
)
def test_a_custom_partitioner_with_invalid_choices_raises_and_stores_nothing(log, read, choice):
    log.create_topic("t", partitions=4)
    producer = log.producer(partition_by=lambda key, count: choice)
    with pytest.raises(MillstreamError):
        producer.send("t", b"v").wait()
    with pytest.raises(MillstreamError):
        producer.close()
    assert read(log, "t") == []


def test_whole_batches_of_arrow_and_polars(log, read):
    log.create_topic("typed", schema="user string, n int", partitions=3)
    log.create_topic("plain")
    rows = [{"user": f"u{n}", "n": n} for n in range(1000)]
    with log.producer() as producer:
        receipt = producer.send_batch("typed", pa.Table.from_pylist(rows), key="user")
        assert len(receipt.offsets) == len(receipt.partitions) == 1000
        assert [producer.send("typed", rows[n], key=f"u{n}").partition for n in range(9)] == receipt.partitions[
            :9
        ].tolist()
        producer.send_batch("plain", pl.DataFrame({"key": ["a", None], "value": [b"1", b"2"]}))
        producer.send_batch("plain", pa.RecordBatch.from_pylist([{"value": "text"}]))
    assert sorted(row["n"] for row in read(log, "typed")) == sorted([*range(1000), *range(9)])
    assert read(log, "plain") == [b"1", b"2", b"text"]


def test_single_records_and_batches_keep_their_order(log, read):
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", b"0")
        producer.send_batch("t", pa.table({"value": ["1", "2"]}))
        producer.send("t", b"3")
        producer.send_batch("t", pa.table({"value": ["4"]}))
    assert read(log, "t") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_batch_fills_by_size_or_waits_for_linger(log):
    log.create_topic("t")
    with log.producer(linger="10 minutes", batch_bytes=5000) as producer:
        receipts = [producer.send("t", RECORD) for _ in range(5)]
        wait_until(lambda: receipts[0].done)
        last = producer.send("t", RECORD)
        assert not last.done
        assert producer.waiting >= 1
        assert last.offset == 5  # waiting for it does not wait for the linger
    with log.producer(linger="20 milliseconds") as producer:
        receipt = producer.send("t", RECORD)
        wait_until(lambda: receipt.done)


def test_the_wait_policy_holds_the_sender_back_and_loses_nothing(tmp_path, read):
    disk = GatedDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer(buffer_bytes=20_000, batch_bytes=2000) as producer:
            disk.gate.clear()
            sent = []

            def send():
                for number in range(100):
                    producer.send("t", b"%03d" % number + RECORD)
                    sent.append(number)

            thread = threading.Thread(target=send)
            thread.start()
            disk.reached.wait()
            wait_until(lambda: len(sent) >= 10)
            thread.join(0.3)
            assert thread.is_alive()
            assert len(sent) < 25
            disk.gate.set()
            thread.join()
        assert [value[:3] for value in read(log, "t")] == [b"%03d" % number for number in range(100)]


def test_the_wait_policy_gives_up_in_the_end_and_says_why(tmp_path):
    disk = SickDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        producer = log.producer(buffer_bytes=5000, wait_at_most="500 milliseconds")
        disk.error = errno.ENOSPC
        with pytest.raises((DiskFull, BufferFull)):
            for _ in range(20):
                producer.send("t", RECORD)
        disk.error = None
        producer.close()


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_the_drop_policies_lose_the_oldest_or_the_newest_and_say_which(tmp_path, read, policy):
    disk = GatedDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer(buffer_bytes=20_000, batch_bytes=3000, when_full=policy) as producer:
            disk.gate.clear()
            producer.send("t", b"first")
            disk.reached.wait()
            receipts = [producer.send("t", b"%03d" % number + RECORD) for number in range(100)]
            assert producer.dropped > 70
            disk.gate.set()
            producer.flush()
            kept = [n for n, receipt in enumerate(receipts) if receipt.error is None]
            assert len(kept) + producer.dropped == 100
            assert all(isinstance(r.error, RecordDropped) for n, r in enumerate(receipts) if n not in kept)
            with pytest.raises(RecordDropped):
                receipts[0 if policy == "drop_oldest" else -1].wait()
            assert (99 if policy == "drop_oldest" else 0) in kept
        assert [value[:3] for value in read(log, "t")] == [b"fir", *(b"%03d" % number for number in kept)]


def test_whole_batches_are_dropped_whole(tmp_path, read):
    disk = GatedDisk()
    batch = pa.table({"value": [RECORD] * 10})
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer(buffer_bytes=25_000, when_full="drop_oldest") as producer:
            disk.gate.clear()
            producer.send("t", b"first")
            disk.reached.wait()
            receipts = [producer.send_batch("t", batch) for _ in range(5)]
            disk.gate.set()
            producer.flush()
            assert [r.error is None for r in receipts] == [False, False, False, True, True]
            assert producer.dropped == 30
        assert len(read(log, "t")) == 21


def test_a_waiter_learns_that_its_record_was_dropped(tmp_path):
    disk = GatedDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer(buffer_bytes=3000, when_full="drop_oldest") as producer:
            disk.gate.clear()
            producer.send("t", b"first")
            disk.reached.wait()
            receipt = producer.send("t", RECORD)
            raised = []
            thread = threading.Thread(target=lambda: raised.append(_error_of(receipt.wait)), daemon=True)
            thread.start()
            for _ in range(5):
                producer.send("t", RECORD)
            thread.join(5)
            assert [type(error) for error in raised] == [RecordDropped]
            disk.gate.set()


def _error_of(act):
    try:
        act()
    except MillstreamError as error:
        return error
    return None


def test_the_refuse_policy_raises_at_once(tmp_path, read):
    disk = GatedDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer(buffer_bytes=10_000, when_full="refuse") as producer:
            disk.gate.clear()
            sent = 0
            with pytest.raises(BufferFull, match="limit is 10000"):
                for _ in range(20):
                    producer.send("t", RECORD)
                    sent += 1
            with pytest.raises(BufferFull):
                producer.send_batch("t", pa.table({"value": [RECORD]}))
            disk.gate.set()
        assert len(read(log, "t")) == sent


@pytest.mark.parametrize("policy", ["wait", "drop_oldest", "drop_newest", "refuse"])
def test_a_record_or_batch_larger_than_the_buffer_goes_through_alone(log, read, policy):
    log.create_topic("t")
    with log.producer(buffer_bytes=1000, when_full=policy) as producer:
        producer.send("t", RECORD * 10).wait()
        producer.send_batch("t", pa.table({"value": [RECORD * 10, RECORD]})).wait()
        assert producer.dropped == 0
    assert len(read(log, "t")) == 3


def test_the_buffer_counts_what_dicts_hold(tmp_path):
    disk = GatedDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t", schema="a string, b array<string>, c struct<d: binary>")
        for row in ({"a": "x" * 10_000}, {"b": ["x" * 5_000] * 2}, {"c": {"d": b"x" * 10_000}}):
            with log.producer(buffer_bytes=100_000, when_full="refuse") as producer:
                disk.gate.clear()
                with pytest.raises(BufferFull):
                    for _ in range(30):
                        producer.send("t", row)
                disk.gate.set()


def test_a_slice_of_a_large_batch_counts_as_what_it_is(tmp_path):
    disk = GatedDisk()
    large = pa.RecordBatch.from_pydict({"value": [RECORD] * 1000})
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer(buffer_bytes=100_000, when_full="refuse") as producer:
            disk.gate.clear()
            for start in range(10):
                producer.send_batch("t", large.slice(start, 1))
            disk.gate.set()


def test_a_flush_fails_while_the_disk_does_and_loses_nothing(tmp_path, read):
    disk = SickDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer() as producer:
            disk.error = errno.ENOSPC
            receipt = producer.send("t", b"1")
            for _ in range(2):
                with pytest.raises(DiskFull):
                    producer.flush()
            assert producer.waiting == 1
            assert not receipt.done
            disk.error = errno.EIO
            with pytest.raises(StorageError):
                wait_until(lambda: producer.flush() or False)
            disk.error = None
            producer.send("t", b"2")
            wait_until(lambda: _error_of(producer.flush) is None)
            assert receipt.offset == 0
        assert read(log, "t") == [b"1", b"2"]


def test_a_close_on_a_full_disk_says_how_many_records_are_lost(tmp_path, read):
    disk = SickDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        producer = log.producer()
        disk.error = errno.ENOSPC
        receipts = [producer.send("t", b"%d" % number) for number in range(3)]
        with pytest.raises(DiskFull, match="3 records could not be stored and are lost"):
            producer.close()
        producer.close()
        for receipt in receipts:
            with pytest.raises(DiskFull):
                receipt.wait(5)
        disk.error = None
        assert read(log, "t") == []


def test_threads_share_a_producer(log, read):
    log.create_topic("t", partitions=2)
    with log.producer(buffer_bytes=50_000) as producer:

        def send(who):
            for number in range(500):
                producer.send("t", b"%d:%d" % (who, number), partition=who % 2)
                if number % 100 == 0:
                    producer.flush()

        threads = [threading.Thread(target=send, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen = read(log, "t")
    for who in range(4):
        assert [v for v in seen if v.startswith(b"%d:" % who)] == [b"%d:%d" % (who, number) for number in range(500)]


def test_what_is_changed_after_sending_does_not_change_what_was_sent(log, read):
    log.create_topic("t", schema="n int")
    log.create_topic("plain")
    with log.producer(linger="1 minute") as producer:
        row, value, headers = {}, bytearray(b"0"), {"h": "0"}
        for number in range(3):
            row["n"] = number
            producer.send("t", row)
            value[:] = b"%d" % number
            headers["h"] = str(number)
            producer.send("plain", value, headers=headers)
    assert read(log, "t") == [{"n": 0}, {"n": 1}, {"n": 2}]
    with log.consumer("plain") as consumer:
        records = consumer.poll(1)
    assert [(r.value, r.headers) for r in records] == [(b"%d" % n, (("h", b"%d" % n),)) for n in range(3)]


def test_records_carry_key_headers_and_time(log):
    log.create_topic("t")
    moment = datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
    with log.producer() as producer:
        producer.send("t", b"v", "k", timestamp=moment, headers=[("a", b"1"), ("a", "2"), ("b", "")])
        producer.send("t", None)
        producer.send("t", b"", headers={})
    with log.consumer("t") as consumer:
        first, second, third = consumer.poll(1)
    assert (first.key, first.timestamp, first.headers) == (b"k", moment, (("a", b"1"), ("a", b"2"), ("b", b"")))
    assert (second.value, second.key, second.headers) == (None, None, ())
    assert (third.value, third.headers) == (b"", ())
    assert abs((second.timestamp - datetime.now(UTC)).total_seconds()) < 60


def test_a_forgotten_producer_stores_what_waits_when_its_script_ends(tmp_path, read):
    script = """
import sys
from millstream.log import EmbeddedLog
log = EmbeddedLog(sys.argv[1])
log.create_topic("t")
producer = log.producer(linger="10 minutes")
producer.send("t", b"not lost")
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=os.environ, timeout=60)
    with EmbeddedLog(tmp_path) as log:
        assert read(log, "t") == [b"not lost"]


def test_closing_the_log_stores_what_its_producers_hold(tmp_path, read):
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("t")
        producer = log.producer(linger="10 minutes")
        receipt = producer.send("t", b"not lost")
    assert receipt.offset == 0
    with EmbeddedLog(tmp_path) as log:
        assert read(log, "t") == [b"not lost"]


def test_a_forked_child_neither_hangs_nor_sends_nor_ends_its_parents_producer(tmp_path, log, read):
    from .processes import fork_with_waiting_records, lines

    log.create_topic("t")
    assert run(fork_with_waiting_records, log.path, tmp_path / "diary") == 0
    assert lines(tmp_path / "diary") == ["ClosedError"]
    assert read(log, "t") == [b"from the parent"]


def test_opening_and_closing_keeps_no_files_open(tmp_path):
    def use():
        with EmbeddedLog(tmp_path) as log:
            if "t" not in log.topics():
                log.create_topic("t", partitions=3)
            log.change_topic("t", retention="1 day")
            with log.producer(name="p") as producer, log.consumer("t", group="g") as consumer:
                producer.send("t", b"x").wait()
                consumer.poll(0.1)

    use()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(5):
        use()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # noqa: PTH208
