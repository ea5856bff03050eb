"""Goal: what a codec writes, other libraries read as the same values. Method: random rows, read with fastavro, with
Google's message classes and with Python's csv."""

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.records import batch_to_rows, codec, rows_to_batch
from millstream.records.codecs.avro import avro_schema_of
from millstream.records.texts import to_texts
from properties import examples

from .arbitrary import protobuf_schemas, row_text, schema_and_rows, schemas


def drawn(data, kind):
    schema, rows = data.draw(schema_and_rows(kind))
    return schema, rows_to_batch(rows, schema)[0]


@examples(60)
@given(data=st.data())
def test_fastavro_reads_what_is_written(data):
    schema, batch = drawn(data, schemas(avro=True))
    derived = fastavro.parse_schema(avro_schema_of(schema))
    for value, row in zip(codec("avro", schema).encode(batch).to_pylist(), batch_to_rows(batch), strict=True):
        assert row_text(fastavro.schemaless_reader(io.BytesIO(value), derived, None)) == row_text(row)


@examples(60)
@given(data=st.data())
def test_pythons_csv_reads_what_is_written(data):
    schema, batch = drawn(data, schemas(nested=False))
    values = codec("csv", schema).encode(batch).to_pylist()
    columns = [[text or "" for text in to_texts(column)] for column in batch.columns]
    for value, fields in zip(values, zip(*columns, strict=True), strict=True):
        found = list(csv.reader(io.StringIO(value.decode(), newline="")))
        assert found == [list(fields)] or (found == [] and fields == ("",))


@examples(60)
@given(data=st.data())
def test_a_message_class_reads_what_is_written(data):
    schema, batch = drawn(data, protobuf_schemas())
    one = codec("protobuf", schema)
    encoded = one.encode_each(batch)
    for value, row in zip(encoded.values.to_pylist(), batch_to_rows(batch), strict=True):
        if value is not None:
            message = one.type.message_class.FromString(value)
            assert row_text(held(message, list(schema.arrow))) == row_text(row)


def held(message, columns):
    return {column.name: field(message, column) for column in columns}


def field(message, column):
    kind, value = column.type, getattr(message, column.name)
    if pa.types.is_list(kind):
        return [plain(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return {key: plain(each, kind.item_type) for key, each in value.items()}
    if message.DESCRIPTOR.fields_by_name[column.name].has_presence and not message.HasField(column.name):
        return None
    return plain(value, kind)


def plain(value, kind):
    if pa.types.is_struct(kind):
        return held(value, list(kind))
    if pa.types.is_timestamp(kind):
        return value.ToDatetime(tzinfo=UTC) if kind.tz else datetime.fromisoformat(value)
    if pa.types.is_duration(kind):
        return value.ToTimedelta()
    if pa.types.is_decimal(kind):
        return Decimal(value)
    return date.fromisoformat(value) if pa.types.is_date(kind) else value
