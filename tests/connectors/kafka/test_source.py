"""A Kafka topic is read by ranges: each committed record once, whatever gaps the offsets have."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from brokers import USERS
from kafka_cluster import KafkaCluster
from millstream.connectors.kafka import reader as kafka_reader
from millstream.connectors.kafka.endpoint import kafka as kafka_place
from millstream.connectors.kafka.source import KafkaSource
from millstream.connectors.opening import open_source
from millstream.connectors.source import Slice
from millstream.errors import InvalidInput, KafkaUnavailable, NoAccess, OffsetLost, UnknownTopic
from millstream.records import Schema

from .support import (
    Transactions,
    cut_before,
    grown,
    made,
    numbers,
    opened,
    removed,
    row,
    rows,
    send,
    slabs,
    until_ends,
)

pytestmark = pytest.mark.usefixtures("either_way")

# ---------------------------------------------------------------- what there is


def test_partitions_and_their_ends(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap, 3)
    send(kafka.bootstrap, topic, rows(5), partition=1)
    with opened(kafka.bootstrap, topic) as source:
        assert source.partitions == ["0", "1", "2"]
        assert source.earliest() == {"0": 0, "1": 0, "2": 0}
        assert source.latest() == {"0": 0, "1": 5, "2": 0}
        assert source.identity == source.identity != ""


def test_offsets_at_a_time(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap, 2)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for second in range(4):
        stamp = int((moment + timedelta(seconds=second)).timestamp() * 1000)
        send(kafka.bootstrap, topic, [row("ann", second)], timestamp=stamp)
    with opened(kafka.bootstrap, topic) as source:
        assert source.at(moment + timedelta(seconds=2)) == {"0": 2, "1": 0}
        assert source.at(moment - timedelta(days=1)) == {"0": 0, "1": 0}
        assert source.at(moment + timedelta(days=1)) == {"0": 4, "1": 0}


def test_new_partitions_are_noticed(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(3))
    with opened(kafka.bootstrap, topic) as source:
        start = source.limited({}, None)
        assert start == {"0": 3}
        assert not source.wait(start, 0)
        grown(kafka.bootstrap, topic, 2)
        send(kafka.bootstrap, topic, rows(2, 10), partition=1)
        assert source.wait(start, 30)
        end = source.limited(start, None)
        assert end == {"0": 3, "1": 2}
        assert numbers(slabs(source, start, end)) == [10, 11]


def test_a_topic_that_is_not_there(kafka: KafkaCluster) -> None:
    with opened(kafka.bootstrap, "never-made") as source, pytest.raises(UnknownTopic, match="never-made"):
        source.latest()


def test_a_recreated_topic_has_another_identity(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(3))
    with opened(kafka.bootstrap, topic) as source, opened(kafka.bootstrap, topic) as later:
        first = source.identity
        removed(kafka.bootstrap, topic)
        made(kafka.bootstrap, name=topic)
        with pytest.raises(UnknownTopic, match="created again"):
            source.limited({"0": 3}, None)
        assert later.identity != first


@pytest.mark.soak
def test_no_broker_answers() -> None:
    with opened("127.0.0.1:1", "scores") as source, pytest.raises(KafkaUnavailable, match=r"127\.0\.0\.1:1"):
        source.latest()


# ---------------------------------------------------------------- planning


def test_a_limit_is_shared_by_the_partitions(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap, 2)
    send(kafka.bootstrap, topic, rows(100), partition=0)
    send(kafka.bootstrap, topic, rows(10, 100), partition=1)
    with opened(kafka.bootstrap, topic) as source:
        assert source.limited({}, 40) == {"0": 30, "1": 10}
        assert source.limited({"0": 95, "1": 10}, 40) == {"0": 100, "1": 10}
        assert source.limited({}, None, until={"0": 7}) == {"0": 7}
        assert source.row_bytes() > len(row("u1", 1))


def test_every_record_once_however_it_is_cut(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap, 2)
    for partition in (0, 1):
        send(kafka.bootstrap, topic, rows(5000, 5000 * partition), partition=partition)
    with opened(kafka.bootstrap, topic) as source:
        assert numbers(slabs(source, tasks=4)) == list(range(10_000))
        found, start = [], source.earliest()
        while (end := source.limited(start, 1500)) != start:
            found += numbers(slabs(source, start, end, tasks=2))
            start = end
        assert sorted(found) == list(range(10_000))
        again = [slab for part in source.slices({"0": 10}, {"0": 20}, 1) for s in part for slab in source.read(s)]
        assert numbers(again) == list(range(10, 20))
        assert list(again[0].offsets) == list(range(10, 20))


def test_many_partitions_take_turns(kafka: KafkaCluster) -> None:
    """More than there are readers."""
    topic = made(kafka.bootstrap, 7)
    for partition in range(7):
        send(kafka.bootstrap, topic, rows(3, 3 * partition), partition=partition)
    with opened(kafka.bootstrap, topic) as source:
        for _ in range(2):
            assert numbers(slabs(source)) == list(range(21))


def test_waiting_ends_when_a_record_comes(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    with opened(kafka.bootstrap, topic) as source:
        start = source.latest()
        began = time.monotonic()
        assert not source.wait(start, 0.1)
        threading.Timer(0.3, send, (kafka.bootstrap, topic, rows(1))).start()
        assert source.wait(start, 60)
        assert time.monotonic() - began < 50


# ---------------------------------------------------------------- gaps


def test_only_what_was_committed_is_read(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    writer = Transactions(kafka.bootstrap, topic)
    writer.begin(rows(3))
    with opened(kafka.bootstrap, topic) as source:
        assert source.latest() == {"0": 0}
        assert not source.wait({"0": 0}, 0.1)
        writer.commit()
        assert source.wait({"0": 0}, 60)
        until_ends(source, {"0": 4})  # the mark of the transaction has an offset too
        assert numbers(slabs(source)) == [0, 1, 2]


def test_ranges_that_end_in_a_gap_or_are_one(kafka: KafkaCluster) -> None:
    """Aborted, committed, aborted, committed: every range of these offsets ends, with the records it has."""
    topic = made(kafka.bootstrap)
    writer = Transactions(kafka.bootstrap, topic)
    for number, end in enumerate((writer.abort, writer.commit, writer.abort, writer.commit, writer.abort)):
        writer.begin(rows(3, 10 * number))
        end()
    expected = {4: 10, 5: 11, 6: 12, 12: 30, 13: 31, 14: 32}
    with opened(kafka.bootstrap, topic) as source:
        until_ends(source, {"0": 20})
        assert numbers(slabs(source)) == list(expected.values())
        for size in (1, 3, 4, 7):
            found = {}
            for start in range(0, 20, size):
                for slab in source.read(Slice("0", start, min(20, start + size))):
                    found.update(zip(map(int, slab.offsets), numbers([slab]), strict=True))
            assert found == expected
        for start in reversed(range(20)):
            got = [int(offset) for slab in source.read(Slice("0", start, start + 1)) for offset in slab.offsets]
            assert got == [start] * (start in expected)
        writer.begin(rows(2, 50))
        writer.abort()
        until_ends(source, {"0": 23})
        assert list(source.read(Slice("0", 20, 23))) == []
        writer.begin(rows(2, 60))
        writer.commit()
        until_ends(source, {"0": 26})
        assert numbers(source.read(Slice("0", 23, 26))) == [60, 61]


def test_an_interrupted_reader_starts_over(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(10))
    with opened(kafka.bootstrap, topic) as source:
        next(iter(source.read(Slice("0", 0, 5))))
        assert numbers(source.read(Slice("0", 5, 10))) == list(range(5, 10))
        assert numbers(source.read(Slice("0", 0, 10))) == list(range(10))


# ---------------------------------------------------------------- what was lost


def test_deleted_offsets_raise(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(10))
    with opened(kafka.bootstrap, topic) as source:
        assert numbers(source.read(Slice("0", 0, 2))) == [0, 1]
        cut_before(kafka.bootstrap, topic, 0, 6)
        with pytest.raises(OffsetLost, match=r"(?s)offsets 2 to 5 were deleted by retention.*partition 0"):
            source.limited({"0": 2}, None)
        with pytest.raises(OffsetLost, match="offset 11 was read before, but the partition now ends at 10"):
            source.limited({"0": 11}, None)
        with pytest.raises(OffsetLost, match="the topic no longer has it"):
            source.limited({"0": 6, "1": 4}, None)
        assert source.earliest() == {"0": 6}
    with opened(kafka.bootstrap, topic) as source, pytest.raises(OffsetLost, match="offsets 3 to 5"):
        list(source.read(Slice("0", 3, 8)))  # planned before, read after


@pytest.mark.parametrize(("on_lost", "expected", "count"), [("earliest", [6, 7, 8, 9], 4), ("latest", [], 8)])
def test_continuing_without_lost_records(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture, on_lost: str, expected: list[int], count: int
) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(10))
    cut_before(kafka.bootstrap, topic, 0, 6)
    with opened(kafka.bootstrap, topic, on_lost=on_lost) as source, caplog.at_level(logging.WARNING):
        end = source.limited({"0": 2}, None)
        assert end == {"0": 10}
        assert source.lost_records == count
        assert "offsets 2 to 5 were deleted by retention" in caplog.text
        assert numbers(slabs(source, {"0": 2}, end)) == expected
        assert source.lost_records == count  # once, though it was met when the batch was cut, too
        assert caplog.text.count("offsets 2 to 5 were deleted") == 1
        send(kafka.bootstrap, topic, rows(2, 10))
        assert numbers(slabs(source, end, source.limited(end, None))) == [10, 11]
    with opened(kafka.bootstrap, topic, on_lost=on_lost) as source:
        assert numbers(source.read(Slice("0", 2, 8))) == ([6, 7] if on_lost == "earliest" else [])
        assert list(source.read(Slice("0", 1, 4))) == []


def test_a_batch_whose_end_is_gone_raises(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an election that lost records: a batch was planned, and the partition ends before it does."""
    monkeypatch.setattr(kafka_reader, "STALL_SECONDS_MAX", 1.0)
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(10))
    lost = r"(?s)offset 20 was read before, but the partition now ends at 10.*partition 0"
    with opened(kafka.bootstrap, topic) as source:
        for start in (5, 15):
            with pytest.raises(OffsetLost, match=lost):
                source.slices({"0": start}, {"0": 20}, 1)
        with pytest.raises(OffsetLost, match=lost):
            list(source.read(Slice("0", 5, 20)))  # lost after the batch was cut


@pytest.mark.parametrize(("on_lost", "goes_on_at"), [("earliest", 0), ("latest", 10)])
def test_continuing_when_the_end_of_a_batch_is_gone(
    kafka: KafkaCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    on_lost: str,
    goes_on_at: int,
) -> None:
    monkeypatch.setattr(kafka_reader, "STALL_SECONDS_MAX", 1.0)
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(10))
    with opened(kafka.bootstrap, topic, on_lost=on_lost) as source, caplog.at_level(logging.WARNING):
        assert numbers(slabs(source, {"0": 5}, {"0": 20})) == [5, 6, 7, 8, 9]
        assert slabs(source, {"0": 15}, {"0": 20}) == []
        assert source.limited({"0": 20}, None) == {"0": 10}
        assert numbers(slabs(source, {"0": 20}, {"0": 10})) == list(range(goes_on_at, 10))
        assert caplog.text.count("the partition now ends at 10") == 1
    with opened(kafka.bootstrap, topic, on_lost=on_lost) as source:
        assert numbers(source.read(Slice("0", 5, 20))) == [5, 6, 7, 8, 9]


def test_a_reader_behind_the_end_does_not_crawl(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(10))
    asked: list[int] = []
    whole = KafkaSource._past_lost

    def past_lost(self: KafkaSource, slice: Slice, offset: int) -> int:
        asked.append(offset)
        return whole(self, slice, offset)

    monkeypatch.setattr(KafkaSource, "_past_lost", past_lost)
    with opened(kafka.bootstrap, topic, on_lost="earliest") as source:
        assert list(source.read(Slice("0", 50, 70))) == []
    assert asked == [50]


def test_an_offset_that_was_away_for_a_moment_is_read(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(10))
    whole, away = kafka_reader.PartitionReader.read, [3]

    def read(self: Any, start: int, end: int) -> Any:
        yield from whole(self, start, away[0] if away else end)
        if away:
            self.lost_at = away.pop()

    monkeypatch.setattr(kafka_reader.PartitionReader, "read", read)
    with opened(kafka.bootstrap, topic) as source:
        assert numbers(source.read(Slice("0", 0, 10))) == list(range(10))
    away.append(3)
    with opened(kafka.bootstrap, topic, on_lost="earliest") as source:
        assert numbers(source.read(Slice("0", 0, 10))) == list(range(10))
        assert source.lost_records == 0


# ---------------------------------------------------------------- columns


def test_what_a_record_knows_of_itself(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    stamp = 1_767_225_600_123
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    send(kafka.bootstrap, topic, [row("ann", 1)], key=b"k", timestamp=stamp, headers=headers)
    schema = (
        "n int, key string, topic string, partition int, offset long, timestamp timestamp, headers map<string,binary>"
    )
    with opened(kafka.bootstrap, topic, schema) as source:
        [slab] = slabs(source)
        [found] = slab.rows.to_pylist()
    assert found == {
        "n": 1,
        "key": "k",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(2026, 1, 1, 0, 0, 0, 123000, UTC),
        "headers": [("a", b"2"), ("b", None)],
    }


def test_bad_values_are_dead_letters_and_deletions_are_rows_of_their_key(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [row("ann", 1), b"no json", None, row("bob", 2)], key=b"k")
    with opened(kafka.bootstrap, topic) as source:
        [slab] = slabs(source)
        assert numbers([slab]) == [1, 2]
        assert list(slab.offsets) == [0, 3]
        assert slab.dead is not None
        [letter] = slab.dead.to_pylist()
        assert (letter["topic"], letter["partition"], letter["offset"]) == (topic, 0, 1)
        assert "not valid JSON" in letter["reason"]
    with opened(kafka.bootstrap, topic, "key string, n int") as source:
        [slab] = slabs(source)
        assert slab.rows.to_pylist() == [{"key": "k", "n": 1}, {"key": "k", "n": None}, {"key": "k", "n": 2}]


@pytest.mark.parametrize(("format", "schema"), [("bytes", "value binary"), ("string", "value string")])
def test_other_formats(kafka: KafkaCluster, format: str, schema: str) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [b"one", b"two"])
    with opened(kafka.bootstrap, topic, schema, format=format) as source:
        [slab] = slabs(source)
        assert slab.rows.column("value").cast(pa.binary()).to_pylist() == [b"one", b"two"]


# ---------------------------------------------------------------- who may


def secure(kafka: KafkaCluster, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": password,
        "ssl.ca.location": str(kafka.certificate),
    }


def test_with_a_password(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(3))
    with opened(kafka.secure_bootstrap, topic, settings=secure(kafka, USERS["ann"])) as source:
        assert numbers(slabs(source)) == [0, 1, 2]
    with (
        opened(kafka.secure_bootstrap, topic, settings=secure(kafka, "wrong")) as source,
        pytest.raises(NoAccess, match="refused the user or the password"),
    ):
        source.latest()


# ---------------------------------------------------------------- opening


def test_an_endpoint_becomes_a_source(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, rows(2))
    broker = f"kafka://{kafka.bootstrap}"
    own = tmp_path / "own"
    for place, job in (
        (topic, broker),
        (kafka_place(topic=topic), broker),
        (kafka_place(kafka.bootstrap, topic=topic), None),
        (kafka_place(kafka.bootstrap, topic=topic), "file://elsewhere"),
    ):
        source = open_source(place, Schema.of("user string, n int"), broker=job, folder=own, name="read")
        assert isinstance(source, KafkaSource)
        assert numbers(slabs(source)) == [0, 1]
        source.close()
    assert not own.exists()
    with pytest.raises(InvalidInput, match="the job's own broker is not Kafka"):
        open_source(kafka_place(topic=topic), Schema.of("n int"), broker=str(tmp_path), folder=own, name="read")


def test_a_queue_drops_what_is_beyond_its_limits(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = made(kafka.bootstrap, 2)
    hours_ago = int((datetime.now(UTC) - timedelta(hours=3)).timestamp() * 1000)
    send(kafka.bootstrap, topic, rows(3), partition=1, timestamp=hours_ago)
    send(kafka.bootstrap, topic, rows(10), timestamp=hours_ago + 3 * 3_600_000)
    queue = ms.queue(topic, at_most=4, expire_after="1 hour")
    source = open_source(
        queue, Schema.of("user string, n int"), broker=f"kafka://{kafka.bootstrap}", folder=tmp_path, name="read"
    )
    end = source.limited({}, 3)
    slices = [slice for task in source.slices({}, end, 2) for slice in task]
    assert [n for slice in slices for slab in source.read(slice) for n in slab.rows.column("n").to_pylist()] == [
        6,
        7,
        8,
    ]
    assert (end, source.dropped_rows) == ({"0": 9, "1": 3}, 9)
    source.close()
