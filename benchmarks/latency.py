"""From append to pane: how long a record takes through a windowed step, against a bare Spark query without state.

A process appends at a steady rate; every batch sends the panes it touched. A record's time is when it was appended, and
a pane carries the oldest and the newest of the records in it. The bare query reads the same topic with the same data
source in the same run, and hands each row to the driver.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

import millstream as ms
from millstream.spark import register
from millstream.spark.session.start import session

SCHEMA = "key long, sent long, at timestamp"
KEYS = 100
BURST_S = 0.01
PATIENCE_S = 300.0
Latencies = list[float]


def produce(broker: str, rate: int, seconds: float) -> None:
    """Appends `rate` records a second in small bursts, each with the time it is appended at."""
    random = np.random.default_rng(rate)
    with ms.connect(broker) as log, log.producer() as producer:
        begun = time.monotonic()
        done = 0
        while (elapsed := time.monotonic() - begun) < seconds:
            due = int(elapsed * rate) - done
            if due > 0:
                now = time.time_ns() // 1000
                sent = np.full(due, now, np.int64)
                columns = [pa.array(random.integers(0, KEYS, due)), pa.array(sent)]
                columns.append(pa.array(sent).cast(pa.timestamp("us", "UTC")))
                producer.send_batch("events", pa.RecordBatch.from_arrays(columns, ["key", "sent", "at"]))
                producer.flush()
                done += due
            time.sleep(BURST_S)


def loaded(
    broker: Path, rate: int, warm_s: float, seconds: float, query: Callable[[Path, Latencies], Callable[[], None]]
) -> Latencies:
    """The latencies that a query sees under load, after it has warmed up."""
    seen: Latencies = []
    with ms.connect(broker) as log:
        log.create_topic("events", schema=SCHEMA, partitions=2)
    stop = query(broker, seen)
    producer = subprocess.Popen([sys.executable, __file__, "--produce", str(broker), str(rate), str(PATIENCE_S)])
    try:
        begun = time.monotonic()
        while not seen:
            if producer.poll() is not None or time.monotonic() - begun > PATIENCE_S:
                raise RuntimeError("nothing came: the process that appends or the query has failed")
            time.sleep(0.05)
        time.sleep(warm_s)
        seen.clear()
        time.sleep(seconds)
        found = list(seen)
    finally:
        producer.terminate()
        producer.wait()
    stop()
    return found


def stateful(broker: Path, seen: Latencies) -> Callable[[], None]:
    flow = ms.Flow("latency")
    events = flow.read("events", SCHEMA, event_time="at")
    panes = (
        events.key_by("key")
        .window(ms.fixed("10 seconds"))
        .trigger(ms.repeatedly(ms.after_count(1)))
        .discarding()
        .agg(oldest=ms.min("sent"), newest=ms.max("sent"))
    )

    def look(rows: pa.Table, batch: int) -> None:
        now = time.time_ns() // 1000
        for column in ("oldest", "newest"):
            seen.extend((now - rows.column(column).drop_null().to_numpy()) / 1000)

    panes.write(ms.foreach_batch(look))
    stop: Callable[[], None] = flow.start(broker=broker).stop
    return stop


def stateless(broker: Path, seen: Latencies) -> Callable[[], None]:
    spark = session()
    register(spark)

    def look(batch: DataFrame, number: int) -> None:
        sent = batch.select("sent").toArrow().column("sent").to_numpy()
        seen.extend((time.time_ns() // 1000 - sent) / 1000)

    events = spark.readStream.format("millstream").option("topic", "events").option("broker", str(broker)).load()
    query = (
        events.where("key >= 0")
        .writeStream.foreachBatch(look)
        .option("checkpointLocation", str(broker / "bare"))
        .start()
    )
    return query.stop


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="shorter and only two rates, within a minute")
    options.add_argument("--produce", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.produce:
        produce(given.produce[0], int(given.produce[1]), float(given.produce[2]))
        return
    rates = {"10k": 10_000, "100k": 100_000} if given.quick else {"1k": 1_000, "10k": 10_000, "100k": 100_000}
    warm_s, seconds = (2.0, 4.0) if given.quick else (10.0, 30.0)
    scratch = Path(tempfile.mkdtemp(prefix="millstream-latency-"))
    figures: dict[str, float] = {}
    try:
        session()
        loaded(scratch / "warming", 10_000, 0.0, 6.0, stateful)  # the first query of a JVM is slower than any later
        for label, rate in rates.items():
            for kind, query in (("", stateful), ("stateless_", stateless)):
                seen = loaded(scratch / f"{kind}{label}", rate, warm_s, seconds, query)
                for percentile in (50, 99):
                    figures[f"{kind}p{percentile}_ms_{label}"] = round(float(np.percentile(seen, percentile)), 1)
                said = (
                    f"p50 {figures[f'{kind}p50_ms_{label}']:8.0f} ms   p99 {figures[f'{kind}p99_ms_{label}']:8.0f} ms"
                )
                print(f"{label:>5} events/s  {kind or 'windowed_':<10} {said}", flush=True)
        ratios = {
            f"p99_vs_stateless_{label}": round(figures[f"p99_ms_{label}"] / figures[f"stateless_p99_ms_{label}"], 3)
            for label in rates
        }
        print(json.dumps({"benchmark": "latency", "quick": given.quick, **ratios, **figures}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
