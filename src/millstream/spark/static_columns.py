"""Columns of static rows that Spark computes while a flow is built, once."""

from __future__ import annotations

import pyarrow as pa

from millstream.expressions.expression import Expression
from millstream.spark.frame_functions import dataframe_of
from millstream.spark.query.spark_steps import as_column

RESULT = "result"


def evaluated(rows: pa.Table, made: Expression) -> pa.ChunkedArray:
    """The values of an expression, row by row."""
    frame = dataframe_of(rows).select(as_column(made).alias(RESULT))
    return frame.toArrow().column(RESULT)
