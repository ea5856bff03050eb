"""The queries on plain Spark Structured Streaming. When time counts, rows end in Spark's own noop sink, in the
executors, those of q10 in files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import engine
import event_files
import filed
import queries
from engine import CORES, Refused, Row, Task, Timed
from generator import SCHEMAS
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from spark_queries import ASKED, Asked

from millstream.spark.session import java

MEMORY = "8g"
DELAY = "4 seconds"
SLOWER = 1.2
LONGEST = "1 minute"  # an auction lasts up to 34 seconds where events are slow, and 0.4 where time counts
STATE = "org.apache.spark.sql.execution.streaming.state"
STORES = {"default": f"{STATE}.HDFSBackedStateStoreProvider", "rocksdb": f"{STATE}.RocksDBStateStoreProvider"}
SETTINGS = {
    "spark.driver.memory": MEMORY,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # The usual one starts a process for every file it writes to a disk.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}


def framed(spark: SparkSession, task: Task, asked: Asked) -> DataFrame:
    """A query over new views of the files."""
    for topic, schema in SCHEMAS.items():
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(task.folder / topic))
        rows.withWatermark(queries.EVENT_TIME, DELAY).createOrReplaceTempView(topic)
        if topic == "bids":
            rows.createOrReplaceTempView("untimed")
            came = rows.selectExpr("*", "current_timestamp() as came").withWatermark("came", "0 seconds")
            came.createOrReplaceTempView("arrivals")
        if topic == "auctions":
            longest = DELAY if task.rows is None else LONGEST
            rows.withWatermark("expires", longest).createOrReplaceTempView("closing_auctions")
    spark.read.csv(str(task.folder / event_files.SIDE), queries.SIDE_SCHEMA, header=True).createOrReplaceTempView(
        "side"
    )
    # A stream has one event time: here it is the window, and the time of the bid is a column like others.
    plain = "auction, price, bidder, timestamp_micros(unix_micros(dateTime)) as dateTime, extra"
    spark.sql(f"select {plain}, window(dateTime, '10 seconds') as w from bids").createOrReplaceTempView(
        "bids_of_windows"
    )
    counts = "select window(dateTime, '10 seconds', '2 seconds') as window, auction, count(*) as num from bids"
    spark.sql(f"{counts} group by 1, 2").createOrReplaceTempView("counts")
    return spark.sql(asked.statement)


def finished(
    task: Task, asked: Asked, writer: DataStreamWriter, patience_s: float | None = None
) -> StreamingQuery | None:
    """Runs a query to its end; None if that takes too long."""
    writer = writer.outputMode(asked.mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(task.scratch / f"checkpoint-{time.time_ns()}")).start()
    if patience_s is None:
        query.awaitTermination()
    elif not query.awaitTermination(ceil(patience_s)):
        query.stop()
        return None
    return query


def as_files(rows: DataFrame, folder: Path) -> DataStreamWriter:
    return rows.writeStream.partitionBy(*filed.PARTITIONS).format("parquet").option("path", str(folder))


def in_own_words(error: AnalysisException) -> Refused:
    return Refused(str(error).strip().splitlines()[0])


class OnSpark:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def timed(self, task: Task, name: str) -> Timed:
        """On the faster of Spark's two state stores. Who takes clearly longer than the first is not waited for."""
        asked = ASKED[name]
        best, patience_s = float("inf"), None
        for store in STORES if _keeps_state(name) else ["default"]:
            self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORES[store])
            try:
                rows = framed(self._spark, task, asked)
                writer = (
                    as_files(rows, filed.new_folder(task)) if name == filed.FILED else rows.writeStream.format("noop")
                )
                started = time.perf_counter()
                query = finished(task, asked, writer, patience_s)
            except AnalysisException as error:
                raise in_own_words(error) from None
            if query is not None:
                times = [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]
                best = min(best, sum(times[1:]))
                patience_s = SLOWER * (time.perf_counter() - started)
        return task.steady, best

    def rows(self, task: Task, name: str) -> list[Row]:
        asked = ASKED[name]
        kept: dict[Any, Row] = {}

        def keep(batch: DataFrame, number: int) -> None:
            for place, row in enumerate(batch.collect()):
                values = row.asDict()
                kept[tuple(values[column] for column in asked.key) if asked.key else (number, place)] = values

        try:
            if name == filed.FILED:
                folder = filed.new_folder(task)
                finished(task, asked, as_files(framed(self._spark, task, asked), folder))
                return filed.read(folder)
            finished(task, asked, framed(self._spark, task, asked).writeStream.foreachBatch(keep))
        except AnalysisException as error:
            raise in_own_words(error) from None
        return list(kept.values())


def _keeps_state(name: str) -> bool:
    return name not in ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")


def run(tasks: Sequence[Task]) -> None:
    os.environ["JAVA_HOME"] = str(java.launcher_home(java.find()))
    spark = SparkSession.builder.master(f"local[{CORES}]").config(map=dict(SETTINGS)).getOrCreate()
    on_spark = OnSpark(spark)
    engine.serve(tasks, on_spark.timed, on_spark.rows)


if __name__ == "__main__":
    engine.main(run)
