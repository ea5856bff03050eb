"""For sinks that pass rows on as they are, the weight becomes a column, so that it is not lost."""

from __future__ import annotations

import pyarrow as pa

from millstream.records import Schema, align

WEIGHT = "weight"
FIELD = pa.field(WEIGHT, pa.int32())


def with_weights(rows: pa.Table, weights: pa.Array | None) -> pa.Table:
    """The rows; those of a changing stream with a column `weight`."""
    if weights is None or WEIGHT in rows.schema.names:
        return rows
    return rows.append_column(FIELD, weights.cast(pa.int32()))


def weighted(schema: Schema) -> Schema:
    """The schema of a changing stream."""
    return schema if WEIGHT in schema else Schema(schema.arrow.append(FIELD))


def aligned(rows: pa.Table, schema: Schema) -> pa.Table:
    """Rows of exactly this schema; the input may have other encodings of the same values."""
    if rows.schema.equals(schema.arrow):
        return rows
    return pa.Table.from_batches([align(one_batch(rows), schema.arrow)])


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """All rows in one chunk."""
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
