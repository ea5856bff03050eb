"""What a batch of 10,000 rows costs with 10 thousand, 1 million and 10 million keys held.

One Spark session and one flow per size: the keys are loaded in large batches, then come small ones of random keys. The
figure is the median time of the small batches.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

import millstream as ms
from millstream.spark.session.start import session

SCHEMA = "key long, value long, at timestamp"
SMALL_ROWS = 10_000
LOAD_ROWS = 1_000_000
AT = datetime(2026, 1, 1, tzinfo=UTC)


def append(log: ms.Broker, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    columns = {"key": keys, "value": np.ones(len(keys), np.int64), "at": pa.array([AT], pa.timestamp("us", "UTC"))}
    times = pa.chunked_array([columns["at"]]).take(pa.array(np.zeros(len(keys), np.int64))).combine_chunks()
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(columns["value"]), times], ["key", "value", "at"])
    with log.producer() as producer:
        producer.send_batch("events", batch)


def flow() -> ms.Flow:
    made = ms.Flow("state")
    events = made.read("events", SCHEMA, event_time="at")
    events.key_by("key").window(ms.fixed("365 days")).agg(total=ms.sum("value")).write(ms.foreach_batch(nothing))
    return made


def nothing(rows: pa.Table, batch: int) -> None:
    """No window ends here, so there is nothing to write."""


def measured(scratch: Path, held: int, batches: int) -> float:
    """The median seconds of a small batch with `held` keys held."""
    broker = scratch / f"log-{held}"
    random = np.random.default_rng(held)
    with ms.connect(broker) as log:
        log.create_topic("events", schema=SCHEMA, partitions=2)
        for first in range(0, held, LOAD_ROWS):
            append(log, np.arange(first, min(held, first + LOAD_ROWS)))
        flow().run(broker=broker, until="caught up", batch_rows=LOAD_ROWS, key_groups=8, progress="none")
        for _ in range(batches):
            append(log, random.integers(0, held, SMALL_ROWS))
        job = flow().run(broker=broker, until="caught up", batch_rows=SMALL_ROWS, key_groups=8, progress="none")
    seconds = job.batch_times()[5:]
    shutil.rmtree(broker)
    return float(statistics.median(seconds))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer keys and batches, within a minute")
    quick = options.parse_args().quick
    sizes = {"10k": 10_000, "1m": 100_000, "10m": 300_000} if quick else {"10k": 10_000, "1m": 10**6, "10m": 10**7}
    scratch = Path(tempfile.mkdtemp(prefix="millstream-state-"))
    try:
        session()
        measured(scratch, 10_000, 6)  # so that the first size does not pay for starting
        seconds = {}
        for label, held in sizes.items():
            seconds[label] = measured(scratch, held, 10 if quick else 30)
            print(f"{held:>12,} keys held   {seconds[label] * 1000:8.0f} ms a batch", flush=True)
        figures = {f"batch_ms_{label}": round(value * 1000) for label, value in seconds.items()}
        ratios = {f"time_{label}_vs_10k": round(seconds[label] / seconds["10k"], 3) for label in ("1m", "10m")}
        print(json.dumps({"benchmark": "state", "quick": quick, **ratios, **figures}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
