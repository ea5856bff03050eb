"""Statistics of numbers on columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import polars as pl

from millstream.operators.aggregates.accumulators import (
    ORDER,
    PANE,
    VALUE,
    Accumulator,
    Columns,
    Described,
    FromRows,
    OverRows,
    Stretches,
)
from millstream.plan.aggregates import statistics as plan
from millstream.plan.aggregates.basic import Aggregate
from millstream.plan.aggregates.basic import Stddev as PlannedStddev


class Spread(Accumulator[Described], OverRows[Described]):
    """Mean and squared differences from it, by Welford's method: no term is negative, so digits do not cancel out."""

    parts = ("mean", "squares", "known")
    zeros = ("known",)
    degrees: ClassVar[int] = 1
    """What is subtracted from the count of values."""

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        known = self.value.is_not_null().cast(pl.Int64).sum()
        squares = pl.when(known > 0).then(self.number.var(ddof=0) * known)
        return {"mean": self.number.mean(), "squares": squares, "known": known}

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        known = self.value.is_not_null()
        return {"mean": self.number, "squares": pl.when(known).then(0.0), "known": known.cast(pl.Int64)}

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        count, mean = self.kept("known"), self.kept("mean").fill_null(0.0)
        whole = pl.when(count.cum_sum() > 0).then((count * mean).cum_sum() / count.cum_sum())
        before = whole.shift(1).fill_null(0.0)
        grown = count * (mean - before) * (mean - whole.fill_null(0.0))
        is_first = count.cum_sum() == count
        squares = (self.kept("squares").fill_null(0.0) + pl.when(is_first).then(0.0).otherwise(grown)).cum_sum()
        return {"mean": over.each(whole), "squares": over.each(squares), "known": over.sum(count)}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        count, mean = self.kept("known"), self.kept("mean")
        whole = pl.when(count.sum() > 0).then((count * mean).sum() / count.sum())
        spread = self.kept("squares").fill_null(0.0).sum() + (count * (mean - whole) ** 2).sum()
        return {"mean": whole, "squares": spread, "known": count.sum()}

    def result(self) -> pl.Expr:
        count = self.kept("known")
        return pl.when(count > self.degrees).then(self.kept("squares") / (count - self.degrees))

    def _computed(self) -> pl.Expr:
        return self.number.var(ddof=self.degrees)


class Variance(Spread[plan.Variance]):
    pass


class VarPop(Spread[plan.VarPop]):
    degrees = 0


class Root(Spread[Described]):
    """The square root of a variance."""

    def result(self) -> pl.Expr:
        return super().result().sqrt()

    def _computed(self) -> pl.Expr:
        return super()._computed().sqrt()


class Stddev(Root[PlannedStddev]):
    pass


class StddevPop(Root[plan.StddevPop]):
    degrees = 0


class Percentile(OverRows[plan.Percentile]):
    def _computed(self) -> pl.Expr:
        found = [self._between(fraction) for fraction in self.aggregate.fractions]
        return pl.concat_list(found) if self.aggregate.is_list else found[0]

    def _between(self, fraction: float) -> pl.Expr:
        """Interpolates as Spark does; NaN is sorted last."""
        ordered = self.number.sort()
        place = (pl.len() - 1).cast(pl.Float64) * fraction
        low, high = ordered.get(place.floor().cast(pl.Int64)), ordered.get(place.ceil().cast(pl.Int64))
        between = (place.ceil() - place) * low + (place - place.floor()) * high
        return pl.when((low == high) | (place.floor() == place.ceil())).then(low).otherwise(between)


class Mode(FromRows[plan.Mode]):
    def of_panes(self, panes: pl.DataFrame, came: pl.DataFrame, left: pl.DataFrame) -> pl.Series:
        known = left.select(PANE, self.value.alias(VALUE), ORDER).drop_nulls(VALUE)
        counted = known.group_by(PANE, VALUE).agg(pl.len().alias("__count"), pl.col(ORDER).min())
        found = counted.sort("__count", ORDER, descending=[True, False]).unique(PANE, keep="first", maintain_order=True)
        return panes.join(found, on=PANE, how="left", maintain_order="left")[VALUE]


COLUMNS: Mapping[type[Aggregate], type[Columns[Any]]] = {
    PlannedStddev: Stddev,
    plan.Variance: Variance,
    plan.VarPop: VarPop,
    plan.StddevPop: StddevPop,
    plan.Percentile: Percentile,
    plan.Mode: Mode,
}
