"""The columns of a segment: key, value, timestamp, headers; the value is bytes, or a struct of typed columns."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from millstream.records import Schema

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.binary())


def stored_schema(schema: Schema | None) -> pa.Schema:
    value = pa.binary() if schema is None else pa.struct(list(schema.arrow))
    return pa.schema([("key", pa.binary()), ("value", value), ("timestamp", TIMESTAMP), ("headers", HEADERS)])


def completed(stored: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with all columns of the schema; missing ones are nulls."""
    if stored.num_columns == len(schema):
        return stored
    columns = [
        stored.column(field.name) if field.name in stored.schema.names else no_values(field.type, stored.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def no_values(kind: pa.DataType, rows: int) -> pa.Array:
    """A column of nulls, cached by size: every frame without keys or headers needs one."""
    return _nulls(kind, 1 << max(rows - 1, 1023).bit_length()).slice(0, rows)


@lru_cache(maxsize=16)
def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    if not pa.types.is_map(kind):
        return pa.nulls(rows, kind)
    # Arrow's own null maps have empty entries, which would be stored.
    offsets = pa.array(np.zeros(rows + 1, np.int32))
    nothing = [pa.array([], kind.key_type), pa.array([], kind.item_type)]
    return pa.MapArray.from_arrays(offsets, *nothing, mask=pa.array(np.ones(rows, np.bool_)))
