"""Windowed sum and count on Spark: this engine against Spark's own window aggregation and the per-key Python APIs.

All in one run and one Spark session, on the same Parquet files: 10,000 keys, event times a little out of order,
one-minute windows. A figure is the median time of a micro-batch after the first, whose time is mostly starting.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import millstream as ms
from millstream.spark.session.start import session

KEYS = 10_000
STORES = {
    "default": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
SCHEMA = "key long, value long, at timestamp"
MINUTE = 60_000_000


def make_events(folder: Path, files: int, rows: int, keys: int = KEYS) -> None:
    """Files of `rows` events each, 2,000 events a second of event time, up to five seconds out of order."""
    folder.mkdir()
    random = np.random.default_rng(7)
    for number in range(files):
        place = np.arange(number * rows, (number + 1) * rows)
        at = 1_700_000_000_000_000 + place * 500 + random.integers(-5_000_000, 0, rows)
        frame = pl.DataFrame({"key": random.integers(0, keys, rows), "value": random.integers(0, 100, rows), "at": at})
        frame.with_columns(pl.col("at").cast(pl.Datetime("us", "UTC"))).write_parquet(folder / f"{number:04}.parquet")


def stream_of(spark: SparkSession, folder: Path, per_batch: int) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per_batch).parquet(str(folder))


def batch_times(frame: DataFrame, scratch: Path, mode: str = "append") -> list[float]:
    """Seconds of each micro-batch until all files are read."""
    query = (
        frame.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(scratch / f"checkpoint-{time.time_ns()}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"] > 0]


def steady(seconds: list[float]) -> float:
    return statistics.median(seconds[1:] or seconds)


# ---------------------------------------------------------------- Spark's own


def sparks_own(spark: SparkSession, folder: Path, per_batch: int, scratch: Path, store: str) -> float:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORES[store])
    totals = (
        stream_of(spark, folder, per_batch)
        .withWatermark("at", "10 seconds")
        .groupBy(sf.window("at", "1 minute"), "key")
        .agg(sf.sum("value"), sf.count("*"))
    )
    try:
        return steady(batch_times(totals, scratch))
    finally:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORES["rocksdb"])


# ---------------------------------------------------------------- this engine


def ours(folder: Path, per_batch: int, scratch: Path, build: Callable[[ms.Flow, Any], None]) -> float:
    flow = ms.Flow("windows")
    events = flow.read(
        ms.files(folder, files_per_batch=per_batch), SCHEMA, event_time="at", watermark=ms.bounded("10 seconds")
    )
    build(flow, events)
    broker = scratch / f"log-{time.time_ns()}"
    job = flow.run(broker=broker, until="caught up", progress="none")
    return steady(job.batch_times())


def windowed(flow: ms.Flow, events: Any) -> None:
    totals = events.key_by("key").window(ms.fixed("1 minute")).agg(total=ms.sum("value"), n=ms.count())
    totals.write(ms.foreach_batch(nothing))


def nothing(rows: Any, batch: int) -> None:
    """Where the rows go, as Spark's own go to its noop sink."""


def counting(row: dict[str, Any], key: Any) -> Any:
    """Sum and count per window of a key, sent when the window's minute is over: what `window` does, by hand."""
    start = int(row["at"].timestamp()) // 60
    windows = key.map("windows")
    total, count = windows.get(start, (0, 0))
    windows[start] = (total + row["value"], count + 1)
    if not count:
        key.at_event_time(row["at"].replace(second=59, microsecond=999_999), str(start))
    return None


def over(tag: str, time_: Any, key: Any) -> Any:
    total, count = key.map("windows").pop(int(tag))
    return {"start": int(tag), "total": total, "n": count}


def processed(flow: ms.Flow, events: Any) -> None:
    made = events.key_by("key").process(
        counting, schema="start long, total long, n long", on_timer=over, order="arrival"
    )
    made.write(ms.foreach_batch(nothing))


# ---------------------------------------------------------------- what PySpark users write today


class PerKey(StatefulProcessor):
    """One call per key and batch, windows in a map state, a sweep of those that are over."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._windows = handle.getMapState("windows", "start long", "total long, n long")
        self._newest = handle.getValueState("newest", "at long")

    def _fold(self, seen: dict[int, list[int]], newest: int) -> Iterator[tuple[int, int, int]]:
        stored = self._newest.get()
        newest = max(newest, stored[0] if stored else 0)
        self._newest.update((newest,))
        for start, (total, count) in seen.items():
            if self._windows.containsKey((start,)):
                before = self._windows.getValue((start,))
                assert before is not None
                total, count = total + before[0], count + before[1]
            self._windows.updateValue((start,), (total, count))
        over = [key[0] for key in self._windows.keys() if (key[0] + 1) * MINUTE <= newest - 10_000_000]  # noqa: SIM118
        for start in over:
            total_and_count = self._windows.getValue((start,))
            assert total_and_count is not None
            self._windows.removeKey((start,))
            yield start, total_and_count[0], total_and_count[1]

    def close(self) -> None: ...


class PerKeyRows(PerKey):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        seen: dict[int, list[int]] = {}
        newest = 0
        for row in rows:
            held = seen.setdefault(row.micros // MINUTE, [0, 0])
            held[0] += row.value
            held[1] += 1
            newest = max(newest, row.micros)
        for start, total, count in self._fold(seen, newest):
            yield Row(key=key[0], start=start, total=total, n=count)


class PerKeyPandas(PerKey):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        import pandas as pd

        seen: dict[int, list[int]] = {}
        newest = 0
        for frame in rows:
            for start, part in frame.groupby(frame["micros"] // MINUTE)["value"]:
                held = seen.setdefault(int(start), [0, 0])
                held[0] += int(part.sum())
                held[1] += len(part)
            newest = max(newest, int(frame["micros"].max()))
        done = list(self._fold(seen, newest))
        yield pd.DataFrame([(key[0], *each) for each in done], columns=["key", "start", "total", "n"])


def per_key(spark: SparkSession, folder: Path, scratch: Path, kind: str) -> float:
    events = stream_of(spark, folder, 1).withColumn("micros", sf.unix_micros("at")).drop("at").groupBy("key")
    columns = "key long, start long, total long, n long"
    if kind == "row":
        made = events.transformWithState(PerKeyRows(), columns, "append", "None")
    else:
        made = events.transformWithStateInPandas(PerKeyPandas(), columns, "append", "None")
    return steady(batch_times(made, scratch))


def duckdb_seconds(folder: Path) -> float:
    """All files as one batch: the limit."""
    begun = time.perf_counter()
    minute = f'epoch_us("at") // {MINUTE}'
    query = f"select key, {minute} as start, sum(value), count(*) from '{folder}/*.parquet' group by all"
    duckdb.connect(config={"threads": 2}).sql(query).to_arrow_table()
    return time.perf_counter() - begun


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="smaller files, within a minute")
    quick = options.parse_args().quick
    rows, files, sample_rows = (100_000, 10, 10_000) if quick else (1_000_000, 30, 100_000)
    scratch = Path(tempfile.mkdtemp(prefix="millstream-windows-"))
    try:
        events, sample = scratch / "events", scratch / "sample"
        make_events(events, files, rows)
        make_events(sample, 3, sample_rows, keys=KEYS * sample_rows // rows)  # as many events of a key as in a batch
        spark = session()
        figures: dict[str, float] = {}

        def note(name: str, seconds: float, events_in_batch: int) -> None:
            figures[name] = seconds
            print(f"{name:<34} {seconds:8.2f} s a batch  {events_in_batch / seconds:12,.0f} events/s", flush=True)

        for label, per_batch in (("1m", 1), ("5m", 5)):
            for store in STORES if label == "1m" else ("default",):
                name = f"spark_{store}_{label}_s"
                note(name, sparks_own(spark, events, per_batch, scratch, store), per_batch * rows)
            note(f"ours_{label}_s", ours(events, per_batch, scratch, windowed), per_batch * rows)
        note("process_1m_s", ours(events, 1, scratch, processed), rows)
        for kind in ("row", "pandas"):
            note(f"per_key_{kind}_sample_s", per_key(spark, sample, scratch, kind), sample_rows)
        whole = duckdb_seconds(events)
        print(f"DuckDB, all {files} files as one batch    {whole:8.2f} s")
        per_key_rate = sample_rows / min(figures["per_key_row_sample_s"], figures["per_key_pandas_sample_s"])
        ratios = {
            "speed_vs_spark_1m": min(figures["spark_default_1m_s"], figures["spark_rocksdb_1m_s"])
            / figures["ours_1m_s"],
            "speed_vs_spark_5m": figures["spark_default_5m_s"] / figures["ours_5m_s"],
            "speed_vs_per_key": rows / figures["ours_1m_s"] / per_key_rate,
            "process_speed_vs_per_key": rows / figures["process_1m_s"] / per_key_rate,
            "time_vs_duckdb": figures["ours_5m_s"] * files / 5 / whole,
        }
        rounded = {name: round(value, 3) for name, value in (ratios | figures).items()}
        print(json.dumps({"benchmark": "windows", "quick": quick, **rounded}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
