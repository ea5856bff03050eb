"""Dead letters of sources: records that could not become rows, with their position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.connectors.source import Slab
from millstream.records import Failure, Schema, codec, dead_letters


class Origin(NamedTuple):
    """The topic or file, and its partition."""

    name: str
    partition: int


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def dead_letter_table(
    values: pa.Array | Sequence[bytes | None],
    offsets: npt.NDArray[np.int64],
    failures: Sequence[Failure],
    origin: Origin,
) -> pa.Table:
    at = datetime.now(UTC)
    made = dead_letters(values, pa.array(offsets), failures, topic=origin.name, partition=origin.partition, at=at)
    return pa.Table.from_batches([made])


def without_missing(
    partition: str,
    origin: Origin,
    rows: pa.Table,
    offsets: npt.NDArray[np.int64],
    schema: pa.Schema,
    dead: pa.Table | None = None,
    numbers: npt.NDArray[np.int64] | None = None,
    reasons: Mapping[int, str] = {},
) -> Slab:
    """Rows without a value in a NOT NULL column become dead letters, written as JSON.

    `numbers` identify rows in dead letters, if offsets do not; `reasons` are those of other rejected rows.
    """
    reasons = dict(reasons)
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            for row in np.flatnonzero(rows.column(field.name).is_null().to_numpy()):
                reasons.setdefault(int(row), f"column '{field.name}' is NOT NULL, and it is missing or null")
    if reasons:
        bad = np.array(sorted(reasons), dtype=np.int64)
        refused = rows.take(pa.array(bad)).combine_chunks()
        values = codec("json", Schema.of(refused.schema)).encode(refused.to_batches()[0])
        failures = [Failure(index, reasons[int(row)]) for index, row in enumerate(bad)]
        more = dead_letter_table(values, (offsets if numbers is None else numbers)[bad], failures, origin)
        dead = more if dead is None else pa.concat_tables([dead, more]).sort_by("offset")
        kept = np.delete(np.arange(rows.num_rows), bad)
        rows, offsets = rows.take(pa.array(kept)), offsets[kept]
    return Slab(partition, pa.Table.from_arrays(rows.columns, schema=schema), offsets, dead)
