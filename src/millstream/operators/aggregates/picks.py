"""Aggregates that pick values, on columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import polars as pl

from millstream.operators.aggregates.accumulators import ORDER, Accumulator, Columns, Described, OverRows, Stretches
from millstream.plan.aggregates import picks as plan
from millstream.plan.aggregates.basic import Aggregate


class PickedBy(Accumulator[Described], OverRows[Described]):
    """The value of the row that comes first by another value; ties are resolved by order of arrival."""

    parts = ("value", "by", "order")
    needs_order = True
    descending: ClassVar[bool]
    so_far: ClassVar[Callable[[pl.Expr], pl.Expr]]
    replaces: ClassVar[Callable[[pl.Expr, pl.Expr], pl.Expr]]
    """Whether a newer row replaces the previous one, by their ranks."""

    @property
    def _by(self) -> pl.Expr:
        return pl.col(f"{self.name}.by")

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return self._picked({"value": self.value, "by": self._by, "order": pl.col(ORDER)})

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        known = self._by.is_not_null()
        columns = {"value": self.value, "by": self._by, "order": pl.col(ORDER)}
        return {part: pl.when(known).then(column) for part, column in columns.items()}

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        rank = self.kept("by").rank("dense")  # an integer for any type; NaN is the largest
        best = type(self).so_far(rank).forward_fill().shift(1)
        is_best = rank.is_not_null() & (best.is_null() | type(self).replaces(rank, best))
        place = pl.when(is_best).then(pl.int_range(pl.len())).forward_fill()
        return {part: over.each(self.kept(part).gather(place)) for part in self.parts}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return self._picked({part: self.kept(part) for part in self.parts})

    def _picked(self, columns: dict[str, pl.Expr]) -> dict[str, pl.Expr]:
        known = columns["by"].is_not_null()
        at = [columns["by"].filter(known), columns["order"].filter(known)]
        order = [self.descending, False]
        return {part: column.filter(known).sort_by(at, descending=order).first() for part, column in columns.items()}

    def result(self) -> pl.Expr:
        return self.kept("value")

    def _has_values(self) -> pl.Expr:
        return self._by.is_not_null()

    def _computed(self) -> pl.Expr:
        return self.value.sort_by([self._by, pl.col(ORDER)], descending=[self.descending, False]).first()


class MaxBy(PickedBy[plan.MaxBy]):
    descending = True
    so_far = pl.Expr.cum_max
    replaces = pl.Expr.gt


class MinBy(PickedBy[plan.MinBy]):
    descending = False
    so_far = pl.Expr.cum_min
    replaces = pl.Expr.lt


class CollectSet(OverRows[plan.CollectSet]):
    without_values: ClassVar[Any] = []
    thins = True

    def thinned(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        return rows.drop_nulls(self.input).sort(ORDER).unique([*keys, self.input], keep="first", maintain_order=True)

    def _computed(self) -> pl.Expr:
        return self.value.unique(maintain_order=True)


COLUMNS: Mapping[type[Aggregate], type[Columns[Any]]] = {
    plan.MaxBy: MaxBy,
    plan.MinBy: MinBy,
    plan.CollectSet: CollectSet,
}
