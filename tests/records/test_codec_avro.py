"""Goal: Avro records of our own schema and of a foreign writer's are read, and damaged ones refused one by one."""

import io
import json
from uuid import UUID

import fastavro
import pytest

from millstream.errors import InvalidRecord, InvalidSchema, InvalidSetting
from millstream.records import Schema, batch_to_rows, codec, rows_to_batch
from millstream.records.codecs.avro import avro_schema_of

WRITER = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "gone", "type": "int"},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "n", "type": "int"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["CLICK", "VIEW"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "place",
            "type": ["null", {"type": "record", "name": "P", "fields": [{"name": "x", "type": "float"}]}],
        },
    ],
}


def written(schema, record):
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), record)
    return target.getvalue()


@pytest.mark.parametrize("given", [WRITER, json.dumps(WRITER)])
def test_records_of_a_foreign_writer_are_fitted_by_name(given):
    one = codec("avro", "n bigint, id string, kind string, extra int, place struct<x double, y int>", avro_schema=given)
    own = UUID(int=7)
    value = written(WRITER, {"gone": 1, "id": own, "n": 5, "kind": "VIEW", "at": 0, "place": {"x": 0.5}})
    assert batch_to_rows(one.decode([value]).rows) == [
        {"n": 5, "id": str(own), "kind": "VIEW", "extra": None, "place": {"x": 0.5, "y": None}}
    ]


def test_foreign_values_that_do_not_fit_have_a_reason():
    one = codec("avro", "n string", avro_schema=WRITER)
    value = written(WRITER, {"gone": 1, "id": UUID(int=7), "n": 5, "kind": "VIEW", "at": 0, "place": None})
    assert one.decode([value]).failures[0].reason == "column 'n': expected string, found 5 (int)"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "end in the middle"),
        (b"\x08ab", "end in the middle"),
        (b"\x04ab", "end in the middle"),
        (b"\x04ab\x02\x02\x00", "1 bytes follow the Avro record"),
        (b"\x04\xff\xff\x00", "not valid UTF-8"),
        (b"\x04ab\x08", "not an Avro record"),
        (b"\x04ab\x02\x80\x80\x80\x80\x20", "out of its range"),
    ],
)
def test_damaged_records(value, reason):
    one = codec("avro", "s string NOT NULL, n int")
    good = b"\x04ab\x02\x02"
    decoded = one.decode([good, value, good])
    assert batch_to_rows(decoded.rows) == [{"s": "ab", "n": 1}] * 2
    assert [failure.index for failure in decoded.failures] == [1]
    assert reason in decoded.failures[0].reason


def test_the_derived_schema_is_an_avro_schema_with_unique_names():
    schema = Schema.of(
        "a struct<x struct<y int>>, b struct<x struct<y int>>, c array<struct<y int>>, d map<string,struct<y int>>"
    )
    derived = avro_schema_of(schema)
    fastavro.parse_schema(derived)
    names = [part.split('"')[0] for part in json.dumps(derived).split('"type": "record", "name": "')[1:]]
    assert len(names) == len(set(names)) == 7


@pytest.mark.parametrize("schema", ["a map<int,int>", "a interval day to second", "`a b` int", "p struct<`x-y` int>"])
def test_schemas_avro_cannot_hold_are_refused_when_the_codec_is_built(schema):
    with pytest.raises(InvalidSchema, match="column '"):
        codec("avro", schema)


@pytest.mark.parametrize("given", ["{", '"int"', '{"type": "record"}', "[]", 5])
def test_invalid_writer_schemas_are_refused(given):
    with pytest.raises(InvalidSetting, match="avro_schema"):
        codec("avro", "n int", avro_schema=given)


def test_rows_that_do_not_fit_the_writer_schema_are_refused():
    batch, _ = rows_to_batch([{"n": None}], Schema.of("n int"))
    with pytest.raises(InvalidRecord, match="avro_schema"):
        codec("avro", "n int", avro_schema=WRITER).encode(batch)
