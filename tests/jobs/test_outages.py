"""Servers that are away: before a job starts that is an error; a running job waits, and loses and repeats nothing.

The servers are real ones, stopped while a job runs and started again.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import millstream as ms
from hdfs_server import HdfsServer
from kafka_cluster import KafkaCluster
from millstream.errors import KafkaUnavailable, SinkUnavailable, SourceUnavailable
from millstream.log import EmbeddedLog
from millstream.log.kafka.log import KafkaLog
from millstream.records import Schema
from millstream.remote_folders import RemoteFolder
from postgres_server import Server
from s3_server import S3Server
from schema_registry_server import SchemaRegistryServer
from waiting import until

from .support import CAUGHT_UP, read

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.more, pytest.mark.timeout(600)]

SCHEMA = "n int"
AWAY_S = 4
"""How long a source is away: longer than the pause between two attempts."""


@dataclass
class Place:
    """Where rows are written to or read from, and the server that it is on."""

    endpoint: Any
    stop: Callable[[], None]
    start: Callable[[], None]
    numbers: Callable[[], list[int]]
    put: Callable[[int], None] = lambda number: None


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("numbers", schema=SCHEMA)
        yield opened


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """One of its own: others must not lose theirs."""
    with S3Server("tests") as server:
        yield server


@pytest.fixture(scope="module")
def hdfs() -> Iterator[HdfsServer]:
    with HdfsServer() as server:
        yield server


def send(log: Any, *numbers: int, topic: str = "numbers") -> None:
    with log.producer() as producer:
        for number in numbers:
            producer.send(topic, {"n": number})


def copied(log: EmbeddedLog) -> list[int]:
    return sorted(row["n"] for row in read(log, "copies"))


# ---------------------------------------------------------------- places


def json_files(server: S3Server | HdfsServer, address: str) -> Place:
    folder = RemoteFolder(f"{address}/{uuid.uuid4().hex}", server.settings)

    def numbers() -> list[int]:
        found = [about.path for about in folder.listed() if about.path.endswith(".json")]
        lines = [line for path in found for line in (folder.read(path) or b"").splitlines()]
        return sorted(json.loads(line)["n"] for line in lines)

    def put(number: int) -> None:
        folder.write(f".{number}", b'{"n":%d}\n' % number)  # HDFS shows a file while it is written
        folder.move(f".{number}", f"{number}.json")

    endpoint = ms.files(folder.address, "json", options=server.settings)
    return Place(endpoint, server.stop, server.start, numbers, put)


def delta(s3: S3Server) -> Place:
    address = f"s3://tests/{uuid.uuid4().hex}"
    place = ms.delta_table(address, options=s3.settings)

    def put(number: int) -> None:
        rows = pa.table({"n": pa.array([number], pa.int32())})
        write_deltalake(address, rows, mode="append", storage_options=s3.settings)

    return Place(place, s3.stop, s3.start, lambda: loaded(place), put)


def iceberg(server: Server, folder: Path) -> Place:
    """Its catalog is a database, which is what goes away."""
    uri = server.new_database().replace("postgresql://", "postgresql+psycopg://")
    settings = {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse"}
    place = ms.iceberg("tests", "games.numbers", settings=settings)

    def put(number: int) -> None:
        catalog = place.store().catalog
        catalog.create_namespace_if_not_exists("games")
        rows = pa.table({"n": pa.array([number], pa.int32())})
        catalog.create_table_if_not_exists("games.numbers", rows.schema).append(rows)

    return Place(place, server.stop, server.start, lambda: loaded(place), put)


def loaded(place: Any) -> list[int]:
    return sorted(place.load(Schema.of(SCHEMA)).column("n").to_pylist())


def kafka_topic(kafka: KafkaCluster) -> Place:
    topic = f"numbers-{uuid.uuid4().hex[:8]}"

    def numbers() -> list[int]:
        with KafkaLog(f"kafka://{kafka.bootstrap}") as log, log.consumer(topic) as consumer:
            values = [record.value for record in consumer.until_caught_up()]
        return sorted((value if isinstance(value, dict) else json.loads(value))["n"] for value in values)

    def put(number: int) -> None:
        with KafkaLog(f"kafka://{kafka.bootstrap}") as log:
            if topic not in log.topics():
                log.create_topic(topic)
            with log.producer() as producer:
                producer.send(topic, b'{"n":%d}' % number)

    stop, start = (lambda: kafka.kill(1)), (lambda: kafka.restart(1))
    return Place(ms.kafka(kafka.bootstrap, topic=topic), stop, start, numbers, put)


LONGER = [pytest.param(name, marks=pytest.mark.soak) for name in ("files on hdfs", "delta on s3", "kafka")]


@pytest.fixture(params=["files on s3", "iceberg", *LONGER])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    server = request.getfixturevalue
    made = {
        "files on s3": lambda: json_files(server("s3"), "s3://tests"),
        "files on hdfs": lambda: json_files(server("hdfs"), server("hdfs").address),
        "delta on s3": lambda: delta(server("s3")),
        "iceberg": lambda: iceberg(server("server"), tmp_path),
        "kafka": lambda: kafka_topic(server("kafka")),
    }
    return made[request.param]()


# ---------------------------------------------------------------- while a job runs


def test_a_job_waits_for_the_server_of_its_sink(place: Place, log: EmbeddedLog) -> None:
    flow = ms.Flow("writing")
    flow.read("numbers", SCHEMA).write(place.endpoint)
    job = flow.start(broker=log.path)
    try:
        send(log, 1)
        until(lambda: sum(job.progress.written.values()) == 1, "the first row")
        place.stop()
        try:
            send(log, 2)
            until(lambda: job.progress.waits_for or not job.is_running, "the job to wait")
        finally:
            place.start()
        send(log, 3)
        until(lambda: sum(job.progress.written.values()) == 3 or not job.is_running, "the other rows")
    finally:
        job.stop()
    assert place.numbers() == [1, 2, 3]


def test_a_job_waits_for_the_server_of_its_source(place: Place, log: EmbeddedLog) -> None:
    place.put(1)
    flow = ms.Flow("reading")
    flow.read(place.endpoint, SCHEMA).write("copies")
    job = flow.start(broker=log.path)
    try:
        until(lambda: copied(log) == [1] or not job.is_running, "the first row")
        place.stop()
        try:
            time.sleep(AWAY_S)
        finally:
            place.start()
        place.put(2)
        until(lambda: len(copied(log)) > 1 or not job.is_running, "the second row")
    finally:
        job.stop()
    assert copied(log) == [1, 2]


# ---------------------------------------------------------------- before a job starts


def test_a_job_does_not_start_without_its_server(place: Place, log: EmbeddedLog) -> None:
    place.put(1)
    send(log, 1)
    writing, reading = ms.Flow("writing"), ms.Flow("reading")
    writing.read("numbers", SCHEMA).write(place.endpoint)
    reading.read(place.endpoint, SCHEMA).write("copies")
    place.stop()
    try:
        with pytest.raises(SinkUnavailable, match="cannot be written") as sink:
            writing.start(broker=log.path)
        with pytest.raises(SourceUnavailable) as source:
            reading.start(broker=log.path)
    finally:
        place.start()
    for raised in (sink.value, source.value):
        assert raised.where
        assert raised.next_step
    writing.run(broker=log.path, until=CAUGHT_UP)
    assert place.numbers() == [1, 1]


# ---------------------------------------------------------------- a schema registry

OLD = {"type": "record", "name": "Number", "fields": [{"name": "n", "type": "int"}]}
NEW = {"type": "record", "name": "Number", "fields": [{"name": "n", "type": "long"}]}


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistryServer]:
    server = SchemaRegistryServer().start()
    yield server
    server.stop()


def in_wire_format(registry: SchemaRegistryServer, schema: dict[str, Any], number: int) -> bytes:
    subject = f"/subjects/{uuid.uuid4().hex}/versions"
    known = registry.ask(subject, {"schema": json.dumps(schema)})["id"]
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), {"n": number})
    return b"\0" + int(known).to_bytes(4, "big") + content.getvalue()


@pytest.mark.soak
def test_a_job_waits_for_the_registry_of_its_source(
    kafka: KafkaCluster, registry: SchemaRegistryServer, log: EmbeddedLog
) -> None:
    """Its schemas are in memory, so the registry is not stopped: it hangs."""
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    with KafkaLog(f"kafka://{kafka.bootstrap}") as broker:
        broker.create_topic(topic)
        values = [in_wire_format(registry, schema, number) for number, schema in ((1, OLD), (2, NEW))]
        with broker.producer() as producer:
            producer.send(topic, values[0])
        flow = ms.Flow("registered")
        place = ms.kafka(kafka.bootstrap, topic=topic, format="avro", registry=registry.url)
        flow.read(place, "n bigint").write("copies")
        job = flow.start(broker=log.path)
        try:
            until(lambda: copied(log) == [1] or not job.is_running, "the first row")
            with registry.hanging():
                with broker.producer() as producer:
                    producer.send(topic, values[1])
                time.sleep(AWAY_S)
            until(lambda: len(copied(log)) > 1 or not job.is_running, "the second row")
        finally:
            job.stop()
    assert copied(log) == [1, 2]


def test_a_job_needs_the_registry_of_its_sink_only_to_start(
    kafka: KafkaCluster, registry: SchemaRegistryServer, log: EmbeddedLog
) -> None:
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    place = ms.kafka(kafka.bootstrap, topic=topic, format="avro", registry=registry.url)
    flow = ms.Flow("registered")
    flow.read("numbers", SCHEMA).write(place)
    job = flow.start(broker=log.path)
    try:
        send(log, 1)
        until(lambda: sum(job.progress.written.values()) == 1 or not job.is_running, "the first row")
        with registry.hanging():
            send(log, 2)
            until(lambda: sum(job.progress.written.values()) == 2 or not job.is_running, "the second row")
    finally:
        job.stop()
    source, other = ms.Flow("reading"), ms.Flow("other")
    away = ms.kafka(kafka.bootstrap, topic=topic, format="avro", registry="http://127.0.0.1:1")
    source.read(away, SCHEMA).write("copies")
    other.read("numbers", SCHEMA).write(away)
    for made in (source, other):
        with pytest.raises(KafkaUnavailable, match="the schema registry does not answer") as raised:
            made.start(broker=log.path)
        assert raised.value.where == "http://127.0.0.1:1"
