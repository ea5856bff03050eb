"""The events as Parquet files, which is what every engine reads: one file of a kind is one batch of it.

Flink promises no order among files, so it gets the same rows in two files of a kind, one for each of its readers, and
both in order of time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import generator
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import queries

from millstream.records import Schema

READERS = 2
BY_READER, FIRST_BY_READER = "by_reader", "first_by_reader"
SIDE = "side.csv"
LATER = timedelta(days=1)
GROUPS_OF_FILE = 4  # row groups, so that two tasks can share a file
EPOCH_S = 1_700_000_000


@dataclass(frozen=True)
class Pace:
    """How many events are in a second of event time, and how many in a row are shuffled."""

    rate: int
    out_of_order: int


FAST = Pace(10_000, 1000)
SLOW = Pace(100, 200)  # so that few events are of many windows


def make(folder: Path, count: int, batch_events: int, pace: Pace = FAST, *, closing: bool = False) -> None:
    """Writes `count` events, so many to a batch. `closing`: then some of a day later, so that every window ends."""
    folder.mkdir(parents=True, exist_ok=True)
    queries.write_side(folder / SIDE)
    with ExitStack() as opened:
        halves = {
            topic: [opened.enter_context(_writer(folder / BY_READER / topic, topic, each)) for each in range(READERS)]
            for topic in generator.SCHEMAS
        }
        for number, made in enumerate(_made(count, batch_events, pace, closing)):
            for topic in generator.SCHEMAS:
                table = pa.Table.from_batches([made[topic]])
                _write(table, folder / topic / f"{number:04}.parquet", number)
                for writer, part in zip(halves[topic], _shared(table), strict=True):
                    writer.write_table(part)
                if number == 0:
                    for reader, part in enumerate(_shared(table)):
                        _write(part, folder / FIRST_BY_READER / topic / f"{reader}.parquet", reader)


def _made(count: int, batch_events: int, pace: Pace, closing: bool) -> Iterator[generator.Events]:
    yield from generator.batches(count, pace.rate, out_of_order=pace.out_of_order, batch_events=batch_events)
    if closing:
        last = generator.events(count, 4 * generator.ROUND, pace.rate)
        yield generator.Events(*(_later(last[topic]) for topic in generator.SCHEMAS))


def _later(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A day later. Auctions are over before they begin: a bid on an open one might wait for more events to come."""
    later = pc.add(rows.column("dateTime"), pa.scalar(LATER, pa.duration("us")))
    moved = {"dateTime": later, "expires": pc.subtract(later, pa.scalar(timedelta(seconds=1), pa.duration("us")))}
    for place, field in enumerate(rows.schema):
        if field.name in moved:
            rows = rows.set_column(place, field, moved[field.name])
    return rows


def _shared(table: pa.Table) -> list[pa.Table]:
    """Every other row, so that both readers are at the same time of events."""
    return [table.take(np.arange(reader, table.num_rows, READERS)) for reader in range(READERS)]


def _writer(folder: Path, topic: str, reader: int) -> pq.ParquetWriter:
    folder.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(folder / f"{reader}.parquet", Schema.of(generator.SCHEMAS[topic]).arrow)


def _write(table: pa.Table, path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=max(1, -(-table.num_rows // GROUPS_OF_FILE)))
    os.utime(path, (EPOCH_S + number, EPOCH_S + number))  # files are read in the order of their times


def read(folder: Path) -> dict[str, pa.Table]:
    """All of them, in the order they were made."""
    return {
        topic: pa.concat_tables(pq.read_table(path) for path in sorted((folder / topic).glob("*.parquet")))
        for topic in generator.SCHEMAS
    }
