"""Batches of rows as a user's function gets and returns them: polars, pandas or pyarrow."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

from millstream.plan.nodes import MapRows


def batch_given(table: pa.Table, node: MapRows) -> Any:
    """Rows as the function of a step takes them."""
    return as_frame(table, node.batch_type)


def as_frame(table: pa.Table, kind: str) -> Any:
    """Rows as "arrow", "pandas" or "polars". Whole numbers with nulls stay whole numbers in pandas."""
    if kind == "arrow":
        return table
    return table.to_pandas(integer_object_nulls=True) if kind == "pandas" else pl.from_arrow(table)


def batch_returned(result: Any, node: MapRows) -> pa.Table:
    """What the function returned, in any of these forms."""
    if isinstance(result, pa.Table):
        return result
    if isinstance(result, pl.DataFrame):
        return result.to_arrow()
    if type(result).__module__.partition(".")[0] == "pandas":  # imported only if the function did
        return pa.Table.from_pandas(result, schema=node.schema.arrow, preserve_index=False)
    raise TypeError(f"the function must return a polars or pandas DataFrame or a pyarrow Table, not {result!r}")
