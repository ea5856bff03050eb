"""The values that decide a sketch give the same sketch as all values."""

from __future__ import annotations

import polars as pl
import pytest

from millstream import sketches
from millstream.operators.aggregates.sketch_hashes import deciding

INTEGERS = pl.Series(range(-40_000, 60_000))


@pytest.mark.parametrize(
    "values",
    [
        INTEGERS,
        INTEGERS.cast(pl.Int32),
        INTEGERS.cast(pl.String),
        pl.Series([f"{'é' * (number % 40)}{number}" for number in range(60_000)]),
        pl.Series([f"{number:0{1 + number % 33}d}" for number in range(60_000)]),
        pl.Series(["same"] * 50_000),
        pl.Series([str(number % 700) for number in range(50_000)]),
        pl.Series([str(number) * 60 for number in range(20_000)]),
        INTEGERS.cast(pl.Float64),
        pl.Series([], dtype=pl.String),
    ],
)
@pytest.mark.parametrize("lg_k", [7, 12])
def test_the_sketch_is_the_same(values: pl.Series, lg_k: int) -> None:
    chosen = deciding(values, lg_k)
    exact = sketches.distinct_count(sketches.distinct(values.to_list(), lg_k))
    assert sketches.distinct_count(sketches.distinct(chosen.to_list(), lg_k)) == exact


def test_few_of_many_values_decide() -> None:
    assert len(deciding(INTEGERS.cast(pl.String), 12)) < 8_192
