"""Goal: Avro records of our own schema and of a foreign writer's are read, and damaged ones refused one by one."""

import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
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


TARGET = {
    "type": "record",
    "name": "Target",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["CLICK", "VIEW"]}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "either", "type": ["null", "double", "Kind"]},
        {"name": "rest", "type": "string", "default": "x"},
    ],
}
HELD = {"n": 1, "kind": "VIEW", "at": datetime(2024, 1, 1, 1, 1, 1, 5000, tzinfo=UTC), "d": Decimal("1.5"),
        "tags": ["a"], "either": "CLICK"}  # fmt: skip
COLUMNS = "n bigint, kind string, at timestamp, d decimal(20,2), tags array<string>, either string"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"n": None}, "column 'n' is null, but its field in avro_schema is required"),
        ({"n": 2**31}, "column 'n' has 2147483648, which is out of its range"),
        ({"kind": "CLOSE"}, "column 'kind' has 'CLOSE', which its enum does not have: CLICK, VIEW"),
        ({"either": "CLOSE"}, "column 'either' has 'CLOSE'"),
        ({"at": HELD["at"] + timedelta(microseconds=1)}, "column 'at' has 2024-01-01T01:01:01.005001+00:00, and its"),
        ({"d": Decimal("1.25")}, "column 'd' has 1.25, which has more than 1 decimal places"),
        ({"d": Decimal("1000.1")}, "column 'd' has 1000.10, which has too many digits"),
        ({"tags": ["a", None]}, "column 'tags[]' is null"),
    ],
)
def test_rows_that_do_not_fit_a_given_schema_are_refused_one_by_one(changed, reason):
    one = codec("avro", COLUMNS, avro_schema=TARGET)
    batch, failures = rows_to_batch([HELD, HELD | changed, HELD], one.schema)
    assert failures == []
    encoded = one.encode_each(batch)
    assert [value is None for value in encoded.values.to_pylist()] == [False, True, False]
    assert encoded.failures[0].reason.startswith(reason)
    read = fastavro.schemaless_reader(io.BytesIO(encoded.values[0].as_py()), fastavro.parse_schema(TARGET), None)
    assert read == HELD | {"rest": "x"}
    with pytest.raises(InvalidRecord, match="row 1 cannot be written as avro: column"):
        one.encode(batch)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("n int", "field 'kind' of avro_schema has no default, and there is no such column"),
        (COLUMNS + ", more int", "avro_schema has no field for column 'more'"),
        (COLUMNS.replace("n bigint", "n string"), "column 'n' is string, but its field in avro_schema is int"),
        (COLUMNS.replace("at timestamp", "at timestamp_ntz"), "its field in avro_schema is null or timestamp-millis"),
    ],
)
def test_columns_without_a_place_in_a_given_schema(columns, said):
    with pytest.raises(InvalidSchema, match=said):
        codec("avro", columns, avro_schema=TARGET).check_encodes()
