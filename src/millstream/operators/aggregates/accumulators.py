"""How an aggregate is computed on columns: folded into a few numbers, or from the rows themselves.

Most aggregates fold: a few columns represent all rows of a window or group. One that cannot fold (collect, top, …), or
that cannot subtract while rows may be retracted, is computed from the rows, which are then kept as a list.
`operators/aggregates/on_columns.py` has a class for each aggregate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import polars as pl

from millstream.plan.aggregates.basic import Aggregate

TIME, WEIGHT, ORDER = "__time", "__weight", "__order"
ROW, NUMBER = "__row", "number"
"""The whole original row, and the number of a window that is opened and closed by rows."""
ELEMENTS = "elements"
ARRIVED = "__arrived"
"""How many rows arrived for a window in a step."""
PANE, EMPTY, VALUE = "pane", "empty", "value"
"""The number of a pane, whether it has no new rows, and its computed value."""

LONG = 1000
"""Stretches of so many rows on average are changed one by one."""

Described = TypeVar("Described", bound=Aggregate)


class Stretches:
    """Consecutive stretches of so many rows, given by the positions of their first rows."""

    NUMBER = "__stretch"

    def __init__(self, firsts: np.ndarray[tuple[int], np.dtype[np.int64]], rows: int) -> None:
        self._firsts = firsts
        self._rows = rows
        self._summed: tuple[Any, pl.Series] | None = None

    @cached_property
    def numbers(self) -> pl.Series:
        """The number of each row's stretch."""
        lengths = np.diff(self._firsts, append=self._rows)
        return pl.Series(self.NUMBER, np.repeat(np.arange(len(lengths)), lengths)).set_sorted()

    def running(self, parts: pl.DataFrame, made: Sequence[pl.Expr]) -> pl.DataFrame:
        """Computes expressions over rows; the numbers of stretches are there if one of these needs them."""
        if any(self.NUMBER in each.meta.root_names() for each in made):
            parts = parts.with_columns(self.numbers)
        return parts.select(made)

    def sum(self, value: pl.Expr, *, exact: bool = True) -> pl.Expr:
        """The running sum. An exact one is computed by subtraction, which takes a fraction of the time."""
        return value.map_batches(self._restarted, return_dtype=pl.self_dtype()) if exact else self.each(value.cum_sum())

    def _restarted(self, values: pl.Series) -> pl.Series:
        if values.dtype == pl.Int64 and not values.null_count():
            return self._restarted_numbers(values)
        total, firsts = values.cum_sum(), pl.Series(self._firsts)
        before = total.gather(firsts) - values.gather(firsts)
        return total - before.gather(self.numbers)

    def _restarted_numbers(self, values: pl.Series) -> pl.Series:
        numbers = values.to_numpy()
        if self._summed is not None and np.array_equal(numbers, self._summed[0]):
            return self._summed[1].alias(values.name)  # often there are as many values as rows
        total = np.cumsum(numbers)
        before = total[self._firsts] - numbers[self._firsts]
        if len(self._firsts) * LONG < len(numbers):
            for start, end, less in zip(self._firsts, [*self._firsts[1:], len(numbers)], before, strict=True):
                total[start:end] -= less
        else:
            total -= np.repeat(before, np.diff(self._firsts, append=self._rows))
        summed = pl.Series(values.name, total)
        self._summed = (numbers, summed)
        return summed

    def each(self, value: pl.Expr) -> pl.Expr:
        return value.over(self.NUMBER)


class Columns(ABC, Generic[Described]):
    """One aggregate of a step; `name` is that of its result, and prefixes its columns.

    `changing`: rows may be retracted. In a table, a retracted row always arrived before; in a pane it may not have, and
    is then the change since the previous pane.
    """

    def __init__(
        self, name: str, aggregate: Described, given: pl.Schema, *, changing: bool, in_table: bool = False
    ) -> None:
        self.name = name
        self.aggregate = aggregate
        self.changing = changing
        self.in_table = in_table
        self.input = f"{name}.input"
        self.type = given.get(self.input, pl.Null())
        self.value = pl.col(self.input)
        self.number = self.value.cast(pl.Float64)

    @property
    def folds(self) -> bool:
        """Whether a few columns represent the rows, which then need not be kept."""
        return False

    @property
    def can_be_looked_up(self) -> bool:
        """Whether it counts values that can have table entries, each found by the value itself."""
        return False


class Accumulator(Columns[Described]):
    """Folds, unless rows may be retracted that it cannot subtract."""

    parts: tuple[str, ...]
    """The accumulated columns, `fold.<name>.<part>`."""
    zeros: ClassVar[tuple[str, ...]] = ()
    """The parts that are 0 without rows; the others are null."""
    needs_order: ClassVar[bool] = False
    """Whether the result depends on the order in which rows arrived."""

    @property
    def folds(self) -> bool:
        return not self.changing

    def kept(self, part: str) -> pl.Expr:
        return pl.col(self.column(part))

    def column(self, part: str) -> str:
        return f"fold.{self.name}.{part}"

    @property
    def columns(self) -> list[str]:
        return [self.column(part) for part in self.parts]

    def of_nothing(self) -> dict[str, int | None]:
        """The accumulated columns without any rows."""
        return {self.column(part): 0 if part in self.zeros else None for part in self.parts}

    def from_rows(self, rows: pl.DataFrame) -> list[pl.Expr]:
        """Accumulates rows, as aggregates over them."""
        return self._named(self._from_rows(rows))

    def of_rows(self, rows: pl.DataFrame) -> list[pl.Expr]:
        """The accumulated columns of each single row."""
        return self._named(self._of_rows(rows))

    def running(self, over: Stretches, parts: pl.DataFrame) -> list[pl.Expr]:
        """The accumulated columns of each row and all before it in its stretch."""
        return self._named(self._running(over, parts))

    def merged(self, parts: pl.DataFrame) -> list[pl.Expr]:
        """Merges accumulated columns, as aggregates over them."""
        return self._named(self._merged(parts))

    def _named(self, made: dict[str, pl.Expr]) -> list[pl.Expr]:
        return [made[part].alias(self.column(part)) for part in self.parts]

    @abstractmethod
    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]: ...

    @abstractmethod
    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]: ...

    @abstractmethod
    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]: ...

    @abstractmethod
    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]: ...

    @abstractmethod
    def result(self) -> pl.Expr:
        """The result, from the accumulated columns."""

    def too_large(self, state: pl.DataFrame) -> tuple[dict[str, Any], int | Decimal] | None:
        """The first row of state whose result overflows its type, and that result."""
        return None


class FromRows(Columns[Described]):
    """Can be computed from the rows themselves."""

    thins: ClassVar[bool] = False
    """Whether some rows can no longer affect the result, unless rows are retracted: see `thinned`."""

    def thinned(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        """The rows that can still affect the result of their key."""
        return rows

    @abstractmethod
    def of_panes(self, panes: pl.DataFrame, came: pl.DataFrame, left: pl.DataFrame) -> pl.Series:
        """One value per pane, in order: from the rows that arrived, and those left after retractions.

        Rows have the number of their pane and are in order of arrival.
        """


class OverRows(FromRows[Described]):
    """Can be computed by one expression over the rows of each pane that have a value."""

    without_values: ClassVar[Any] = None
    """The result if no row has a value."""

    def of_panes(self, panes: pl.DataFrame, came: pl.DataFrame, left: pl.DataFrame) -> pl.Series:
        found = panes.join(self._by_pane(came, left), on=PANE, how="left", maintain_order="left")
        value = found[VALUE]
        if self.without_values is None:
            return value
        missing = value.is_null()
        if self.aggregate.null_without_rows:
            missing &= ~found[EMPTY]
        blank = pl.Series(VALUE, [self.without_values], dtype=value.dtype).new_from_index(0, len(value))
        return blank.zip_with(missing, value)

    def _by_pane(self, came: pl.DataFrame, left: pl.DataFrame) -> pl.DataFrame:
        known = left.filter(self._has_values())
        return known.group_by(PANE, maintain_order=True).agg(self._computed().alias(VALUE))

    def _has_values(self) -> pl.Expr:
        """Which rows have the needed values."""
        return self.value.is_not_null()

    @abstractmethod
    def _computed(self) -> pl.Expr:
        """The result over rows with values."""


def elements_of(arguments: Sequence[str]) -> pl.Expr:
    """The rows themselves, as a list."""
    return pl.struct([pl.col(name) for name in arguments] + [TIME, WEIGHT, ORDER]).alias(ELEMENTS)


def from_elements(
    panes: pl.DataFrame, aggregates: Sequence[FromRows[Any]], arguments: Sequence[str]
) -> list[pl.Series]:
    """Aggregates over the rows kept by panes: one value per pane, in order."""
    number = pl.int_range(pl.len()).alias(PANE)
    came = panes.select(number, ELEMENTS).explode(ELEMENTS).drop_nulls(ELEMENTS)
    came = came.unnest(ELEMENTS).sort(PANE, ORDER)
    left = _remaining(came, arguments)
    numbered = panes.select(number, (pl.col(ELEMENTS).list.len() == 0).alias(EMPTY))
    return [made.of_panes(numbered, came, left).alias(made.name) for made in aggregates]


def _remaining(rows: pl.DataFrame, arguments: Sequence[str]) -> pl.DataFrame:
    """Rows that were not retracted; of equal rows the earliest are retracted first."""
    if (rows[WEIGHT] > 0).all():
        return rows
    same = [PANE, TIME, *arguments]
    counted = rows.with_columns(
        pl.when(pl.col(WEIGHT) > 0).then(1).otherwise(0).cum_sum().over(same, order_by=ORDER).alias("__rank"),
        (pl.col(WEIGHT) < 0).sum().over(same).alias("__retracted"),
    )
    kept = counted.filter((pl.col(WEIGHT) > 0) & (pl.col("__rank") > pl.col("__retracted")))
    return kept.drop("__rank", "__retracted").sort(PANE, ORDER)
