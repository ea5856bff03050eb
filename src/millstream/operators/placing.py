"""Which windows rows belong to, for whole frames: adds `start` and `end`, one row for every window a row is in."""

from __future__ import annotations

from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from millstream.operators.accumulators import TIME
from millstream.plan import windows
from millstream.plan.calendars import calendar_span
from millstream.plan.windows import microseconds

SPAN = {"start": pl.Int64, "end": pl.Int64}


def placed(rows: pl.DataFrame, window: windows.Window) -> pl.DataFrame:
    """For windows whose place in time does not depend on the rows."""
    if isinstance(window, windows.Everything):
        return rows.with_columns(start=pl.lit(None, pl.Int64), end=pl.lit(None, pl.Int64))
    if isinstance(window, windows.Calendar):
        return _in_calendar(rows, window)
    if isinstance(window, windows.Fixed):
        window = windows.Sliding(window.size, window.size, window.offset, window.time)
    assert isinstance(window, windows.Sliding)
    size, every, offset = map(microseconds, (window.size, window.every, window.offset))
    # Floor division of polars rounds towards minus infinity, so windows before 1970 are like any other.
    rows = rows.with_columns(start=(pl.col(TIME) - offset) // every * every + offset)
    several = -(-size // every)
    if several > 1:
        earlier = pl.concat_list([pl.col("start") - every * step for step in reversed(range(several))])
        rows = rows.with_columns(start=earlier).explode("start")
    rows = rows.with_columns(end=pl.col("start") + size)
    return rows.filter(pl.col("end") > pl.col(TIME)) if size % every else rows


def _in_calendar(rows: pl.DataFrame, window: windows.Calendar) -> pl.DataFrame:
    if rows.is_empty():
        return rows.with_columns(start=pl.lit(None, pl.Int64), end=pl.lit(None, pl.Int64))
    times = rows[TIME].to_numpy()
    bounds = _bounds(window.unit, window.tz, int(times.min()), int(times.max()))
    place = np.searchsorted(bounds, times, side="right")
    return rows.with_columns(start=pl.Series(bounds[place - 1]), end=pl.Series(bounds[place]))


@lru_cache(maxsize=64)
def _bounds(unit: str, tz: str, earliest: int, latest: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where the windows between two times begin, and where the last ends."""
    zone = ZoneInfo(tz)
    start, end = calendar_span(unit, zone, earliest)
    found = [start, end]
    while found[-1] <= latest:
        found.append(calendar_span(unit, zone, found[-1])[1])
    return np.array(found, np.int64)


def in_sessions(
    keys: list[str], rows: pl.DataFrame, start: pl.Expr, end: pl.Expr, held: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows, and held sessions, with the sessions they are part of now.

    Sessions that touch are one: rows and old sessions in order of start, a new one where a gap is left.
    """
    spans = pl.concat(
        [
            rows.select(*keys, start=start, end=end, __row_number=pl.int_range(pl.len())),
            held.select(*keys, "start", "end", __held_number=pl.int_range(pl.len())),
        ],
        how="diagonal",
    ).sort([*keys, "start", "end"], nulls_last=False)
    reach = pl.col("end").cum_max().shift(1)
    reach = reach.over(keys) if keys else reach
    spans = spans.with_columns(session=(reach.is_null() | (pl.col("start") > reach)).cum_sum())
    joined = spans.group_by("session").agg(
        pl.col("start").min().alias("new_start"),
        pl.col("end").max().alias("new_end"),
        pl.col("__row_number").is_not_null().any().alias("touched"),
    )
    spans = spans.select("session", "__row_number", "__held_number").join(joined, on="session", how="left")
    of_rows = spans.filter(pl.col("__row_number").is_not_null()).sort("__row_number")
    of_held = spans.filter(pl.col("__held_number").is_not_null()).sort("__held_number")
    rows = rows.with_columns(of_rows["session"], start=of_rows["new_start"], end=of_rows["new_end"])
    held = held.with_columns(of_held["session"], of_held["new_start"], of_held["new_end"], of_held["touched"])
    return rows, held
