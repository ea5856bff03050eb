"""Rows in topics of bytes: each format is written so that another library reads the same, and rows that it cannot hold
are refused one by one."""

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from connectors.support import SCORES, table
from millstream.connectors.opening import open_sink, open_source
from millstream.errors import InvalidInput, InvalidSchema, SinkFailed
from millstream.log import EmbeddedLog
from millstream.records import Schema, batch_to_rows, codec
from millstream.records.codecs.avro import avro_schema_of
from properties import examples
from records.arbitrary import row_text, schema_and_rows, schemas

A, B = {"team": "a", "score": 1}, {"team": 'b,"\n', "score": None}
AT = datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=UTC)
FORMATS = {
    "json": lambda value: json.loads(value),
    "avro": lambda value: fastavro.schemaless_reader(io.BytesIO(value), avro_schema_of(SCORES), None),
    "csv": lambda value: dict(zip(SCORES.names, next(csv.reader([value.decode()])), strict=True)),
    "protobuf": lambda value: _read_by_protobuf(value),
}


def _read_by_protobuf(value):
    made = codec("protobuf", SCORES).type.message_class.FromString(value)
    return {name: getattr(made, name) if made.HasField(name) else None for name in SCORES.names}


@pytest.fixture
def opened(log, tmp_path):
    def opened(place, schema=SCORES, **more):
        return open_sink(place, Schema.of(schema), job="job", step="out", broker=log, folder=tmp_path, **more)

    return opened


def records(log, topic):
    with log.consumer(topic) as consumer:
        return list(consumer.until_caught_up())


def read(log, place, schema, tmp_path):
    source = open_source(place, Schema.of(schema), broker=str(log.path), folder=tmp_path, name="in")
    try:
        found = source.slices(source.earliest(), source.latest(), 1)
        return [
            row
            for part in found
            for each in part
            for slab in source.read(each)
            for batch in slab.rows.combine_chunks().to_batches()
            for row in batch_to_rows(batch)
        ]
    finally:
        source.close()


@pytest.mark.parametrize("format", FORMATS)
def test_another_library_reads_what_is_written(log, opened, tmp_path, format):
    place = ms.topic("scores", format=format)
    with_key = opened(place, keys=["team"])
    with_key.write(0, table(SCORES, [A]), None)
    with_key.close()
    assert log.describe_topic("scores").settings.schema is None
    [record] = records(log, "scores")
    assert FORMATS[format](record.value) == (A if format != "csv" else {"team": "a", "score": "1"})
    assert record.key == b"a"
    sink = opened(place)
    sink.write(1, table(SCORES, [B]), None)
    sink.close()
    assert read(log, place, SCORES, tmp_path) == [A, B]


def test_text_and_bytes(log, opened, tmp_path):
    sink = opened(ms.topic("lines", format="string"), "line string")
    refused = []
    sink.write(0, table("line string", [{"line": "a\nb"}, {"line": None}, {"line": ""}]), None, refused.extend)
    sink.close()
    assert [record.value for record in records(log, "lines")] == [b"a\nb", b""]
    assert [(each.row, each.reason) for each in refused] == [
        (1, "its only column is null, and a record without a value is a tombstone")
    ]
    with pytest.raises(InvalidSchema, match="exactly one column of type string"):
        opened(ms.topic("other", format="string"))


def test_headers_and_timestamps_are_columns(log, opened, tmp_path):
    schema = "id string, at timestamp, trace string, n int"
    rows = [{"id": "a", "at": AT, "trace": "t1", "n": 1}, {"id": "b", "at": None, "trace": None, "n": 2}]
    place = ms.topic("events", format="avro", headers={"trace": "trace", "count": "n"}, timestamp="at")
    sink = opened(place, schema)
    sink.write(0, table(schema, rows), None)
    sink.close()
    first, second = records(log, "events")
    assert dict(first.headers) == {"trace": b"t1", "count": b"1"}
    assert first.timestamp == AT
    assert dict(second.headers) == {"count": b"2"}
    assert second.timestamp.year >= 2024
    found = read(log, place, "id string, timestamp timestamp, headers map<string,binary>", tmp_path)
    assert found[0] == {"id": "a", "timestamp": AT, "headers": {"trace": b"t1", "count": b"1"}}


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_a_topic_with_a_schema_has_headers_too(log, opened, keys):
    schema = "id string, h map<string,string>, at timestamp"
    sink = opened(ms.topic("events", headers="h", timestamp="at"), schema, keys=keys)
    sink.write(0, table(schema, [{"id": "a", "h": {"x": "1"}, "at": AT}, {"id": "b", "h": None, "at": AT}]), None)
    sink.close()
    assert log.describe_topic("events").settings.schema == Schema.of("id string")
    first, second = records(log, "events")
    assert (first.value, dict(first.headers), first.timestamp) == ({"id": "a"}, {"x": b"1"}, AT)
    assert (first.key, dict(second.headers or {})) == (b"a" if keys else None, {})


def test_rows_that_a_format_cannot_hold_are_refused_and_the_rest_is_written(log, opened):
    avro = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    sink = opened(ms.topic("numbers", format="avro", avro_schema=avro), "n bigint")
    refused = []
    rows = table("n bigint", [{"n": 1}, {"n": None}, {"n": 2**40}, {"n": 2}])
    sink.write(0, rows, None, refused.extend)
    assert [each.row for each in refused] == [1, 2]
    assert refused[0].reason == "column 'n' is null, but its field in avro_schema is required"
    assert [record.value for record in records(log, "numbers")] == [b"\x02", b"\x04"]
    with pytest.raises(SinkFailed, match="column 'n' is null") as stopped:
        sink.write(1, rows, None)
    assert "row 1 of the batch" in str(stopped.value)
    sink.close()
    assert len(records(log, "numbers")) == 2


def test_a_topic_with_a_schema_takes_no_format(log, opened):
    opened("scores").close()
    with pytest.raises(InvalidSchema, match="topic 'scores' has a schema, so its values cannot be written as avro"):
        opened(ms.topic("scores", format="avro"))


@pytest.mark.parametrize(
    ("make", "schema", "said"),
    [
        (lambda: ms.topic("t", format="xml"), None, "there is no format 'xml'"),
        (lambda: ms.topic("t", delimiter=";"), None, "delimiter belongs to a format"),
        (lambda: ms.topic("t", format="csv", headers=5), None, "headers must be a column or a dict"),
        (lambda: ms.topic("t", format="csv", headers={}), None, "headers are names and columns"),
        (lambda: ms.topic("t", format="csv", colour="red"), "a int", "has no option 'colour'"),
        (lambda: ms.topic("t", format="csv"), "a array<int>", "a CSV field cannot represent"),
        (lambda: ms.topic("t", timestamp="when"), "a int", "there is no column 'when' for the timestamp"),
        (lambda: ms.topic("t", timestamp="a"), "a int, b int", "column 'a' for timestamp= is int, not a timestamp"),
        (lambda: ms.topic("t", headers="a"), "a int, b int", "not map<string,binary> or map<string,string>"),
        (lambda: ms.topic("t", headers={"x": "a"}), "a int", "no column is left for the value"),
        (lambda: ms.topic("t", format="protobuf", message="M"), None, "where message 'M' is defined is not known"),
    ],
)
def test_mistakes_are_refused_when_the_flow_is_built(make, schema, said):
    with pytest.raises(InvalidInput, match=said) as refused:
        ms.Flow("f").read("in", schema or "a int").write(make())
    assert "test_formats.py" in str(refused.value)


@pytest.mark.parametrize("format", ["json", "avro", "csv"])
@examples(15)
@given(data=st.data())
def test_what_is_written_is_read_back(tmp_path_factory, format, data):
    """Through the log itself: the sink of a job, then its source."""
    schema, rows = data.draw(schema_and_rows(schemas(nested=format != "csv", avro=True)))
    metadata = {"key", "topic", "partition", "offset", "timestamp", "headers"}
    if not rows or metadata & set(schema.names):
        return
    folder = tmp_path_factory.mktemp("log")
    place = ms.topic("rows", format=format)
    with EmbeddedLog(folder / "log") as log:
        sink = open_sink(place, schema, job="job", step="out", broker=log, folder=folder / "job")
        sink.write(0, table(schema, rows), None)
        sink.close()
        found = read(log, place, schema, folder)
    assert list(map(row_text, found)) == list(map(row_text, rows))


def test_decimals_of_json_are_exact(log, opened, tmp_path):
    schema = "d decimal(38,10)"
    rows = [{"d": Decimal("1234567890123456789012345678.0123456789")}]
    place = ms.topic("numbers", format="json")
    sink = opened(place, schema)
    sink.write(0, table(schema, rows), None)
    sink.close()
    assert records(log, "numbers")[0].value == b'{"d":1234567890123456789012345678.0123456789}'
    assert read(log, place, schema, tmp_path) == rows
