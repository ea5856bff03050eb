"""A source with a constant rate: row `n` has the value n, n intervals after the start, which is stored."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Reading
from millstream.connectors.source import SLAB_ROWS, Offsets, Slab, Slice, Source, cut
from millstream.errors import InvalidInput
from millstream.log.storage.disk import read_document, storage_errors, write_document
from millstream.private_files import make_folders
from millstream.records import Schema

PARTITION = "rate"
COLUMNS = Schema.of("value long, at timestamp")
SECOND_US = 1_000_000


@dataclass(frozen=True)
class Rate(Connector):
    rows_per_second: int
    can_read: ClassVar[bool] = True
    can_replay: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return "rate"

    def open_source(self, reading: Reading) -> Source:
        make_folders(reading.folder)
        return RateSource(self, reading.schema, folder=reading.folder)

    def __str__(self) -> str:
        return f"rate({self.rows_per_second} rows a second)"


def rate(rows_per_second: int) -> Rate:
    """A source that counts up, with `rows_per_second`: for experiments."""
    return Rate(arguments.whole_number(rows_per_second, "rows_per_second", "for example rate(10)"))


class RateSource(Source):
    def __init__(self, endpoint: Rate, schema: Schema, *, folder: Path) -> None:
        check_columns(str(endpoint), COLUMNS, schema)
        self.endpoint = endpoint
        self.schema = schema
        self._path = folder / "rate.json"
        self._start_us: int | None = None

    @property
    def partitions(self) -> list[str]:
        return [PARTITION]

    def earliest(self) -> Offsets:
        return {PARTITION: 0}

    def latest(self) -> Offsets:
        start_us = self._start()  # before reading the clock, or the first row would not be due
        passed_us = time.time_ns() // 1000 - start_us
        return {PARTITION: 0 if passed_us < 0 else passed_us * self.endpoint.rows_per_second // SECOND_US + 1}

    def at(self, moment: datetime) -> Offsets:
        """The number of the first row at or after a time, which may be in the future."""
        passed = round(moment.timestamp() * SECOND_US) - self._start()
        return {PARTITION: max(0, -(-passed * self.endpoint.rows_per_second // SECOND_US))}

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        begun = start.get(PARTITION, 0)
        end = max(begun, self.latest()[PARTITION])
        return {PARTITION: end if limit_rows is None else min(end, begun + limit_rows)}

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        return cut([Slice(PARTITION, start.get(PARTITION, 0), end[PARTITION])], tasks)

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        begun = start.get(PARTITION, 0)
        due_us = self._start() + -(-begun * SECOND_US // self.endpoint.rows_per_second)
        deadline = time.monotonic() + timeout_s
        while self.latest()[PARTITION] <= begun:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, max(0.001, due_us / SECOND_US - time.time())))
        return True

    def read(self, slice: Slice) -> Iterator[Slab]:
        for first in range(slice.start, slice.end, SLAB_ROWS):
            offsets = np.arange(first, min(first + SLAB_ROWS, slice.end), dtype=np.int64)
            times = self._start() + offsets * SECOND_US // self.endpoint.rows_per_second
            made = {"value": pa.array(offsets), "at": pa.array(times).cast(pa.timestamp("us", "UTC"))}
            columns = [made.get(field.name, pa.nulls(len(offsets), field.type)) for field in self.schema.arrow]
            yield Slab(PARTITION, pa.Table.from_arrays(columns, schema=self.schema.arrow), offsets)

    def _start(self) -> int:
        """The time of the first row: set at the first call, then fixed."""
        if self._start_us is None:
            with storage_errors(self._path):
                if not self._path.exists():
                    draft = self._path.with_name(f".rate-{os.getpid()}")
                    write_document(draft, {"start_us": time.time_ns() // 1000})
                    with suppress(FileExistsError):
                        os.link(draft, self._path)  # the first process wins
                    draft.unlink()
                self._start_us = int(read_document(self._path)["start_us"])
        return self._start_us


def check_columns(endpoint: str, there: Schema, wanted: Schema) -> None:
    """Requires the wanted columns to exist with the same types, or to be nullable."""
    for field in wanted.arrow:
        if field.name in there:
            if field.type != there.field(field.name).type:
                raise InvalidInput(f"column '{field.name}' has another type", where=endpoint, next_step=_has(there))
        elif not field.nullable:
            raise InvalidInput(f"there is no column '{field.name}'", where=endpoint, next_step=_has(there))


def _has(there: Schema) -> str:
    return f"the columns that exist: {there.ddl}"
