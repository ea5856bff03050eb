"""Real-time mode: a job from Kafka to Kafka by Spark's own connector.

Spark's jars are chosen when a JVM starts, so the jobs run in one process of their own, which reports in JSON.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafka_jars
import millstream as ms
from brokers import USERS
from kafka_cluster import KafkaCluster
from millstream.errors import InvalidInput
from millstream.jobs.real_time_plan import real_time_plan
from millstream.plan.run_settings import Settings
from millstream.records import Schema, codec
from waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]
SCHEMA = "user string, score int, at timestamp"


def flow_of(build: Callable[[Any], Any], source: Any = None, sink: Any = None) -> ms.Flow:
    flow = ms.Flow("quick")
    rows = flow.read(source or ms.kafka("host:9092", topic="scores"), SCHEMA, event_time="at")
    build(rows).write(sink or ms.kafka("host:9092", topic="good"))
    return flow


def unchanged(rows: Any) -> Any:
    return rows


# ---------------------------------------------------------------- what runs

PROGRAM = """
    import json, sys, time
    from dataclasses import asdict
    import millstream as ms, waiting
    from waiting import until
    from millstream.errors import MillstreamError
    from millstream.metrics.history import read_metrics
    from millstream.spark.session.start import log_file

    given = json.loads(sys.argv[1])
    PATIENCE_S = waiting.PATIENCE_S = given["patience_s"]
    servers, secure, topic = given["servers"], given["secure"], given["topic"]
    settings = {"mode": "real time", "master": "local[3]", "conf": {"spark.jars": given["jars"]}}
    report = {}

    def failing(act):
        try:
            act()
        except MillstreamError as error:
            return f"{type(error).__name__}: {error}"

    def quick():
        flow = ms.Flow("quick")
        place = ms.kafka(secure, topic=topic, settings=given["login"])
        rows = flow.read(place, given["schema"] + ", key string, offset long")
        parts = rows.where("i is null or i > 0").split({"one": "i = 1"}, rest="others")
        one = parts["one"].with_column("half", "i / 2").write(ms.kafka(servers, topic="one"))
        one.dead.write(ms.kafka(servers, topic="refused"))
        parts["others"].union(parts["one"]).write(ms.kafka(servers, topic="all"))
        rows.dead.write(ms.kafka(servers, topic="dead"))
        return flow

    def until_written(topic, count):
        from confluent_kafka import Consumer, TopicPartition
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "looks", "log_level": 0})
        ends = lambda: consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        until(lambda: ends()[1] >= count, f"{count} records in {topic}")
        consumer.close()

    job = quick().start(**settings)
    report["explain"] = job.explain()
    for name, count in given["counts"].items():
        until_written(name, count)
    from pyspark.sql import SparkSession
    spark = SparkSession.getActiveSession()
    report["plan"] = spark.streams.active[0]._jsq.explainInternal(True)
    until(lambda: job.lag() == 0, "the job to have read everything")
    job.stop()
    report["rows"], report["lag"] = job.progress.rows_read, job.lag()
    report["log"] = log_file().read_text()
    report["drawn"] = json.loads((job.folder.path / "plan.json").read_text())
    measured = read_metrics(job.folder.path, since=0)
    report["measured"] = {name: asdict(step) for name, step in measured.newest.steps.items()}
    report["partitions"] = [[each.source, each.offset, each.end] for each in measured.partitions]

    report["other mode"] = failing(lambda: quick().start())
    report["elsewhere"] = failing(lambda: quick().start(**settings, folder="elsewhere"))
    checkpoint = job.folder.path / "checkpoint-real-time"
    checkpoint.rename(job.folder.path / "aside")
    report["no checkpoint"] = failing(lambda: quick().start(**settings))
    report["folder"] = str(job.folder.path)

    def stopping():
        flow = ms.Flow("stopping")
        flow.read(ms.kafka(servers, topic=topic), given["schema"]).write(ms.kafka(servers, topic="unreached"))
        flow.start(**settings).wait(PATIENCE_S)

    report["bad record"] = failing(stopping)

    def too_large():
        flow = ms.Flow("too_large")
        flow.read(ms.kafka(servers, topic="large"), "s string").write(ms.kafka(servers, topic="one"))
        flow.start(**settings).wait(PATIENCE_S)

    report["too large"] = failing(too_large)

    def wide():
        flow = ms.Flow("wide")
        flow.read(ms.kafka(servers, topic="wide"), "n int").write(ms.kafka(servers, topic="narrow"))
        flow.start(**settings)

    report["cores"] = failing(wide)

    def asked():
        flow = ms.Flow("asked")
        flow.ask("half", "n int", lambda requests: requests.where("n > 0").select("request", half="n / 2"))
        job = flow.start(broker=f"kafka://{servers}", **settings)
        with ms.client("asked", broker=f"kafka://{servers}") as client:
            calls = [client.submit("half", "10 minutes", n=n) for n in (1, 0, 3)]
            answers = [call.result() for call in calls]
            took = []
            for n in range(100):
                began = time.perf_counter()
                client.call("half", "10 minutes", n=n)
                took.append(time.perf_counter() - began)
        job.stop()
        return {"answers": answers, "median_ms": sorted(took)[50] * 1000}

    print(json.dumps(report | {"asked": asked()}))
"""
COLUMNS = "i int, s string, t timestamp, d date, x double, b binary, l array<string>, m struct<a: string, n: bigint>"
GOOD = [
    b'{"i": 1, "s": "\xc3\xa9\\n\\"/", "t": "2026-01-01T00:00:00.5+01:00", "x": 1}',
    b'{"i": 2, "d": "2026-02-28", "x": "NaN", "b": "aGk=", "l": ["x", null], "m": {"a": "q"}}',
    b'{"s": null, "unknown": [1], "x": 0.1, "m": null, "l": []}',
    b'{"i": 1, "s": "' + b"x" * 5000 + b'"}',
]
BAD = [b"no JSON", b'{"s": 5}', b'{"i": "1"}', b'{"i": 1} {"i": 2}', b'{"t": "2026"}', b'{"s": "\xff"}', b"", b"[]"]


def values(kafka: KafkaCluster, topic: str, count: int) -> list[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"g-{topic}", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(message.value() or b"" for message in consumer.consume(count, 1) if not message.error())
        return len(found) >= count

    until(enough, f"{count} records of {topic}")
    consumer.close()
    return found


@pytest.fixture(scope="module")
def report(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic, folder = "real-time", tmp_path_factory.mktemp("real-time")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    small = NewTopic("one", 1, config={"max.message.bytes": "2000"})
    for made in admin.create_topics([NewTopic(topic, 1), NewTopic("wide", 4), NewTopic("large", 1), small]).values():
        made.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for value in [*GOOD, *BAD, b'{"i": -1}']:
        producer.produce(topic, value, b"k")
    producer.produce("large", GOOD[0])
    producer.produce("large", GOOD[-1])
    assert producer.flush(PATIENCE_S) == 0
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.ca.location": str(kafka.certificate)}
    given = {
        "patience_s": PATIENCE_S,
        "servers": kafka.bootstrap,
        "secure": kafka.secure_bootstrap,
        "topic": topic,
        "login": login | {"sasl.username": "ann", "sasl.password": USERS["ann"]},
        "schema": COLUMNS,
        "jars": ",".join(map(str, kafka_jars.assemble(kafka_jars.CONNECTOR).glob("*.jar"))),
        "counts": {"one": 1, "all": len(GOOD), "dead": len(BAD), "refused": 1},
    }
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    environment.pop("MILLSTREAM_BROKER", None)
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(given)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    stored = [path for path in folder.rglob("*") if path.is_file() and USERS["ann"].encode() in path.read_bytes()]
    found["stored"] = [str(path) for path in stored]
    return found


@pytest.mark.soak
@pytest.mark.usefixtures("report")
def test_values_are_those_of_the_codec(kafka: KafkaCluster) -> None:
    schema = Schema.of(f"{COLUMNS}, key string, offset long")
    decoded = codec("json", schema).decode(pa.array(GOOD, pa.binary())).rows
    rows = [row | {"key": "k", "offset": place} for place, row in enumerate(decoded.to_pylist())]
    batch = pa.RecordBatch.from_pylist(rows, schema.arrow)
    assert values(kafka, "all", len(GOOD)) == codec("json", schema).encode(batch).to_pylist()


@pytest.mark.soak
@pytest.mark.usefixtures("report")
def test_a_row_goes_to_every_output_it_is_for(kafka: KafkaCluster) -> None:
    [one] = values(kafka, "one", 1)
    assert json.loads(one)["half"] == 0.5


@pytest.mark.soak
@pytest.mark.usefixtures("report")
def test_a_record_that_cannot_be_read_is_a_dead_letter(kafka: KafkaCluster) -> None:
    letters = [json.loads(value) for value in values(kafka, "dead", len(BAD))]
    assert [letter["offset"] for letter in letters] == list(range(len(GOOD), len(GOOD) + len(BAD)))
    reads = codec("json", Schema.of("value binary")).decode(
        pa.array([json.dumps({"value": letter["value"]}).encode() for letter in letters], pa.binary())
    )
    assert reads.rows.column("value").to_pylist() == BAD
    assert all(letter["reason"] for letter in letters)


@pytest.mark.soak
@pytest.mark.usefixtures("report")
def test_a_record_that_is_too_large_is_a_dead_letter_of_its_output(kafka: KafkaCluster) -> None:
    """Written to a topic that accepts 2,000 bytes per record; the rest of the job continues."""
    [letter] = [json.loads(value) for value in values(kafka, "refused", 1)]
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("real-time", 0, len(GOOD) - 1)
    assert "and the limit of topic one is 2000" in letter["reason"]
    assert json.loads(base64.b64decode(letter["value"]))["s"] == "x" * 5000


@pytest.mark.soak
def test_a_record_that_is_too_large_without_dead_letters_is_named(report: dict[str, Any]) -> None:
    assert report["too large"].startswith(
        "RecordFailed: the step 'write_kafka_one' cannot handle a record: as a record of Kafka"
    )
    assert "topic large, partition 0, offset 1" in report["too large"]


@pytest.mark.soak
def test_progress_and_guarantees_are_reported(report: dict[str, Any]) -> None:
    assert (report["rows"], report["lag"]) == (len(GOOD) + len(BAD) + 1, 0)
    assert "each record at least once" in report["explain"]


@pytest.mark.soak
def test_every_step_reports_its_rows(report: dict[str, Any]) -> None:
    """`one` gets the rows with i = 1, and refuses the larger; `others` the rest of those that pass."""
    read = len(GOOD) + len(BAD) + 1
    found = {name: (each["rows_in"], each["rows_out"], each["rows_dead"]) for name, each in report["measured"].items()}
    assert found["read_kafka_real-time"] == (read, len(GOOD) + 1, len(BAD))
    assert found["write_kafka_one"] == (2, 1, 1)
    assert found["write_kafka_all"] == (len(GOOD), len(GOOD), 0)
    assert found["write_kafka_dead"] == (len(BAD), len(BAD), 0)
    assert found["write_kafka_refused"] == (1, 1, 0)
    assert report["measured"]["read_kafka_real-time"]["lag_records"] == 0
    assert report["partitions"] == [["read_kafka_real-time", read, read]]


@pytest.mark.soak
def test_the_plan_is_drawn_as_it_runs(report: dict[str, Any]) -> None:
    drawn = report["drawn"]
    assert (drawn["mode"], drawn["tasks"]) == ("real time", 1)
    assert [step["name"] for step in drawn["logical"]] == list(report["measured"])


@pytest.mark.soak
def test_a_password_is_neither_shown_nor_stored(report: dict[str, Any]) -> None:
    assert USERS["ann"] not in report["plan"]
    assert USERS["ann"] not in report["log"]
    assert report["stored"] == []


@pytest.mark.soak
def test_a_bad_record_without_dead_letters_stops_the_job_and_is_named(report: dict[str, Any]) -> None:
    assert report["bad record"].startswith("RecordFailed: the step 'read_kafka_real-time' cannot handle a record")
    assert f"topic real-time, partition 0, offset {len(GOOD)}" in report["bad record"]


@pytest.mark.soak
def test_more_partitions_than_cores_are_refused(report: dict[str, Any]) -> None:
    assert "there are 4 partitions, and Spark has 3 cores" in report["cores"]
    assert "local[4]" in report["cores"]


@pytest.mark.soak
def test_the_other_mode_is_refused_for_a_job_that_has_started(report: dict[str, Any]) -> None:
    assert report["other mode"].startswith("JobChanged: the job 'quick' has run in real time")


@pytest.mark.soak
def test_a_job_that_runs_elsewhere_or_has_lost_its_checkpoint_is_refused(report: dict[str, Any]) -> None:
    for refused in ("elsewhere", "no checkpoint"):
        assert report[refused].startswith("OutputMismatch: ")
        assert "--start-over" in report[refused]
    assert f"--folder {report['folder']}" in report["elsewhere"]


@pytest.mark.soak
def test_questions_are_answered_row_by_row(report: dict[str, Any]) -> None:
    """A request that a step drops has an empty answer. How long one takes is only printed."""
    print(report["asked"])
    assert report["asked"]["answers"] == [[{"half": 0.5}], [], [{"half": 1.5}]]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda requests: requests.group_by("request").agg(n=ms.max("n")), "keeps state"),
        (lambda requests: requests.map(lambda row: row, "request string, n int"), "a Python function"),
    ],
)
def test_a_question_that_needs_more_than_its_row_is_refused(answer: Callable[[Any], Any], why: str) -> None:
    flow = ms.Flow("asked")
    flow.ask("top", "n int", answer)
    with pytest.raises(InvalidInput, match=why):
        real_time_plan(flow, Settings(mode="real time", broker="kafka://host:9092"))
