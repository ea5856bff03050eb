"""Moving topics and jobs from the embedded log to a real Kafka: offsets are mapped, groups and jobs resume."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.cli.app import app
from millstream.errors import AlreadyExists, InvalidInput, MillstreamError, TopicMoved
from millstream.jobs.job_folder import BEFORE_MOVE, JobDescription, JobFolder
from millstream.jobs.results.move_to_kafka import move
from millstream.log import EmbeddedLog
from millstream.log.kafka.log import KafkaLog
from millstream.log.moving import move_topic
from millstream.log.storage.disk import write_document

SCHEMA = "user string, score int"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log") as opened:
        yield opened


@pytest.fixture
def target(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def topic() -> str:
    return f"moved-{uuid.uuid4().hex[:8]}"


def values(log: Any, topic: str) -> dict[int, list[Any]]:
    """By partition, in order: key, value, headers, time."""
    found: dict[int, list[Any]] = {}
    with log.consumer(topic) as consumer:
        for record in consumer.until_caught_up():
            said = (record.key, record.value, record.headers, record.timestamp)
            found.setdefault(record.partition, []).append(said)
    return found


def failing_after(records_max: int) -> Callable[[str, int], None]:
    """Fails once so many records were moved."""
    seen = 0

    def fail(_: str, records: int) -> None:
        nonlocal seen
        seen += records
        if seen >= records_max:
            raise RuntimeError("the power went out")

    return fail


def test_records_keep_partition_order_key_headers_and_time(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    """Goal: what a reader gets there is what it got here, gaps of aborted transactions aside."""
    log.create_topic(topic, partitions=3)
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    with log.producer(name="writer") as producer:
        with producer.transaction():
            for number in range(20):
                producer.send(topic, b"v%d" % number, key=b"k%d" % number, headers={"n": b"%d" % number}, timestamp=at)
        with suppress(RuntimeError), producer.transaction():
            producer.send(topic, b"never", key=b"k1")
            raise RuntimeError("changed my mind")
        with producer.transaction():
            producer.send(topic, b"last", key=b"k1", timestamp=at)
    before = values(log, topic)
    moved = move_topic(log, target, topic)
    assert values(target, topic) == before
    assert moved.records == 21
    with pytest.raises(TopicMoved), log.producer() as producer:
        producer.send(topic, b"too late")


def test_a_schema_goes_along_and_groups_continue(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    """Goal: a group that read half here reads the other half there, whatever gaps lie before it."""
    log.create_topic(topic, partitions=2, schema=SCHEMA)
    with log.producer() as producer:
        for number in range(100):
            producer.send(topic, {"user": f"u{number % 7}", "score": number}, key=f"u{number % 7}")
    with log.consumer(topic, group=f"g-{topic}") as consumer:
        read = [record.value["score"] for record in consumer.poll(max_records=40)]
        consumer.commit()
    assert 0 < len(read) < 100
    moved = move_topic(log, target, topic)
    assert moved.groups == (f"g-{topic}",)
    with target.consumer(topic, group=f"g-{topic}") as consumer:
        rest = [record.value["score"] for record in consumer.until_caught_up()]
    assert sorted(read + rest) == list(range(100))
    assert str(target.describe_topic(topic).settings.schema) == SCHEMA


@pytest.mark.more
def test_a_move_that_was_cut_short_can_be_called_again(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    """Goal: called again after a failure in the middle, every record is there once. Method: fail after some frames."""
    log.create_topic(topic)
    for part in range(5):
        with log.producer() as producer:
            for number in range(100):
                producer.send(topic, b"%d" % (part * 100 + number))
    with pytest.raises(RuntimeError):
        move_topic(log, target, topic, failing_after(200))
    with log.producer() as producer:  # until the move is complete the topic is written here
        producer.send(topic, b"500")
    assert move_topic(log, target, topic).records == 501
    assert [value for _, value, _, _ in values(target, topic)[0]] == [b"%d" % number for number in range(501)]
    assert move_topic(log, target, topic).records == 501  # and again changes nothing
    assert len(values(target, topic)[0]) == 501


def test_a_record_that_kafka_refuses_ends_the_move_and_loses_nothing(
    log: EmbeddedLog, target: KafkaLog, topic: str
) -> None:
    """Goal: an error is raised, however often it is tried, and the topic stays here."""
    log.create_topic(topic)
    with log.producer() as producer:
        for number in range(2000):
            producer.send(topic, b"%d" % number if number != 700 else os.urandom(3 << 20))
    for _ in range(2):
        with pytest.raises(MillstreamError, match="too large"):
            move_topic(log, target, topic)
    assert log.topic(topic).moved_to is None
    assert log.describe_topic(topic).records_max == 2000


@pytest.mark.more
def test_a_move_starts_over_if_retention_deleted_records_meanwhile(
    log: EmbeddedLog, target: KafkaLog, topic: str
) -> None:
    """Goal: what was copied before and what is there now are not mixed up."""
    log.create_topic(topic, segment_bytes=4096)
    for number in range(20):
        with log.producer() as producer:
            producer.send(topic, b"%d" % number + bytes(1000))
    with pytest.raises(RuntimeError):
        move_topic(log, target, topic, failing_after(10))
    log.change_topic(topic, retention_bytes=8192)
    log.clean(topic)
    log.change_topic(topic, retention_bytes=None)
    kept = values(log, topic)
    assert 0 < len(kept[0]) < 20
    move_topic(log, target, topic)
    assert [value for _, value, _, _ in values(target, topic)[0]] == [value for _, value, _, _ in kept[0]]


@pytest.mark.more
def test_a_second_move_does_not_send_groups_back(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    log.create_topic(topic)
    group = f"g-{topic}"
    with log.producer() as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    with log.consumer(topic, group=group) as consumer:
        consumer.poll(max_records=4)
        consumer.commit()
    move_topic(log, target, topic)
    with target.consumer(topic, group=group) as consumer:
        assert [record.offset for record in consumer.until_caught_up()] == [4, 5, 6, 7, 8, 9]
    log.clean(topic)  # and what happens here afterwards is of no account
    move_topic(log, target, topic)
    with target.consumer(topic, group=group) as consumer:
        assert list(consumer.until_caught_up()) == []


@pytest.mark.more
def test_two_moves_at_once_are_one(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    log.create_topic(topic)
    with log.producer() as producer:
        for number in range(3000):
            producer.send(topic, b"%d" % number)

    def again() -> int:
        with EmbeddedLog(log.path) as own, KafkaLog(target.address) as there:
            return move_topic(own, there, topic).records

    with ThreadPoolExecutor(2) as both:
        assert [each.result() for each in [both.submit(again), both.submit(again)]] == [3000, 3000]
    assert [value for _, value, _, _ in values(target, topic)[0]] == [b"%d" % number for number in range(3000)]


def test_rows_are_json_there_whatever_they_were_sent_as_here(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    log.create_topic(topic, schema=SCHEMA, codec="avro")
    with log.producer() as producer:
        producer.send(topic, {"user": "ann", "score": 7}, timestamp=datetime(1969, 12, 31, tzinfo=UTC))
    assert move_topic(log, target, topic).before_1970 == 1
    [(_, row, _, at)] = values(target, topic)[0]
    assert row == {"user": "ann", "score": 7}
    assert at.year == 1970


def job_folder(log: EmbeddedLog, name: str, reads: str, writes: str) -> JobFolder:
    """As a job leaves it that has not read anything yet."""
    folder = JobFolder(log.path / "jobs" / name, name)
    kept = JobDescription("x", 4, 2, {}, {"source": log.topic(reads).identity}, {"sink": writes})
    write_document(folder.path / "job.json", asdict(kept))
    return folder


@pytest.mark.more
def test_jobs_that_follow_one_another_come_along(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    """Goal: a job that reads what a moved job writes is not left behind; nor one whose move was cut short."""
    for name in (topic, f"{topic}.a", f"{topic}.b"):
        log.create_topic(name)
    job_folder(log, "first", topic, f"{topic}.a")
    second = job_folder(log, "second", f"{topic}.a", f"{topic}.b")
    moved = move(log, target, [topic])
    assert [job.job for job in moved.jobs] == ["first", "second"]
    assert {each.topic for each in moved.topics} == {topic, f"{topic}.a", f"{topic}.b"}
    (second.path / BEFORE_MOVE).write_text("{}")  # it died before it took the note away
    move(log, target, [topic])
    assert not (second.path / BEFORE_MOVE).exists()
    kept = second.description()
    assert kept is not None
    assert kept.sources == {"source": target.topic(f"{topic}.a").identity}


def test_what_cannot_be_moved_is_refused(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    log.create_topic(topic)
    target.create_topic(topic)
    with pytest.raises(AlreadyExists, match="already"):
        move_topic(log, target, topic)
    log.create_queue("work", topic)
    with pytest.raises(InvalidInput, match="queue work"):
        move_topic(log, target, topic)
    log.create_topic("busy")
    with log.consumer("busy", group="g") as consumer:
        consumer.poll()
        consumer.commit()
        log.producer().send("busy", b"x").wait()
        consumer.poll(timeout=5)
        consumer.commit()
        with pytest.raises(InvalidInput, match="active"):
            move_topic(log, target, "busy")


def total_flow(topic: str, job: str) -> ms.Flow:
    flow = ms.Flow(job)
    totals = flow.read(topic, SCHEMA).group_by("user").agg(total=ms.sum("score"), n=ms.count())
    totals.write(f"{topic}.totals")
    return flow


def newest(log: Any, topic: str) -> dict[bytes, Any]:
    with log.consumer(topic) as consumer:
        return {record.key: record.value for record in consumer.until_caught_up()}


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_a_job_resumes_where_it_was(log: EmbeddedLog, target: KafkaLog, topic: str, tmp_path: Path) -> None:
    """Goal: `millstream topics move` takes topic, results and job along; the job reads each record once in all."""
    log.create_topic(topic, partitions=2, schema=SCHEMA)
    rows = [{"user": f"u{number % 5}", "score": number} for number in range(200)]

    def send(broker: Any, part: list[dict[str, Any]]) -> None:
        with broker.producer() as producer:
            for row in part:
                producer.send(topic, row, key=row["user"])

    send(log, rows[:80])
    total_flow(topic, "totals").run(broker=log.path, until="caught up", progress="none")
    send(log, rows[80:120])  # waits for the job, which reads it there
    result = CliRunner().invoke(app, ["topics", "move", topic, target.address, "--log", str(log.path), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {each["name"] for each in document["topics"]} == {topic, f"{topic}.totals"}
    [job] = document["jobs"]
    send(target, rows[120:])
    ran = total_flow(topic, "totals").run(
        broker=target.address, folder=job["folder"], until="caught up", progress="none"
    )
    assert ran.progress.rows_read == 120
    expected = {
        f"u{user}".encode(): {"user": f"u{user}", "total": sum(range(user, 200, 5)), "n": 40} for user in range(5)
    }
    assert newest(target, f"{topic}.totals") == expected


@pytest.mark.usefixtures("spark")
@pytest.mark.more
def test_a_job_with_another_source_is_not_torn_apart(log: EmbeddedLog, target: KafkaLog, topic: str) -> None:
    """Goal: a job has one broker: what it reads besides is named, and nothing is moved."""
    for name in (topic, f"{topic}.more"):
        log.create_topic(name, schema=SCHEMA)
    flow = ms.Flow("two")
    both = flow.read(topic, SCHEMA).union(flow.read(f"{topic}.more", SCHEMA))
    both.write(f"{topic}.out")
    flow.run(broker=log.path, until="caught up", progress="none")
    with pytest.raises(InvalidInput, match=r"also reads .*\.more"):
        move(log, target, [topic])
    assert topic not in target.topics()
