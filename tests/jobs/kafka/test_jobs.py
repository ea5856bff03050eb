"""Jobs whose broker is Kafka: the same flows, only with another address."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import millstream as ms
from brokers import USERS
from jobs.support import CAUGHT_UP, SCHEMA, per_user, put, read, scores, seconds, t, unweighted
from kafka_cluster import KafkaCluster
from millstream.cli.app import app
from millstream.connectors.catalog import remembered
from millstream.errors import JobChanged, OutputMismatch, StartOverRefused
from millstream.log import EmbeddedLog
from millstream.log.kafka.log import KafkaLog
from millstream.spark.session.start import log_file
from postgres_server import Server
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def name(log: KafkaLog) -> str:
    """Of a flow of its own, and the beginning of its topics' names; the topic of scores is there."""
    name = f"f{uuid.uuid4().hex[:12]}"
    log.create_topic(f"{name}.scores", schema=SCHEMA, partitions=2)
    return name


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def totals(name: str) -> ms.Flow:
    flow = ms.Flow(name)
    per_user(scores(flow, f"{name}.scores")).write(f"{name}.totals")
    return flow


def copied(name: str) -> ms.Flow:
    flow = ms.Flow(name)
    flow.read(f"{name}.scores", SCHEMA).write(f"{name}.copy")
    return flow


def numbers(log: KafkaLog | EmbeddedLog, topic: str) -> list[int]:
    return sorted(row["n"] for row in read(log, topic))


@pytest.mark.more
def test_a_job_reads_and_writes_topics_of_kafka_and_resumes_where_it_was(
    log: KafkaLog, name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker is said once in the environment; what it keeps is in the folder for that."""
    monkeypatch.setenv("MILLSTREAM_BROKER", log.address)
    put(log, f"{name}.scores", [("a", 1, 1), ("a", 2, 3), ("b", 5, 12), ("b", 1, 40)])
    put(log, f"{name}.scores", [("a", 3, 2), ("a", 1, 41)], partition=1)
    first = totals(name).run(until=CAUGHT_UP)
    assert first is not None
    assert first.progress.rows_read == 6
    assert seconds(unweighted(read(log, f"{name}.totals"))) == [("a", 0.0, 6), ("b", 10.0, 5)]
    put(log, f"{name}.scores", [("b", 7, 60)])
    put(log, f"{name}.scores", [("a", 7, 60)], partition=1)
    second = totals(name).run(until=CAUGHT_UP)
    assert second is not None
    assert second.progress.rows_read == 2
    assert second.lag() == 0
    found = seconds(unweighted(read(log, f"{name}.totals")))
    assert found == [("a", 0.0, 6), ("a", 40.0, 1), ("b", 10.0, 5), ("b", 40.0, 1)]
    assert (home / "jobs" / name / "job.json").exists()


@pytest.mark.soak
def test_rows_are_seen_as_they_come(log: KafkaLog, name: str) -> None:
    job = copied(name).start(broker=log.address)
    for number in range(3):
        put(log, f"{name}.scores", [("a", number, number)], partition=number % 2)
        until(lambda number=number: numbers(log, f"{name}.copy") == list(range(number + 1)), "the row")
    job.stop()


@pytest.mark.more
def test_topics_of_kafka_next_to_those_of_a_folder(
    log: KafkaLog, kafka: KafkaCluster, name: str, tmp_path: Path
) -> None:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as own:
        own.create_topic("here", schema=SCHEMA)
        put(own, "here", [("a", 1, 1)])
        put(log, f"{name}.scores", [("b", 2, 2)])
        flow = ms.Flow(name)
        flow.read(ms.kafka(kafka.bootstrap, topic=f"{name}.scores"), SCHEMA, name="there").write("brought")
        flow.read("here", SCHEMA).write(ms.kafka(kafka.bootstrap, topic=f"{name}.sent"))
        flow.run(broker=own.path, until=CAUGHT_UP)
        assert numbers(own, "brought") == [2]
        assert numbers(log, f"{name}.sent") == [1]
        assert (own.path / "jobs" / name).is_dir()


@pytest.mark.soak
def test_results_are_recomputed_next_to_the_existing_ones(log: KafkaLog, name: str) -> None:
    put(log, f"{name}.scores", [("a", n, n) for n in range(4)])
    copied(name).run(broker=log.address, until=CAUGHT_UP)
    copied(name).replay(broker=log.address, into=f"{name}.copy.v2")
    flow = ms.Flow(f"{name}-placed")
    flow.read(f"{name}.scores", SCHEMA).write(ms.kafka(topic=f"{name}.placed"))
    flow.replay(broker=log.address, into=f"{name}.placed.v2")
    for topic in ("copy", "copy.v2", "placed.v2"):
        assert numbers(log, f"{name}.{topic}") == [0, 1, 2, 3]
    assert f"{name}.placed" not in log.topics()


@pytest.mark.soak
def test_a_run_starts_at_a_time(log: KafkaLog, name: str) -> None:
    with log.producer() as producer:
        for n in range(5):
            producer.send(f"{name}.scores", {"user": "a", "n": n, "at": t(n)}, partition=0, timestamp=t(n))
    copied(name).run(broker=log.address, until=CAUGHT_UP, since=t(3))
    assert numbers(log, f"{name}.copy") == [3, 4]


@pytest.mark.soak
def test_a_batch_run_closes_every_window(log: KafkaLog, name: str) -> None:
    put(log, f"{name}.scores", [("a", 1, 1), ("a", 2, 3), ("b", 5, 12)])
    totals(name).run(broker=log.address, batch=True)
    assert seconds(unweighted(read(log, f"{name}.totals"))) == [("a", 0.0, 3), ("b", 10.0, 5)]


@pytest.mark.soak
def test_a_table_is_remembered_with_its_kafka(log: KafkaLog, name: str) -> None:
    put(log, f"{name}.scores", [("a", 1, 1), ("b", 2, 2), ("a", 3, 3)])
    flow = ms.Flow(name)
    scores(flow, f"{name}.scores").to_table(key="user").write(f"{name}.latest")
    flow.run(broker=log.address, until=CAUGHT_UP)
    (found,) = remembered(log.address)
    assert (found.name, found.kind, found.where, found.key) == (f"{name}.latest", "topic", log.address, ("user",))
    assert remembered("kafka://elsewhere:9092") == []
    assert log.describe_topic(f"{name}.latest").settings.compaction


@pytest.mark.soak
def test_jobs_on_kafka_are_listed_and_forgotten(log: KafkaLog, name: str, home: Path) -> None:
    put(log, f"{name}.scores", [("a", 1, 1)])
    copied(name).run(broker=log.address, until=CAUGHT_UP)

    def said(*command: str) -> str:
        done = CliRunner().invoke(app, [*command, "--log", log.address, "--json"])
        assert done.exit_code == 0, done.output
        return done.stdout

    (listed,) = json.loads(said("jobs", "list"))
    assert (listed["name"], listed["state"]) == (name, "stopped")
    said("jobs", "forget", name, "--yes")
    assert json.loads(said("jobs", "list")) == []
    assert not (home / "jobs" / name).exists()
    with pytest.raises(OutputMismatch, match="another run of the job"):
        copied(name).run(broker=log.address, until=CAUGHT_UP)
    copied(name).run(broker=log.address, until=CAUGHT_UP, start_over=True)
    assert numbers(log, f"{name}.copy") == [1]


@pytest.mark.more
def test_the_same_job_in_another_folder_is_refused_and_the_first_continues(
    log: KafkaLog, name: str, home: Path, tmp_path: Path
) -> None:
    """Until it starts over: then the first folder is refused."""
    put(log, f"{name}.scores", [("a", 1, 1)])
    first = copied(name).start(broker=log.address)
    until(lambda: numbers(log, f"{name}.copy") == [1], "the row")
    with pytest.raises(OutputMismatch) as raised:
        copied(name).run(broker=log.address, folder=tmp_path / "other", master="spark://nowhere.invalid:7077")
    for part in (f"'{name}'", f"{name}.copy", f"--folder {home / 'jobs' / name}", "--start-over", "start_over=True"):
        assert part in str(raised.value)
    put(log, f"{name}.scores", [("a", 2, 2)])
    until(lambda: numbers(log, f"{name}.copy") == [1, 2], "the second row, of the job that was not disturbed")
    first.stop()

    copied(name).run(broker=log.address, folder=tmp_path / "other", until=CAUGHT_UP, start_over=True)
    assert numbers(log, f"{name}.copy") == [1, 2]
    put(log, f"{name}.scores", [("a", 3, 3)])
    with pytest.raises(OutputMismatch, match=f"--folder {tmp_path / 'other'}"):
        copied(name).run(broker=log.address, until=CAUGHT_UP)
    copied(name).run(broker=log.address, folder=tmp_path / "other", until=CAUGHT_UP)
    assert numbers(log, f"{name}.copy") == [1, 2, 3]


@pytest.mark.more
def test_a_topic_that_was_removed_is_rebuilt(log: KafkaLog, name: str) -> None:
    put(log, f"{name}.scores", [("a", 1, 1)])
    copied(name).run(broker=log.address, until=CAUGHT_UP)
    log.delete_topic(f"{name}.copy")
    put(log, f"{name}.scores", [("a", 2, 2)])
    with pytest.raises(OutputMismatch, match="is gone") as raised:
        copied(name).run(broker=log.address, until=CAUGHT_UP)
    [output] = copied(name).outputs
    assert f"--rebuild-output {output.name}" in str(raised.value)
    copied(name).run(broker=log.address, until=CAUGHT_UP, rebuild_output=output.name)
    assert numbers(log, f"{name}.copy") == [1, 2]


@pytest.mark.more
def test_a_topic_that_the_job_did_not_create_is_emptied_by_hand(log: KafkaLog, name: str) -> None:
    log.create_topic(f"{name}.copy", schema=SCHEMA, partitions=3)
    put(log, f"{name}.scores", [("a", 1, 1)])
    copied(name).run(broker=log.address, until=CAUGHT_UP)
    with pytest.raises(StartOverRefused, match=f"topics delete {name}.copy"):
        copied(name).run(broker=log.address, until=CAUGHT_UP, start_over=True)
    assert numbers(log, f"{name}.copy") == [1]
    log.delete_topic(f"{name}.copy")
    copied(name).run(broker=log.address, until=CAUGHT_UP, start_over=True)
    assert numbers(log, f"{name}.copy") == [1]


@pytest.mark.soak
def test_a_recreated_topic_is_not_mistaken_for_the_old_one(log: KafkaLog, name: str) -> None:
    put(log, f"{name}.scores", [("a", 1, 1)])
    copied(name).run(broker=log.address, until=CAUGHT_UP)
    log.delete_topic(f"{name}.scores")
    log.create_topic(f"{name}.scores", schema=SCHEMA)
    with pytest.raises(JobChanged, match="is a different topic than before"):
        copied(name).run(broker=log.address, until=CAUGHT_UP)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The address of a Postgres, with a password that occurs nowhere else."""
    server = Server()
    yield server.new_database().replace("millstream@", "millstream:Xq7JmzW9Vt@")
    server.close()


def arguments() -> list[bytes]:
    """Of every process of this machine."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(process.read_bytes())
    return found


@pytest.mark.more
def test_no_file_of_a_job_contains_a_password(
    log: KafkaLog, kafka: KafkaCluster, name: str, home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in the arguments of a process, nor in anything the command line shows of the job."""
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": USERS["ann"],
        "ssl.ca.location": str(kafka.certificate),
    }
    put(log, f"{name}.scores", [("a", n, n) for n in range(3)])
    flow = ms.Flow(name)
    place = ms.kafka(kafka.secure_bootstrap, topic=f"{name}.scores", settings=settings)
    found = flow.read(place, SCHEMA, event_time="at", name="secret")
    latest = found.to_table(key="user")
    latest.write(ms.kafka(kafka.secure_bootstrap, topic=f"{name}.latest", settings=settings))
    latest.write(ms.postgres(database, "latest"))
    seen: list[bytes] = []
    flow.run(broker=log.address, until=CAUGHT_UP, on_batch=lambda *_: seen.extend(arguments()))
    assert [row["n"] for row in read(log, f"{name}.latest")] == [2]
    with psycopg.connect(database) as db:
        assert db.execute("SELECT n FROM latest").fetchall() == [(2,)]
    secrets = [USERS["ann"].encode(), b"Xq7JmzW9Vt"]
    files = [path for path in (home / "jobs" / name).rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files for secret in secrets if secret in path.read_bytes()] == []
    assert seen
    assert not [line for line in seen for secret in secrets if secret in line]
    spark_log = log_file()
    assert spark_log is None or not any(secret in spark_log.read_bytes() for secret in secrets)
    monkeypatch.setenv("MILLSTREAM_BROKER", log.address)
    for command in ("jobs list", "table list", "jobs list --json", "table list --json"):
        shown = CliRunner().invoke(app, command.split()).output
        assert name in shown
        assert not any(secret.decode() in shown for secret in secrets)


@pytest.mark.more
def test_the_jobs_own_broker_may_have_a_password(
    log: KafkaLog,
    kafka: KafkaCluster,
    name: str,
    home: Path,
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=ann\n"
        f"sasl.password={USERS['ann']}\nssl.ca.location={kafka.certificate}\n"
    )
    put(log, f"{name}.scores", [("a", n, n) for n in range(3)])
    copied(name).run(broker=f"kafka://{kafka.secure_bootstrap}?settings={file}", until=CAUGHT_UP)
    assert numbers(log, f"{name}.copy") == [0, 1, 2]
    for path in (home / "jobs" / name).rglob("*"):
        assert path.is_dir() or USERS["ann"].encode() not in path.read_bytes()
