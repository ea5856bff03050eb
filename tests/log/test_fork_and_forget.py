"""Goal: what users do without thinking (forking, forgetting, sending what almost fits) loses nothing in silence."""

import gc
import os
import time
from pathlib import Path

import polars as pl
import pytest

from millstream.errors import ClosedError, InvalidRecord
from millstream.log import EmbeddedLog

from .disks import GatedDisk
from .processes import wait_until


def test_a_forked_child_must_open_the_log_itself(log):
    """The connection of the parent must not be used: what the child commits could vanish with it."""
    log.create_topic("t")
    with log.consumer("t", group="g") as consumer:
        child = os.fork()
        if child == 0:
            try:
                consumer.poll(0)
            except ClosedError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert consumer.poll(0) == []


def test_a_forgotten_consumer_does_not_hold_its_partitions(log, other):
    log.create_topic("t")
    consumer = log.consumer("t", group="g")
    assert len(consumer.assignment) == 1
    del consumer
    gc.collect()
    with other.consumer("t", group="g") as successor:
        wait_until(lambda: (successor.poll(0.05), successor.assignment)[1])


@pytest.mark.parametrize(
    "column",
    [
        pl.Series("n", ["5"]),
        pl.Series("n", [True]),
        pl.Series("n", [1.0]),
        pl.Series("n", [2**40]),
    ],
)
def test_a_batch_is_as_strict_as_a_record(log, column):
    """What `send` refuses must not be bent into shape by `send_batch`."""
    log.create_topic("t", schema="n int")
    with log.producer() as producer, pytest.raises(InvalidRecord, match="n"):
        producer.send_batch("t", pl.DataFrame([column]))


def test_a_batch_with_numbers_too_large_for_its_column_is_refused(log):
    log.create_topic("t", schema="f float, d decimal(5,2)")
    with log.producer() as producer:
        with pytest.raises(InvalidRecord, match="too large"):
            producer.send_batch("t", pl.DataFrame({"f": [1e300]}))
        with pytest.raises(InvalidRecord, match="d"):
            producer.send_batch("t", pl.DataFrame({"d": [1.239]}))


def test_a_batch_of_another_encoding_fits(log):
    log.create_topic("t", schema="n int, name string, x double")
    frame = pl.DataFrame(
        {"n": pl.Series([1], dtype=pl.Int64), "name": pl.Series(["a"], dtype=pl.Categorical), "x": [2]}
    )
    with log.producer() as producer:
        producer.send_batch("t", frame)
    assert [record.value for record in log.consumer("t").until_caught_up()] == [{"n": 1, "name": "a", "x": 2.0}]


def test_dropped_records_give_their_memory_back(tmp_path):
    """The disk stands still while far more is sent than the buffer holds: only what is held stays in memory."""
    disk = GatedDisk()
    with EmbeddedLog(tmp_path, disk=disk, upkeep=False) as log:
        log.create_topic("t")
        with log.producer(when_full="drop_oldest", buffer_bytes="64 KiB", batch_bytes="4 KiB") as producer:
            disk.gate.clear()
            for _ in range(20_000):
                producer.send("t", b"x" * 50)
            held = sum(len([row for row in chunk.rows if row]) for chunk in producer._buffer._chunks)
            assert len(producer._buffer._chunks) < 100
            assert held < 2_000
            assert producer.dropped > 18_000
            disk.gate.set()


def test_files_are_closed_with_their_user(log):
    """Many partitions once used do not stay open."""
    log.create_topic("t", partitions=30)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with log.producer(partition_by="round_robin") as producer:
        for number in range(300):
            producer.send("t", b"%d" % number)
    with log.consumer("t") as consumer:
        assert len(list(consumer.until_caught_up())) == 300
    del consumer, producer
    deadline = time.monotonic() + 5
    while len(list(Path("/proc/self/fd").iterdir())) > before + 10 and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 10


def test_a_consumer_that_is_forgotten_leaves_its_group_at_once(log):
    """Goal: its partitions do not have to wait for the garbage collector. Method: there is none."""
    log.create_topic("t")
    gc.disable()
    try:
        consumer = log.consumer("t", group="g")
        consumer.poll()
        assert len(log.describe_group("g").members) == 1
        del consumer
        assert log.describe_group("g").members == ()
    finally:
        gc.enable()
