"""Topics written by Spark, without a flow: each batch once, whatever is repeated, on the log and on Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import millstream as ms
from kafka_cluster import KafkaCluster
from millstream.log import Broker, EmbeddedLog
from millstream.spark.topic_data_source import register

SCORES = "user string, score int"


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.more)])
def broker(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Broker]:
    """Registered as the default of the format."""
    address = request.getfixturevalue("log").path
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka').bootstrap}"
    register(spark, broker=address)
    with ms.connect(address) as opened:
        yield opened


@pytest.fixture
def source(spark: SparkSession, log: EmbeddedLog) -> SparkSession:
    register(spark, broker=log.path)
    return spark


def new(name: str) -> str:
    """A topic of one's own: a broker is shared by all tests."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def written(broker: Broker, topic: str) -> list[Any]:
    with broker.consumer(topic) as consumer:
        return [(record.key, record.value) for record in consumer.until_caught_up()]


def frame(spark: SparkSession, count: int, first: int = 0) -> DataFrame:
    return spark.range(first, first + count, 1, 2).selectExpr("'u' || id AS user", "cast(id AS int) AS score")


def scores(broker: Broker, topic: str) -> list[int]:
    return sorted(value["score"] for _, value in written(broker, topic))


def run(rows: DataFrame, topic: str, checkpoint: Path, **options: str) -> None:
    query = (
        rows.writeStream.format("millstream")
        .option("topic", topic)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def forget_last_commit(checkpoint: Path) -> None:
    """As if Spark had been killed after the batch was written and before that was recorded."""
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()), key=lambda p: int(p.name)
    )
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


# ---------------------------------------------------------------- streams


@pytest.mark.more
def test_a_stream_writes_each_batch_once_and_a_repeated_one_not_again(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    into, checkpoint, folder = new("totals"), tmp_path / "checkpoint", tmp_path / "in"
    frame(spark, 5).write.parquet(str(folder))
    rows = spark.readStream.schema(SCORES).parquet(str(folder))
    run(rows, into, checkpoint, key="user", partitions="2")
    assert scores(broker, into) == [0, 1, 2, 3, 4]
    assert dict(written(broker, into))[b"u3"] == {"user": "u3", "score": 3}
    assert broker.topic(into).settings.partitions == 2
    forget_last_commit(checkpoint)
    run(rows, into, checkpoint, key="user")
    assert scores(broker, into) == [0, 1, 2, 3, 4]
    frame(spark, 2, 5).write.mode("append").parquet(str(folder))
    run(rows, into, checkpoint, key="user")
    assert scores(broker, into) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.more
def test_updates_are_written_once_in_foreach_batch(source: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("scores", schema=SCORES)
    with log.producer() as producer:
        for number in range(4):
            producer.send("scores", {"user": "ann", "score": number})
    read = source.readStream.format("millstream").option("topic", "scores").option("maxRecordsPerBatch", "2").load()
    counted = read.where("score > 0").groupBy("user").count()

    def write(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("millstream").option("topic", "counts").mode("append")
        writer.option("txnAppId", "counts").option("txnVersion", batch).save()

    for _ in range(2):
        writer = counted.writeStream.foreachBatch(write).outputMode("update").trigger(availableNow=True)
        assert writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)
        assert [value for _, value in written(log, "counts")] == [
            {"user": "ann", "count": 1},
            {"user": "ann", "count": 3},
        ]
        forget_last_commit(tmp_path / "checkpoint")


def test_a_whole_table_per_batch_cannot_be_written(source: SparkSession, tmp_path: Path) -> None:
    counted = source.readStream.format("rate").load().groupBy("value").count()
    writer = counted.writeStream.format("millstream").option("topic", "t").outputMode("complete")
    with pytest.raises(PySparkException, match=r"cannot be overwritten(?s:.*)foreachBatch"):
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(60)


# ---------------------------------------------------------------- frames


def test_a_frame_is_appended_whole(broker: Broker, spark: SparkSession) -> None:
    into = new("scores")
    for first in (0, 3):
        frame(spark, 3, first).write.format("millstream").option("topic", into).mode("append").save()
    assert scores(broker, into) == [0, 1, 2, 3, 4, 5]
    assert [key for key, _ in written(broker, into)] == [None] * 6


def test_a_frame_without_a_transaction_leaves_no_named_producer(source: SparkSession, log: EmbeddedLog) -> None:
    for first in (0, 2):
        frame(source, 2, first).write.format("millstream").option("topic", "once").mode("append").save()
    with log.coordinator.look() as db:
        names = [row["name"] for row in db.execute("SELECT name FROM producers").fetchall()]
    assert not [name for name in names if "df_write" in name]
    assert scores(log, "once") == [0, 1, 2, 3]


@pytest.mark.more
def test_the_broker_may_be_an_option(spark: SparkSession, log: EmbeddedLog, kafka: KafkaCluster) -> None:
    into, address = new("scores"), f"kafka://{kafka.bootstrap}"
    register(spark, broker=log.path)
    writer = frame(spark, 2).write.format("millstream").option("topic", into).option("broker", address)
    writer.mode("append").save()
    with ms.connect(address) as broker:
        assert scores(broker, into) == [0, 1]
    assert into not in log.topics()


def test_records_are_written_as_they_are(broker: Broker, spark: SparkSession) -> None:
    into = new("raw")
    records = spark.sql("SELECT 'k' AS key, '{\"a\": 1}' AS value, map('h', X'01') AS headers")
    records.write.format("millstream").mode("append").save(into)
    with broker.consumer(into) as consumer:
        (record,) = consumer.until_caught_up()
    assert (record.key, record.value, list(record.headers)) == (b"k", b'{"a": 1}', [("h", b"\x01")])
    assert broker.topic(into).settings.schema is None


def test_a_numbered_batch_is_written_once(broker: Broker, spark: SparkSession) -> None:
    into = new("scores")
    for batch in (0, 1, 1):
        writer = frame(spark, 2, 2 * batch).write.format("millstream").option("topic", into)
        writer.option("txnAppId", into).option("txnVersion", batch).mode("append").save()
    assert scores(broker, into) == [0, 1, 2, 3]


def test_a_failing_task_writes_nothing(source: SparkSession, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCORES)
    rows = frame(source, 10).selectExpr("user", "if(score = 9, raise_error('no'), score) AS score")
    with pytest.raises(PySparkException):
        rows.write.format("millstream").option("topic", "scores").mode("append").save()
    assert written(log, "scores") == []


def test_every_type_that_spark_can_read_it_can_write(source: SparkSession, log: EmbeddedLog) -> None:
    rows = source.sql(
        "SELECT 1Y AS a, 2.5D AS b, cast(1.25 AS decimal(10,2)) AS c, date'2026-01-02' AS d, "
        "timestamp'2026-01-02 03:04:05.678901+00:00' AS e, timestamp_ntz'2026-01-02 03:04:05' AS f, "
        "array(named_struct('x', 1, 'at', timestamp'2026-01-02 00:00:00+00:00')) AS g, map('k', 0.5D) AS h, X'ff' AS i"
    )
    rows.write.format("millstream").option("topic", "kinds").mode("append").save()
    again = source.read.format("millstream").load("kinds").select(*rows.columns)
    assert again.collect() == rows.collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "t", "key": "usr"}, "key column 'usr' does not exist(?s:.*)did you mean 'user'"),
        ({"topic": "t", "startingOffsets": "latest"}, "'startingOffsets' has no meaning when a topic is written"),
        ({"topic": "t", "txnAppId": "a"}, "txnAppId and txnVersion identify a batch together"),
        ({"topic": "t", "topics": "a"}, "no option 'topics'"),
        ({"topic": "other"}, "do not fit topic 'other'(?s:.*)score"),
        ({}, "no topic is given"),
    ],
)
def test_mistakes_are_refused(source: SparkSession, log: EmbeddedLog, options: dict[str, str], message: str) -> None:
    log.create_topic("other", schema="score timestamp")
    with pytest.raises(PySparkException, match=message) as told:
        frame(source, 1).write.format("millstream").options(**options).mode("append").save()
    assert "Traceback" not in str(told.value)


def test_options_for_writing_are_refused_when_a_topic_is_read(source: SparkSession, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCORES)
    with pytest.raises(PySparkException, match="'key' has no meaning when a topic is read"):
        source.read.format("millstream").option("key", "user").load("scores")
    assert source.read.format("millstream").option("checkpointLocation", "/tmp/x").load("scores").count() == 0
