"""What q10 is about: its rows as Parquet files, in folders by day and minute, and back from there.

It needs nothing but pyarrow, since Flink runs in an environment of its own.
"""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from engine import Row, Task

FILED = "q10"
PARTITIONS = ("dt", "hm")


def new_folder(task: Task) -> Path:
    return task.scratch / f"{FILED}-{time.time_ns()}"


def read(folder: Path) -> list[Row]:
    """The rows of all files that are finished, with the columns that folders are named by."""
    named = pa.schema([(column, pa.string()) for column in PARTITIONS])
    found = ds.dataset(folder, format="parquet", partitioning=ds.partitioning(named, flavor="hive")).to_table()
    for place, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):  # some write nanoseconds, which Python has none of
            found = found.set_column(place, field.name, found.column(place).cast(pa.timestamp("us", field.type.tz)))
    rows: list[Row] = found.to_pylist()
    return rows
