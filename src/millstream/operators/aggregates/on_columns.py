"""The aggregates on columns: one implementation for each class of `plan/aggregates`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar

import polars as pl

from millstream.operators.aggregates import approximate, conditions, picks, sampling, statistics
from millstream.operators.aggregates.accumulators import (
    EMPTY,
    ORDER,
    PANE,
    TIME,
    VALUE,
    WEIGHT,
    Accumulator,
    Columns,
    Described,
    FromRows,
    OverRows,
    Stretches,
)
from millstream.operators.aggregates.exact_sums import ExactSum, exact
from millstream.plan.aggregates import basic as plan

LOOKED_UP = (pl.String, pl.Binary, pl.Boolean, pl.Date)
"""Types whose values can be looked up, besides integers and timestamps: equal ones have equal bytes."""


def columns_of(
    aggregates: Sequence[tuple[str, plan.Aggregate]], given: pl.Schema, *, changing: bool, in_table: bool = False
) -> tuple[list[Accumulator[Any]], list[FromRows[Any]]]:
    """The aggregates of a step that fold, and those that are computed from the rows."""
    made = [
        COLUMNS[type(aggregate)](name, aggregate, given, changing=changing, in_table=in_table)
        for name, aggregate in aggregates
    ]
    folding = [each for each in made if isinstance(each, Accumulator) and each.folds]
    return folding, [each for each in made if isinstance(each, FromRows) and not each.folds]


class Count(Accumulator[plan.Count]):
    parts = ("count",)
    zeros = ("count",)

    @property
    def folds(self) -> bool:
        return True

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"count": pl.col(WEIGHT).cast(pl.Int64).sum() if self.changing else pl.len().cast(pl.Int64)}

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"count": pl.col(WEIGHT).cast(pl.Int64) if self.changing else pl.lit(1, pl.Int64)}

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"count": over.sum(self.kept("count"))}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"count": self.kept("count").sum()}

    def result(self) -> pl.Expr:
        return self.kept("count")


class Total(Accumulator[Described], OverRows[Described]):
    """A sum and the count of its values. An exact sum also has a carry, and supports subtraction."""

    parts: tuple[str, ...] = ("sum", "known")
    zeros = ("known",)

    def __init__(
        self, name: str, aggregate: Described, given: pl.Schema, *, changing: bool, in_table: bool = False
    ) -> None:
        super().__init__(name, aggregate, given, changing=changing, in_table=in_table)
        numbers = exact(self.type) if self._keeps_exact() else None
        self.exact: ExactSum | None = None
        if numbers is not None:
            weight = WEIGHT if changing else None
            self.exact = ExactSum(numbers, self.column("sum"), self.column("carry"), weight)
            self.parts = ("sum", "carry", "known")

    def _keeps_exact(self) -> bool:
        """Whether to keep an exact sum, if the type supports it."""
        return True

    @property
    def folds(self) -> bool:
        return not self.changing or self.exact is not None  # an added NaN could not be removed

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        if self.exact is None:
            return {"sum": self.number.sum(), "known": self._known()}
        total, carry = self.exact.from_rows(self.input, rows, pl.Expr.sum)
        return {"sum": total, "carry": carry, "known": self._known()}

    def _known(self) -> pl.Expr:
        """The count of values; in a table, a retracted one counts as if it had never arrived."""
        if self.changing and self.in_table:
            return pl.when(self.value.is_not_null()).then(pl.col(WEIGHT)).otherwise(0).cast(pl.Int64).sum()
        return self.value.count().cast(pl.Int64)

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        known = self.value.is_not_null().cast(pl.Int64) if rows[self.input].null_count() else pl.lit(1, pl.Int64)
        if self.exact is None:
            return {"sum": self.number.fill_null(0.0), "known": known}
        total, carry = self.exact.from_rows(self.input, rows, lambda number: number.fill_null(0))
        return {"sum": total, "carry": carry, "known": known}

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        known = over.sum(self.kept("known"))
        if self.exact is None:
            return {"sum": over.sum(self.kept("sum"), exact=False), "known": known}
        total, carry = self.exact.merged(parts, over.sum)
        return {"sum": total, "carry": carry, "known": known}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        known = self.kept("known").sum()
        if self.exact is None:
            return {"sum": self.kept("sum").sum(), "known": known}
        total, carry = self.exact.merged(parts, pl.Expr.sum)
        return {"sum": total, "carry": carry, "known": known}


class Sum(Total[plan.Sum]):
    def result(self) -> pl.Expr:
        return pl.when(self.kept("known") > 0).then(self.kept("sum"))

    def too_large(self, state: pl.DataFrame) -> tuple[dict[str, Any], int | Decimal] | None:
        where = None if self.exact is None else self.exact.too_large(state)
        if self.exact is None or where is None:
            return None
        found = state.filter(where & (state[self.column("known")] > 0)).head(1)
        return (found.row(0, named=True), self.exact.value(found)) if len(found) else None

    def _by_pane(self, came: pl.DataFrame, left: pl.DataFrame) -> pl.DataFrame:
        """Equal floats that arrived and were retracted are left out, so that no NaN, infinity or rounding remains.

        In a pane, a retraction without its row counts: a pane with nothing else is the change since the previous one.
        """
        if self.in_table:
            return super()._by_pane(came, left)
        known = came.select(PANE, self.number.alias(VALUE), pl.col(WEIGHT).cast(pl.Int64)).drop_nulls(VALUE)
        counted = known.group_by(PANE, VALUE, maintain_order=True).agg(pl.col(WEIGHT).sum())
        weighted = pl.when(pl.col(WEIGHT) != 0).then(pl.col(VALUE) * pl.col(WEIGHT)).otherwise(0.0)
        return counted.group_by(PANE, maintain_order=True).agg(weighted.sum().alias(VALUE))

    def _computed(self) -> pl.Expr:
        return self.number.sum()


class Mean(Total[plan.Mean]):
    def _keeps_exact(self) -> bool:
        return self.changing and self.in_table and self.type.is_integer()

    def result(self) -> pl.Expr:
        total = self.kept("sum").cast(pl.Float64)
        if self.exact is not None:
            total += self.kept("carry") * 2.0**64
        return pl.when(self.kept("known") > 0).then(total / self.kept("known"))

    def _computed(self) -> pl.Expr:
        return self.number.mean()


class Extreme(Accumulator[Described], OverRows[Described]):
    """The smallest or largest value."""

    parts = ("value",)
    of: ClassVar[Callable[[pl.Expr], pl.Expr]]
    so_far: ClassVar[Callable[[pl.Expr], pl.Expr]]

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"value": self._computed()}

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"value": self.value}

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"value": over.each(type(self).so_far(self.kept("value")).forward_fill())}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"value": self._extreme(self.kept("value"))}

    def result(self) -> pl.Expr:
        return self.kept("value")

    def _computed(self) -> pl.Expr:
        return self._extreme(self.value)

    def _extreme(self, value: pl.Expr) -> pl.Expr:
        return type(self).of(value)


class Min(Extreme[plan.Min]):
    of = pl.Expr.min
    so_far = pl.Expr.cum_min


class Max(Extreme[plan.Max]):
    """NaN is larger than any other number, while polars ignores it if there is another one."""

    of = pl.Expr.max
    so_far = pl.Expr.cum_max

    def _extreme(self, value: pl.Expr) -> pl.Expr:
        return value.nan_max() if self.type.is_float() else value.max()

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        made = super()._running(over, parts)
        if not self.type.is_float():
            return made
        value = self.kept("value")
        met_nan = over.each(value.is_nan().fill_null(False).cum_max())
        return {"value": pl.when(met_nan).then(pl.lit(float("nan"), self.type)).otherwise(made["value"])}


class Edge(Accumulator[Described], OverRows[Described]):
    """The value of the first or last row in event time; ties are resolved by order of arrival."""

    parts = ("value", "time", "order")
    needs_order = True
    end: ClassVar[Callable[[pl.Expr], pl.Expr]]
    so_far: ClassVar[Callable[[pl.Expr], pl.Expr]]
    replaces: ClassVar[Callable[[pl.Expr, pl.Expr], pl.Expr]]
    """Whether the newer row replaces the previous one, by their times."""

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        columns = {"value": self.value, "time": _time(), "order": pl.col(ORDER)}
        return self._picked(columns, self.value.is_not_null())

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        known = self.value.is_not_null()
        return {
            "value": self.value,
            "time": pl.when(known).then(_time()),
            "order": pl.when(known).then(pl.col(ORDER)),
        }

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        time = self.kept("time")
        best = type(self).so_far(time).forward_fill().shift(1)
        is_best = time.is_not_null() & (best.is_null() | type(self).replaces(time, best))
        bests = {part: pl.when(is_best).then(self.kept(part)) for part in self.parts}
        return {part: over.each(value.forward_fill()) for part, value in bests.items()}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return self._picked({part: self.kept(part) for part in self.parts}, self.kept("time").is_not_null())

    def _picked(self, columns: dict[str, pl.Expr], known: pl.Expr) -> dict[str, pl.Expr]:
        at = [columns["time"].filter(known), columns["order"].filter(known)]
        return {part: type(self).end(column.filter(known).sort_by(at)) for part, column in columns.items()}

    def result(self) -> pl.Expr:
        return self.kept("value")

    def _computed(self) -> pl.Expr:
        return type(self).end(self.value.sort_by(_time(), ORDER))


def _time() -> pl.Expr:
    """Of rows without event time, which come first, none is before another: their order of arrival decides."""
    return pl.col(TIME).cast(pl.Int64).fill_null(0)


class First(Edge[plan.First]):
    end = pl.Expr.first
    so_far = pl.Expr.cum_min
    replaces = pl.Expr.lt


class Last(Edge[plan.Last]):
    end = pl.Expr.last
    so_far = pl.Expr.cum_max
    replaces = pl.Expr.ge


class Collect(OverRows[plan.Collect]):
    without_values: ClassVar[Any] = []

    def _computed(self) -> pl.Expr:
        return self.value


class DistinctCount(OverRows[plan.DistinctCount]):
    without_values = 0
    thins = True

    @property
    def can_be_looked_up(self) -> bool:
        is_plain = self.type.is_integer() or self.type in LOOKED_UP or isinstance(self.type, pl.Datetime)
        return self.in_table and not self.changing and is_plain

    def thinned(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        return rows.drop_nulls(self.input).unique([*keys, self.input])

    def _computed(self) -> pl.Expr:
        return self.value.n_unique().cast(pl.Int64)


class Top(OverRows[plan.Top]):
    without_values: ClassVar[Any] = []
    thins = True

    @property
    def _by(self) -> str:
        return f"{self.name}.{self.aggregate.ordered_by}"

    def thinned(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        known = rows.drop_nulls([self.input, self._by]).sort(self._by, ORDER, descending=[True, False])
        place = pl.int_range(pl.len())
        return known.filter((place.over(keys) if keys else place) < self.aggregate.count)

    def _has_values(self) -> pl.Expr:
        return self.value.is_not_null() & pl.col(self._by).is_not_null()

    def _computed(self) -> pl.Expr:
        ordered = self.value.sort_by(self._by, descending=True, maintain_order=True)
        return ordered.head(self.aggregate.count)


class Combine(FromRows[plan.Combine]):
    """Folded row by row by the user's functions."""

    def of_panes(self, panes: pl.DataFrame, came: pl.DataFrame, left: pl.DataFrame) -> pl.Series:
        functions = self.aggregate
        states: dict[int, Any] = {}
        for pane, value in left.select(PANE, self.input).iter_rows():
            states[pane] = functions.add(states[pane] if pane in states else functions.zero(), value)
        results = []
        for pane, empty in panes.select(PANE, EMPTY).iter_rows():
            state = states[pane] if pane in states else functions.zero()
            results.append(None if empty else functions.extract(state))
        return pl.Series(VALUE, results)


COLUMNS: Mapping[type[plan.Aggregate], type[Columns[Any]]] = {
    plan.Count: Count,
    plan.Sum: Sum,
    plan.Min: Min,
    plan.Max: Max,
    plan.Mean: Mean,
    plan.First: First,
    plan.Last: Last,
    plan.Collect: Collect,
    plan.DistinctCount: DistinctCount,
    plan.Top: Top,
    plan.Combine: Combine,
    **conditions.COLUMNS,
    **picks.COLUMNS,
    **statistics.COLUMNS,
    **approximate.COLUMNS,
    **sampling.COLUMNS,
}
