"""How the time of a batch grows with its events, with keys, with windows held, and with cores.

A windowed sum over Parquet files. Figures are ratios to the first case of a series, in one process; a figure is the
median time of a batch after the first two. When it has to be quick, one process does the first case and the last of
each series, over a tenth of the events, on two cores alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import millstream as ms
from millstream.spark.session.start import session

SCHEMA = "key long, value long, at timestamp"
START_US = 1_700_000_000_000_000
MILLION = 1_000_000
# By series, its cases: events of a batch, keys, and how many windows of one second stay open.
SERIES: dict[str, dict[str, tuple[int, int, int]]] = {
    "events": {"500k": (MILLION // 2, 10_000, 1), "1m": (MILLION, 10_000, 1), "4m": (4 * MILLION, 10_000, 1)},
    "keys": {"1k": (MILLION, 1000, 1), "100k": (MILLION, 100_000, 1), "1m": (MILLION, MILLION, 1)},
    "windows": {"10": (MILLION, 1000, 10), "100": (MILLION, 1000, 100), "1000": (MILLION, 1000, 1000)},
    "cores": {"1": (2 * MILLION, 100_000, 1), "2": (2 * MILLION, 100_000, 1)},
}


def make_events(folder: Path, files: int, rows: int, keys: int, spread_s: int) -> None:
    """Files of events; those of each file are spread over the same seconds, so that all its windows are touched."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    for number in range(files):
        at = START_US + random.integers(0, spread_s * MILLION, rows)
        frame = pl.DataFrame({"key": random.integers(0, keys, rows), "value": random.integers(0, 100, rows), "at": at})
        frame.with_columns(pl.col("at").cast(pl.Datetime("us", "UTC"))).write_parquet(
            folder / f"{number:04}.parquet", row_group_size=-(-rows // 4)
        )


def batch_seconds(folder: Path, scratch: Path) -> float:
    flow = ms.Flow(f"growth-{time.time_ns()}")
    events = flow.read(ms.files(folder, files_per_batch=1), SCHEMA, "at", ms.bounded("1 day"))
    sums = events.key_by("key").window(ms.fixed("1 second")).agg(total=ms.sum("value"), n=ms.count())
    sums.write(ms.discard())
    job = flow.run(broker=scratch / "log", until="caught up", progress="none")
    times: list[float] = job.batch_times()
    return statistics.median(times[2:])


def measured(names: Sequence[str], quick: bool, cores: int) -> dict[str, dict[str, float]]:
    """Seconds of a batch by series and case, in this process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    session(master=f"local[{cores}]", partitions=cores)
    scratch = Path(tempfile.mkdtemp(prefix="millstream-growth-"))
    found: dict[str, dict[str, float]] = {}
    try:
        for series in names:
            cases = [str(cores)] if series == "cores" else list(SERIES[series])
            for case in [cases[0], cases[-1]] if quick else cases:
                rows, keys, windows = SERIES[series][case]
                folder = scratch / f"events-{series}-{case}"
                make_events(folder, 5 if quick else 8, rows // (10 if quick else 1), keys, windows)
                if not quick:
                    batch_seconds(folder, scratch)  # warms up
                found.setdefault(series, {})[case] = batch_seconds(folder, scratch)
                shutil.rmtree(folder)
        return found
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def in_own_process(names: Sequence[str], quick: bool, cores: int = 2) -> dict[str, dict[str, float]]:
    said = ["--series", ",".join(names), "--cores", str(cores), *(["--quick"] if quick else [])]
    done = subprocess.run([sys.executable, __file__, *said], stdout=subprocess.PIPE, check=True, text=True)
    seconds: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def all_of_it(quick: bool) -> Iterator[tuple[str, dict[str, float]]]:
    if quick:
        yield from in_own_process([series for series in SERIES if series != "cores"], quick).items()
        return
    for series in SERIES:
        seconds: dict[str, float] = {}
        for cores in (1, 2) if series == "cores" else (2,):
            seconds |= in_own_process([series], quick, cores)[series]
        yield series, seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="a tenth of the events, fewer batches and fewer cases")
    options.add_argument("--series", type=lambda text: text.split(","), help=argparse.SUPPRESS)
    options.add_argument("--cores", type=int, default=2, help=argparse.SUPPRESS)
    said = options.parse_args()
    if said.series:
        print(json.dumps(measured(said.series, said.quick, said.cores)))
        return
    figures: dict[str, Any] = {}
    for series, seconds in all_of_it(said.quick):
        first = next(iter(seconds.values()))
        for case, took in seconds.items():
            print(f"{series:>8} {case:>5}   {took * 1000:7.0f} ms a batch   {took / first:.2f}", flush=True)
            figures |= {f"{series}_{case}_ms": round(took * 1000), f"{series}_{case}": round(took / first, 3)}
    print(json.dumps({"benchmark": "growth", "quick": said.quick, **figures}))


if __name__ == "__main__":
    main()
