"""The windowed operator beside the same group-by done once over all rows, by polars and by DuckDB, in one process.

usage: operators.py [--quick]

10M events, 10k keys, 1-minute windows, sum and count, in bundles of 1M rows. And: what a bundle of 10k rows costs with
10k and with 1M keys held. The last line is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import duckdb
import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.local import Flowing, Local
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import BEGINNING

MINUTE = 60_000_000
START = 1_700_000_000_000_000
BARS = {"time_vs_polars": 3.0, "held_time_1m_vs_10k": 1.5}


def events(rows: int, keys: int, first: int) -> pl.DataFrame:
    """One millisecond apart, less an exponential lateness of two seconds on average."""
    random = np.random.default_rng(first)
    times = START + (np.arange(rows) + first) * 1000 - (random.exponential(2.0, rows) * 1e6).astype(np.int64)
    frame = pl.DataFrame({"key": random.integers(0, keys, rows), "value": random.integers(0, 100, rows), TIME: times})
    return frame.with_columns(
        pl.col(TIME).cast(pl.Datetime("us", "UTC")).alias("at"), pl.lit(1, pl.Int32).alias(WEIGHT)
    )


def flow() -> tuple[Local, Node, Node]:
    job = ms.Flow("bench")
    stream = job.read("events", "key long, value long, at timestamp", "at")
    panes = stream.key_by("key").window(ms.fixed("1 minute")).agg(total=ms.sum("value"), n=ms.count())
    return Local([panes.node]), stream.node, panes.node


def run_operator(bundles: list[pl.DataFrame]) -> int:
    runner, source, panes = flow()
    watermark, sent = BEGINNING, 0
    for bundle in bundles:
        after = int(bundle[TIME].max()) - 10_000_000  # type: ignore[arg-type]
        done = runner.run({source: Flowing(bundle, Clock(watermark, after, 0, 0))})
        sent += len(done[panes].rows)
        watermark = after
    done = runner.run({source: Flowing(bundles[0].clear(), Clock(watermark, 1 << 62, 0, 0))})
    return sent + len(done[panes].rows)


def run_polars(frame: pl.DataFrame) -> int:
    minute = (pl.col(TIME) // MINUTE).alias("minute")
    return len(frame.group_by("key", minute).agg(pl.col("value").sum(), pl.len()))


def run_duckdb(frame: pl.DataFrame) -> int:
    connection = duckdb.connect(config={"threads": pl.thread_pool_size()})
    connection.register("events", frame.to_arrow())
    query = f'SELECT key, "{TIME}" // {MINUTE} AS minute, sum(value), count(*) FROM events GROUP BY ALL'
    return len(connection.sql(query).to_arrow_table())


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


class Held:
    """A runner that holds an open window of so many keys, and takes bundles of 10k rows."""

    def __init__(self, keys: int) -> None:
        self._runner, self._source, _ = flow()
        self._keys = keys
        self._random = np.random.default_rng(3)
        times = np.full(keys, START)
        everybody = pl.DataFrame({"key": np.arange(keys), "value": np.ones(keys, np.int64), TIME: times})
        self._everybody = everybody.with_columns(
            pl.col(TIME).cast(pl.Datetime("us", "UTC")).alias("at"), pl.lit(1, pl.Int32).alias(WEIGHT)
        )
        self._take(self._everybody)

    def _take(self, rows: pl.DataFrame) -> None:
        self._runner.run({self._source: Flowing(rows, Clock(BEGINNING, BEGINNING, 0, 0))})

    def seconds(self) -> float:
        """The time of one more bundle, of 10k different keys."""
        some = self._everybody[self._random.permutation(self._keys)[:10_000]]
        return seconds(lambda: self._take(some))


def held_seconds(rounds: int) -> tuple[float, float]:
    """The median time of a bundle with 10k and with 1M keys held, taken in turn."""
    small, large = Held(10_000), Held(1_000_000)
    times = [(small.seconds(), large.seconds()) for _ in range(rounds)]
    return statistics.median(time for time, _ in times), statistics.median(time for _, time in times)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="smaller, done within a minute")
    quick = options.parse_args().quick
    count = 2 if quick else 10
    bundles = [events(1_000_000, 10_000, number * 1_000_000) for number in range(count)]
    whole = pl.concat(bundles)
    assert run_operator(bundles) == run_polars(whole)
    rounds = 3 if quick else 5
    actions = [lambda: run_operator(bundles), lambda: run_polars(whole), lambda: run_duckdb(whole)]
    times = [[seconds(action) for action in actions] for _ in range(rounds)]
    operator, polars, duck = (statistics.median(column) for column in zip(*times, strict=True))
    small, large = held_seconds(40)
    figures = {
        "rows_per_s": count * 1_000_000 / operator,
        "time_vs_polars": operator / polars,
        "time_vs_duckdb": operator / duck,
        "held_ms_10k": small * 1000,
        "held_ms_1m": large * 1000,
        "held_time_1m_vs_10k": large / small,
    }
    table = Table("figure", "value", "bar", title="The windowed operator, one process")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}", f"<= {BARS[name]}" if name in BARS else "")
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
