"""Rows as database tables hold them: structs flattened into columns, arrays and maps as JSON text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millstream.plan.steps.flat_columns import FlatColumn, flat_columns
from millstream.records import Schema, align, codec


def flat_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of `flat_columns`, in order."""
    schema = Schema.of(rows.schema)
    given = align(rows, schema.arrow)
    columns = flat_columns(schema)
    arrays = [as_json(array) if pa.types.is_nested(array.type) else array for array in flat_arrays(given, columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def check_json(schema: Schema) -> None:
    """Rejects columns that JSON cannot represent."""
    nested = [field for field in schema.arrow if pa.types.is_nested(field.type)]
    if nested:
        codec("json", Schema(pa.schema(nested)))


def flat_arrays(rows: pa.RecordBatch, columns: tuple[FlatColumn, ...]) -> list[pa.Array]:
    """A field of a null struct is null."""
    return [
        pc.struct_field(rows.column(column.path[0]), list(column.path[1:]))
        if len(column.path) > 1
        else rows.column(column.path[0])
        for column in columns
    ]


def as_json(array: pa.Array) -> pa.Array:
    """Each value as JSON text."""
    schema = Schema(pa.schema([("v", array.type)]))
    encoded = codec("json", schema).encode(pa.RecordBatch.from_arrays([array], schema=schema.arrow))
    texts = [record[5:-1].decode() for record in encoded.to_pylist()]  # strips {"v":…}
    return pa.array([None if text == "null" else text for text in texts], pa.string())


def texts_of_times(array: pa.Array) -> pa.Array:
    """ISO 8601 with microseconds, instants in UTC with a Z: texts sort like times."""
    naive = array.view(pa.timestamp("us")).cast(pa.string())
    with_t = pc.replace_substring(naive, " ", "T")
    return pc.binary_join_element_wise(with_t, "Z", "") if array.type.tz else with_t


def texts_of_decimals(array: pa.Array) -> pa.Array:
    """Without an exponent, which Arrow may use for small numbers."""
    return pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())
