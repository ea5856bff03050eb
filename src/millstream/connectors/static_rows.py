"""Static rows of lookup tables: all are read once; the first that does not fit raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.connectors.connector import Connector
from millstream.errors import InvalidInput, InvalidSchema
from millstream.records import Schema, align, rows_to_batch
from millstream.user_lines import what_exists

TAKES = "a list of dicts, a Spark, polars, pyarrow or pandas frame, or ms.files(…), ms.sqlite(…), ms.postgres(…)"


def load(given: Any, schema: Schema) -> pa.Table:
    """All rows of a lookup table, with the columns of the schema."""
    if isinstance(given, Connector):
        return given.load(schema)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return fitted(given, schema, "the list")
    return _frame(given, schema)


def own_schema(given: Any) -> Schema:
    """The schema of a frame; other rows do not describe themselves."""
    table = _arrow(given)
    if table is None:
        raise InvalidInput("the rows of a lookup table need a schema", next_step="table(rows, 'id long, name string')")
    return Schema.of(table.schema)


def fitted(rows: Sequence[Any], schema: Schema, what: str, where: str | None = None) -> pa.Table:
    """Rows of Python values; raises InvalidInput at the first that does not fit."""
    batch, failures = rows_to_batch(rows, schema)
    if failures:
        first = failures[0]
        raise InvalidInput(
            f"row {first.index} of {what} does not fit: {first.reason}",
            where=where,
            next_step=f"the schema is {schema}",
        )
    return pa.Table.from_batches([batch])


def _frame(frame: Any, schema: Schema) -> pa.Table:
    """A frame with other column types is converted row by row."""
    kind = f"{type(frame).__module__.partition('.')[0]} frame"
    table = _arrow(frame)
    if table is None:
        raise InvalidInput(f"rows cannot be read from {type(frame).__name__}", next_step=f"use {TAKES}")
    for name in schema.names:
        if name not in table.column_names:
            raise InvalidInput(
                f"the {kind} has no column '{name}'", next_step=what_exists(name, map(str, table.column_names))
            )
    table = table.select(schema.names).combine_chunks()
    try:
        batches = [align(batch, schema.arrow) for batch in table.to_batches()]
    except InvalidSchema:
        return fitted(table.to_pylist(), schema, f"the {kind}")
    return pa.Table.from_batches(batches, schema.arrow)


def _arrow(frame: Any) -> pa.Table | None:
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    library = type(frame).__module__.partition(".")[0]
    if library == "pyspark" and hasattr(frame, "toArrow"):
        collected: pa.Table = frame.toArrow()
        return collected
    if library == "polars" and hasattr(frame, "to_arrow"):
        made: pa.Table = frame.to_arrow()
        return made if isinstance(made, pa.Table) else None
    if library == "pandas" and hasattr(frame, "columns"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return None
