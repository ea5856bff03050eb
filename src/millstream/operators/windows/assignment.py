"""Assigns windows to whole frames: adds `start` and `end`, one row for every window a row is in."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from millstream.operators.aggregates.accumulators import TIME
from millstream.plan.time import windows
from millstream.plan.time.calendars import calendar_span
from millstream.plan.time.windows import FIRST, LAST, microseconds

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
INSTANT = pl.Datetime("us", "UTC")
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
    # Floor division in polars rounds towards minus infinity, so windows before 1970 work like any other.
    rows = rows.with_columns(start=(pl.col(TIME) - offset) // every * every + offset)
    several = -(-size // every)
    if several > 1:
        earlier = pl.concat_list([pl.col("start") - every * step for step in reversed(range(several))])
        rows = rows.with_columns(start=earlier).explode("start")
    if size % every:
        rows = rows.filter(pl.col("start") + size > pl.col(TIME))
    return rows.with_columns(end=ends(pl.col("start") + size))


def starts_apart(window: windows.Window) -> dict[str, int]:
    """How far apart the starts of windows are: always multiples of this."""
    if isinstance(window, windows.Fixed):
        return {"start": microseconds(window.size)}
    return {"start": microseconds(window.every)} if isinstance(window, windows.Sliding) else {}


def ends(end: pl.Expr) -> pl.Expr:
    """Window ends, clamped to the last instant."""
    return pl.min_horizontal(end, pl.lit(LAST, pl.Int64))


def _in_calendar(rows: pl.DataFrame, window: windows.Calendar) -> pl.DataFrame:
    if rows.is_empty():
        return rows.with_columns(start=pl.lit(None, pl.Int64), end=pl.lit(None, pl.Int64))
    times = rows[TIME].to_numpy()
    starts, stops = _spans(window.unit, ZoneInfo(window.tz), times)
    place = np.searchsorted(starts, times, side="right") - 1
    return rows.with_columns(start=pl.Series(starts[place]), end=pl.Series(stops[place]))


def _spans(unit: str, zone: ZoneInfo, times: Numbers) -> tuple[Numbers, Numbers]:
    """The bounds of the calendar windows that some times lie in; empty windows may be millions."""
    ordered = np.sort(times)
    found, place = [], 0
    while place < len(ordered):
        start, end = calendar_span(unit, zone, int(ordered[place]))
        found.append((start, end))
        place = len(ordered) if end >= LAST else int(np.searchsorted(ordered, end))
    starts, stops = np.array(found, np.int64).T
    return starts, stops


def in_sessions(
    keys: list[str], rows: pl.DataFrame, start: pl.Expr, end: pl.Expr, held: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows, and held sessions, with the sessions they are now part of.

    Sessions that touch are merged: sorts rows and old sessions by start, and starts a new one after each gap.
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


def instant(name: str, value: pl.Expr | None = None) -> pl.Expr:
    """A time as a timestamp, clamped to its range."""
    return (pl.col(name) if value is None else value).clip(FIRST, LAST).cast(INSTANT).alias(name)


def instants(spans: pl.DataFrame, *names: str) -> list[pl.Expr]:
    """Times between `start` and `end`, as timestamps. Nearly all are in range, and then none is copied."""
    low: Any = spans["start"].min()
    high: Any = spans["end"].max()
    is_in_range = low is None or (low >= FIRST and high <= LAST)
    return [pl.col(name).cast(INSTANT) if is_in_range else instant(name) for name in names]


def split(rows: pl.DataFrame, condition: pl.Expr) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows for which a condition holds, and the others. Usually it holds for none."""
    holds = rows.select(condition.alias("holds"))["holds"]
    return (rows.filter(holds), rows.filter(~holds)) if holds.any() else (rows.clear(), rows)
