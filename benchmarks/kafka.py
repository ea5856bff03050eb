"""Kafka beside the embedded log, and our Kafka source beside Spark's own connector, on one broker on this machine.

The source: the same topic of JSON records read by both into the same columns, through one Spark session, to Spark's
noop sink; and a windowed sum over it, ours against Spark's. The logs: one Python program, which sends records and reads
them back, run on either. The demo's flow: from topics to a topic on either, end to end. The broker shares the two cores
with its readers.
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
from pathlib import Path
from typing import Any

import numpy as np
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
PARTITIONS = 4
ROUNDS = 3


def fill(log: Any, topic: str, rows: int) -> None:
    """Records in JSON, 10,000 users, a thousand a second of event time."""
    random = np.random.default_rng(11)
    users, scores = random.integers(0, 10_000, rows), random.integers(0, 100, rows)
    log.create_topic(topic, partitions=PARTITIONS)
    with log.producer() as producer:
        for place, (user, score) in enumerate(zip(users.tolist(), scores.tolist(), strict=True)):
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(1_700_000_000 + place // 1000))
            value = f'{{"user":"u{user}","score":{score},"at":"{at}.{place % 1000:03}Z"}}'
            producer.send(topic, value.encode(), key=b"u%d" % user)
        producer.flush()


# ---------------------------------------------------------------- the source


def seconds_of(frame: DataFrame, scratch: Path, mode: str = "append") -> float:
    begun = time.perf_counter()
    writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
    writer.option("checkpointLocation", str(scratch / f"checkpoint-{time.time_ns()}")).start().awaitTermination()
    return time.perf_counter() - begun


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


def own_windows(address: str, topic: str, scratch: Path) -> float:
    flow = ms.Flow("windows")
    rows = flow.read(topic, SCHEMA, "at", ms.bounded("10 seconds"))
    totals = rows.key_by("user").window(ms.fixed("1 minute")).agg(total=ms.sum("score"), n=ms.count())
    totals.write(ms.foreach_batch(nothing))
    begun = time.perf_counter()
    flow.run(
        broker=address, folder=scratch / f"job-{time.time_ns()}", until="caught up", progress="none", batch_rows=None
    )
    return time.perf_counter() - begun


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


def consumed_in_columns(address: str, topic: str, records: int) -> float:
    """Seconds to read them as batches of columns."""
    begun, count = time.perf_counter(), 0
    with ms.connect(address) as log, log.consumer(topic) as consumer:
        while count < records:
            count += sum(map(len, consumer.poll_batches(timeout=5.0)))
    return time.perf_counter() - begun


def consumed_by_confluent(servers: str, topic: str, records: int) -> float:
    """Seconds of the loop that users of confluent-kafka write, with the same fields of each record."""
    begun, count = time.perf_counter(), 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "benchmark", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    while count < records:
        for message in consumer.consume(10_000, 5.0):
            if message.error() is None:
                _ = message.key(), message.value(), message.offset(), message.timestamp(), message.headers()
                count += 1
    consumer.close()
    return time.perf_counter() - begun


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


def best_of(measure: Callable[[], float], rounds: int) -> float:
    return statistics.median(measure() for _ in range(rounds))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer records, within a minute")
    quick = options.parse_args().quick
    rows, records, rounds = (100_000, 50_000, 1) if quick else (1_000_000, 500_000, ROUNDS)
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
        in_columns, confluents = [], []
        for number in range(rounds):  # in turns: the machine may be slower at times
            confluents.append(consumed_by_confluent(cluster.bootstrap, f"program-{number}", records))
            in_columns.append(consumed_in_columns(address, f"program-{number}", records))
        own_s, confluent_s = statistics.median(in_columns), statistics.median(confluents)
        note("consume_columns_kafka_per_s", records / own_s, "records/s")
        note("consume_confluent_per_s", records / confluent_s, "records/s")
        ratios["consume_vs_confluent"] = confluent_s / own_s
        for what, (embedded, kafka) in speeds.items():
            ratios[f"{what}_speed_embedded_vs_kafka"] = embedded / kafka

        os.environ["MILLSTREAM_BROKER"] = address
        with ms.connect(address) as log:
            fill(log, "events", rows)
        spark = session(settings={"spark.jars": jars, "spark.driver.memory": "4g"})
        register(spark, broker=address)
        own, sparks = own_source(spark, address, "events"), sparks_source(spark, cluster.bootstrap, "events")
        for frame in (own, sparks):
            seconds_of(frame, scratch)  # what starts once is started
        own_s = note("source_ours_s", best_of(lambda: seconds_of(own, scratch), rounds), "s")
        sparks_s = note("source_spark_s", best_of(lambda: seconds_of(sparks, scratch), rounds), "s")
        note("source_ours_per_s", rows / own_s, "rows/s")
        note("source_spark_per_s", rows / sparks_s, "rows/s")
        ratios["source_speed_vs_spark"] = sparks_s / own_s
        own_s = note("windows_ours_s", best_of(lambda: own_windows(address, "events", scratch), rounds), "s")
        windows = sparks_windows(sparks)
        sparks_s = note("windows_spark_s", best_of(lambda: seconds_of(windows, scratch), rounds), "s")
        ratios["windows_speed_vs_spark"] = sparks_s / own_s

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
