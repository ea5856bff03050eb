"""Windows that are opened and closed by rows: each row gets the numbers of its windows, counted by key."""

from __future__ import annotations

from typing import Any

import polars as pl

from millstream.plan.time import windows
from millstream.plan.time.windows import Window

RECENT = "recent"


class RowWindows:
    """`counters` has for each key how many rows arrived, the number of the open window and the value that opened it.

    For a window that slides, it has the rows that are in it.
    """

    def __init__(self, window: Window, keys: list[str], given: pl.Schema) -> None:
        self._window = window
        self._keys = keys
        # The value that opened a `delta` window keeps its own type: a float would lose digits of decimals and large
        # longs.
        self._value_type = given.get("window.delta", pl.Null())
        by = {name: given[name] for name in keys} or {"__one": pl.Int32()}
        self.no_counters = pl.DataFrame(
            schema={**by, "seen": pl.Int64, "number": pl.Int64, "first_value": self._value_type}
        )
        if window.slides:
            self._columns = [name for name in given if name not in by]
            recent = pl.Struct({name: given[name] for name in self._columns})
            self.no_counters = self.no_counters.with_columns(pl.lit([], pl.List(recent)).alias(RECENT))

    def numbered(self, rows: pl.DataFrame, counters: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Rows with the numbers of their windows, the counters after them, and the complete windows of each key."""
        window = self._window
        by = self._keys or ["__one"]
        rows = rows if self._keys else rows.with_columns(__one=pl.lit(0))
        counters = counters if self._keys or "__one" in counters.columns else counters.with_columns(__one=pl.lit(0))
        rows = rows.join(counters, on=by, how="left", nulls_equal=True, maintain_order="left")
        rows = rows.with_columns(pl.col("seen").fill_null(0), pl.col("number").fill_null(0))
        if window.slides:
            rows, after = self._sliding(rows, counters, by)
            finished = after.with_columns(__before=pl.col("seen"))
        elif isinstance(window, windows.Rows):
            place = pl.col("seen") + pl.int_range(pl.len()).over(by)
            rows = rows.with_columns(place=place)
            after = rows.group_by(by, maintain_order=True).agg(pl.col("place").max() + 1)
            last = pl.col("place") // window.every
            least = (pl.col("place") - window.count) // window.every + 1
            rows = rows.with_columns(number=pl.int_ranges(pl.max_horizontal(least, pl.lit(0)), last + 1)).explode(
                "number"
            )
            rows = rows.drop_nulls("number")
            after = after.rename({"place": "seen"}).with_columns(
                number=pl.lit(0, pl.Int64), first_value=pl.lit(None, self._value_type)
            )
            finished = after.with_columns(__before=(pl.col("seen") - window.count) // window.every + 1)
        elif isinstance(window, windows.ClosedBy):
            closes = pl.col("window.closes").fill_null(False).cast(pl.Int64)
            rows = rows.with_columns(
                after=pl.col("number") + closes.cum_sum().over(by),
                number=pl.col("number") + closes.cum_sum().over(by) - closes,
            )
            after = rows.group_by(by, maintain_order=True).agg(number=pl.col("after").max())
            after = after.with_columns(seen=pl.lit(0, pl.Int64), first_value=pl.lit(None, self._value_type))
            finished = after.with_columns(__before=pl.col("number"))
        else:
            rows, after = self._by_delta(rows, by)
            finished = after.with_columns(__before=pl.col("number"))
        kept = counters.join(after, on=by, how="anti", nulls_equal=True)
        counters = pl.concat([kept, after.select(kept.columns)], how="vertical_relaxed")
        finished = finished.select(*(by if self._keys else []), "__before")
        return rows, counters, finished

    def _sliding(self, rows: pl.DataFrame, counters: pl.DataFrame, by: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Each row has a window of its own, with a copy of the rows before it that are in it."""
        assert isinstance(self._window, windows.DeltaWindow)
        held = counters.join(rows.select(by).unique(), on=by, how="semi", nulls_equal=True)
        held = held.select(*by, RECENT).explode(RECENT).drop_nulls(RECENT).unnest(RECENT)
        known = pl.concat([held.select(*by, *self._columns), rows.select(*by, *self._columns)], how="vertical_relaxed")
        recent: dict[tuple[Any, ...], list[int]] = {}
        seen = {tuple(key): count for *key, count in rows.select(*by, "seen").iter_rows()}
        places: list[int] = []
        numbers: list[int] = []
        values = known["window.delta"].to_list()
        for place, key in enumerate(known.select(by).iter_rows()):
            in_window = recent.setdefault(key, [])
            if place >= len(held) and values[place] is not None:
                in_window = recent[key] = self._not_evicted(in_window, values, values[place])
            in_window.append(place)
            if place >= len(held):
                places += in_window
                numbers += [seen[key]] * len(in_window)
                seen[key] += 1
        keys = list(seen)
        kept = [place for key in keys for place in recent[key]]
        after = known[kept].select(*by, pl.struct(self._columns).alias(RECENT))
        after = (
            after.group_by(by, maintain_order=True)
            .agg(RECENT)
            .with_columns(
                seen=pl.Series([seen[key] for key in keys], dtype=pl.Int64),
                number=pl.lit(0, pl.Int64),
                first_value=pl.lit(None, self._value_type),
            )
        )
        return known[places].with_columns(number=pl.Series(numbers, dtype=pl.Int64)), after

    def _not_evicted(self, places: list[int], values: list[Any], newest: Any) -> list[int]:
        """The places behind the last value that differs too much from the newest."""
        assert isinstance(self._window, windows.DeltaWindow)
        for at in reversed(range(len(places))):
            value = values[places[at]]
            if value is not None and abs(newest - value) >= self._window.threshold:
                return places[at + 1 :]
        return places

    def _by_delta(self, rows: pl.DataFrame, by: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Each window starts where the last one ended, so this goes row by row."""
        assert isinstance(self._window, windows.DeltaWindow)
        state: dict[tuple[Any, ...], tuple[int, Any]] = {}
        numbers = []
        for *key, value, number, first in rows.select(*by, "window.delta", "number", "first_value").iter_rows():
            number, first = state.get(tuple(key), (number, first))
            if value is not None:
                if first is None:
                    first = value
                elif abs(value - first) >= self._window.threshold:
                    number, first = number + 1, value
            state[tuple(key)] = (number, first)
            numbers.append(number)
        rows = rows.with_columns(number=pl.Series(numbers, dtype=pl.Int64))
        after = rows.select(by).unique(maintain_order=True)
        now = [state[tuple(key)] for key in after.iter_rows()]
        return rows, after.with_columns(
            seen=pl.lit(0, pl.Int64),
            number=pl.Series([number for number, _ in now], dtype=pl.Int64),
            first_value=pl.Series([first for _, first in now], dtype=self._value_type),
        )
