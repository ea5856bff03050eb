"""Flows on Spark read Kafka like topics of the log, with the same limits, watermarks and dead letters."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from brokers import USERS
from kafka_cluster import KafkaCluster
from kafka_jars import CONNECTOR, assemble
from millstream.errors import JobChanged, OffsetLost, UnknownTopic
from millstream.jobs import flow_methods
from millstream.log import EmbeddedLog
from millstream.spark.session.start import log_file
from millstream.spark.topic_data_source import register
from times import START
from waiting import PATIENCE_S, until

from .support import Transactions, cut_before, grown, made, removed, send

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = "user string, n int, at timestamp"
CAUGHT_UP = "caught up"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        yield opened


def score(user: str, n: int, second: float) -> bytes:
    return json.dumps({"user": user, "n": n, "at": (START + timedelta(seconds=second)).isoformat()}).encode()


def scores(flow: ms.Flow, kafka: KafkaCluster, topic: str, **more: Any) -> Any:
    place = ms.kafka(kafka.bootstrap, topic=topic, **more)
    return flow.read(place, SCHEMA, event_time="at", watermark=ms.bounded("5 seconds", idle="2 seconds"))


def plain(kafka: KafkaCluster, topic: str, into: str, **more: Any) -> ms.Flow:
    flow = ms.Flow("plain")
    scores(flow, kafka, topic, **more).select("user", "n").write(into)
    return flow


def values(log: EmbeddedLog, topic: str) -> list[int]:
    if topic not in log.topics():
        return []
    with log.consumer(topic) as consumer:
        return [record.value["n"] for record in consumer.until_caught_up()]


# ---------------------------------------------------------------- reading


@pytest.mark.more
def test_batches_have_so_many_rows_and_a_job_continues(kafka: KafkaCluster, log: EmbeddedLog) -> None:
    topic = made(kafka.bootstrap, 2)
    for partition in (0, 1):
        send(kafka.bootstrap, topic, [score("ann", 10 * partition + n, n) for n in range(5)], partition)
    sizes: list[int] = []

    def count(_: int, tables: Any) -> None:
        sizes.append(sum(map(len, tables.values())))

    job = plain(kafka, topic, "out").run(broker=log.path, until=CAUGHT_UP, batch_rows=4, on_batch=count)
    assert sorted(values(log, "out")) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert sizes == [4, 4, 2]
    assert job.progress.offsets == {f"read_kafka_{topic}": {"0": 5, "1": 5}}
    assert job.lag() == 0
    send(kafka.bootstrap, topic, [score("ann", 20, 9)], 1)
    assert job.lag() == 1
    again = plain(kafka, topic, "out").run(broker=log.path, until=CAUGHT_UP)
    assert again.progress.rows_read == 1
    assert sorted(values(log, "out"))[-1] == 20
    assert len(values(log, "out")) == 11


@pytest.mark.more
def test_windows_over_transactions(kafka: KafkaCluster, log: EmbeddedLog) -> None:
    topic = made(kafka.bootstrap)
    writer = Transactions(kafka.bootstrap, topic)
    writer.begin([score("ann", 1, 0), score("bob", 2, 3)])
    writer.commit()
    writer.begin([score("ann", 100, 1)])
    writer.abort()
    writer.begin([score("ann", 4, 12)])
    writer.commit()
    flow, out = ms.Flow("windows"), ms.memory(uuid.uuid4().hex)
    windows = scores(flow, kafka, topic).key_by("user").window(ms.fixed("10 seconds"))
    windows.agg(total=ms.sum("n")).write(out)
    flow.run(broker=log.path, batch=True)
    found = sorted((row["user"], row["window"]["start"], row["total"]) for row in out.rows())
    assert found == [("ann", START, 1), ("ann", START + timedelta(seconds=10), 4), ("bob", START, 2)]


@pytest.mark.soak
def test_an_idle_partition_does_not_hold_windows_back(kafka: KafkaCluster, log: EmbeddedLog) -> None:
    """The window of partition 0 waits for partition 1, which never says anything, until that is idle."""
    topic = made(kafka.bootstrap, 2)
    flow, out = ms.Flow("idle"), ms.memory(uuid.uuid4().hex)
    windows = scores(flow, kafka, topic).key_by("user").window(ms.fixed("10 seconds"))
    windows.agg(total=ms.sum("n")).write(out)
    send(kafka.bootstrap, topic, [score("ann", 1, 0), score("ann", 2, 30)])
    job = flow.start(broker=log.path)

    def came() -> bool:
        send(kafka.bootstrap, topic, [score("ann", 4, 31)])  # while all are idle the watermark stands still
        return bool(out.rows())

    until(came, "the first window")
    job.stop()
    assert [(row["user"], row["total"]) for row in out.rows()] == [("ann", 1)]


@pytest.mark.more
def test_bad_records_are_dead_letters(kafka: KafkaCluster, log: EmbeddedLog) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [score("ann", 1, 0), b"no json", score("bob", 2, 1)])
    flow = ms.Flow("dead")
    read = scores(flow, kafka, topic)
    read.select("user", "n").write("out")
    read.dead.write("dead")
    job = flow.run(broker=log.path, until=CAUGHT_UP)
    assert values(log, "out") == [1, 2]
    assert job.progress.rows_dead == 1
    with log.consumer("dead") as consumer:
        [letter] = [record.value for record in consumer.until_caught_up()]
    assert (letter["topic"], letter["partition"], letter["offset"]) == (topic, 0, 1)


@pytest.mark.soak
def test_a_running_job_sees_new_partitions(kafka: KafkaCluster, log: EmbeddedLog) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [score("ann", 1, 0)])
    job = plain(kafka, topic, "out").start(broker=log.path)
    until(lambda: values(log, "out") == [1], "the first row")
    grown(kafka.bootstrap, topic, 2)
    send(kafka.bootstrap, topic, [score("ann", 2, 1)], 1)
    until(lambda: values(log, "out") == [1, 2], "the row of the new partition")
    job.stop()


@pytest.mark.more
def test_lost_offsets_end_a_job_or_do_not(kafka: KafkaCluster, log: EmbeddedLog) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [score("ann", n, n) for n in range(3)])
    plain(kafka, topic, "out").run(broker=log.path, until=CAUGHT_UP)
    send(kafka.bootstrap, topic, [score("ann", n, n) for n in range(3, 10)])
    cut_before(kafka.bootstrap, topic, 0, 6)
    with pytest.raises(OffsetLost, match=r"(?s)offsets 3 to 5 were deleted by retention.*partition 0"):
        plain(kafka, topic, "out").run(broker=log.path, until=CAUGHT_UP)
    plain(kafka, topic, "out", on_lost="earliest").run(broker=log.path, until=CAUGHT_UP)
    assert values(log, "out") == [0, 1, 2, 6, 7, 8, 9]


@pytest.mark.soak
def test_a_recreated_topic_is_not_resumed(kafka: KafkaCluster, log: EmbeddedLog) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [score("ann", 1, 0)])
    plain(kafka, topic, "out").run(broker=log.path, until=CAUGHT_UP)
    removed(kafka.bootstrap, topic)
    made(kafka.bootstrap, name=topic)
    with pytest.raises((JobChanged, UnknownTopic), match=topic):
        plain(kafka, topic, "out").run(broker=log.path, until=CAUGHT_UP)


# ---------------------------------------------------------------- secrets


@pytest.mark.more
def test_a_password_is_nowhere_but_in_use(kafka: KafkaCluster, log: EmbeddedLog, tmp_path: Path) -> None:
    """Not in what a flow says of itself, not in the job's folder and checkpoint, not in Spark's log."""
    topic, password = made(kafka.bootstrap), USERS["ann"]
    send(kafka.bootstrap, topic, [score("ann", 1, 0)])
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": password,
        "ssl.ca.location": str(kafka.certificate),
    }
    flow = ms.Flow("secret")
    source = ms.kafka(kafka.secure_bootstrap, topic=topic, settings=settings)
    flow.read(source, SCHEMA, event_time="at").select("user", "n").write("out")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        flow.run(broker=log.path, until=CAUGHT_UP)
    assert values(log, "out") == [1]
    shown = [
        said.getvalue(),
        flow.explain(),
        flow.explain(physical=True),
        repr(source),
        str(source),
        repr(flow.check()),
    ]
    assert not any(password in text for text in shown)
    written = log_file()
    assert written is not None
    assert written.stat().st_size > 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in [*files, written] if password.encode() in path.read_bytes()] == []


@pytest.fixture
def guarded(kafka: KafkaCluster, tmp_path: Path) -> str:
    """The address of a Kafka that wants a password, which stands in a file."""
    said = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": USERS["ann"],
        "ssl.ca.location": kafka.certificate,
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
    return f"kafka://{kafka.secure_bootstrap}?settings={file}"


@pytest.mark.soak
def test_the_broker_of_a_job_may_want_a_password(kafka: KafkaCluster, guarded: str, tmp_path: Path) -> None:
    """Goal: planner, workers and sinks get what stands in the file. Method: the file is gone once the job has begun, so
    that only the driver can have read it; windows, so that there are workers of both kinds."""
    topic, totals = made(kafka.bootstrap, 2), f"totals-{uuid.uuid4().hex}"
    for partition in (0, 1):
        send(kafka.bootstrap, topic, [score("ann", n, n) for n in range(3)], partition)
    flow = ms.Flow("guarded")
    rows = flow.read(topic, SCHEMA, event_time="at", watermark=ms.ascending())
    rows.key_by("user").window(ms.fixed("2 seconds")).agg(total=ms.sum("n")).write(totals)
    job = flow.start(broker=guarded, folder=tmp_path / "job", until=CAUGHT_UP)
    (tmp_path / "client.properties").unlink()
    assert job.wait(PATIENCE_S)
    with ms.connect(f"kafka://{kafka.bootstrap}") as broker, broker.consumer(totals) as consumer:
        assert [record.value["total"] for record in consumer.until_caught_up()] == [2]
    files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if USERS["ann"].encode() in path.read_bytes()] == []


# ---------------------------------------------------------------- without a flow


@pytest.mark.soak
@pytest.mark.parametrize("by", ["option", "register"])
def test_our_format_reads_a_kafka_that_wants_a_password(
    kafka: KafkaCluster, guarded: str, spark: SparkSession, tmp_path: Path, by: str
) -> None:
    """Whether each process of Spark reads the file, or gets what this one found in it."""
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [score("ann", n, n) for n in range(3)])
    register(spark, broker=guarded if by == "register" else tmp_path / "log")
    said = {"topic": topic} | ({"broker": guarded} if by == "option" else {})
    assert spark.read.format("millstream").options(**said).load().count() == 3
    stream = spark.readStream.format("millstream").options(**said).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


@pytest.mark.soak
def test_a_dataframe_of_a_flow_brings_the_users_modules(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice_as_much.py").write_text("def double(row):\n    return {**row, 'n': 2 * row['n']}\n")
    monkeypatch.syspath_prepend(tmp_path)
    double = importlib.import_module("twice_as_much").double
    sent: list[str] = []
    looked: list[Any] = []
    monkeypatch.setattr(flow_methods, "ship_modules", lambda _, files: sent.extend(files))
    monkeypatch.setattr(flow_methods, "check_workers", lambda _, needs: looked.append(needs))
    log.create_topic("scores", schema="n int")
    ms.Flow("frame").read("scores", "n int").map(double).to_dataframe(broker=log.path)
    assert sent == ["twice_as_much.py"]
    [needs] = looked
    assert "polars" in needs.libraries
    assert (list(needs.written), list(needs.read)) == ([], [log.path])


@pytest.mark.more
def test_spark_reads_kafka_by_our_format(kafka: KafkaCluster, spark: SparkSession, tmp_path: Path) -> None:
    topic = made(kafka.bootstrap, 2)
    for partition in (0, 1):
        send(kafka.bootstrap, topic, [score("ann", n, n) for n in range(3)], partition, key=b"k")
    register(spark, broker=f"kafka://{kafka.bootstrap}")
    frame = spark.read.format("millstream").option("topic", topic).load()
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    assert sorted((row.partition, row.offset, bytes(row.key)) for row in frame.collect()) == [
        (partition, offset, b"k") for partition in (0, 1) for offset in range(3)
    ]
    register(spark, broker=tmp_path)
    reader = spark.readStream.format("millstream").schema("user string, n int, offset long")
    stream = reader.option("broker", f"kafka://{kafka.bootstrap}").option("topic", topic).load()
    for expected in (6, 7):
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        assert spark.read.parquet(str(tmp_path / "out")).count() == expected
        send(kafka.bootstrap, topic, [score("bob", 9, 9)])


CONNECTED = """
import sys
import millstream as ms
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

bootstrap, topic, folder = sys.argv[1:]
spark = SparkSession.active()
frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
frame = frame.option("startingOffsets", "earliest").load()
rows = frame.select(sf.from_json(sf.col("value").cast("string"), "user string, n int, at timestamp").alias("v"))
flow = ms.Flow("connected")
flow.read(rows.select("v.*"), event_time="at").where("n > 1").select("user", "n").write("out")
flow.run(broker=folder, until="caught up", progress="none")
"""


@pytest.mark.soak
def test_the_connector_of_spark_feeds_a_flow(kafka: KafkaCluster, log: EmbeddedLog, tmp_path: Path) -> None:
    """In a session of its own, since jars are named when one is started."""
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [score("ann", 1, 0), score("bob", 2, 1), score("ann", 3, 2)])
    jars = ",".join(map(str, sorted(assemble(CONNECTOR).glob("*.jar"))))
    script = tmp_path / "connected.py"
    begin = f"from millstream.spark import session\nsession(name='jars', settings={{'spark.jars': {jars!r}}})\n"
    script.write_text(begin + CONNECTED)
    done = subprocess.run(
        [sys.executable, script, kafka.bootstrap, topic, log.path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert values(log, "out") == [2, 3]
