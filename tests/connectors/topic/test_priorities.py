"""Goal: of what waits in a queue, the highest priorities are read first, each record once, also in a new process.

Method: a topic on disk, its records read in batches as a job plans them, against a sorted list.
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
from millstream.connectors.source import Offsets, Slab, Slice, Source
from millstream.connectors.topic import priority_source, taken
from millstream.errors import DamagedState, InvalidExpression, InvalidInput, InvalidPlan, OffsetLost, SourceUnavailable
from millstream.log import EmbeddedLog
from millstream.records import Schema
from properties import examples
from waiting import until

SCHEMA = "n int, level int"
Numbers = list[tuple[int, int | None]]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("q", schema=SCHEMA, partitions=2)
        yield opened


def put(log: EmbeddedLog, *rows: tuple[int, int | None], partition: int = 0) -> None:
    with log.producer() as producer:
        for n, level in rows:
            producer.send("q", {"n": n, "level": level}, partition=partition)


def opened(log: EmbeddedLog, priority: str = "level", schema: str = SCHEMA, **more: Any) -> Source:
    folder = Path(log.path).parent / "own"
    queue = ms.queue("q", priority=priority, **more)
    return open_source(queue, Schema.of(schema), broker=str(log.path), folder=folder, name="read_q")


def between(source: Source, start: Offsets, end: Offsets) -> list[int]:
    slices = [slice for task in source.slices(start, end, 2) for slice in task]
    return [n for slice in slices for slab in source.read(slice) for n in slab.rows.column("n").to_pylist()]


def batch(source: Source, start: Offsets, limit_rows: int | None = None) -> tuple[list[int], Offsets]:
    end = source.limited(start, limit_rows)
    return between(source, start, end), end


def test_the_highest_first(log: EmbeddedLog) -> None:
    put(log, (1, 0), (2, 5), (3, 0), (4, None), (5, 5))
    put(log, (6, 9), (7, 5), partition=1)
    source = opened(log)
    first, end = batch(source, source.earliest(), limit_rows=3)
    assert first[0] == 6
    assert sorted(first[1:]) == [2, 7]  # equal priorities of two partitions, by offset
    put(log, (8, 7), (9, 0))
    rest, last = batch(source, end)
    assert rest == [8, 5, 1, 3, 9, 4]  # without a priority: last
    assert last == source.latest()
    assert batch(source, last) == ([], last)
    source.close()


def test_an_expression_and_columns_that_the_flow_does_not_use(log: EmbeddedLog) -> None:
    put(log, (1, 2), (2, 1), (3, 3))
    queue = ms.queue("q", priority="case when level = 1 then 100 else level end")
    source = open_source(
        queue,
        Schema.of(SCHEMA),
        broker=str(log.path),
        folder=Path(log.path).parent / "own",
        name="read_q",
        columns=Schema.of("n int"),
    )
    assert batch(source, source.earliest())[0] == [2, 3, 1]
    source.close()


def test_waiting_may_count(log: EmbeddedLog) -> None:
    """By times in the records: a level is worth ten minutes."""
    log.create_topic("timed", schema="n int, level int, at timestamp")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with log.producer() as producer:
        for n, level, minute in [(1, 1, 0), (2, 2, 5), (3, 1, 6), (4, 3, 30)]:
            producer.send("timed", {"n": n, "level": level, "at": noon + timedelta(minutes=minute)})
    queue = ms.queue("timed", priority="600 * level - unix_seconds(at)")
    schema = Schema.of("n int, level int, at timestamp")
    folder = Path(log.path).parent / "own"
    source = open_source(queue, schema, broker=str(log.path), folder=folder, name="read")
    assert batch(source, source.earliest())[0] == [2, 1, 3, 4]
    source.close()


def test_what_was_planned_comes_first_after_a_crash(log: EmbeddedLog) -> None:
    """The plan is stored, then the process dies before Spark knows of the batch."""
    put(log, (1, 1), (2, 2), (3, 3))
    source = opened(log)
    start = source.earliest()
    planned, end = batch(source, start, limit_rows=2)
    source.close()
    put(log, (4, 9))
    again = opened(log)
    assert batch(again, start, limit_rows=2) == (planned, end) == ([3, 2], end)
    assert batch(again, end)[0] == [4, 1]
    again.close()


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3) | st.none(), max_size=6), st.none() | st.integers(1, 5), st.booleans()),
        max_size=8,
    )
)
@examples(60)
def test_it_is_a_sorted_list(steps: list[tuple[list[int | None], int | None, bool]]) -> None:
    """Between two batches, the process may start again."""
    with TemporaryDirectory() as folder, EmbeddedLog(Path(folder) / "log", upkeep=False) as log:
        log.create_topic("q", schema=SCHEMA)
        source = opened(log)
        waiting: Numbers = []
        position: Offsets = source.earliest()
        sent = 0
        batches = []
        for levels, limit, restarts in steps:
            rows = [(sent + place, level) for place, level in enumerate(levels)]
            sent += len(rows)
            put(log, *rows)
            waiting = sorted([*waiting, *rows], key=lambda row: (-(-1 if row[1] is None else row[1]), row[0]))
            expected, waiting = waiting[:limit], [] if limit is None else waiting[limit:]
            if restarts:
                source.close()
                source = opened(log)
            found, end = batch(source, position, limit)
            assert found == [n for n, _ in expected]
            assert sum(source.latest().values()) - sum(end.values()) == len(waiting)  # the lag is what waits
            batches.append((position, end, found))
            position = end
        source.close()
        later = opened(log)
        assert [between(later, start, end) for start, end, _ in batches] == [rows for *_, rows in batches]
        for start, end, rows in batches:  # as `why` reads them
            pieces = later.pieces("0", start["0"], end["0"])
            assert [n for each in pieces for slab in later.read(each) for n in slab.rows["n"].to_pylist()] == rows
        later.close()


def test_a_batch_is_limited(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_source, "BATCH_ROWS_MAX", 2)
    put(log, (1, 1), (2, 2), (3, 3))
    source = opened(log)
    rows, end = batch(source, source.earliest())
    assert (rows, batch(source, end)[0]) == ([3, 2], [1])
    source.close()


def test_only_the_newest_order_is_kept(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken, "RANGES_MAX", 2)
    put(log, *((n, n % 2) for n in range(8)))
    source = opened(log)
    start = source.earliest()
    end = start
    for _ in range(4):
        before, (rows, end) = end, batch(source, end, limit_rows=2)
        assert between(source, before, end) == rows
    assert not batch(source, end)[0]
    with pytest.raises(DamagedState, match="is not listed any more"):
        source.slices(start, end, 1)
    source.close()


def test_a_broker_that_is_away_for_a_moment(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process reads the priorities of what is left before and behind what was taken."""
    put(log, (1, 1), (2, 9), (3, 3))
    source = opened(log)
    assert batch(source, source.earliest(), limit_rows=1)[0] == [2]
    source.close()
    again = opened(log)
    whole = again._opened()  # type: ignore[attr-defined]
    read, calls = whole.read, []

    def away(slice: Slice) -> Iterator[Slab]:
        calls.append(slice)
        if len(calls) == 2:
            raise SourceUnavailable("away")
        return read(slice)  # type: ignore[no-any-return]

    monkeypatch.setattr(whole, "read", away)
    with pytest.raises(SourceUnavailable):
        again.limited({"0": 1, "1": 0}, None)
    assert batch(again, {"0": 1, "1": 0})[0] == [3, 1]
    again.close()


def test_records_that_expired_while_they_waited_are_an_error(log: EmbeddedLog) -> None:
    put(log, (1, 1), (2, 2))
    source = opened(log)
    start = source.earliest()
    earliest = dict.fromkeys(start, 1)
    source._inner.earliest = lambda: earliest  # type: ignore[attr-defined]
    with pytest.raises(OffsetLost, match="were deleted before they were read"):
        source.limited(start, None)
    source.close()


def test_a_damaged_order_is_an_error(log: EmbeddedLog, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "taken.json").write_text('{"partitions": 3}')
    with pytest.raises(DamagedState, match="the order in which a queue was read"):
        opened(log)


@pytest.mark.parametrize("more", [{"at_most": 3}, {"size": 10, "when_full": "drop_newest"}, {"expire_after": "1 hour"}])
def test_a_priority_drops_nothing(more: dict[str, Any]) -> None:
    with pytest.raises((InvalidInput, InvalidPlan), match="a queue with a priority drops nothing"):
        ms.queue("q", priority="level", **more)


def test_a_priority_is_checked_where_it_is_read() -> None:
    flow = ms.Flow("checked")
    with pytest.raises(InvalidPlan, match="is string, not a number"):
        flow.read(ms.queue("q", priority="name"), "name string")
    with pytest.raises(InvalidPlan, match="changes with the clock"):
        flow.read(ms.queue("q", priority="unix_seconds(current_timestamp())"), "name string")
    with pytest.raises(InvalidExpression, match="nme"):
        flow.read(ms.queue("q", priority="nme"), "name string")
    read = flow.read(ms.queue("q", priority="level", at_most=9, when_full="wait"), SCHEMA)
    assert read.node.label == "read q (at most 9 records, else its writers wait, by priority: level)"


def test_a_job_reads_by_priority(spark: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    put(log, *((n, n % 3) for n in range(12)))
    flow = ms.Flow("urgent", log=str(log.path))
    flow.read(ms.queue("q", priority="level"), SCHEMA, name="q").select("n").write("out", partitions=1)
    job = flow.start(folder=tmp_path / "job", batch_rows=5)
    try:
        until(lambda: len(_got(log)) >= 12, "all of it")
    finally:
        job.stop()
    assert _got(log) == [*range(2, 12, 3), *range(1, 12, 3), *range(0, 12, 3)]
    put(log, (12, 0), (13, 2))
    again = flow.run(until="caught up", folder=tmp_path / "job", batch_rows=5)
    assert _got(log)[12:] == [13, 12]
    assert again.lag() == 0


def _got(log: EmbeddedLog) -> list[int]:
    if "out" not in log.topics():
        return []
    with log.consumer("out") as consumer:
        return [record.value["n"] for record in consumer.until_caught_up()]
