"""Approximate aggregates on columns: the state of a window or group is one sketch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.operators.aggregates.accumulators import WEIGHT, Accumulator, Columns, Stretches
from millstream.operators.aggregates.sketch_hashes import deciding
from millstream.plan.aggregates import approximate as plan
from millstream.plan.aggregates.basic import Aggregate
from millstream.sketches import hashed_value


class Sketched(Accumulator[plan.Sketched]):
    parts = ("sketch",)

    @property
    def folds(self) -> bool:
        return True

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"sketch": _once(self._packed, self.value, *self._weights())}

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        def each(columns: Sequence[pl.Series]) -> pl.Series:
            packed = [self._packed([column[row : row + 1] for column in columns]) for row in range(len(columns[0]))]
            return pl.Series(packed, dtype=pl.Binary)

        return {"sketch": pl.map_batches([self.value, *self._weights()], each, return_dtype=pl.Binary)}

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"sketch": over.each(self.kept("sketch").map_batches(self._accumulated, return_dtype=pl.Binary))}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"sketch": _once(self._united, self.kept("sketch"))}

    def result(self) -> pl.Expr:
        return self.kept("sketch").map_batches(
            self._read, return_dtype=self._read(pl.Series([], dtype=pl.Binary)).dtype
        )

    def _read(self, packed: pl.Series) -> pl.Series:
        results = [self.aggregate.result(sketch) for sketch in packed]
        return pl.Series(packed.name, pa.array(results, self.aggregate.result_type(None)))

    def _weights(self) -> list[pl.Expr]:
        return [pl.col(WEIGHT)] if self.changing else []

    def _packed(self, columns: Sequence[pl.Series]) -> bytes | None:
        values, *weights = columns
        if self.aggregate.of_sketches:
            return self.aggregate.merged(values.drop_nulls())
        if not self.aggregate.counts_values:
            return self.aggregate.packed(values.drop_nulls().cast(pl.Float64).to_numpy())
        if weights:
            counted = pl.DataFrame([values.alias("value"), weights[0].alias("weight")]).drop_nulls("value")
            counted = counted.group_by("value", maintain_order=True).agg(pl.col("weight").cast(pl.Int64).sum())
        else:
            known = values.drop_nulls().alias("value")
            counted = pl.DataFrame([known.unique(maintain_order=True), known.unique_counts().alias("weight")])
        return self.aggregate.packed(dict(zip(_plain(counted["value"]), counted["weight"].to_list(), strict=True)))

    def _united(self, columns: Sequence[pl.Series]) -> bytes | None:
        known = columns[0].drop_nulls()
        return known[0] if len(known) == 1 else self.aggregate.merged(known) if len(known) else None

    def _accumulated(self, packed: pl.Series) -> pl.Series:
        so_far: list[bytes | None] = []
        last: bytes | None = None
        for sketch in packed:
            if sketch is not None:
                last = sketch if last is None else self.aggregate.merged([last, sketch])
            so_far.append(last)
        return pl.Series(packed.name, so_far, dtype=pl.Binary)


class Distinct(Sketched):
    def _packed(self, columns: Sequence[pl.Series]) -> bytes | None:
        if self.aggregate.of_sketches:
            return super()._packed(columns)
        assert isinstance(self.aggregate, plan.ApproxDistinct)
        return self.aggregate.packed(_plain(deciding(columns[0].drop_nulls(), self.aggregate.size)))


class Intersection(Sketched):
    def _packed(self, columns: Sequence[pl.Series]) -> bytes | None:
        return self._united(columns)


def _once(pack: Callable[[Sequence[pl.Series]], bytes | None], *columns: pl.Expr) -> pl.Expr:
    """One value for all rows of a group."""

    def packed(rows: Sequence[pl.Series]) -> pl.Series:
        return pl.Series(rows[0].name, [pack(rows)], dtype=pl.Binary)

    return pl.map_groups(list(columns), packed, return_dtype=pl.Binary, returns_scalar=True)


def _plain(values: pl.Series) -> list[Any]:
    """Values as sketches hash them."""
    kind = values.dtype
    if kind.is_temporal():
        return (values.cast(pl.Int64) if isinstance(kind, pl.Datetime) else values.to_physical()).to_list()
    listed = values.to_list()
    return (
        listed if kind.is_integer() or kind.is_float() or kind == pl.String else [hashed_value(each) for each in listed]
    )


COLUMNS: Mapping[type[Aggregate], type[Columns[Any]]] = {
    plan.ApproxDistinct: Distinct,
    plan.ApproxSet: Sketched,
    plan.ApproxIntersection: Intersection,
    plan.ApproxQuantiles: Sketched,
    plan.ApproxTop: Sketched,
    plan.ApproxCount: Sketched,
}
