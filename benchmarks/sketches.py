"""Approximate aggregates beside the exact ones: the same rows, windows and bundles, one process.

usage: sketches.py [--quick]

Events of one million users in one window, in bundles of 100k rows: the state after the last bundle, and the time for
all bundles and the result. The last line is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.local import Flowing, Local
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock
from millstream.plan.aggregates.basic import Aggregate
from millstream.plan.time.bundles import BEGINNING, END

START = 1_700_000_000_000_000
USERS = 1_000_000
BARS = {"state_bytes_vs_exact": "<= 0.01", "speed_vs_exact": ">= 1"}
PAIRS = {
    "distinct": (ms.approx_distinct("user"), ms.distinct_count("user")),
    "quantiles": (ms.approx_quantiles("value", [0.5, 0.99]), ms.percentile("value", [0.5, 0.99])),
}


def events(rows: int, number: int) -> pl.DataFrame:
    random = np.random.default_rng(number)
    users = (np.arange(rows) + number * rows) % USERS
    times = np.full(rows, START + number)
    frame = pl.DataFrame({"user": users, "value": random.exponential(10.0, rows), TIME: times})
    return frame.with_columns(
        pl.col("user").cast(pl.String),
        pl.col(TIME).cast(pl.Datetime("us", "UTC")).alias("at"),
        pl.lit(1, pl.Int32).alias(WEIGHT),
    )


def run(bundles: list[pl.DataFrame], aggregate: Aggregate) -> tuple[float, int]:
    """The seconds of processor time, and the bytes of state after the last bundle."""
    job = ms.Flow("bench")
    stream = job.read("events", "user string, value double, at timestamp", "at", ms.bounded("10 seconds"))
    made = stream.key_by().window(ms.fixed("1 hour")).agg(found=aggregate)
    runner = Local([made.node])
    start = time.process_time()  # other work on the machine must not count
    for bundle in bundles:
        runner.run({stream.node: Flowing(bundle, Clock(BEGINNING, BEGINNING, 0, 0))})
    tables = [table for state in runner._states.values() for table in state.tables.values()]
    kept = sum(int(entry.frame().estimated_size()) for table in tables for entry in table.runs())
    ended = runner.run({stream.node: Flowing(bundles[0].clear(), Clock(BEGINNING, END, 0, 0))})[made.node].rows
    assert len(ended) == 1
    return time.process_time() - start, kept


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer rounds, done within a minute")
    rounds = 1 if options.parse_args().quick else 5
    bundles = [events(100_000, number) for number in range(10)]
    figures: dict[str, float] = {}
    for name, (approximate, exact) in PAIRS.items():
        rounded = [(run(bundles, approximate), run(bundles, exact)) for _ in range(rounds)]
        quick, slow = (statistics.median(pair[side][0] for pair in rounded) for side in (0, 1))
        (_, small), (_, large) = rounded[0]
        figures[f"{name}_rows_per_s"] = len(bundles) * 100_000 / quick
        figures[f"{name}_state_bytes"] = small
        figures[f"{name}_state_bytes_vs_exact"] = small / large
        figures[f"{name}_speed_vs_exact"] = slow / quick
    figures["state_bytes_vs_exact"] = max(figures[f"{name}_state_bytes_vs_exact"] for name in PAIRS)
    figures["speed_vs_exact"] = min(figures[f"{name}_speed_vs_exact"] for name in PAIRS)
    table = Table("figure", "value", "bar", title="approximate aggregates, one process")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.4f}", BARS.get(name, ""))
    Console().print(table)
    print(json.dumps({name: round(value, 5) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
