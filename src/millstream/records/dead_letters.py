"""A dead letter has the original bytes, where they came from, and why they could not be used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.records.columns import Failure
from millstream.records.schema import Schema

DEAD_LETTER_SCHEMA = Schema.of("value binary, topic string, partition int, offset long, reason string, at timestamp")


def dead_letters(
    values: pa.Array | Sequence[bytes | None],
    offsets: pa.Array | Sequence[int],
    failures: Sequence[Failure],
    *,
    topic: str,
    partition: int,
    at: datetime,
) -> pa.RecordBatch:
    """One row per failure; failures index `values` and `offsets`, which are those of the whole decoded batch."""
    if len(values) != len(offsets):
        raise InvalidInput(f"{len(values)} values, but {len(offsets)} offsets", where=f"{topic}/{partition}")
    if at.utcoffset() is None:
        raise InvalidInput("the time of a dead letter has no time zone", next_step="give an aware datetime")
    held = values.cast(pa.binary()) if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    numbers = offsets if isinstance(offsets, pa.Array) else pa.array(offsets, pa.int64())
    failed = pa.array([failure.index for failure in failures], pa.int64())
    count = len(failures)
    return pa.RecordBatch.from_arrays(
        [
            held.take(failed),
            pa.repeat(topic, count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            numbers.cast(pa.int64()).take(failed),
            pa.array([failure.reason for failure in failures], pa.string()),
            pa.repeat(pa.scalar(at, pa.timestamp("us", "UTC")), count),
        ],
        schema=DEAD_LETTER_SCHEMA.arrow,
    )
