"""`process` in order of event time beside the same in order of arrival: the same rows, state and timers, one process.

usage: process_order.py [--quick]

1M events of 10k keys in bundles of 100k rows, up to ten seconds out of order, each with a timer in event time that the
next event moves. The last line is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
from datetime import datetime, timedelta
from typing import Any, Literal

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

import millstream as ms
from local_runs import timed_run
from millstream.operators.aggregates.accumulators import TIME, WEIGHT

START = 1_700_000_000_000_000
DELAY = 10_000_000
SILENCE = timedelta(seconds=60)
"""Longer than the pauses of nearly all keys, so that both orders fire about the same timers."""
BARS = {"ordered_time_vs_arrival": 1.5}
Order = Literal["event_time", "arrival"]


def events(rows: int, keys: int, first: int) -> pl.DataFrame:
    """One millisecond apart, less an exponential lateness of two seconds on average, of at most ten."""
    random = np.random.default_rng(first)
    late = np.minimum((random.exponential(2.0, rows) * 1e6).astype(np.int64), DELAY)
    times = START + (np.arange(rows) + first) * 1000 - late
    frame = pl.DataFrame({"key": random.integers(0, keys, rows), "value": random.integers(0, 100, rows), TIME: times})
    return frame.with_columns(
        pl.col(TIME).cast(pl.Datetime("us", "UTC")).alias("at"), pl.lit(1, pl.Int32).alias(WEIGHT)
    )


def watched(row: dict[str, Any], key: Any) -> dict[str, Any] | None:
    total = key.state["total"] = key.state.get("total", 0) + row["value"]
    key.at_event_time(row["at"] + SILENCE, "silent")
    return {"key": row["key"], "total": total} if row["value"] == 0 else None


def silent(tag: str, when: datetime, key: Any) -> dict[str, Any]:
    return {"key": key["key"], "total": key.state.pop("total", 0)}


def run(bundles: list[pl.DataFrame], order: Order) -> tuple[float, int]:
    """The seconds of processor time it takes, and the rows it sends."""
    job = ms.Flow("bench")
    stream = job.read("events", "key long, value long, at timestamp", "at", ms.bounded("10 seconds"))
    made = stream.key_by("key").process(watched, "key long, total long", on_timer=silent, order=order)
    return timed_run(stream, made, bundles, DELAY)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="smaller, done within a minute")
    quick = options.parse_args().quick
    count, rounds = (4, 3) if quick else (10, 5)
    bundles = [events(100_000, 10_000, number * 100_000) for number in range(count)]
    whole = [pl.concat(bundles)]
    _, sent = run(bundles, "event_time")
    _, sent_at_once = run(whole, "event_time")
    assert sent == sent_at_once, "the results depend on the bundles"
    times = [(run(bundles, "arrival")[0], run(bundles, "event_time")[0]) for _ in range(rounds)]
    arrival, ordered = (statistics.median(column) for column in zip(*times, strict=True))
    figures = {
        "arrival_rows_per_s": count * 100_000 / arrival,
        "ordered_rows_per_s": count * 100_000 / ordered,
        "ordered_time_vs_arrival": ordered / arrival,
    }
    table = Table("figure", "value", "bar", title="process in order of event time, one process")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}", f"<= {BARS[name]}" if name in BARS else "")
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
