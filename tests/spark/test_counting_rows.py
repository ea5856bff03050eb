"""Rows are counted on Spark though no column of theirs is used: of every kind of source, and of changes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import millstream as ms
from jobs.support import CAUGHT_UP, read
from kafka_cluster import KafkaCluster
from millstream.log import EmbeddedLog
from millstream.log.kafka.log import KafkaLog

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.more]

COLUMNS = "user string, n int"
CHANGES = f"{COLUMNS}, weight int"
ROWS = [{"user": "ann", "n": 1}, {"user": "bob", "n": 2}, {"user": "ann", "n": 3}]
CHANGED = [{**row, "weight": 1} for row in ROWS] + [{**ROWS[1], "weight": -1}]


def counted(log: EmbeddedLog, source: Any, schema: str, **options: Any) -> int:
    """The last count of a run over all rows."""
    flow = ms.Flow("counting", log=log.path)
    flow.read(source, schema, **options).select("n").group_by().agg(rows=ms.count()).write("counts")
    flow.run(until=CAUGHT_UP, progress="none")
    return sum(row["rows"] * row["weight"] for row in read(log, "counts"))


@pytest.mark.parametrize("changes", [False, True])
def test_a_topic(log: EmbeddedLog, changes: bool) -> None:
    schema, rows = (CHANGES, CHANGED) if changes else (COLUMNS, ROWS)
    log.create_topic("rows", schema=schema)
    with log.producer() as producer:
        for row in rows:
            producer.send("rows", row)
    assert counted(log, "rows", schema, changes=changes) == (2 if changes else 3)


def test_a_lake_table_with_changes(log: EmbeddedLog, tmp_path: Path) -> None:
    write_deltalake(
        tmp_path / "lake", pa.Table.from_pylist(ROWS, pa.schema([("user", pa.string()), ("n", pa.int32())]))
    )
    DeltaTable(tmp_path / "lake").delete("user = 'bob'")
    assert counted(log, ms.delta_table(tmp_path / "lake"), CHANGES, changes=True) == 2


def test_files(log: EmbeddedLog, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "in" / "a.parquet")
    assert counted(log, ms.files(tmp_path / "in", format="parquet"), "user string, n bigint") == 3


def test_a_topic_of_kafka_with_changes(log: EmbeddedLog, kafka: KafkaCluster, kafka_log: KafkaLog) -> None:
    topic = f"changes-{uuid.uuid4().hex}"
    kafka_log.create_topic(topic, schema=CHANGES)
    with kafka_log.producer() as producer:
        for row in CHANGED:
            producer.send(topic, row)
    assert counted(log, ms.kafka(kafka.bootstrap, topic=topic), CHANGES, changes=True) == 2
