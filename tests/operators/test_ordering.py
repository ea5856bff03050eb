"""Rows in order of their keys: by counting where keys are few whole numbers, by grouping otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from millstream.operators.aggregates.accumulators import Stretches
from millstream.operators.ordering import by_key

MINUTE = 60_000_000
RANDOM = np.random.default_rng(7)
FEW = RANDOM.integers(-3, 4, 300).tolist()
STARTS = (RANDOM.integers(-5, 5, 300) * MINUTE + 17).tolist()
KEYS: dict[str, dict[str, list[Any]]] = {
    "few": {"a": FEW},
    "few with starts of windows": {"a": FEW, "start": STARTS},
    "as many as can be counted": {"a": [0, 65_534, 3, 0], "start": [17, 17, 17, 17]},
    "one more": {"a": [0, 65_535, 3, 0], "start": [17, 17, 17, 17]},
    "one more, second": {"start": [17, 17, 17, 17], "a": [0, 65_535, 3, 0]},
    "wide": {"a": [2**62, -(2**62), 5, 5, 2**62], "start": [17, 17, 17, 17, 17]},
    "nulls": {"a": [None if a == 2 else a for a in FEW], "start": STARTS},
    "text": {"a": [f"key {a}" for a in FEW], "start": STARTS},
    "no key": {},
    "no rows": {"a": []},
}


@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_ordered_by_their_keys_and_then_as_they_arrived(kind: str) -> None:
    keys = KEYS[kind]
    frame = pl.DataFrame(keys) if keys else pl.DataFrame({"other": FEW})
    order, counts = by_key(frame, list(keys), {"start": MINUTE})
    values = frame.select(list(keys)).rows() if keys else [()] * len(frame)
    expected = sorted(range(len(frame)), key=lambda row: [(value is not None, value) for value in values[row]])
    assert order.tolist() == expected
    in_order = [values[row] for row in expected]
    assert counts.tolist() == [in_order.count(key) for key in dict.fromkeys(in_order)]


def test_a_running_sum_starts_over_with_each_stretch() -> None:
    over = Stretches(np.array([0, 1, 4, 7]), 9)
    frame = pl.DataFrame({"v": [5, -2, 7, 1, 1, 1, 2**61, -(2**61), 3]}).with_columns(same=pl.col("v"), ones=pl.lit(1))
    made = frame.cast(pl.Int64).pipe(over.running, [over.sum(pl.col(name)) for name in frame.columns])
    assert made["v"].to_list() == made["same"].to_list() == [5, -2, 5, 6, 1, 2, 2**61 + 2, -(2**61), 3 - 2**61]
    assert made["ones"].to_list() == [1, 1, 2, 3, 1, 2, 3, 1, 2]
