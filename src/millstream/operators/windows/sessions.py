"""Windows that grow with their rows: a row merges the sessions it touches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from millstream.operators.aggregates.accumulators import ARRIVED, ROW, TIME
from millstream.operators.windows.assignment import ends, in_sessions, split
from millstream.plan.time import windows
from millstream.plan.time.windows import microseconds

if TYPE_CHECKING:
    from millstream.operators.clock import Clock
    from millstream.operators.windows.windowed import WindowedOperator


class Sessions:
    def __init__(self, operator: WindowedOperator, window: windows.Sessions) -> None:
        self._operator = operator
        self._gap = microseconds(window.gap)

    def put(self, held: pl.DataFrame, rows: pl.DataFrame, clock: Clock) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Windows after some rows, and the late rows."""
        operator = self._operator
        end = ends(pl.col(TIME) + self._gap)
        rows, held = in_sessions(operator.keys, rows, pl.col(TIME), end, held)
        untouched = held.filter(~pl.col("touched")).select(operator.columns(arrived=False))
        held = held.filter("touched")

        expired = operator.is_expired(clock)
        late = [operator.late(rows.filter(expired), "expired")]
        rows = rows.filter(~expired)
        closed = held.filter("closed").select("session").unique()
        if not closed.is_empty():
            too_late = rows.join(closed, on="session", how="semi")
            late.append(operator.late(too_late, "closed"))
            rows = rows.join(closed, on="session", how="anti")
            shut = held.join(closed, on="session", how="semi")
            held = held.join(closed, on="session", how="anti")
            waited = (
                shut.filter(~pl.col("closed"))
                .select("new_start", "new_end", pl.col("waiting_rows").alias(ROW))
                .explode(ROW)
            )
            waited = waited.drop_nulls(ROW).rename({"new_start": "start", "new_end": "end"})
            late.append(operator.late(waited, "closed"))
            shut = shut.sort("start").unique("session", keep="first", maintain_order=True)
            empty = operator.emptied(
                shut.with_columns(start=pl.col("new_start"), end=pl.col("new_end"), closed=pl.lit(True))
            )
            untouched = pl.concat([untouched, empty.select(untouched.columns)], how="vertical_relaxed")
        state = self._folded(held, operator.news(rows, clock), clock)
        return pl.concat([untouched, state], how="vertical_relaxed"), pl.concat(late)

    def put_partials(self, held: pl.DataFrame, partials: pl.DataFrame, clock: Clock) -> tuple[pl.DataFrame, int]:
        """Pre-aggregated stretches of rows: a stretch is late, or not, as a whole."""
        operator = self._operator
        partials, held = in_sessions(operator.keys, partials, pl.col("start"), pl.col("end"), held)
        untouched = held.filter(~pl.col("touched")).select(operator.columns(arrived=False))
        expired, partials = split(partials, operator.is_expired(clock))
        made = [fold for accumulator in operator.folding for fold in accumulator.merged(partials)]
        nobody = pl.lit(None, pl.Int64)
        news = partials.group_by(operator.identity, maintain_order=True).agg(*made, pl.col(ARRIVED).sum())
        news = news.with_columns(*operator.begun(), in_time_min=nobody, in_time_max=nobody)
        state = self._folded(held.filter("touched"), news.select(operator.columns(arrived=True)), clock)
        return pl.concat([untouched, state], how="vertical_relaxed"), int(expired[ARRIVED].sum())

    def _folded(self, held: pl.DataFrame, news: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """Merges old and new sessions that touch; a session that did not grow is unchanged."""
        operator = self._operator
        if news.is_empty():
            return held.select(operator.columns(arrived=False))
        at_end = pl.col("new_end").first() <= clock.watermark_before
        old = held.with_columns(pl.lit(0, pl.Int64).alias(ARRIVED), is_old=pl.lit(True))
        fresh = news.with_columns(is_old=pl.lit(False), new_start=pl.col("start"), new_end=pl.col("end"))
        both = pl.concat([old.select(fresh.columns), fresh], how="vertical_relaxed").sort("start", maintain_order=True)
        same = pl.col("is_old").sum() == 1
        same &= (pl.col("start").filter("is_old").first() == pl.col("new_start").first()) & (
            pl.col("end").filter("is_old").first() == pl.col("new_end").first()
        )
        merged_trigger = operator.trigger.merge(pl.col("is_old"), at_end)
        made = [fold for accumulator in operator.folding for fold in accumulator.merged(both)]
        made += [
            pl.col(name).list.explode(keep_nulls=False, empty_as_null=False).alias(name) for name in operator.lists()
        ]
        made += [
            pl.col("in_time_min").min(),
            pl.col("in_time_max").max(),
            pl.col(ARRIVED).sum(),
            pl.col("waiting").sum(),
        ]
        made += [
            pl.when(same).then(pl.col(name).filter("is_old").first()).otherwise(merged).alias(name)
            for name, merged in merged_trigger.items()
        ]
        made += [
            pl.when(same).then(pl.col(name).filter("is_old").first()).otherwise(0).alias(name)
            for name in ("index", "on_time_index")
        ]
        made.append(pl.lit(False).alias("closed"))
        merged = both.group_by([*operator.keys, "new_start", "new_end"], maintain_order=True).agg(made)
        return operator.added(merged.rename({"new_start": "start", "new_end": "end"}), clock)
