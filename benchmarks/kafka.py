"""Kafka beside the embedded log, and our Kafka source beside Spark's own connector, on one broker on this machine.

The source: the same topic of JSON records read by both into the same columns, through one Spark session, to Spark's
noop sink; and a windowed sum over it, ours against Spark's. Both are also run on a topic of a few records: what that
takes is the start. The logs: one Python program, which sends records and reads them back, run on either. Consumers:
JSON records as dicts, by `poll` and by the loop that users of confluent-kafka write, with the same settings for
fetching. The demo's flow: from topics to a topic on either, end to end. The broker shares the two cores with its
readers; a figure in CPU seconds is that of the client's process alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import millstream as ms
from millstream.spark.session.start import session
from millstream.spark.topic_data_source import register

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from kafka_cluster import KafkaCluster
from kafka_jars import CONNECTOR, assemble

SCHEMA = "user string, score int, at timestamp"
AS_WRITTEN = "user string, score int, at string"
PARTITIONS = 4
ROUNDS = 3
FEW = 1000
SENT_ROWS = 50_000
FETCHING = {"fetch.wait.max.ms": 100, "fetch.queue.backoff.ms": 20}
"""Without them, confluent-kafka's consumer waits a second whenever its queue was full."""


def fill(log: Any, topic: str, rows: int, schema: str | None = None) -> float:
    """Records in JSON, 10,000 users, a thousand a second of event time; returns the seconds that sending took."""
    random = np.random.default_rng(11)
    users, scores = random.integers(0, 10_000, rows), random.integers(0, 100, rows)
    log.create_topic(topic, partitions=PARTITIONS, schema=schema)
    taken = 0.0
    with log.producer() as producer:
        for begin in range(0, rows, SENT_ROWS):
            part = pl.DataFrame({"user": users[begin : begin + SENT_ROWS], "score": scores[begin : begin + SENT_ROWS]})
            ms_of_event = 1_700_000_000_000 + begin + pl.int_range(pl.len())
            part = part.select(
                pl.format("u{}", "user").alias("user"),
                pl.col("score").cast(pl.Int32),
                ms_of_event.cast(pl.Datetime("ms")).dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").alias("at"),
            )
            if schema is None:
                text = '{"user":"' + pl.col("user") + '","score":' + pl.col("score").cast(pl.String)
                value = text + ',"at":"' + pl.col("at") + '"}'
                part = part.select(pl.col("user").alias("key"), value.alias("value"))
            begun = time.perf_counter()
            producer.send_batch(topic, part, key="user" if schema else None)
            producer.flush()
            taken += time.perf_counter() - begun
    return taken


# ---------------------------------------------------------------- the source


def finish(frame: DataFrame, scratch: Path) -> None:
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", str(scratch / f"checkpoint-{time.time_ns()}")).start().awaitTermination()


def seconds_taken(run: Callable[[], object], broker: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process and all it has started, without the broker."""
    begun, cpu_s = time.perf_counter(), cpu_seconds(broker)
    run()
    return time.perf_counter() - begun, cpu_seconds(broker) - cpu_s


def cpu_seconds(without: int) -> float:
    """Of this process and its descendants, as Linux counts them."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
        spent[int(path.parent.name)] = sum(map(int, fields[11:15]))  # its own, and that of children that have ended
    own = {os.getpid()}
    while added := {each for each, parent in parents.items() if parent in own and each not in own | {without}}:
        own |= added
    return sum(spent[each] for each in own) / os.sysconf("SC_CLK_TCK")


def own_source(spark: SparkSession, address: str, topic: str) -> DataFrame:
    stream = spark.readStream.format("millstream").schema(SCHEMA)
    return stream.option("broker", address).option("topic", topic).load()


def sparks_source(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    raw = stream.option("startingOffsets", "earliest").load()
    return raw.select(sf.from_json(sf.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def sparks_windows(frame: DataFrame) -> DataFrame:
    late = frame.withWatermark("at", "10 seconds")
    return late.groupBy(sf.window("at", "1 minute"), "user").agg(sf.sum("score"), sf.count("*"))


def own_windows(address: str, topic: str, scratch: Path) -> None:
    flow = ms.Flow("windows")
    rows = flow.read(topic, SCHEMA, "at", ms.bounded("10 seconds"))
    totals = rows.key_by("user").window(ms.fixed("1 minute")).agg(total=ms.sum("score"), n=ms.count())
    totals.write(ms.foreach_batch(nothing))
    flow.run(
        broker=address, folder=scratch / f"job-{time.time_ns()}", until="caught up", progress="none", batch_rows=None
    )


def nothing(rows: Any, batch: int) -> None:
    """Where the rows go, as Spark's own go to its noop sink."""


# ---------------------------------------------------------------- the logs


def program(address: str, topic: str, records: int) -> tuple[float, float]:
    """Seconds to send so many records and to read them back: the same lines for either broker."""
    value = b'{"user":"u1","score":17,"at":"2026-01-01T00:00:00Z"}'
    keys = [b"u%d" % number for number in range(1000)]
    with ms.connect(address) as log:
        log.create_topic(topic, partitions=PARTITIONS)
        begun = time.perf_counter()
        with log.producer() as producer:
            for number in range(records):
                producer.send(topic, value, key=keys[number % 1000])
            producer.flush()
        sent = time.perf_counter() - begun
        begun, count = time.perf_counter(), 0
        with log.consumer(topic) as consumer:
            while count < records:
                count += len(consumer.poll(timeout=5.0, max_records=10_000))
        return sent, time.perf_counter() - begun


class Reading:
    """Seconds until the first records came, seconds and CPU seconds for the others, and how many these were."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self.start_s = 0.0
        self._first = 0

    def note(self, count: int) -> None:
        """`count` records have come so far."""
        if not self._first and count:
            self._first, self.start_s = count, time.perf_counter() - self._begun
            self._cpu_s = time.process_time()

    def end(self, count: int) -> Reading:
        self.seconds = time.perf_counter() - self._begun - self.start_s
        self.cpu_us = 1e6 * (time.process_time() - self._cpu_s) / (count - self._first)
        self.per_s = (count - self._first) / self.seconds
        return self


def consumed(address: str, topic: str, records: int, group: str | None = None) -> Reading:
    """Records with dicts, one by one."""
    reading, count = Reading(), 0
    with ms.connect(address) as log, log.consumer(topic, group=group) as consumer:
        while count < records:
            for record in consumer.poll(timeout=5.0, max_records=10_000):
                _ = record.key, record.value, record.offset, record.timestamp, record.headers
                count += 1
            reading.note(count)
        return reading.end(count)


def consumed_in_columns(address: str, topic: str, records: int) -> Reading:
    """The same as batches of columns."""
    reading, count = Reading(), 0
    with ms.connect(address) as log, log.consumer(topic) as consumer:
        while count < records:
            for batch in consumer.poll_batches(timeout=5.0):
                count += batch.columns.num_rows  # the columns are made when they are first used
            reading.note(count)
        return reading.end(count)


def consumed_by_confluent(servers: str, topic: str, records: int) -> Reading:
    """The loop that users of confluent-kafka write, with the same fields of each record, and its value as a dict."""
    reading, count = Reading(), 0
    settings = {"bootstrap.servers": servers, "group.id": "benchmark", "enable.auto.commit": False, **FETCHING}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    while count < records:
        for message in consumer.consume(10_000, 5.0 if not count else 0.1):
            if message.error() is None:
                value = json.loads(message.value() or b"null")
                _ = message.key(), value, message.offset(), message.timestamp(), message.headers()
                count += 1
        reading.note(count)
    reading.end(count)
    consumer.close()
    return reading


# ---------------------------------------------------------------- the demo's flow


def pumped() -> ms.Flow:
    """As in examples/demo.py, with a topic for its results."""
    flow = ms.Flow("pumped")
    readings = flow.read("readings", SCHEMA, event_time="at", watermark=ms.bounded("3 seconds", idle="10 seconds"))
    panes = (
        readings.key_by("user")
        .window(ms.fixed("10 seconds"), allowed_lateness="15 seconds")
        .trigger(ms.after_watermark(late=ms.after_count(1)))
        .retracting()
        .agg(litres=ms.sum("score"), readings=ms.count())
    )
    panes.write("pumped")
    return flow


def end_to_end(address: str, scratch: Path) -> float:
    begun = time.perf_counter()
    pumped().run(broker=address, folder=scratch / f"job-{time.time_ns()}", until="caught up", progress="none")
    return time.perf_counter() - begun


# ---------------------------------------------------------------- all of it


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer records, within a minute")
    quick = options.parse_args().quick
    rows, records, rounds = (100_000, 50_000, 1) if quick else (2_000_000, 500_000, ROUNDS)
    events = rows if quick else 8_000_000  # enough for what a run does, and not its start, to decide
    scratch = Path(tempfile.mkdtemp(prefix="millstream-kafka-"))
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}

    def note(name: str, value: float, unit: str) -> float:
        figures[name] = value
        print(f"{name:<34} {value:12,.2f} {unit}", flush=True)
        return value

    cluster = KafkaCluster(1)
    jars = ",".join(str(jar) for jar in sorted(assemble(CONNECTOR).glob("*.jar")))
    cluster.start()
    try:
        address, folder = f"kafka://{cluster.bootstrap}", str(scratch / "log")
        speeds: dict[str, list[float]] = {}
        for broker, name in ((folder, "embedded"), (address, "kafka")):
            seconds = [program(broker, f"program-{number}", records) for number in range(rounds)]
            for what, taken in zip(("produce", "consume"), zip(*seconds, strict=True), strict=True):
                rate = note(f"{what}_{name}_per_s", records / statistics.median(taken), "records/s")
                speeds.setdefault(what, []).append(rate)
        with ms.connect(address) as log:
            note("send_batch_kafka_per_s", rows / fill(log, "decoded", rows, AS_WRITTEN), "rows/s")
        read: dict[str, list[Reading]] = {}
        for number in range(rounds):  # in turns: the machine may be slower at times
            for name, reading in (
                ("confluent", consumed_by_confluent(cluster.bootstrap, "decoded", rows)),
                ("dicts", consumed(address, "decoded", rows)),
                ("dicts_in_group", consumed(address, "decoded", rows, group=f"benchmark-{number}")),
                ("columns", consumed_in_columns(address, "decoded", rows)),
            ):
                read.setdefault(name, []).append(reading)
        for name, readings in read.items():
            note(f"consume_{name}_start_s", statistics.median(each.start_s for each in readings), "s")
            note(f"consume_{name}_cpu_us", statistics.median(each.cpu_us for each in readings), "µs/record")
            speed = note(f"consume_{name}_per_s", statistics.median(each.per_s for each in readings), "records/s")
            if name != "confluent":
                ratio = f"consume_{name}_vs_confluent".replace("_dicts", "")
                ratios[ratio] = speed / figures["consume_confluent_per_s"]
                ratios[f"{ratio}_cpu"] = figures["consume_confluent_cpu_us"] / figures[f"consume_{name}_cpu_us"]
        for what, (embedded, kafka) in speeds.items():
            ratios[f"{what}_speed_embedded_vs_kafka"] = embedded / kafka

        os.environ["MILLSTREAM_BROKER"] = address
        with ms.connect(address) as log:
            fill(log, "events", events)
            fill(log, "few", FEW)
        spark = session(settings={"spark.jars": jars, "spark.driver.memory": "4g"})
        register(spark, broker=address)

        def compare(what: str, ours: Callable[[str], object], sparks: Callable[[str], object]) -> None:
            """Each reads a topic, in turns; the start is what a topic of a few records takes."""
            measured: dict[str, list[tuple[float, float]]] = {}
            for turn in range(rounds + 1):
                for name, run in (("ours", ours), ("spark", sparks)):
                    for topic in ("few", "events"):
                        taken = seconds_taken(partial(run, topic), cluster.pid(1))
                        if turn:  # what starts once is started
                            measured.setdefault(f"{name}{'_start' if topic == 'few' else ''}", []).append(taken)
            for name, found in measured.items():
                note(f"{what}_{name}_s", statistics.median(seconds for seconds, _ in found), "s")
                note(f"{what}_{name}_cpu_s", statistics.median(cpu_s for _, cpu_s in found), "CPU s")
            for name in ("ours", "spark"):
                note(f"{what}_{name}_per_s", events / figures[f"{what}_{name}_s"], "rows/s")
            for ratio, unit in (("", "s"), ("_cpu", "cpu_s")):
                own, sparks_own = figures[f"{what}_ours_{unit}"], figures[f"{what}_spark_{unit}"]
                ratios[f"{what}_speed_vs_spark{ratio}"] = sparks_own / own
            own, sparks_own = (
                figures[f"{what}_{name}_s"] - figures[f"{what}_{name}_start_s"] for name in ("ours", "spark")
            )
            ratios[f"{what}_speed_vs_spark_after_start"] = sparks_own / own

        compare(
            "source",
            lambda topic: finish(own_source(spark, address, topic), scratch),
            lambda topic: finish(sparks_source(spark, cluster.bootstrap, topic), scratch),
        )
        compare(
            "windows",
            lambda topic: own_windows(address, topic, scratch),
            lambda topic: finish(sparks_windows(sparks_source(spark, cluster.bootstrap, topic)), scratch),
        )

        for broker in (folder, address):
            with ms.connect(broker) as log:
                fill(log, "readings", rows // 2)
        embedded = note("demo_embedded_s", end_to_end(folder, scratch), "s")
        kafka = note("demo_kafka_s", end_to_end(address, scratch), "s")
        ratios["demo_time_kafka_vs_embedded"] = kafka / embedded
        rounded = {name: round(value, 3) for name, value in (ratios | figures).items()}
        print(json.dumps({"benchmark": "kafka", "quick": quick, **rounded}))
    finally:
        cluster.stop()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
