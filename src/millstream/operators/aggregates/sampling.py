"""Samples on columns: the state of a window or group has the values of the sample and their ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl

from millstream.operators.aggregates.accumulators import TIME, Accumulator, Columns, Stretches
from millstream.operators.aggregates.approximate import Sketched
from millstream.plan.aggregates import sampling as plan
from millstream.plan.aggregates.basic import Aggregate

Ranked = list[tuple[float, Any]]
"""The values of a sample with their ranks, the highest first."""


class Sample(Accumulator[plan.Sample]):
    parts = ("values", "ranks")

    @property
    def folds(self) -> bool:
        return True

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return self._grouped(self._arguments(), self._sampled)

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        def each(columns: Sequence[pl.Series]) -> pl.Series:
            count = len(columns[0])
            samples = [self._sampled([column[row : row + 1] for column in columns], row) for row in range(count)]
            return pl.Series([_shown(sample) for sample in samples], dtype=self._kind)

        made = pl.map_batches(self._arguments(), each, return_dtype=self._kind)
        return {part: made.struct.field(part) for part in self.parts}

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        both = pl.struct(self.kept(part).alias(part) for part in self.parts)
        made = over.each(both.map_batches(self._accumulated, return_dtype=self._kind))
        return {part: made.struct.field(part) for part in self.parts}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return self._grouped([self.kept(part) for part in self.parts], self._united)

    def result(self) -> pl.Expr:
        return self.kept("values")

    @property
    def _kind(self) -> pl.Struct:
        return pl.Struct({"values": pl.List(self.type), "ranks": pl.List(pl.Float64)})

    def _arguments(self) -> list[pl.Expr]:
        weight = [] if self.aggregate.weight is None else [pl.col(f"{self.name}.weight")]
        return [self.value, pl.col(TIME), *weight]

    def _grouped(
        self, columns: list[pl.Expr], sampled: Callable[[Sequence[pl.Series]], Ranked | None]
    ) -> dict[str, pl.Expr]:
        def one(rows: Sequence[pl.Series]) -> pl.Series:
            found = sampled(rows)
            return pl.Series(rows[0].name, [None if found is None else _shown(found)], dtype=self._kind)

        made = pl.map_groups(columns, one, return_dtype=self._kind, returns_scalar=True)
        return {part: made.struct.field(part) for part in self.parts}

    def _sampled(self, columns: Sequence[pl.Series], place: int = 0) -> Ranked:
        """The sample of rows: the rank of each is the logarithm of a random number, divided by its weight.

        The seed comes from the times of the rows, or else from their values and place, so that a replay of the same
        bundles gives the same sample.
        """
        values, times, *weights = columns
        seed = [crc32(times.fill_null(0).to_numpy().tobytes())]
        if times.null_count() == len(times):
            seed += [crc32(repr(values.to_list()).encode()), place]
        drawn = np.random.default_rng(seed).random(len(values))
        ranks = np.log1p(-drawn)
        known = values.is_not_null().to_numpy()
        if weights:
            weight = weights[0].cast(pl.Float64).fill_null(0).to_numpy()
            known = known & (weight > 0)
            ranks = ranks / np.where(known, weight, 1.0)
        places = np.flatnonzero(known)
        best = places[np.argsort(-ranks[places], kind="stable")][: self.aggregate.count]
        return list(zip(ranks[best].tolist(), values[best].to_list(), strict=True))

    def _united(self, columns: Sequence[pl.Series]) -> Ranked | None:
        values, ranks = (column.drop_nulls().to_list() for column in columns)
        if not values:
            return None
        pairs = [pair for one, other in zip(ranks, values, strict=True) for pair in zip(one, other, strict=True)]
        return self._highest(pairs)

    def _highest(self, ranked: Ranked) -> Ranked:
        return sorted(ranked, key=itemgetter(0), reverse=True)[: self.aggregate.count]

    def _accumulated(self, parts: pl.Series) -> pl.Series:
        """The sample of each row and all before it."""
        so_far: Ranked = []
        made = []
        for part in parts:
            came = zip(part["ranks"] or (), part["values"] or (), strict=True)
            so_far = self._highest([*so_far, *came])
            made.append(_shown(so_far))
        return pl.Series(parts.name, made, dtype=self._kind)


def _shown(sample: Ranked) -> dict[str, list[Any]]:
    return {"values": [value for _, value in sample], "ranks": [rank for rank, _ in sample]}


COLUMNS: Mapping[type[Aggregate], type[Columns[Any]]] = {plan.Sample: Sample, plan.Bloom: Sketched}
