"""When the groups of a table last changed: the newest event time of each, which never decreases.

An empty group keeps its time until the watermark has passed it, so that an older change cannot move it back.
"""

from __future__ import annotations

import polars as pl

from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.clock import Clock
from millstream.operators.keyed_rows import KeyedRows
from millstream.state.tables import Marks

NEWEST, EMPTY = "newest", "empty"


class GroupTimes:
    marks = Marks(pl.when(EMPTY).then(NEWEST), pl.lit(None, pl.Int64))

    def __init__(self, rows: KeyedRows) -> None:
        self._keys = rows.keys
        self.table = rows.table(rows.keys, **{NEWEST: pl.Int64, EMPTY: pl.Boolean})

    def after(self, groups: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        """The time of each group after these rows."""
        both = pl.concat([groups.select(*self._keys, NEWEST), rows.select(*self._keys, pl.col(TIME).alias(NEWEST))])
        newest = pl.col(NEWEST).max()
        return both.group_by(self._keys).agg(newest) if self._keys else both.select(newest).head(len(both))

    def dated(self, changes: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
        """Changes at the time of their group."""
        times = groups.rename({NEWEST: TIME})
        if not self._keys:
            return changes.join(times, how="cross")
        return changes.join(times, on=self._keys, how="left", nulls_equal=True, maintain_order="left")

    def kept(self, groups: pl.DataFrame, rows: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """The groups that have rows, and empty ones whose time the watermark has not passed yet."""
        if self._keys:
            filled = self.filled(rows.select(self._keys).unique())
            groups = groups.join(filled, on=self._keys, how="left", nulls_equal=True)
            groups = groups.with_columns(pl.col(EMPTY).fill_null(True))
        else:
            groups = groups.with_columns(pl.lit(rows.is_empty()).alias(EMPTY))
        return groups.filter(~pl.col(EMPTY) | (pl.col(NEWEST) > clock.watermark).fill_null(False))

    @staticmethod
    def filled(groups: pl.DataFrame) -> pl.DataFrame:
        """Groups that all have rows."""
        return groups.with_columns(pl.lit(False).alias(EMPTY))
