"""What a consumer returns: single records, or batches of columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from millstream.records.values import column_to_values, values_or_raw


class Record(msgspec.Struct, frozen=True, gc=False):  # its constructor is C code: polls make many of them
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition as columns: key, value, timestamp, headers."""

    topic: str
    partition: int
    offsets: npt.NDArray[np.int64]
    columns: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def next_offset(self) -> int:
        return int(self.offsets[-1]) + 1

    def values(self) -> pa.RecordBatch:
        """The values of a topic with a schema, as a batch of its columns; a tombstone is a row of nulls."""
        value = self.columns.column("value")
        if not pa.types.is_struct(value.type):
            return self.columns.select(["value"])
        return pa.RecordBatch.from_arrays(value.flatten(), schema=pa.schema(list(value.type)))

    def to_polars(self) -> pl.DataFrame:
        """The values as a polars frame."""
        frame = pl.from_arrow(pa.Table.from_batches([self.values()]))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def records(self) -> list[Record]:
        parts = (self.columns.column(name) for name in ("timestamp", "key", "value"))
        times, keys, values = (column_to_values(part, values_or_raw, values_or_raw) for part in parts)
        return self._records(times, keys, values, pairs_of(self.columns.column("headers")))

    def _records(self, times: list[Any], keys: list[Any], values: list[Any], headers: list[Any]) -> list[Record]:
        rows = (self.offsets.tolist(), times, keys, values, headers)
        return list(map(Record, repeat(self.topic), repeat(self.partition), *rows))

    def split(self, count: int) -> tuple[Batch, Batch]:
        first = Batch(self.topic, self.partition, self.offsets[:count], self.columns.slice(0, count))
        return first, Batch(self.topic, self.partition, self.offsets[count:], self.columns.slice(count))


def pairs_of(headers: pa.Array) -> list[Any]:
    """The headers of each record; pairs, not a dict, because a name may occur more than once."""
    if headers.null_count == len(headers):
        return [()] * len(headers)
    return [tuple(each or ()) for each in headers.to_pylist()]


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets that retention deleted before this consumer read them."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
