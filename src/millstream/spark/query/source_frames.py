"""The rows of a source as a frame, with their time, weight and offset; and its dead letters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from millstream.connectors.source import Slab
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET, frame_of
from millstream.plan.nodes import Read
from millstream.spark.query.physical_plan import event_times


def framed(slab: Slab, node: Read, names: Sequence[str]) -> pl.DataFrame:
    """The columns of rows as read, with time, weight and offset."""
    rows = pl.from_arrow(slab.rows.select(list(names)))
    assert isinstance(rows, pl.DataFrame)
    # Records older than the column have nulls.
    weights = rows["weight"].cast(pl.Int32).fill_null(1) if node.changes and "weight" in rows.columns else None
    return rows.with_columns(
        event_times(rows, node),
        pl.lit(1, pl.Int32).alias(WEIGHT) if weights is None else weights.alias(WEIGHT),
        pl.Series(OFFSET, np.asarray(slab.offsets, np.int64)),
    )


def dead_frame(slab: Slab) -> pl.DataFrame:
    if slab.dead is None or not len(slab.dead):
        return frame_of([], None)
    dead = pl.from_arrow(slab.dead)
    assert isinstance(dead, pl.DataFrame)
    return dead.with_columns(pl.lit(None, pl.Int64).alias(TIME), pl.lit(1, pl.Int32).alias(WEIGHT))
