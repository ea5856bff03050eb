"""Aggregates of conditions on columns: counts of what is true and of what is known."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import polars as pl

from millstream.operators.aggregates.accumulators import WEIGHT, Accumulator, Columns, Described, OverRows, Stretches
from millstream.plan.aggregates import conditions as plan
from millstream.plan.aggregates.basic import Aggregate


class Counted(Accumulator[Described]):
    """Counts by weight, so that a retraction subtracts."""

    def _counted(self, where: pl.Expr) -> pl.Expr:
        one = pl.col(WEIGHT).cast(pl.Int64) if self.changing else pl.lit(1, pl.Int64)
        return pl.when(where).then(one).otherwise(pl.lit(0, pl.Int64))

    @abstractmethod
    def _counts(self) -> dict[str, pl.Expr]:
        """The counts of each row."""

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return {part: count.sum() for part, count in self._counts().items()}

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return self._counts()

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {part: over.sum(self.kept(part)) for part in self.parts}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {part: self.kept(part).sum() for part in self.parts}


class CountIf(Counted[plan.CountIf]):
    parts = ("count",)
    zeros = ("count",)

    @property
    def folds(self) -> bool:
        return True

    def _counts(self) -> dict[str, pl.Expr]:
        return {"count": self._counted(self.value.fill_null(False))}

    def result(self) -> pl.Expr:
        return self.kept("count")


class Truth(Counted[Described], OverRows[Described]):
    """How many rows are true and how many are known."""

    parts = ("true", "known")
    zeros = ("true", "known")

    @property
    def folds(self) -> bool:
        return not self.changing or self.in_table

    def _counts(self) -> dict[str, pl.Expr]:
        is_known = self.value.is_not_null()
        return {"true": self._counted(self.value.fill_null(False)), "known": self._counted(is_known)}


class AnyTrue(Truth[plan.Any]):
    def result(self) -> pl.Expr:
        return pl.when(self.kept("known") > 0).then(self.kept("true") > 0)

    def _computed(self) -> pl.Expr:
        return self.value.any()


class AllTrue(Truth[plan.All]):
    def result(self) -> pl.Expr:
        return pl.when(self.kept("known") > 0).then(self.kept("true") == self.kept("known"))

    def _computed(self) -> pl.Expr:
        return self.value.all()


COLUMNS: Mapping[type[Aggregate], type[Columns[Any]]] = {
    plan.CountIf: CountIf,
    plan.Any: AnyTrue,
    plan.All: AllTrue,
}
