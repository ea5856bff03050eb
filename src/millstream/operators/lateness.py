"""Where it is decided that a row is late: its window has expired, or its event time is before the watermark.

What counts is the watermark before the rows arrived. An operator adds what only it knows: a window that has closed, or
a newer version of a row. It emits its late rows with the reason.
"""

from __future__ import annotations

import polars as pl

from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.clock import Clock
from millstream.plan.time.bundles import AHEAD, END, late_reason
from millstream.plan.time.timing import Timed
from millstream.plan.time.windows import microseconds


def expiry(end: pl.Expr, lateness: int) -> pl.Expr:
    """The watermark at which a window with this end no longer accepts rows."""
    return pl.min_horizontal(end.fill_null(END) + lateness, pl.lit(END, pl.Int64))


def is_expired(end: pl.Expr, lateness: int, clock: Clock) -> pl.Expr:
    """Whether the window of a row had expired when the row arrived."""
    return expiry(end, lateness) <= clock.watermark_before


def is_in_time(clock: Clock) -> pl.Expr:
    """Whether the event time of a row was not before the watermark when the row arrived. A row without one is late."""
    return (pl.col(TIME) >= clock.watermark_before).fill_null(False)


def is_untimed() -> pl.Expr:
    """Whether a row has no time that counts: it has none, or one too far ahead."""
    return pl.col(TIME).is_null() | (pl.col(TIME) == AHEAD)


def reason() -> pl.Expr:
    """Why a row is late that is not in time."""
    return (
        pl.when(pl.col(TIME).is_null())
        .then(pl.lit(late_reason(None)))
        .when(pl.col(TIME) == AHEAD)
        .then(pl.lit(late_reason(AHEAD)))
        .otherwise(pl.lit(late_reason(END)))
    )


def with_ahead_marked(rows: pl.DataFrame, timed: Timed, now: int) -> pl.DataFrame:
    """Marks rows that are too far ahead of the processing time, by the watermark of the node that gave them a time."""
    ahead = getattr(timed.watermark, "ahead_at_most", None)
    if ahead is None:
        return rows
    is_ahead = pl.col(TIME) > now + microseconds(ahead)
    return rows.with_columns(pl.when(is_ahead).then(pl.lit(AHEAD, pl.Int64)).otherwise(TIME).alias(TIME))


def without_ahead(rows: pl.DataFrame) -> pl.DataFrame:
    """For a step in which no row is late: rows too far ahead have no event time."""
    if rows[TIME].min() != AHEAD:
        return rows
    return rows.with_columns(pl.when(pl.col(TIME) != AHEAD).then(TIME).alias(TIME))
