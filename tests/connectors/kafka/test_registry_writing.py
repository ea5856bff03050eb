"""Goal: what is written with a schema registry, any client of that registry can read.

Method: a real registry (Apicurio's, through the HTTP interface of Confluent's) next to a real Kafka.
"""

import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pytest

import millstream as ms
from connectors.support import table
from millstream.connectors.kafka.registry_client import RegistryClient
from millstream.connectors.kafka.schema_registry import Registry, registry_codec
from millstream.connectors.kafka.subjects import framed_codec, record_name
from millstream.connectors.opening import open_sink
from millstream.connectors.topic.record_format import plain_options
from millstream.errors import IncompatibleSchema, UnknownSchema
from millstream.records import Schema, batch_to_rows, rows_to_batch

from .test_formats import read

pytestmark = pytest.mark.more

COLUMNS = "id string NOT NULL, n int, tags array<string>, place struct<x: double>, at timestamp, d decimal(10,2)"
SCHEMA = Schema.of(COLUMNS)
ROW = {"id": "a", "n": None, "tags": ["x"], "place": {"x": 1.5}, "at": datetime(2020, 1, 1, tzinfo=UTC),
       "d": Decimal("1.50")}  # fmt: skip
LATER = Schema.of(COLUMNS + ", more string")


@pytest.fixture
def name():
    return f"orders-{uuid.uuid4().hex[:8]}"


def encoded(codec, *rows):
    batch, failures = rows_to_batch(rows, codec.schema)
    assert failures == []
    return codec.encode(batch).to_pylist()


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_rows_are_written_and_read_with_the_registry(kafka, schema_registry, topic, tmp_path, format):
    place = ms.kafka(kafka.bootstrap, topic=topic, format=format, registry=schema_registry.url)
    for number, (schema, more) in enumerate([(SCHEMA, {}), (LATER, {"more": "m"})]):
        sink = open_sink(place, schema, job=topic, step="out", broker=tmp_path / "log", folder=tmp_path / "job")
        sink.write(number, table(schema, [ROW | more]), None)
        sink.close()
    assert schema_registry.ask(f"/subjects/{topic}-value/versions") == [1, 2]
    assert read(place, LATER, tmp_path) == [ROW | {"more": None}, ROW | {"more": "m"}]


@pytest.mark.parametrize("naming", ["topic", "record", "topic_record"])
@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_subjects_are_named(schema_registry, name, format, naming):
    client = RegistryClient(schema_registry.url)
    made = framed_codec(client, format, name, {}, naming, True)(SCHEMA)
    record = record_name(name)
    subject = {"topic": f"{name}-value", "record": record, "topic_record": f"{name}-{record}"}[naming]
    found = schema_registry.ask(f"/subjects/{subject}/versions/1")
    assert found["id"].to_bytes(4, "big") == made.begin[1:5]
    assert framed_codec(client, format, name, {}, naming, False)(SCHEMA).begin == made.begin  # it is there now


@pytest.mark.parametrize(
    ("format", "fields"),
    [
        ("avro", ["field 'n'", "field 'must'"]),
        ("protobuf", ["field 'n' (2) of OrdersX was int32 and is string"]),
        ("json", ["/properties/n"]),
    ],
)
def test_an_incompatible_schema_is_refused_with_its_differences(schema_registry, name, format, fields):
    make = framed_codec(RegistryClient(schema_registry.url), format, name, {}, "topic", True)
    make(SCHEMA)
    schema_registry.ask(f"/config/{name}-value", {"compatibility": "BACKWARD"}, "PUT")
    make(LATER)
    worse = COLUMNS.replace("n int", "n string") + ", must string NOT NULL"
    with pytest.raises(IncompatibleSchema, match=f"subject '{name}-value' of the schema registry rejects") as refused:
        make(Schema.of(worse))
    for field in fields:
        assert field.replace("OrdersX", record_name(name)) in refused.value.what
    assert "compatibility level" in refused.value.next_step
    assert schema_registry.ask(f"/subjects/{name}-value/versions") == [1, 2]


def test_a_schema_that_may_not_be_registered(schema_registry, name):
    with pytest.raises(UnknownSchema, match="register=False"):
        framed_codec(RegistryClient(schema_registry.url), "avro", name, {}, "topic", False)(SCHEMA)
    assert f"{name}-value" not in schema_registry.ask("/subjects")


def test_references_of_avro_are_followed(schema_registry, name):
    place = {"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "x", "type": "double"}]}
    visit = {"type": "record", "name": "Visit", "namespace": "geo", "fields": [
        {"name": "begin", "type": "Place"}, {"name": "end", "type": ["null", "geo.Place"]}]}  # fmt: skip
    schema_registry.ask(f"/subjects/{name}-place/versions", {"schema": json.dumps(place)})
    reference = {"name": "geo.Place", "subject": f"{name}-place", "version": 1}
    content = {"schema": json.dumps(visit), "references": [reference]}
    number = schema_registry.ask(f"/subjects/{name}/versions", content)["id"]
    value = b"\0" + number.to_bytes(4, "big") + b"\0" * 6 + b"\xf0\x3f" + b"\0"
    columns = Schema.of("begin struct<x: double>, end struct<x: double>")
    found = registry_codec(columns, "avro", Registry(schema_registry.url)).decode([value])
    assert found.failures == []
    assert found.rows.to_pylist() == [{"begin": {"x": 1.0}, "end": None}]


def test_imports_of_protobuf_are_registered_and_followed(schema_registry, name, tmp_path):
    line = f"{name}-line.proto"
    (tmp_path / line).write_text('syntax = "proto3"; package shop; message Line { float price = 1; }')
    (tmp_path / "order.proto").write_text(
        f'syntax = "proto3"; package shop; import "{line}"; message Other {{ int32 x = 1; }} '
        "message Order { message Deep { repeated Line lines = 1; } }"
    )
    options = plain_options("protobuf", {"message": "shop.Order.Deep", "descriptors": tmp_path / "order.proto"})
    columns = Schema.of("lines array<struct<price: float>>")
    made = framed_codec(RegistryClient(schema_registry.url), "protobuf", name, options, "topic", True)(columns)
    assert made.begin[5:] == b"\x04\x02\x00"  # two numbers: the second message of the file, the first inside it
    [reference] = schema_registry.ask(f"/subjects/{name}-value/versions/1")["references"]
    assert reference == {"name": line, "subject": line, "version": 1}
    row = {"lines": [{"price": 1.5}]}
    found = registry_codec(columns, "protobuf", Registry(schema_registry.url)).decode(encoded(made, row))
    assert batch_to_rows(found.rows) == [row]
