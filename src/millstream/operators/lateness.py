"""Where it is decided that a row is late: its window has expired, or its event time is before the watermark.

What counts is the watermark before the rows arrived. An operator adds what only it knows: a window that has closed, or
a newer version of a row. It emits its late rows with the reason.
"""

from __future__ import annotations

import polars as pl

from millstream.operators.accumulators import TIME
from millstream.operators.clock import Clock
from millstream.plan.bundles import END


def expiry(end: pl.Expr, lateness: int) -> pl.Expr:
    """The watermark at which a window with this end no longer accepts rows."""
    return pl.min_horizontal(end.fill_null(END) + lateness, pl.lit(END, pl.Int64))


def is_expired(end: pl.Expr, lateness: int, clock: Clock) -> pl.Expr:
    """Whether the window of a row had expired when the row arrived."""
    return expiry(end, lateness) <= clock.watermark_before


def is_in_time(clock: Clock) -> pl.Expr:
    """Whether the event time of a row was not before the watermark when the row arrived. A row without one is late."""
    return (pl.col(TIME) >= clock.watermark_before).fill_null(False)


def reason() -> pl.Expr:
    """Why a row is late that is not in time."""
    return pl.when(pl.col(TIME).is_null()).then(pl.lit("no event time")).otherwise(pl.lit("expired"))
