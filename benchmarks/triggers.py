"""What each trigger costs beside the default one: the same rows, windows and aggregates, in one process.

usage: triggers.py [--quick]

10k and 1M rows over 5 and 10k keys, one-minute windows over ten minutes, sum and count, in two bundles: the watermark
passes the windows of the first, and a tenth of the second comes late for them. The triggers are those of the
documentation. Times are CPU seconds, so that other work on the machine does not count; the largest ratio of elapsed
times is reported beside them. The last line is one JSON document with the figures.
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
from millstream.plan.time.bundles import BEGINNING, END
from millstream.plan.time.triggers import Trigger
from millstream.plan.time.windows import Window

MINUTE = 60_000_000
START = 1_700_000_040_000_000
BAR = 3.0
DEFAULT = "repeatedly(after_watermark())"
TRIGGERS: tuple[Trigger, ...] = (
    ms.repeatedly(ms.after_watermark()),
    ms.after_watermark(),
    ms.after_watermark(early=ms.after("20 seconds"), late=ms.each()),
    ms.after_watermark(early=ms.after_count(4), late=ms.each()),
    ms.after_watermark(late=ms.each()),
    ms.repeatedly(ms.after("20 seconds")),
    ms.every("30 seconds"),
    ms.each(),
    ms.repeatedly(ms.each()),
    ms.repeatedly(ms.after_count(4)),
    ms.repeatedly(ms.first_of(ms.after_count(3), ms.after("30 seconds"))),
    ms.repeatedly(ms.all_of(ms.after_count(2), ms.after("20 seconds"))),
    ms.in_order(ms.after_count(1), ms.after_count(2), ms.after_watermark()),
    ms.in_order(ms.after_count(1), ms.after_count(2), ms.each()),
    ms.every("30 seconds").until(ms.after_watermark()),
    ms.each().until(ms.after_watermark()),
    ms.at_expiry(),
)


def bundles(rows: int, keys: int) -> list[pl.DataFrame]:
    """Two halves, each over five minutes; a tenth of the second is of the first five."""
    random = np.random.default_rng(rows + keys)
    found = []
    for half in range(2):
        count = rows // 2
        times = START + half * 5 * MINUTE + np.sort(random.integers(0, 5 * MINUTE, count))
        if half:
            times -= np.where(random.random(count) < 0.1, 5 * MINUTE, 0)
        frame = pl.DataFrame(
            {"key": random.integers(0, keys, count), "value": random.integers(0, 100, count), TIME: times}
        )
        found.append(
            frame.with_columns(
                pl.col(TIME).cast(pl.Datetime("us", "UTC")).alias("at"), pl.lit(1, pl.Int32).alias(WEIGHT)
            )
        )
    return found


def seconds(trigger: Trigger, given: list[pl.DataFrame], window: Window) -> tuple[float, float]:
    """How long all bundles take: in CPU time, and on the clock."""
    job = ms.Flow("bench")
    stream = job.read("events", "key long, value long, at timestamp", "at")
    windowed = stream.key_by("key").window(window, allowed_lateness="1 hour").trigger(trigger)
    panes = windowed.agg(total=ms.sum("value"), n=ms.count())
    runner = Local([panes.node])
    middle = START + 5 * MINUTE
    clocks = [
        Clock(BEGINNING, middle, 0, MINUTE),
        Clock(middle, middle + 2 * MINUTE, MINUTE, 2 * MINUTE),
        Clock(middle + 2 * MINUTE, END, 2 * MINUTE, 3 * MINUTE),
    ]
    cpu, start = time.process_time(), time.perf_counter()
    for rows, clock in zip([*given, given[0].clear()], clocks, strict=True):
        runner.run({stream.node: Flowing(rows, clock)})
    return time.process_time() - cpu, time.perf_counter() - start


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer rounds, done within a minute")
    rounds = 3 if options.parse_args().quick else 5
    figures: dict[str, float] = {}
    table = Table("trigger", title="CPU time beside the default trigger, one process")
    ratios: dict[str, list[str]] = {str(trigger): [] for trigger in TRIGGERS}
    worst = worst_elapsed = 0.0
    for rows, keys in ((10_000, 5), (10_000, 10_000), (1_000_000, 5), (1_000_000, 10_000)):
        table.add_column(f"{rows:,} rows\n{keys:,} keys", justify="right")
        given = bundles(rows, keys)
        again = rounds * (5 if rows <= 10_000 else 1)
        seconds(TRIGGERS[0], given, ms.fixed("1 minute"))  # nobody is charged for what is loaded once
        times: dict[str, list[tuple[float, float]]] = {str(trigger): [] for trigger in TRIGGERS}
        for _ in range(again):
            for trigger in TRIGGERS:
                times[str(trigger)].append(seconds(trigger, given, ms.fixed("1 minute")))
        medians = {
            name: [statistics.median(each) for each in zip(*found, strict=True)] for name, found in times.items()
        }
        default, default_elapsed = medians[DEFAULT]
        figures[f"default_ms_{rows}_rows_{keys}_keys"] = default * 1000
        for name, (cpu, elapsed) in medians.items():
            ratios[name].append(f"{cpu / default:.2f}")
            worst, worst_elapsed = max(worst, cpu / default), max(worst_elapsed, elapsed / default_elapsed)
    figures |= {"max_time_vs_default": worst, "max_elapsed_vs_default": worst_elapsed}
    for name, found_ in ratios.items():
        table.add_row(name, *found_)
    table.caption = f"bar: at most {BAR}"
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()} | {"time_vs_default": ratios}))


if __name__ == "__main__":
    main()
