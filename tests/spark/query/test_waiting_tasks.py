"""A task whose source is away in the middle of a slice waits, and continues after the last row that it has read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.connectors.source import Offsets, Slab, Slice, Source
from millstream.errors import SourceUnavailable
from millstream.spark.query import batch_offsets
from millstream.spark.query.batch_offsets import STOP, JobFeed

ROWS, BAD = 20, 5


class Flaky(Source):
    """Slabs of other sizes at each attempt, of which the first ones break off; every fourth record is a dead letter.

    As in a file, the offset of a dead letter is that of a line.
    """

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.attempts = 0

    def latest(self) -> Offsets:
        return {"0": ROWS}

    def read(self, slice: Slice) -> Iterator[Slab]:
        self.attempts += 1
        size = 2 + self.attempts % 3
        for start in range(slice.start, slice.end, size):
            if self.attempts <= self.failures and start - slice.start >= 4 * self.attempts:
                raise SourceUnavailable("it is away")
            records = range(start, min(start + size, slice.end))
            good, bad = ([n for n in records if (n % 4 == 3) == is_bad] for is_bad in (False, True))
            dead = pa.table({"offset": pa.array([n - slice.start + 1 for n in bad], pa.int64())})
            yield Slab("0", pa.table({"n": good}), np.array(good, np.int64), dead if bad else None)


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = JobFeed.__new__(JobFeed)
    made.folder = str(tmp_path)
    monkeypatch.setattr(batch_offsets, "RETRY_S", 0.0)
    return made


def read(feed: Any, source: Source, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    monkeypatch.setattr(JobFeed, "source", lambda self, node: source)
    slabs = list(feed._slabs(None, Slice("0", 100, 100 + ROWS)))
    rows = [n for slab in slabs for n in slab.rows.column("n").to_pylist()]
    assert [offset for slab in slabs for offset in slab.offsets.tolist()] == rows
    return rows, [n for slab in slabs if slab.dead is not None for n in slab.dead.column("offset").to_pylist()]


@pytest.mark.parametrize("failures", range(1, 5))
def test_every_row_and_every_dead_letter_comes_once(feed: Any, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Flaky(failures)
    rows, dead = read(feed, source, monkeypatch)
    assert rows == [n for n in range(100, 100 + ROWS) if n % 4 != 3]
    assert dead == [4 * number for number in range(1, BAD + 1)]
    assert source.attempts == failures + 1


def test_a_job_that_stops_does_not_wait(feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / STOP).touch()
    with pytest.raises(SourceUnavailable):
        read(feed, Flaky(5), monkeypatch)


def test_it_does_not_wait_for_ever(feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_offsets, "UNAVAILABLE_S_MAX", 0.0)
    with pytest.raises(SourceUnavailable):
        read(feed, Flaky(5), monkeypatch)
