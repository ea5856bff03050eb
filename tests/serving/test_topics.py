"""Rows of topics: the index that follows a topic and a single look at it say what the records add up to."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import in_memory
from millstream.errors import NotFound
from millstream.log import EmbeddedLog
from millstream.serving import newest
from millstream.serving.newest import home_of
from millstream.serving.topics import TopicTable, text_table

from .support import put

KEYS = [f"key {number}" for number in range(6)]


class Aborted(Exception):
    """Raised in a transaction, which ends it."""


def both(log: EmbeddedLog, topic: str = "t") -> tuple[TopicTable, TopicTable]:
    """One that follows the topic, and one that rereads it each time."""
    table = text_table(topic, log)
    return TopicTable(log, table, follows=True), TopicTable(log, table, follows=False)


def values(table: TopicTable, key: Any) -> dict[str, Any] | None:
    row = table.row(key)
    return None if row is None else row.values()


# ---------------------------------------------------------------- any history

SEND = st.tuples(st.just("send"), st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 99) | st.none())))
ABORT = st.tuples(st.just("abort"), st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 99) | st.none())))
OTHER = st.tuples(st.sampled_from(["look", "compact", "grow"]), st.none())


@given(
    steps=st.lists(SEND | ABORT | OTHER, max_size=25),
    partitions=st.integers(1, 3),
    small=st.booleans(),
)
def test_any_history_of_records(steps: list[tuple[str, Any]], partitions: int, small: bool) -> None:
    """Goal: both ways give the newest committed record of each key. Method: a dict beside them."""
    with (
        in_memory() as folder,
        EmbeddedLog(folder, upkeep=False) as log,
        pytest.MonkeyPatch.context() as patched,
    ):
        if small:  # so that rows which were replaced are let go of all the time
            patched.setattr(newest, "CHUNKS_MAX", 1)
            patched.setattr(newest, "SPARE_ROWS", 0)
        log.create_topic("t", schema="n int", compaction=True, partitions=partitions)
        expected: dict[str, int] = {}
        follower, looker = both(log)
        with log.producer(name="p") as producer:
            for what, records in [*steps, ("look", None)]:
                if what in ("send", "abort"):
                    with suppress(Aborted), producer.transaction():
                        for key, number in records:
                            producer.send("t", None if number is None else {"n": number}, key)
                        if what == "abort":
                            raise Aborted
                if what == "send":
                    expected |= dict(records)
                elif what == "compact":
                    for partition in log.topic("t").partitions():
                        partition.roll()
                    log.clean("t")
                elif what == "grow":
                    log.change_topic("t", partitions=log.topic("t").settings.partitions + 1)
                elif what == "look":
                    for key in KEYS:
                        wanted = None if expected.get(key) is None else {"n": expected[key]}
                        assert (values(follower, key), values(looker, key)) == (wanted, wanted)


# ---------------------------------------------------------------- what is seen


def test_only_what_is_committed_is_seen(log: EmbeddedLog) -> None:
    log.create_topic("t", schema="n int", compaction=True)
    put(log, "t", ("a", {"n": 1}))
    with log.producer(name="p") as producer, producer.transaction():
        producer.send("t", {"n": 2}, "a")
        producer.flush()
        assert [values(table, "a") for table in both(log)] == [{"n": 1}] * 2
    assert [values(table, "a") for table in both(log)] == [{"n": 2}] * 2


def test_a_request_reads_only_what_is_new(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("t", schema="n int")
    put(log, "t", *[(f"k{number}", {"n": number}) for number in range(100)])
    follower, _ = both(log)
    assert values(follower, "k7") == {"n": 7}
    read: list[int] = []
    take = newest.Held.take

    def noted(held: newest.Held, stored: pa.RecordBatch, offsets: np.ndarray) -> list[bytes]:
        read.append(stored.num_rows)
        return take(held, stored, offsets)

    monkeypatch.setattr(newest.Held, "take", noted)
    assert values(follower, "k8") == {"n": 8}
    put(log, "t", ("k7", {"n": 0}), ("new", {"n": 1}))
    assert (values(follower, "k7"), values(follower, "new")) == ({"n": 0}, {"n": 1})
    assert sum(read) == 2


def test_rows_have_the_columns_that_the_topic_has_now(log: EmbeddedLog) -> None:
    log.create_topic("t", schema="n int")
    put(log, "t", ("a", {"n": 1}), ("b", {"n": 1}))
    tables = both(log)
    assert [values(table, "a") for table in tables] == [{"n": 1}] * 2
    log.change_topic("t", schema="n bigint, name string")
    put(log, "t", ("b", {"n": 2**40, "name": "x"}))
    assert [values(table, "a") for table in tables] == [{"n": 1, "name": None}] * 2
    assert [values(table, "b") for table in tables] == [{"n": 2**40, "name": "x"}] * 2


def test_a_key_that_lies_elsewhere_is_found(log: EmbeddedLog) -> None:
    """Goal: a producer may choose partitions by itself, and a topic may have grown."""
    log.create_topic("t", schema="n int", partitions=3)
    home = home_of(b"a", 3)
    others = [number for number in range(3) if number != home]
    tables = both(log)
    put(log, "t", ("a", {"n": 1}), partition=others[0])
    assert [values(table, "a") for table in tables] == [{"n": 1}] * 2
    put(log, "t", ("a", {"n": 2}), partition=others[1])
    assert [values(table, "a") for table in tables] == [{"n": 2}] * 2
    put(log, "t", ("a", None), partition=home)
    assert [values(table, "a") for table in (*tables, *both(log))] == [None] * 4
    put(log, "t", ("a", {"n": 3}), partition=home)
    put(log, "t", ("b", {"n": 0}), partition=others[0])
    assert [values(table, "a") for table in (*tables, *both(log))] == [{"n": 3}] * 4


def test_records_without_a_key_are_ignored(log: EmbeddedLog) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", b"1")
        producer.send("t", b"2", b"a")
        producer.send("t", b"3")
    for table in both(log):
        assert values(table, "a") == {"value": "2"}
        assert table.some_keys(5) == ["a"]


def test_a_recreated_topic_is_read_from_the_start(log: EmbeddedLog) -> None:
    log.create_topic("t", schema="n int")
    put(log, "t", ("a", {"n": 1}), ("b", {"n": 1}))
    follower, _ = both(log)
    assert values(follower, "a") == {"n": 1}
    log.delete_topic("t")
    with pytest.raises(NotFound):
        follower.row("a")
    log.create_topic("t", schema="n int")
    put(log, "t", ("a", {"n": 2}))
    assert (values(follower, "a"), values(follower, "b")) == ({"n": 2}, None)


def test_what_retention_deletes_is_gone(log: EmbeddedLog) -> None:
    log.create_topic("t", schema="n int", retention_bytes="4 KiB", segment_bytes="4 KiB")
    put(log, "t", ("a", {"n": 1}))
    tables = both(log)
    assert [values(table, "a") for table in tables] == [{"n": 1}] * 2
    for _ in range(3):
        put(log, "t", *[(f"k{number}", {"n": number}) for number in range(400)])
        log.topic("t").partition(0).roll()
    log.clean("t")
    assert log.describe_topic("t").partitions[0].start_offset > 0
    assert [values(table, "a") for table in tables] == [None] * 2


def test_tombstones_that_were_compacted_away_before_they_were_read(log: EmbeddedLog) -> None:
    """Goal: an index that rested longer than tombstones are kept is not believed. Method: a clock of its own."""
    log.create_topic("t", schema="n int", compaction=True, tombstone_retention="10 seconds")
    put(log, "t", ("a", {"n": 1}), ("b", {"n": 1}))
    now = [0.0]
    follower = TopicTable(log, text_table("t", log), follows=True, clock=lambda: now[0])
    assert values(follower, "a") == {"n": 1}
    first = follower._index
    now[0] = 4.0
    assert values(follower, "a") == {"n": 1}
    assert follower._index is first
    now[0] = 9.5
    assert values(follower, "a") == {"n": 1}
    assert follower._index is not first


def test_deleted_keys_cost_no_memory(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "SPARE_ROWS", 0)
    log.create_topic("t", schema="n int", compaction=True, partitions=2)
    follower, _ = both(log)
    for number in range(50):
        put(log, "t", (f"k{number}", {"n": number}))
        put(log, "t", (f"k{number}", None), ("kept", {"n": number}))
        assert values(follower, "kept") == {"n": number}
    assert follower._index is not None
    held = follower._index._held
    assert sum(len(each.places) for each in held) == 1
    assert sum(each.rows for each in held) <= 10


def test_many_threads_may_ask_while_records_come(log: EmbeddedLog) -> None:
    log.create_topic("t", schema="n int", partitions=2)
    put(log, "t", ("a", {"n": 0}))
    follower, _ = both(log)
    wrong: list[Any] = []
    ended = threading.Event()

    def ask() -> None:
        last = 0
        while not ended.is_set():
            found = values(follower, "a")
            if found is None or found["n"] < last:
                wrong.append(found)
                return
            last = found["n"]

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 100):
        put(log, "t", ("a", {"n": number}), (f"k{number}", {"n": number}))
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert values(follower, "a") == {"n": 99}
