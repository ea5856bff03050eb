"""Sinks of every kind that survives its process, opened the same way, and what stands in each afterwards."""

import csv
import json
import sqlite3
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.rows import dict_row

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.log import EmbeddedLog
from millstream.records import Schema, rows_to_batch
from waiting import until

SCORES = Schema.of("team string, score int")


def table(schema, rows):
    batch, failures = rows_to_batch(rows, Schema.of(schema))
    assert not failures, failures
    return pa.Table.from_batches([batch])


def weights(*values):
    return pa.array(values, pa.int32())


class Target:
    """A place in a folder or a database, with the log and the job's folder beside it."""

    def __init__(self, kind, folder, dsn=None, key=None):
        self.kind, self.folder, self.dsn, self.key = kind, Path(folder), dsn, key

    def place(self):
        made = {
            "topic": lambda: "scores",
            "parquet": lambda: ms.files(self.folder / "out", "parquet"),
            "json": lambda: ms.files(self.folder / "out", "json"),
            "csv": lambda: ms.files(self.folder / "out", "csv"),
            "rotating": lambda: ms.rotating_file(self.folder / "scores.log", max_size=200, keep=None),
            "sqlite": lambda: ms.sqlite(self.folder / "scores.db", "scores", key=self.key),
            "postgres": lambda: ms.postgres(self.dsn, "scores", key=self.key),
            "delta": lambda: ms.delta_table(self.folder / "lake", key=self.key),
            "iceberg": lambda: ms.iceberg("tests", "games.scores", key=self.key, settings=catalog(self.folder)),
            "kafka": lambda: ms.kafka(self.dsn, topic=f"scores-{self.folder.parent.name}-{self.folder.name}"),
        }
        return made[self.kind]()

    def open(self, schema=SCORES, **more):
        return open_sink(
            self.place(),
            Schema.of(schema),
            job="job",
            step="scores-out",
            broker=self.folder / "log",
            folder=self.folder / "job",
            **more,
        )

    def rows(self):
        """What readers see, as dicts; in order where there is one."""
        if self.kind == "topic":
            with EmbeddedLog(self.folder / "log", upkeep=False) as log, log.consumer("scores") as consumer:
                return [record.value for record in consumer.until_caught_up()]
        if self.kind == "sqlite":
            with sqlite3.connect(self.folder / "scores.db") as db:
                db.row_factory = sqlite3.Row
                return [dict(row) for row in db.execute("SELECT * FROM scores")]
        if self.kind == "postgres":
            with psycopg.connect(self.dsn, row_factory=dict_row) as db:
                return db.execute("SELECT * FROM scores").fetchall()
        if self.kind == "delta":
            return [row for path in delta_files(self.folder / "lake") for row in pq.read_table(path).to_pylist()]
        if self.kind == "iceberg":
            return [row for path in iceberg_files(self.folder) for row in pq.read_table(path).to_pylist()]
        if self.kind == "kafka":
            return [json.loads(value) for _, value in committed(self.dsn, self.place().topic)]
        if self.kind == "rotating":
            files = sorted(self.folder.glob("scores.log*"))
            return [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [row for file in sorted((self.folder / "out").glob("*")) for row in self._of_file(file)]

    def _of_file(self, file):
        if self.kind == "parquet":
            return pq.read_table(file).to_pylist()
        lines = file.read_text().splitlines()
        if self.kind == "json":
            return [json.loads(line) for line in lines]
        return [{**row, "score": int(row["score"])} for row in csv.DictReader(lines)]


def catalog(folder):
    """Settings of an Iceberg catalog in a folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def iceberg_files(folder, table="games.scores"):
    """The data files of the current snapshot."""
    from pyiceberg.catalog import load_catalog

    found = load_catalog("tests", **catalog(folder)).load_table(table).scan().plan_files()
    return sorted(task.file.file_path.removeprefix("file://") for task in found)


def delta_files(folder):
    """The data files of the newest version, as the log lists them."""
    found = {}
    for commit in sorted((Path(folder) / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                found[action["add"]["path"]] = True
            found.pop(action.get("remove", {}).get("path"), None)
    return sorted(str(Path(folder) / unquote(path)) for path in found)


def partitions_of(consumer, topic):
    """None while no broker answers, as when one has just been killed."""
    from confluent_kafka import KafkaException

    try:
        return consumer.list_topics(topic, timeout=10).topics[topic].partitions
    except KafkaException:
        return {}


def committed(servers, topic):
    """All records of a topic of Kafka that readers see, as (key, value), partition after partition."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "tests", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    found = []
    known = until(lambda: partitions_of(consumer, topic), f"the brokers to say which partitions {topic} has")
    for number in known:
        consumer.assign([TopicPartition(topic, number, 0)])
        end = f"the end of partition {number} of {topic}"
        while (message := until(lambda: consumer.consume(1, 1), end)[0]).error() is None:
            found.append((message.key(), message.value()))
        assert message.error().name() == "_PARTITION_EOF", message.error()
    consumer.close()
    return found


LAKES = ("delta", "iceberg")
KINDS = ("topic", "parquet", "json", "csv", "sqlite", "postgres", *LAKES)
