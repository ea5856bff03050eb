"""Debezium's records in Avro, with a schema registry: read as a table, and written for its consumers."""

import io
import json
import struct
from datetime import UTC, datetime

import fastavro
import pyarrow as pa
import pytest

import millstream as ms
from millstream.connectors.opening import open_sink, open_source
from millstream.records import Schema

pytestmark = pytest.mark.more  # the schema registry takes ten seconds to start
VALUE = {
    "type": "record",
    "name": "Value",
    "namespace": "shop.public.people",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "lsn", "type": ["null", "long"], "default": None},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.people",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "shop.public.people.Value"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
"""As Debezium's Avro converter registers it."""
ROW = {"id": 1, "name": "ann"}


def record(id, op, before, after, second):
    source = {"version": "3.6", "connector": "postgresql", "ts_ms": 1000 * second, "lsn": None}
    encoded = io.BytesIO()
    change = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 9}
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(ENVELOPE), change)
    return struct.pack(">bI", 0, id) + encoded.getvalue()


def rows_of(kept, folder):
    source = open_source(kept.source, kept.schema, broker=None, folder=folder / "job", name="people")
    try:
        tasks = source.slices(source.earliest(), source.latest(), 1)
        return [row for task in tasks for each in task for slab in source.read(each) for row in slab.rows.to_pylist()]
    finally:
        source.close()


def test_records_of_debezium_in_avro_are_a_table(kafka, kafka_log, schema_registry, topic, tmp_path) -> None:
    kafka_log.create_topic(topic)
    id = schema_registry.ask(f"/subjects/{topic}-value/versions", {"schema": json.dumps(ENVELOPE)})["id"]
    new = ROW | {"name": None}
    with kafka_log.producer() as producer:
        for op, before, after, second in (("r", None, ROW, 1), ("u", ROW, new, 2), ("d", new, None, 3)):
            producer.send(topic, record(id, op, before, after, second), key="1")
        producer.send(topic, None, key="1")  # the tombstone that Debezium adds
    written = ms.kafka(kafka.bootstrap, topic=topic, format="avro", registry=schema_registry.url)
    kept = ms.debezium(written, "id int, name string", key="id").as_table(None)
    found = rows_of(kept, tmp_path)
    assert [(row["id"], row["name"], row["__op"], row["__at"]) for row in found] == [
        (1, "ann", "snapshot", datetime.fromtimestamp(1, UTC)),
        (1, None, "update", datetime.fromtimestamp(2, UTC)),
        (1, None, "delete", datetime.fromtimestamp(3, UTC)),
    ]


def test_written_in_avro_the_records_have_a_schema_and_are_the_same_table(
    kafka, schema_registry, topic, tmp_path
) -> None:
    row = "struct<id int, name string>"
    schema = Schema.of(
        f"before {row}, after {row}, op string, ts_ms bigint, source struct<`table` string, ts_ms bigint>"
    )
    place = ms.kafka(kafka.bootstrap, topic=topic, format="avro", registry=schema_registry.url)
    source = {"table": "people", "ts_ms": 1000}
    changes = [
        {"before": None, "after": ROW, "op": "c", "ts_ms": 1000, "source": source},
        {"before": ROW, "after": None, "op": "d", "ts_ms": 1000, "source": source},
    ]
    sink = open_sink(place, schema, job=topic, step="out", broker=tmp_path / "log", folder=tmp_path / "sink")
    sink.write(0, pa.Table.from_pylist(changes, schema=schema.arrow), None)
    sink.close()
    assert schema_registry.ask(f"/subjects/{topic}-value/versions") == [1]
    kept = ms.debezium(place, "id int, name string", key="id").as_table(None)
    assert [(each["id"], each["name"], each["__op"]) for each in rows_of(kept, tmp_path)] == [
        (1, "ann", "insert"),
        (1, "ann", "delete"),
    ]
