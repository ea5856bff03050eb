"""Rows in Kafka topics in every format, with headers and timestamps, read back by the same flow's source."""

from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, TopicPartition

import millstream as ms
from connectors.support import SCORES, table
from millstream.connectors.opening import open_sink, open_source
from millstream.errors import InvalidSchema
from millstream.records import Schema, batch_to_rows

A, B = {"team": "a", "score": 1}, {"team": "b\n", "score": None}
AT = datetime(2024, 5, 1, 12, 0, 0, 1000, tzinfo=UTC)


@pytest.fixture
def opened(kafka, topic, tmp_path):
    made = []

    def opened(schema, folder="job", **more):
        place = ms.kafka(kafka.bootstrap, topic=topic, **more)
        sink = open_sink(
            place, Schema.of(schema), job=topic, step="out", broker=tmp_path / "log", folder=tmp_path / folder
        )
        made.append(sink)
        return place, sink

    yield opened
    for sink in made:
        sink.close()


def messages(bootstrap, topic, count):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, 30)
    consumer.close()
    return found


def read(place, schema, tmp_path):
    source = open_source(place, Schema.of(schema), broker=None, folder=tmp_path, name="in")
    try:
        parts = source.slices(source.earliest(), source.latest(), 1)
        slabs = [slab for part in parts for each in part for slab in source.read(each)]
        return [
            row for slab in slabs for batch in slab.rows.combine_chunks().to_batches() for row in batch_to_rows(batch)
        ]
    finally:
        source.close()


@pytest.mark.parametrize("format", ["json", "avro", "protobuf", "csv"])
def test_rows_are_read_back(kafka, opened, tmp_path, log, topic, format):
    place, sink = opened(SCORES, format=format)
    sink.write(0, table(SCORES, [A, B]), None)
    sink.write(0, table(SCORES, [A, B]), None)  # once
    assert read(place, SCORES, tmp_path) == [A, B]
    assert (log.describe_topic(topic).settings.schema is None) == (format != "json")


def test_headers_and_timestamps(kafka, opened, tmp_path, topic):
    schema = "id string, at timestamp, h map<string,binary>"
    rows = [
        {"id": "a", "at": AT, "h": {"x": b"1", "y": b"2"}},
        {"id": "b", "at": datetime(1969, 1, 1, tzinfo=UTC), "h": None},
        {"id": "c", "at": None, "h": None},
    ]
    place, sink = opened(schema, headers="h", timestamp="at")
    refused = []
    sink.write(0, table(schema, rows), None, refused.extend)
    assert [(each.row, "not after 1970" in each.reason) for each in refused] == [(1, True)]
    first, second = messages(kafka.bootstrap, topic, 2)
    assert sorted(first.headers()) == [("x", b"1"), ("y", b"2")]
    assert first.timestamp()[1] == int(AT.timestamp() * 1000)
    assert first.value() == b'{"id":"a"}'
    assert second.headers() is None
    assert datetime.now(UTC) - datetime.fromtimestamp(second.timestamp()[1] / 1000, UTC) < timedelta(hours=1)
    found = read(place, "id string, timestamp timestamp, headers map<string,binary>", tmp_path)
    assert found[0] == {"id": "a", "timestamp": AT, "headers": {"x": b"1", "y": b"2"}}


def test_rows_that_a_message_cannot_hold(kafka, opened, topic, tmp_path):
    (tmp_path / "score.proto").write_text('syntax = "proto3"; message Score { int32 n = 1; }')
    place, sink = opened("n bigint", format="protobuf", descriptors=tmp_path / "score.proto")
    refused = []
    sink.write(0, table("n bigint", [{"n": 1}, {"n": 2**31}, {"n": None}, {"n": 4}]), None, refused.extend)
    assert [each.row for each in refused] == [1, 2]
    assert refused[0].reason.startswith("column 'n' has 2147483648, which is out of the range")
    assert place.own_schema(None) == Schema.of("n int")
    assert read(place, "n int, offset bigint", tmp_path) == [{"n": 1, "offset": 0}, {"n": 4, "offset": 1}]


def test_a_topic_of_json_takes_no_other_format(opened):
    opened(SCORES)
    with pytest.raises(InvalidSchema, match="has a schema, so its values cannot be written as avro"):
        opened(SCORES, folder="other", format="avro")
