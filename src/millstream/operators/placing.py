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
