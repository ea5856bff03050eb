"""An expression on its way to a windowed sum: translated, in Spark's own engine, and in plain Structured Streaming.

The same topic, the same expression and the same windows for all, in one run and one Spark session. Text is translated
and runs in the task that reads; the same text as a Column of PySpark runs in Spark's own engine. A figure is the
median time of a micro-batch after the first, whose time is mostly starting.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import millstream as ms
from millstream.spark import register
from millstream.spark.session.start import session
from windows import batch_times, nothing, steady

TOPIC = "events"
SCHEMA = "key long, body string, at timestamp"
KEYS = 10_000
PARTITIONS = 2
VALUE = "cast(regexp_extract(body, '\"value\": ([0-9]+)', 1) as int)"
CONDITION = "value % 10 <> 0"


def make_events(broker: Path, batches: int, rows: int) -> None:
    """Batches of `rows` events in a topic, 2,000 events a second of event time."""
    random = np.random.default_rng(7)
    with ms.connect(broker) as log:
        log.create_topic(TOPIC, schema=SCHEMA, partitions=PARTITIONS)
        with log.producer(buffer_bytes="1 GiB") as producer:
            for number in range(batches * PARTITIONS):
                many = rows // PARTITIONS
                place = np.arange(number * many, (number + 1) * many)
                frame = pl.DataFrame(
                    {
                        "key": random.integers(0, KEYS, many),
                        "value": random.integers(0, 1000, many),
                        "at": 1_700_000_000_000_000 + place * 500,
                    }
                ).with_columns(pl.col("at").cast(pl.Datetime("us", "UTC")))
                parts = [pl.lit('{"user": '), "key", pl.lit(', "value": '), "value", pl.lit("}")]
                body = pl.concat_str(parts).alias("body")
                producer.send_batch(TOPIC, frame.select("key", body, "at"), partition=number % PARTITIONS)


def sparks_own(broker: Path, rows: int, scratch: Path, spark: SparkSession) -> float:
    source = spark.readStream.format("millstream").option("topic", TOPIC).option("broker", str(broker))
    events = source.option("maxRecordsPerBatch", rows).load()
    valued = events.select("key", "at", sf.expr(VALUE).alias("value")).where(CONDITION)
    windows = valued.withWatermark("at", "10 seconds").groupBy(sf.window("at", "1 minute"), "key")
    return steady(batch_times(windows.agg(sf.sum("value"), sf.count("*")), scratch))


def ours(broker: Path, rows: int, value: Any, name: str) -> float:
    flow = ms.Flow(name)
    events = flow.read(TOPIC, SCHEMA, event_time="at", watermark=ms.bounded("10 seconds"))
    valued = events.select("key", "at", value=value).where(CONDITION)
    totals = valued.key_by("key").window(ms.fixed("1 minute")).agg(total=ms.sum("value"), n=ms.count())
    totals.write(ms.foreach_batch(nothing))
    job = flow.run(broker=broker, until="caught up", progress="none", batch_rows=rows)
    return steady(job.batch_times())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="smaller batches, within a minute")
    quick = options.parse_args().quick
    rows, batches, rounds = (200_000, 5, 1) if quick else (1_000_000, 8, 3)
    scratch = Path(tempfile.mkdtemp(prefix="millstream-expressions-"))
    try:
        broker = scratch / "log"
        make_events(broker, batches, rows)
        spark = session()
        register(spark, broker=str(broker))
        column = sf.expr(VALUE)
        measured: dict[str, Callable[[int], float]] = {
            "spark_s": lambda turn: sparks_own(broker, rows, scratch, spark),
            "spark_region_s": lambda turn: ours(broker, rows, column, f"in_spark_{turn}"),
            "lowered_s": lambda turn: ours(broker, rows, VALUE, f"lowered_{turn}"),
        }
        taken: dict[str, list[float]] = {}
        for turn in range(rounds):
            for name, measure in measured.items():
                taken.setdefault(name, []).append(measure(turn))
        figures = {name: statistics.median(seconds) for name, seconds in taken.items()}
        for name, seconds in figures.items():
            print(f"{name:<16} {seconds:8.2f} s a batch  {rows / seconds:12,.0f} events/s")
        ratios = {
            "spark_region_speed_vs_spark": figures["spark_s"] / figures["spark_region_s"],
            "lowered_speed_vs_spark": figures["spark_s"] / figures["lowered_s"],
            "lowered_vs_spark_region": figures["spark_region_s"] / figures["lowered_s"],
        }
        rounded = {name: round(value, 3) for name, value in (ratios | figures).items()}
        print(json.dumps({"benchmark": "expressions", "quick": quick, **rounded}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
