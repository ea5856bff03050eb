"""Rows of a key in order of event time: they wait, sorted, until the watermark has reached them.

A row is ready once the watermark is not before its event time: no earlier row can follow, and one of the same time that
follows is later in the log. So the order in which rows become ready does not depend on how they were cut into bundles.
Rows behind the watermark before their bundle are late. A step that needs its rows in this order keeps the waiting ones
in a table of its own: `process` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from millstream.operators import lateness
from millstream.operators.aggregates.accumulators import ORDER, ROW, TIME, WEIGHT
from millstream.operators.clock import Clock
from millstream.state.tables import Marks

WAITING = "waiting"
"""The table of waiting rows: as they were fed, with the whole row, its keys, its time and its position in the log."""
WAITING_MARKS = Marks(pl.col(TIME), pl.lit(None, pl.Int64))
"""A waiting row is due at its own time, which is ahead of the watermark: what it will emit needs no hold."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """The rows of one step."""

    ready: pl.DataFrame
    """By event time, then in the order of the log."""
    waiting: pl.DataFrame
    late: pl.DataFrame


def in_event_order(held: pl.DataFrame, rows: pl.DataFrame, clock: Clock) -> InOrder:
    """Divides the rows that waited and the new ones. All waiting rows of a key are held, or none that is due."""
    is_late = ~lateness.is_in_time(clock)
    late = rows.filter(is_late)
    if len(late):
        rows = rows.filter(~is_late)
    if len(held):
        rows = pl.concat([held.select(rows.columns), rows])
    is_ready = pl.col(TIME) <= clock.watermark
    return InOrder(rows.filter(is_ready).sort(TIME, ORDER), rows.filter(~is_ready), late)


def late_rows(late: pl.DataFrame) -> pl.DataFrame:
    """Late rows as the rows of `.late`: the whole row and the reason."""
    whole = late[ROW].struct.unnest()
    reasons = late.select(lateness.reason().alias("reason"), TIME, pl.lit(1, pl.Int32).alias(WEIGHT))
    return pl.concat([whole.drop("reason", strict=False), reasons], how="horizontal")
