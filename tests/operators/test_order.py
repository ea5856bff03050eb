"""Orders that name a column twice, and sums of floats that come out the same every time."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from millstream.testing import Add, play

ROWS = [{"x": 1, "n": 1}, {"x": 1, "n": 2}]


@pytest.mark.parametrize("on", ["reference", "local"])
@pytest.mark.parametrize("ties", [False, True])
def test_the_first_of_two_orders_by_the_same_column_counts(on: Any, ties: bool) -> None:
    out = play(lambda rows: rows.top(1, by=["x", "n desc", "n"], ties=ties), [Add(ROWS)], schema="x int, n int", on=on)
    assert [row["n"] for row in out[0]] == [2]


SUMS = """
import numpy as np, polars as pl
import millstream as ms
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.stateful import stateful
rng = np.random.default_rng(1)
rows = ms.Flow("f").read("rows", "k int, x double, at timestamp", "at")
panes = rows.key_by("k").window(ms.sliding("10 seconds", "2 seconds")).agg(s=ms.sum("x"))
at = rng.integers(0, 60_000_000, 2000)
frame = pl.DataFrame({"k": rng.integers(0, 50, 2000).astype("int32"), "x": rng.random(2000), TIME: at}).with_columns(
    pl.col(TIME).cast(pl.Datetime("us", "UTC")).alias("at"), pl.lit(1, pl.Int32).alias(WEIGHT)
)
folded, _ = stateful(panes.node, whole_rows=False).folded(frame, 0, 0)
print(folded.sort("key.k", "start").to_dicts())
"""


@pytest.mark.more
def test_sums_of_floats_in_sliding_windows_are_the_same_in_every_process() -> None:
    """A batch that is tried again must send what it sent, or what is taken back later was never there."""
    runs = [subprocess.run([sys.executable, "-c", SUMS], capture_output=True, check=True) for _ in range(3)]
    assert len({run.stdout for run in runs}) == 1
