"""Topics read by Spark, without a flow: all of it, from offsets on, in limited batches, and on from a checkpoint."""

from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException

from millstream.errors import MillstreamError
from millstream.records import Schema
from millstream.spark.topic_data_source import register
from millstream.spark.topic_options import Settings

SCORES = "user string, score int"
AT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def source(spark, log):
    """The registered format; its default broker is the log of the test."""
    register(spark, broker=log.path)
    return spark


def send(log, topic, values, **settings):
    with log.producer() as producer:
        for value in values:
            producer.send(topic, value, timestamp=AT, **settings)


def scores(count, first=0):
    return [{"user": f"u{i}", "score": i} for i in range(first, first + count)]


def taken(frame, column="score"):
    return sorted(row[column] for row in frame.collect())


def run(frame, checkpoint, trigger=None):
    """Runs a query over what is there now; the scores of each batch that had any."""
    batches = []

    def note(rows, _):
        found = taken(rows)
        if found:
            batches.append(found)

    query = (
        frame.writeStream.foreachBatch(note)
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    query.awaitTermination(120)
    assert not query.isActive
    return batches


# ---------------------------------------------------------------- reading once


def test_a_typed_topic_has_its_columns_and_what_a_record_knows(source, log):
    log.create_topic("scores", schema=SCORES, partitions=2)
    send(log, "scores", scores(2), partition=1, headers=[("a", b"1")])
    frame = source.read.format("millstream").option("topic", "scores").load()
    assert frame.columns == ["user", "score", "topic", "partition", "offset", "timestamp", "headers"]
    first, second = sorted(frame.collect(), key=lambda row: row["offset"])
    assert first.asDict()["headers"] == {"a": b"1"}
    assert (second["user"], second["score"], second["topic"], second["partition"], second["offset"]) == (
        "u1", 1, "scores", 1, 1,
    )  # fmt: skip
    assert frame.selectExpr("unix_micros(timestamp) AS at").first()["at"] == AT.timestamp() * 1_000_000


def test_a_topic_without_schema_has_key_and_value(source, log):
    log.create_topic("raw")
    send(log, "raw", [b"\xff"], key="k")
    frame = source.read.format("millstream").load("raw")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    row = frame.first()
    assert (bytes(row["key"]), bytes(row["value"]), row["headers"]) == (b"k", b"\xff", None)


def test_a_given_schema_decodes_json_and_fails_at_an_invalid_record(source, log):
    log.create_topic("raw")
    send(log, "raw", [b'{"user":"a","score":1}', b"nonsense", b'{"user":"b","score":2}'])
    read = source.read.format("millstream").option("topic", "raw").schema(f"{SCORES}, offset long")
    assert taken(read.option("badRecords", "drop").load(), "offset") == [0, 2]
    with pytest.raises(PySparkException, match=r"a record cannot be read: not valid JSON(?s:.*)'raw'.*offset 1"):
        read.option("badRecords", "fail").load().collect()


def test_values_as_text(source, log):
    log.create_topic("raw")
    send(log, "raw", [b"one", b"two"])
    frame = source.read.format("millstream").option("topic", "raw").schema("value string").load()
    assert taken(frame, "value") == ["one", "two"]


def test_many_types_reach_spark(source, log):
    ddl = (
        "a tinyint, b smallint, c bigint, d float, e double, f decimal(10,2), g binary, h date, i timestamp_ntz,"
        " j array<struct<x int, y map<string,double>>>, k boolean not null"
    )
    log.create_topic("kinds", schema=ddl)
    frame = source.read.format("millstream").option("topic", "kinds").load()
    assert frame.collect() == []
    assert [field.dataType.simpleString() for field in frame.schema][:3] == ["tinyint", "smallint", "bigint"]
    with log.producer() as producer:
        producer.send("kinds", {"a": 1, "c": 2, "j": [{"x": 1, "y": {"z": 0.5}}], "k": True})
    row = source.read.format("millstream").option("topic", "kinds").load().first()
    assert (row["a"], row["b"], row["c"], row["k"]) == (1, None, 2, True)
    assert row["j"][0].asDict() == {"x": 1, "y": {"z": 0.5}}


def test_offsets_bound_what_is_read(source, log):
    log.create_topic("scores", schema=SCORES, partitions=2)
    for partition in (0, 1):
        send(log, "scores", scores(5, 10 * partition), partition=partition)
    read = source.read.format("millstream").option("topic", "scores")
    assert taken(read.option("startingOffsets", '{"0": 3, "1": -1}').load()) == [3, 4]
    between = read.option("startingOffsets", '{"scores": {"0": 1}}').option("endingOffsets", '{"0": 2, "1": 1}')
    assert taken(between.load()) == [1, 10]


# ---------------------------------------------------------------- what is refused


def test_load_reports_a_missing_topic_without_a_stack_trace(source, log):
    log.create_topic("scores")
    for read in (source.read, source.readStream):
        missing = read.format("millstream").option("topic", "score")
        with pytest.raises(PySparkException, match=r"no topic 'score'(?s:.*)topics that exist: scores") as failed:
            missing.load()
        assert "Traceback" not in str(failed.value)
        assert "millstream topics create score" in str(failed.value)


def test_a_missing_topic_raises_before_anything_runs_when_the_schema_is_given(source, log, tmp_path):
    once = source.read.schema(SCORES).format("millstream").option("topic", "score")
    with pytest.raises(PySparkException, match="there is no topic 'score'"):
        once.load().collect()
    on = source.readStream.schema(SCORES).format("millstream").option("topic", "score")
    with pytest.raises(PySparkException, match="there is no topic 'score'"):
        run(on.load(), tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no topic is given"),
        ({"topic": "t", "startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"topic": "t", "maxRecordsPerBatch": "0"}, "maxRecordsPerBatch must be a positive integer"),
        ({"topic": "t", "badRecords": "ignore"}, "'fail' or 'drop'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(MillstreamError, match=message):
        Settings.of(options, ".millstream")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [("soon", "startingOffsets cannot be 'soon'"), ('{"7": 0}', "partition '7', which does not exist")],
)
def test_offsets_that_make_no_sense_are_refused(source, log, offsets, message):
    log.create_topic("scores", schema=SCORES)
    frame = source.read.format("millstream").option("topic", "scores").option("startingOffsets", offsets).load()
    with pytest.raises(PySparkException, match=message):
        frame.collect()


def test_a_missing_column_is_reported(source, log):
    log.create_topic("scores", schema=SCORES)
    frame = source.read.format("millstream").schema("team string not null").load("scores")
    with pytest.raises(PySparkException, match=r"no column 'team'(?s:.*)user string, score int"):
        frame.collect()


# ---------------------------------------------------------------- reading on


@pytest.mark.more
def test_a_query_takes_what_is_there_in_limited_batches_and_resumes_from_its_checkpoint(source, log, tmp_path):
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", scores(7))
    frame = source.readStream.format("millstream").option("topic", "scores").option("maxRecordsPerBatch", "3").load()
    assert run(frame, tmp_path / "checkpoint") == [[0, 1, 2], [3, 4, 5], [6]]
    assert run(frame, tmp_path / "checkpoint") == []
    send(log, "scores", scores(2, 7))
    assert run(frame, tmp_path / "checkpoint") == [[7, 8]]


@pytest.mark.more
def test_a_limit_leaves_no_partition_behind(source, log, tmp_path):
    log.create_topic("scores", schema=SCORES, partitions=2)
    send(log, "scores", scores(6), partition=0)
    send(log, "scores", scores(1, 100), partition=1)
    frame = source.readStream.format("millstream").option("topic", "scores").option("maxRecordsPerBatch", "4").load()
    first, second = run(frame, tmp_path / "checkpoint")
    assert first == [0, 1, 2, 100]
    assert second == [3, 4, 5]


@pytest.mark.more
def test_a_query_that_starts_at_the_end_sees_only_what_comes_later(source, log, tmp_path):
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", scores(3))
    frame = source.readStream.format("millstream").option("topic", "scores").option("startingOffsets", "latest").load()
    assert run(frame, tmp_path / "checkpoint") == []
    send(log, "scores", scores(2, 3))
    assert run(frame, tmp_path / "checkpoint") == [[3, 4]]


def test_surviving_workers_do_not_mistake_a_recreated_topic_for_the_old_one(source, log):
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", scores(1))
    read = source.read.format("millstream").option("topic", "scores").option("tasks", "1")
    assert taken(read.load()) == [0]
    log.delete_topic("scores")
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", scores(2, 5))
    assert taken(read.load()) == [5, 6]


def test_records_that_retention_deleted_before_a_query_read_them_raise(source, log, tmp_path):
    log.create_topic("scores", schema=SCORES, segment_bytes=4096, retention_bytes=4096)
    send(log, "scores", scores(1))
    frame = source.readStream.format("millstream").option("topic", "scores").load()
    assert run(frame, tmp_path / "checkpoint") == [[0]]
    for first in range(0, 1000, 100):
        send(log, "scores", scores(100, first))
    log.clean("scores")
    with pytest.raises(PySparkException, match="were deleted by retention before they were read"):
        run(frame, tmp_path / "checkpoint")


def test_the_columns_shown_are_those_of_the_schema(log):
    ddl = "Offset string, user string"
    log.create_topic("own", schema=ddl)
    from millstream.spark.topic_data_source import TopicDataSource

    made = TopicDataSource({"topic": "own", "broker": str(log.path)})
    assert Schema.of(made.schema()).names == ("Offset", "user", "topic", "partition", "timestamp", "headers")
