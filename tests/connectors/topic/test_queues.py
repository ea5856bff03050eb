"""Goal: a queue never holds more than its limits, what is dropped is counted, and a repeated batch has the same rows.

Method: a topic on disk, its records read in batches as a job plans them, against a list that is cut in the obvious way.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import millstream as ms
from millstream.connectors.opening import open_source
from millstream.connectors.source import Offsets, Source
from millstream.errors import DamagedState, InvalidInput, InvalidSetting
from millstream.log import EmbeddedLog
from millstream.metrics.history import read_metrics
from millstream.records import Schema
from properties import examples


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("q", schema="n int", partitions=2)
        yield opened


def put(log: EmbeddedLog, *numbers: int, partition: int = 0, age: timedelta = timedelta(0)) -> None:
    with log.producer() as producer:
        for number in numbers:
            producer.send("q", {"n": number}, partition=partition, timestamp=datetime.now(UTC) - age)


def opened(log: EmbeddedLog, **limits: Any) -> Source:
    folder = Path(log.path).parent / "own"
    return open_source(ms.queue("q", **limits), Schema.of("n int"), broker=str(log.path), folder=folder, name="read_q")


def between(source: Source, start: Offsets, end: Offsets) -> list[int]:
    slices = [slice for task in source.slices(start, end, 2) for slice in task]
    return [n for slice in slices for slab in source.read(slice) for n in slab.rows.column("n").to_pylist()]


def batch(source: Source, start: Offsets, limit_rows: int | None = None) -> tuple[list[int], Offsets]:
    end = source.limited(start, limit_rows)
    return between(source, start, end), end


def test_the_oldest_are_dropped(log: EmbeddedLog) -> None:
    put(log, *range(10))
    source = opened(log, at_most=4)
    rows, end = batch(source, {})
    assert (rows, source.dropped_rows) == ([6, 7, 8, 9], 6)
    assert source.take_losses() == ["queue 'q' was full or had old records: 6 were dropped, 6 in all"]
    put(log, 10, 11)
    assert batch(source, end)[0] == [10, 11]
    assert source.dropped_rows == 6
    assert source.take_losses() == []
    source.close()


def test_the_newest_are_dropped(log: EmbeddedLog) -> None:
    put(log, *range(10))
    source = opened(log, at_most=4, when_full="drop_newest")
    first, end = batch(source, {}, limit_rows=2)
    put(log, 10, 11, 12)
    second, end = batch(source, end, limit_rows=2)
    third, end = batch(source, end)
    assert (first, second, third) == ([0, 1], [2, 3], [10, 11])  # 2 and 3 waited, so there was room for two more
    assert source.dropped_rows == 7
    put(log, 13)
    assert batch(source, end)[0] == [13]
    source.close()


def test_a_repeated_batch_has_the_same_rows(log: EmbeddedLog) -> None:
    """Also in a new process, after more was dropped, and if a whole range is read that was read in parts."""
    put(log, *range(10))
    source = opened(log, at_most=4)
    rows, end = batch(source, {}, limit_rows=3)
    put(log, *range(10, 20))
    more, last = batch(source, end)
    source.close()
    assert (rows, more) == ([6, 7, 8], [16, 17, 18, 19])
    again = opened(log, at_most=2)
    assert again.dropped_rows == 0  # in this run
    assert between(again, {}, end) == rows
    assert between(again, end, last) == more
    assert between(again, {}, last) == rows + more
    again.close()


def test_partitions_share_the_limit(log: EmbeddedLog) -> None:
    put(log, *range(10))
    put(log, 100, partition=1)
    source = opened(log, at_most=4)
    assert sorted(batch(source, {})[0]) == [7, 8, 9, 100]
    source.close()


def test_bytes_are_limited(log: EmbeddedLog) -> None:
    put(log, *range(1000))
    source = opened(log, at_most=900, size=10 * 1024)
    rows, _ = batch(source, {})
    assert 0 < len(rows) < 900
    assert rows == list(range(1000 - len(rows), 1000))
    assert len(rows) == int(10 * 1024 / (source.row_bytes() or 0))
    source.close()


def test_old_records_are_dropped(log: EmbeddedLog) -> None:
    put(log, 1, 2, age=timedelta(hours=3))
    put(log, 3, 4)
    put(log, 5, partition=1, age=timedelta(hours=3))
    source = opened(log, expire_after="1 hour")
    rows, end = batch(source, {})
    assert (rows, end, source.dropped_rows) == ([3, 4], {"0": 4, "1": 1}, 3)
    assert not batch(source, end)[0]
    source.close()


@given(
    st.sampled_from(["drop_oldest", "drop_newest"]),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(1, 5)), max_size=8),
)
@examples(60)
def test_it_is_a_bounded_list(when_full: str, at_most: int, steps: list[tuple[int, int | None]]) -> None:
    with TemporaryDirectory() as folder, EmbeddedLog(Path(folder) / "log", upkeep=False) as log:
        log.create_topic("q", schema="n int")
        source = opened(log, at_most=at_most, when_full=when_full)
        waiting: list[int] = []
        position: Offsets = {}
        sent = 0
        batches = []
        for count, limit in steps:
            put(log, *range(sent, sent + count))
            waiting += range(sent, sent + count)
            sent += count
            waiting = waiting[-at_most:] if when_full == "drop_oldest" else waiting[:at_most]
            expected, waiting = waiting[:limit], [] if limit is None else waiting[limit:]
            rows, end = batch(source, position, limit)
            assert rows == expected
            batches.append((position, end, rows))
            position = end
        assert source.dropped_rows == sent - len(waiting) - sum(len(rows) for _, _, rows in batches)
        source.close()
        later = opened(log, at_most=at_most, when_full=when_full)
        assert [between(later, start, end) for start, end, _ in batches] == [rows for _, _, rows in batches]
        later.close()


def test_a_damaged_list_is_an_error(log: EmbeddedLog, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "dropped.json").write_text('{"total": 3}')
    with pytest.raises(DamagedState, match="what a queue has dropped"):
        opened(log, at_most=4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "a queue needs a limit"),
        ({"at_most": 0}, "at_most must be a positive integer"),
        ({"at_most": 1, "when_full": "explode"}, "when_full='explode' is unknown"),
        ({"expire_after": "1 hour", "when_full": "drop_newest"}, "when_full needs at_most or size"),
        ({"size": 0}, "must be more than 0"),
        ({"expire_after": "0 seconds"}, "must be more than 0"),
    ],
)
def test_wrong_limits_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidInput, InvalidSetting), match=message):
        ms.queue("q", **wrong)


def test_a_plan_shows_the_limits() -> None:
    flow = ms.Flow("shown")
    read = flow.read(ms.queue("q", at_most=10_000, size="1 MB", expire_after="1 hour"), "n int")
    read.write("out")
    label = read.node.label
    assert label == "read q (at most 10,000 records and 1,000,000 bytes, else drops the oldest, kept for 1 hour)"
    assert read.node.state_label == "read q"  # other limits are no other step


def test_a_job_drops_and_counts(spark: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    put(log, *range(10))
    flow = ms.Flow("slow", log=str(log.path))
    flow.read(ms.queue("q", at_most=4), "n int", name="orders").write("out")
    flow.run(until="caught up", folder=tmp_path / "job", broker=log.path)
    with log.consumer("out") as consumer:
        assert sorted(record.value["n"] for record in consumer.until_caught_up()) == [6, 7, 8, 9]
    metrics = read_metrics(tmp_path / "job")
    assert metrics is not None
    assert metrics.newest is not None
    sample = metrics.newest.steps["orders"]
    assert (sample.rows_in, sample.rows_dropped) == (4, 6)
    put(log, 10)
    flow.run(until="caught up", folder=tmp_path / "job", broker=log.path)
    with log.consumer("out") as consumer:
        assert sorted(record.value["n"] for record in consumer.until_caught_up()) == [6, 7, 8, 9, 10]
