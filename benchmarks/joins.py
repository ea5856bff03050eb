"""Joins on Spark: this engine's against Spark's own, in one run and one session, on the same Parquet files.

- interval: searches and the clicks on them at most ten minutes later, against Spark's own stream-stream join
- lookup: events with the profiles they are of, a table kept up to date, against a broadcast join of a static frame; in
  both the rows of a batch are handed to a Python function (`noop`: Spark's are thrown away in the executors instead)
- tables: two tables of 1M rows each and 10,000 changes a batch, against the same with 10,000 rows each

A figure is the median time of a micro-batch after the first, whose time is mostly starting.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import millstream as ms
from millstream.spark.session.start import session
from windows import batch_times, nothing, steady

START = 1_700_000_000_000_000
STORE = "spark.sql.streaming.stateStore.providerClass"
ON_HEAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
SEARCHES = "query long, words string, at timestamp"
CLICKS = "query long, link long, at timestamp"
EVENTS = "user long, amount long, at timestamp"
PROFILES = "user long, name string, segment int"
LEFT = "id long, other long, amount long"
RIGHT = "other long, name string"
CHANGES = 10_000


def written(frame: pl.DataFrame, folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    if "at" in frame.columns:
        frame = frame.with_columns(pl.col("at").cast(pl.Datetime("us", "UTC")))
    frame.write_parquet(folder / f"{number:04}.parquet")


def ours(scratch: Path, build: Callable[[ms.Flow], Any]) -> list[float]:
    flow = ms.Flow("joins")
    build(flow).write(ms.foreach_batch(nothing))
    job = flow.run(broker=scratch / f"log-{time.time_ns()}", until="caught up", progress="none")
    times: list[float] = job.batch_times()
    return times


def stream_of(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


# ---------------------------------------------------------------- two streams


def make_searches(scratch: Path, files: int, rows: int) -> None:
    """A search every millisecond; of two one is clicked on, within ten minutes, most of them within one."""
    random = np.random.default_rng(7)
    query = np.arange(files * rows)
    at = START + query * 1000
    clicked = random.random(len(query)) < 0.5
    clicks = pl.DataFrame(
        {
            "query": query[clicked],
            "link": random.integers(0, 1000, int(clicked.sum())),
            "at": at[clicked] + np.minimum(random.exponential(60_000_000, int(clicked.sum())), 599e6).astype(np.int64),
        }
    ).sort("at")
    searches = pl.DataFrame({"query": query, "words": [f"words {n % 1000}" for n in query], "at": at})
    edges = [START + number * rows * 1000 for number in range(files + 1)]
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        last = number == files - 1
        written(searches.slice(number * rows, rows), scratch / "searches", number)
        within = (pl.col("at") >= low) & ((pl.col("at") < high) | pl.lit(last))
        written(clicks.filter(within), scratch / "clicks", number)


def interval_ours(flow: ms.Flow, scratch: Path) -> Any:
    delay = ms.bounded("10 seconds")
    searches = flow.read(ms.files(scratch / "searches", files_per_batch=1), SEARCHES, "at", delay)
    clicks = flow.read(ms.files(scratch / "clicks", files_per_batch=1), CLICKS, "at", delay)
    return clicks.join(searches, on="query", within=("0 seconds", "10 minutes"))


def interval_sparks(spark: SparkSession, scratch: Path) -> float:
    """On Spark's default state store, the faster of its two here: 12.4 s a batch where RocksDB took 20.8."""
    usual = spark.conf.get(STORE)
    spark.conf.set(STORE, ON_HEAP)
    searches = stream_of(spark, scratch / "searches", SEARCHES).withWatermark("at", "10 seconds").alias("s")
    clicks = stream_of(spark, scratch / "clicks", CLICKS).withWatermark("at", "10 seconds").alias("c")
    on = "c.query = s.query and c.at >= s.at and c.at <= s.at + interval 10 minutes"
    try:
        return steady(batch_times(clicks.join(searches, sf.expr(on)), scratch))
    finally:
        spark.conf.set(STORE, usual or ON_HEAP)


# ---------------------------------------------------------------- a stream and a table


def make_events(scratch: Path, files: int, rows: int, users: int) -> None:
    random = np.random.default_rng(8)
    user = np.arange(users)
    profiles = {"user": user, "name": [f"user {n}" for n in user], "segment": (user % 7).astype(np.int32)}
    written(pl.DataFrame(profiles), scratch / "profiles", 0)
    for number in range(files):
        place = np.arange(number * rows, (number + 1) * rows)
        events = {"user": random.integers(0, users, rows), "amount": random.integers(0, 100, rows)}
        written(pl.DataFrame({**events, "at": START + place * 500}), scratch / "events", number)


def lookup_ours(flow: ms.Flow, scratch: Path) -> Any:
    profiles = flow.read(ms.files(scratch / "profiles"), PROFILES).to_table(key="user")
    events = flow.read(ms.files(scratch / "events", files_per_batch=1), EVENTS, "at", ms.bounded("10 seconds"))
    return events.join(profiles, on="user", how="left", as_of="now")


def side_ours(flow: ms.Flow, scratch: Path) -> Any:
    profiles = flow.table(ms.files(scratch / "profiles"), PROFILES)
    events = flow.read(ms.files(scratch / "events", files_per_batch=1), EVENTS, "at", ms.bounded("10 seconds"))
    return events.join(profiles, on="user", how="left")


def lookup_sparks(spark: SparkSession, scratch: Path, *, collected: bool) -> float:
    profiles = spark.read.schema(PROFILES).parquet(str(scratch / "profiles"))
    events = stream_of(spark, scratch / "events", EVENTS)
    joined = events.join(sf.broadcast(profiles), "user", "left")
    if not collected:
        return steady(batch_times(joined, scratch))
    query = (
        joined.writeStream.foreachBatch(lambda batch, number: nothing(batch.toArrow(), number))
        .option("checkpointLocation", str(scratch / f"checkpoint-{time.time_ns()}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return steady([p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"] > 0])


# ---------------------------------------------------------------- two tables


def make_tables(scratch: Path, held: int, batches: int) -> None:
    """All rows first, then changes of some: half of them of either table, each of another key."""
    random = np.random.default_rng(9)
    ids = np.arange(held)
    left = {"id": ids, "other": random.permutation(held), "amount": random.integers(0, 100, held)}
    written(pl.DataFrame(left), scratch / f"left-{held}", 0)
    written(pl.DataFrame({"other": ids, "name": [f"name {n}" for n in ids]}), scratch / f"right-{held}", 0)
    half = min(CHANGES // 2, held)
    for batch in range(1, batches + 1):
        ids = random.choice(held, half, replace=False)
        changed = {"id": ids, "other": random.integers(0, held, half), "amount": random.integers(0, 100, half)}
        written(pl.DataFrame(changed), scratch / f"left-{held}", batch)
        others = random.choice(held, half, replace=False)
        written(
            pl.DataFrame({"other": others, "name": [f"name {n} {batch}" for n in others]}),
            scratch / f"right-{held}",
            batch,
        )


def tables_ours(flow: ms.Flow, scratch: Path, held: int) -> Any:
    left = flow.read(ms.files(scratch / f"left-{held}", files_per_batch=1), LEFT).to_table(key="id")
    right = flow.read(ms.files(scratch / f"right-{held}", files_per_batch=1), RIGHT).to_table(key="other")
    return left.join(right, on="other", how="left")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="smaller files, within a minute")
    options.add_argument("--only", choices=["interval", "lookup", "tables"], help="one of the three")
    given = options.parse_args()
    quick, only = given.quick, given.only
    rows, files, users, large, batches = (
        (100_000, 4, 10_000, 50_000, 4) if quick else (500_000, 8, 100_000, 1_000_000, 12)
    )
    small = CHANGES
    scratch = Path(tempfile.mkdtemp(prefix="millstream-joins-"))
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}

    def note(name: str, seconds: float) -> float:
        figures[name] = seconds
        print(f"{name:<34} {seconds:8.3f} s a batch", flush=True)
        return seconds

    try:
        # Spark's own join keeps its state on the heap, and dies of these rows in the usual 1 GB.
        spark = session(settings={"spark.driver.memory": "6g"})
        if only in (None, "interval"):
            make_searches(scratch, files, rows)
            sparks = note("interval_spark_s", interval_sparks(spark, scratch))
            own = note("interval_ours_s", steady(ours(scratch, partial(interval_ours, scratch=scratch))))
            ratios["interval_speed_vs_spark"] = sparks / own
        if only in (None, "lookup"):
            make_events(scratch, files, rows * 2, users)
            noop = note("lookup_spark_noop_s", lookup_sparks(spark, scratch, collected=False))
            broadcast = note("lookup_spark_broadcast_s", lookup_sparks(spark, scratch, collected=True))
            table = note("lookup_ours_s", steady(ours(scratch, partial(lookup_ours, scratch=scratch))))
            side = note("side_ours_s", steady(ours(scratch, partial(side_ours, scratch=scratch))))
            ratios["lookup_time_vs_broadcast"] = table / broadcast
            ratios["lookup_time_vs_broadcast_noop"] = table / noop
            ratios["side_time_vs_broadcast"] = side / broadcast
        if only in (None, "tables"):
            for held in (small, large):
                make_tables(scratch, held, batches)
            few, many = (
                note(f"tables_{held}_s", steady(ours(scratch, partial(tables_ours, scratch=scratch, held=held))))
                for held in (small, large)
            )
            ratios["table_time_1m_vs_10k"] = many / few
        rounded = {name: round(value, 3) for name, value in (ratios | figures).items()}
        print(json.dumps({"benchmark": "joins", "quick": quick, **rounded}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
