"""Sinks of every kind that survives its process, opened the same way, and what stands in each afterwards."""

import csv
import json
import sqlite3
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.rows import dict_row

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.log import EmbeddedLog
from millstream.records import Schema, rows_to_batch

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
            "sqlite": lambda: ms.sqlite(self.folder / "scores.db", "scores", key=self.key),
            "postgres": lambda: ms.postgres(self.dsn, "scores", key=self.key),
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
        if self.kind == "kafka":
            return [json.loads(value) for _, value in committed(self.dsn, self.place().topic)]
        return [row for file in sorted((self.folder / "out").glob("*")) for row in self._of_file(file)]

    def _of_file(self, file):
        if self.kind == "parquet":
            return pq.read_table(file).to_pylist()
        lines = file.read_text().splitlines()
        if self.kind == "json":
            return [json.loads(line) for line in lines]
        return [{**row, "score": int(row["score"])} for row in csv.DictReader(lines)]


def committed(servers, topic):
    """All records of a topic of Kafka that readers see, as (key, value), partition after partition."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "tests", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    found = []
    for number in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
        consumer.assign([TopicPartition(topic, number, 0)])
        while (message := consumer.poll(60)).error() is None:
            found.append((message.key(), message.value()))
        assert message.error().name() == "_PARTITION_EOF", message.error()
    consumer.close()
    return found


KINDS = ("topic", "parquet", "json", "csv", "sqlite", "postgres")
