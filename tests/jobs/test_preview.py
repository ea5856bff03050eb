"""A preview returns what a batch run would write, and leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan, RecordFailed, UnknownTopic
from millstream.log import EmbeddedLog
from millstream.log.kafka.log import KafkaLog
from times import t

from .support import SCHEMA, counted, per_user, put, read, scores

ROWS = [("ann", 1, 0.0), ("bob", 2, 1.0), ("ann", 3, 12.0), ("bob", 4, 25.0)]
TOTALS = [("ann", 0.0, 1), ("ann", 10.0, 3), ("bob", 0.0, 2), ("bob", 20.0, 4)]


@pytest.fixture
def flow(log: EmbeddedLog) -> ms.Flow:
    put(log, "scores", ROWS)
    return ms.Flow("looked_at", log=log.path)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of a test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def totals(frame: Any) -> list[tuple[str, float, int]]:
    found = [(row["user"], (row["window"]["start"] - t(0)).total_seconds(), row["total"]) for row in frame.to_dicts()]
    return sorted(found)


def contents(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size if path.is_file() else 0) for path in folder.rglob("*"))


def test_every_window_is_closed_at_the_end(flow: ms.Flow) -> None:
    assert totals(per_user(scores(flow)).preview()) == TOTALS


def test_a_table_is_its_current_rows(flow: ms.Flow) -> None:
    counts = scores(flow).group_by("user").agg(n=ms.count(), total=ms.sum("n"))
    assert sorted(counts.preview().rows()) == [("ann", 2, 4), ("bob", 2, 6)]


def test_rows_limits_the_result(flow: ms.Flow) -> None:
    stream = scores(flow)
    assert stream.preview(rows=2)["n"].to_list() == [1, 2]
    assert len(stream.preview()) == 4


def test_an_empty_topic_gives_an_empty_frame_with_the_columns(log: EmbeddedLog) -> None:
    frame = scores(ms.Flow("empty", log=log.path)).preview()
    assert frame.is_empty()
    assert frame.columns == ["user", "n", "at"]


def test_nothing_is_left_behind(flow: ms.Flow, log: EmbeddedLog, temporary: Path) -> None:
    stream = per_user(scores(flow))
    stream.write("totals")
    before = contents(log.path)
    stream.preview()
    assert contents(log.path) == before
    assert "totals" not in log.topics()
    assert contents(temporary) == []


def test_retractions_have_a_weight(flow: ms.Flow) -> None:
    trigger = ms.after_watermark(early=ms.after_count(1))
    found = per_user(scores(flow), ms.fixed("1 hour"), trigger, "retracting").preview()
    assert set(found["weight"]) <= {1, -1}
    assert found.filter(found["user"] == "bob")["total"].to_list()[-1] == 6


def test_rows_that_arrive_within_the_seconds_are_included(flow: ms.Flow, log: EmbeddedLog) -> None:
    def later() -> None:
        time.sleep(0.3)
        put(log, "scores", [("eve", 9, 26.0)])

    thread = threading.Thread(target=later)
    thread.start()
    found = scores(flow).preview(seconds=1.5)
    thread.join()
    assert found["user"].to_list() == ["ann", "bob", "ann", "bob", "eve"]


def test_event_time_set_by_a_later_step_moves_the_watermark(log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with log.producer() as producer:
        for user, n, second in ROWS:
            body = json.dumps({"user": user, "n": n, "at": t(second).isoformat()})
            producer.send("raw", json.dumps({"body": body}))
        producer.send("raw", json.dumps({"body": "broken"}))
    parsed = ms.Flow("parsed", log=log.path).read("raw", "body string").parse("body", SCHEMA)
    assert parsed.dead.preview()["reason"].len() == 1
    assert totals(per_user(parsed.with_event_time("at", ms.bounded("5 seconds"))).preview()) == TOTALS


def test_a_bad_record_stops_a_preview_as_it_stops_the_job(log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with log.producer() as producer:
        producer.send("raw", '{"n": 1}')
        producer.send("raw", '{"n": "many"}')
    stream = ms.Flow("bad", log=log.path).read("raw", "n int")
    with pytest.raises(RecordFailed, match="cannot handle a record"):
        stream.preview()
    assert stream.dead.preview()["reason"].len() == 1
    assert stream.preview()["n"].to_list() == [1]


def test_two_sources_are_joined(flow: ms.Flow, log: EmbeddedLog) -> None:
    log.create_topic("names", schema="user string, name string")
    with log.producer() as producer:
        producer.send("names", {"user": "ann", "name": "Ann"})
    names = flow.read("names").to_table("user")
    joined = scores(flow).join(names, on="user", as_of="now")
    assert set(joined.preview()["name"].to_list()) <= {"Ann"}


def test_files_need_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MILLSTREAM_BROKER", raising=False)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    before = sorted(tmp_path.iterdir())
    stream = ms.Flow("files").read(ms.files(str(tmp_path / "in"), format="json"), "n int")
    assert stream.preview()["n"].to_list() == [1, 2]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "wrong",
    [
        *({"rows": rows} for rows in (0, -3, 1.5, True, "20", 10**9)),
        *({"seconds": seconds} for seconds in (0, -1, "10", True, float("nan"), float("inf"))),
    ],
)
def test_wrong_arguments_are_refused_at_the_users_line(flow: ms.Flow, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"is a number of") as refused:
        scores(flow).preview(**wrong)
    assert "test_preview.py" in str(refused.value)


def test_the_dead_letters_of_a_sink_have_no_preview(flow: ms.Flow, tmp_path: Path) -> None:
    written = scores(flow).write(ms.sqlite(tmp_path / "a.db", "t"))
    with pytest.raises(InvalidPlan, match="a preview writes nothing"):
        written.dead.preview()


def test_a_topic_that_does_not_exist_is_named(log: EmbeddedLog) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        ms.Flow("f", log=log.path).read("nowhere", "n int").preview()


@pytest.mark.more
def test_steps_that_need_spark_run_on_spark(
    flow: ms.Flow, log: EmbeddedLog, spark: SparkSession, temporary: Path
) -> None:
    before = contents(log.path)
    shaped = scores(flow).spark(lambda df: df.selectExpr("user", "n * 2 as n", "at"))
    assert sorted(shaped.preview()["n"].to_list()) == [2, 4, 6, 8]
    assert sorted(shaped.group_by("user").agg(n=ms.sum("n")).preview().rows()) == [("ann", 8), ("bob", 12)]
    assert sorted(shaped.preview(seconds=2)["n"].to_list()) == [2, 4, 6, 8]
    assert contents(log.path) == before
    assert [name for name, _ in contents(temporary) if "preview" in name] == []


@pytest.mark.more
def test_it_is_what_a_batch_run_writes(flow: ms.Flow, log: EmbeddedLog, spark: SparkSession) -> None:
    put(log, "scores", [(f"user{n % 7}", n, float(n * 17 % 300)) for n in range(500)])
    stream = per_user(scores(flow), ms.sliding("40 seconds", "10 seconds"))
    found = stream.preview(rows=10_000)
    stream.write("totals")
    flow.run(batch=True, progress="none")
    assert counted(found.drop("event_time").to_dicts()) == counted(
        {name: value for name, value in each.items() if name != "event_time"} for each in read(log, "totals")
    )


@pytest.mark.more
def test_a_dataframe_is_previewed_on_spark(spark: SparkSession, log: EmbeddedLog) -> None:
    frame = spark.createDataFrame([("ann", 1), ("bob", 2)], "user string, n int")
    stream = ms.Flow("frame", log=log.path).read(frame)
    assert sorted(stream.where("n > 1").preview().rows()) == [("bob", 2)]


@pytest.mark.more
def test_topics_of_kafka_are_read_without_a_group(kafka_log: KafkaLog, temporary: Path) -> None:
    topic = f"preview-{time.time_ns()}"
    kafka_log.create_topic(topic, partitions=2)
    with kafka_log.producer() as producer:
        for user, n, second in ROWS:
            producer.send(topic, json.dumps({"user": user, "n": n, "at": t(second).isoformat()}), key=user)
    flow = ms.Flow("kafka", log=kafka_log.address)
    stream = flow.read(topic, SCHEMA, event_time="at", watermark=ms.bounded("5 seconds"))
    groups = set(kafka_log.groups())
    assert totals(per_user(stream).preview()) == TOTALS
    assert set(kafka_log.groups()) == groups
    assert contents(temporary) == []
