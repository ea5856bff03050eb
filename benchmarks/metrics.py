"""What metrics cost: the same flow over the same topic with metrics of every step and without, run in turns.

The figure is the time without metrics by the time with them, both as lower quartiles over the batches of all rounds:
other work on the machine only makes batches slower.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import millstream as ms
from millstream.spark.session.start import session

SCHEMA = "key long, value long, at timestamp"
KEYS = 1_000
START_US = 1_767_225_600_000_000
BAR = 0.98
WARMING_BATCHES = 3


def fill(broker: Path, rows: int) -> None:
    """Appends rows that are a millisecond apart."""
    random = np.random.default_rng(7)
    with ms.connect(broker) as log:
        log.create_topic("events", schema=SCHEMA, partitions=2)
        with log.producer() as producer:
            for first in range(0, rows, 100_000):
                count = min(100_000, rows - first)
                times = pa.array(START_US + 1000 * np.arange(first, first + count)).cast(pa.timestamp("us", "UTC"))
                columns = [pa.array(random.integers(0, KEYS, count)), pa.array(random.integers(0, 100, count)), times]
                producer.send_batch("events", pa.RecordBatch.from_arrays(columns, ["key", "value", "at"]))


def batch_times(broker: Path, name: str, batch_rows: int, *, metrics: bool) -> list[float]:
    """The durations of a run's batches, without the first ones."""
    flow = ms.Flow(name)
    events = flow.read("events", SCHEMA, event_time="at", watermark=ms.bounded("1 second"))
    positive = events.where("value > 5").with_column("value", "value * 2")
    panes = positive.key_by("key").window(ms.fixed("10 seconds")).agg(total=ms.sum("value"), n=ms.count())
    panes.write(ms.foreach_batch(_nothing))
    job = flow.run(broker=broker, until="caught up", batch_rows=batch_rows, progress="none", metrics=metrics)
    return job.batch_times()[WARMING_BATCHES:]


def _nothing(rows: pa.Table, batch: int) -> None:
    """Only the steps before it are measured."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer rounds, within a minute")
    quick = options.parse_args().quick
    rounds, batches, batch_rows = (4, 23, 50_000) if quick else (8, 43, 100_000)
    scratch = Path(tempfile.mkdtemp(prefix="millstream-metrics-"))
    try:
        session()
        fill(scratch / "log", batches * batch_rows)
        batch_times(scratch / "log", "warming", batch_rows, metrics=True)
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds):
            for metrics in (number % 2 == 0, number % 2 == 1):  # in turns: neither always comes first
                found = batch_times(scratch / "log", f"round-{number}-{metrics}", batch_rows, metrics=metrics)
                times[metrics] += found
                shown = "with" if metrics else "without"
                print(f"round {number}, {shown:<7} {statistics.median(found) * 1000:7.1f} ms a batch", flush=True)
        quartiles = {metrics: statistics.quantiles(found, n=4)[0] for metrics, found in times.items()}
        figures = {
            "speed_with_metrics_vs_without": round(quartiles[False] / quartiles[True], 3),
            "batch_ms_with": round(quartiles[True] * 1000, 1),
            "batch_ms_without": round(quartiles[False] * 1000, 1),
        }
        print(json.dumps({"benchmark": "metrics", "quick": quick, "bar": BAR, **figures}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
