"""What metrics cost: the same flow over the same topic with metrics of every step and without, run in turns.

And what many flows cost: an app of 50 small flows over one topic, by an app of one. Each flow keeps the rows of its own
keys, and sums them in windows; the figure is the median time of a batch with 50 flows by that with one.

A round runs both, one right after the other, since a session gets faster for a while and other work comes and goes. Its
ratio is the median batch time without metrics by that with them; the figure is the median over all rounds. The smallest
and the largest ratio are printed, too: if they are further apart than the bar allows, the machine was too busy to tell.
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
FLOWS = 50
FLOWS_BAR = 10
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
    flow = summing(name, "value > 5")
    job = flow.run(broker=broker, until="caught up", batch_rows=batch_rows, progress="none", metrics=metrics)
    return job.batch_times()[WARMING_BATCHES:]


def summing(name: str, condition: str) -> ms.Flow:
    """A flow with an expression, a window and a sink that does nothing."""
    flow = ms.Flow(name)
    events = flow.read("events", SCHEMA, event_time="at", watermark=ms.bounded("1 second"))
    kept = events.where(condition).with_column("value", "value * 2")
    panes = kept.key_by("key").window(ms.fixed("10 seconds")).agg(total=ms.sum("value"), n=ms.count())

    def nothing(rows: pa.Table, batch: int) -> None:
        """Only the steps before it are measured."""

    nothing.__name__ = name  # sinks of one app differ
    panes.write(ms.foreach_batch(nothing))
    return flow


def batch_time_of_app(broker: Path, name: str, flows: int, batch_rows: int) -> float:
    """The median duration of a batch of an app with so many flows, of which each has a part of the keys."""
    app = ms.app([summing(f"flow-{number}", f"key % {FLOWS} = {number}") for number in range(flows)], name=name)
    job = app.run(broker=broker, until="caught up", batch_rows=batch_rows, progress="none")
    return statistics.median(job.batch_times()[WARMING_BATCHES:])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer rounds, about a minute")
    quick = options.parse_args().quick
    rounds, batches, batch_rows = (4, 23, 50_000) if quick else (8, 43, 100_000)
    scratch = Path(tempfile.mkdtemp(prefix="millstream-metrics-"))
    try:
        session()
        fill(scratch / "log", batches * batch_rows)
        batch_times(scratch / "log", "warming", batch_rows, metrics=True)
        ratios = []
        for number in range(rounds):
            medians: dict[bool, float] = {}
            for metrics in (number % 2 == 0, number % 2 == 1):  # in turns: neither always comes first
                found = batch_times(scratch / "log", f"round-{number}-{metrics}", batch_rows, metrics=metrics)
                medians[metrics] = statistics.median(found)
            ratios.append(medians[False] / medians[True])
            shown = f"with {medians[True] * 1000:7.1f} ms a batch, without {medians[False] * 1000:7.1f} ms"
            print(f"round {number}: {shown}, ratio {ratios[-1]:.3f}", flush=True)
        many = batch_time_of_app(scratch / "log", "app-many", FLOWS, 4 * batch_rows)
        one = batch_time_of_app(scratch / "log", "app-one", 1, 4 * batch_rows)
        print(f"an app of {FLOWS} flows: {many * 1000:.1f} ms a batch, of one: {one * 1000:.1f} ms", flush=True)
        figures = {
            "speed_with_metrics_vs_without": round(statistics.median(ratios), 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
            f"time_{FLOWS}_flows_vs_1": round(many / one, 2),
            "flows_bar": FLOWS_BAR,
        }
        print(json.dumps({"benchmark": "metrics", "quick": quick, "bar": BAR, **figures}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
