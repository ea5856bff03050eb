"""Debezium's records in Avro, with a schema registry: read as a table, and written for its consumers."""

import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

import millstream as ms
from millstream.capture.changes import envelope
from millstream.connectors.opening import open_sink, open_source
from millstream.plan.endpoints import KeptTable
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


TYPED = Schema.of(
    "id int, name string, born date, at timestamp, local timestamp_ntz, amount decimal(10, 2), data binary, "
    "tags array<string>"
)
FULL = ROW | {
    "born": date(1960, 1, 2),
    "at": datetime(2020, 5, 6, 7, 8, 9, 123456, UTC),
    "local": datetime(1999, 12, 31, 23, 59, 59, 999999),
    "amount": Decimal("-1.20"),
    "data": b"\0\xff",
    "tags": ["x", None],
}


def test_what_is_written_in_avro_is_read_back_and_has_the_schemas_of_debezium(
    kafka, kafka_log, schema_registry, topic, tmp_path
) -> None:
    place = ms.debezium(
        ms.kafka(kafka.bootstrap, topic=topic, format="avro", registry=schema_registry.url), TYPED, key="id"
    )
    schema, at = envelope(TYPED), datetime(2021, 1, 1, tzinfo=UTC)
    nothing = dict.fromkeys(FULL) | {"id": 2}
    changes = [
        {"table": "people", "op": op, "before": before, "after": after, "position": 5, "transaction": "7", "at": at}
        for op, before, after in (("insert", None, FULL), ("insert", None, nothing), ("delete", FULL, None))
    ]
    for _ in range(2):
        sink = open_sink(place, schema, job=topic, step="out", broker=tmp_path / "log", folder=tmp_path / "sink")
        sink.write(0, pa.Table.from_pylist(changes, schema=schema.arrow), None)
        sink.close()
    found = rows_of(KeptTable(place, place.own_schema(None), ("id",), "at", "", "", (), ()), tmp_path)
    assert [(each["op"], each["before"], each["after"]) for each in found] == [
        (each["op"], each["before"], each["after"]) for each in changes
    ]
    with kafka_log.consumer(topic) as consumer:
        records = list(consumer.until_caught_up())
    keys, values = ([record.key for record in records], [record.value for record in records])
    assert keys == [keys[0], keys[1], keys[0], keys[0]]
    assert (values[3], keys[0][5:], keys[1][5:]) == (None, b"\2\2", b"\2\4")
    registered = [
        json.loads(schema_registry.ask(f"/subjects/{topic}-{part}/versions/1")["schema"]) for part in ("value", "key")
    ]
    assert [each["name"] for each in registered] == ["Envelope", "Key"]
    row = {each["name"]: each["type"][1] for each in registered[0]["fields"][0]["type"][1]["fields"]}
    assert row["born"] == {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}
    assert row["local"]["connect.name"] == "io.debezium.time.MicroTimestamp"
    assert (row["amount"]["logicalType"], row["amount"]["scale"]) == ("decimal", 2)
