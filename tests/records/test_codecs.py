"""Goal: what every codec promises. Method: the same properties for each of them, on random schemas, rows and bytes."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSchema, InvalidSetting
from millstream.records import Failure, Schema, codec, codec_names, rows_to_batch
from millstream.records.codecs.base import CHUNK_RECORDS
from properties import examples

from .arbitrary import protobuf_schemas, schema_and_rows, schemas, seen

SCHEMA = "user string NOT NULL, n int, x float, d decimal(5,2), at timestamp, day date, raw binary"
NESTED = SCHEMA + ", tags array<int>, place struct<lat double, lon double NOT NULL>, m map<string,bigint>"

KINDS = {
    "json": schemas(),
    "avro": schemas(avro=True),
    "protobuf": protobuf_schemas(),
    "csv": schemas(nested=False),
    "string": st.just(Schema.of("text string NOT NULL")),
    "bytes": st.just(Schema.of("raw binary NOT NULL")),
}


@pytest.mark.parametrize("name", KINDS)
@examples(100)
@given(data=st.data())
def test_rows_that_are_encoded_are_decoded_again(name, data):
    schema, rows = data.draw(schema_and_rows(KINDS[name]))
    batch, _ = rows_to_batch(rows, schema)
    one = codec(name, schema)
    if name == "protobuf":  # which has no nulls in arrays and maps
        batch = kept_by(one, batch)
    encoded = one.encode(batch)
    decoded = one.decode(encoded)
    assert encoded.type == pa.binary()
    assert decoded.failures == []
    assert decoded.rows.schema == schema.arrow
    assert seen(decoded.rows) == seen(batch)
    assert decoded.indices.tolist() == list(range(batch.num_rows))


def kept_by(one, batch):
    refused = {failure.index for failure in one.encode_each(batch).failures}
    return batch.take(pa.array([row for row in range(batch.num_rows) if row not in refused], pa.int64()))


def assert_each_value_is_decoded_alone(one, values):
    """The decisive rule: decoding together is the same as decoding apart, in rows, places, reasons and tombstones."""
    together = one.decode(values)
    apart = [one.decode([value]) for value in values]
    assert seen(together.rows) == [text for each in apart for text in seen(each.rows)]
    assert together.indices.tolist() == [at for at, each in enumerate(apart) if each.rows.num_rows]
    assert together.tombstones.tolist() == [at for at, value in enumerate(values) if value is None]
    assert together.failures == [Failure(at, fault.reason) for at, each in enumerate(apart) for fault in each.failures]
    assert len(together.indices) + len(together.failures) + len(together.tombstones) == len(values)
    assert seen(one.decode(pa.array(values, pa.binary())).rows) == seen(together.rows)


def spoiled(good: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Good values, some cut short, prolonged, changed in one byte, or with two in one."""
    place = st.integers(0, 200)
    return st.one_of(
        good,
        st.tuples(good, place).map(lambda made: made[0][: made[1]]),
        st.tuples(good, st.binary(min_size=1, max_size=3)).map(b"".join),
        st.tuples(good, st.sampled_from([b"", b"\n", b",", b" "]), good).map(b"".join),
        st.tuples(good, place, st.integers(0, 255)).map(_with_byte),
        good.map(lambda value: b"\xef\xbb\xbf" + value),
        st.binary(max_size=6),
    )


def _with_byte(made: tuple[bytes, int, int]) -> bytes:
    value, place, byte = made
    place %= len(value) + 1
    return value[:place] + bytes([byte]) + value[place + 1 :]


@pytest.mark.parametrize("name", KINDS)
@examples(100)
@given(data=st.data())
def test_a_value_is_decoded_alone(name, data):
    nests = name in ("json", "avro", "protobuf")
    one = codec(name, Schema.of(NESTED if nests else SCHEMA) if nests or name == "csv" else None)
    _, rows = data.draw(schema_and_rows(st.just(one.schema)))
    encoded = one.encode_each(rows_to_batch(rows, one.schema)[0])
    good = [value for value in encoded.values.to_pylist() if value is not None]
    drawn = st.sampled_from(good) if good else st.just(b"")
    assert_each_value_is_decoded_alone(one, data.draw(st.lists(st.none() | spoiled(drawn), max_size=8)))


@pytest.mark.parametrize("name", ["json", "csv", "avro", "protobuf"])
def test_chunks_do_not_matter(name):
    one = codec(name, "n int")
    count = 2 * CHUNK_RECORDS + 7
    values = one.encode(rows_to_batch([{"n": n} for n in range(count)], one.schema)[0]).to_pylist()
    bad_at, null_at = CHUNK_RECORDS + 3, CHUNK_RECORDS - 1
    values[bad_at], values[null_at] = b"\xff,\xff", None
    decoded = one.decode(values)
    assert decoded.rows.column("n").to_pylist() == [n for n in range(count) if n not in (bad_at, null_at)]
    assert decoded.indices.tolist() == decoded.rows.column("n").to_pylist()
    assert [failure.index for failure in decoded.failures] == [bad_at]
    assert decoded.tombstones.tolist() == [null_at]
    assert decoded.indices.dtype == decoded.tombstones.dtype == np.int64


@pytest.mark.parametrize("name", KINDS)
def test_nothing_and_only_tombstones(name):
    one = codec(name, None if name in ("string", "bytes") else "n int")
    for values in ([], [None, None], pa.array([], pa.binary()), pa.array([None], pa.large_binary())):
        decoded = one.decode(values)
        assert decoded.rows.num_rows == 0
        assert decoded.rows.schema == one.schema.arrow
        assert decoded.tombstones.tolist() == list(range(len(values)))
        assert decoded.failures == []
    assert len(one.encode(decoded.rows)) == 0


def test_codecs_are_values():
    for one in (codec("json", "n int"), codec("csv", "n int", delimiter=";"), codec("avro", "n int"), codec("string"),
                codec("protobuf", "n int")):  # fmt: skip
        assert pickle.loads(pickle.dumps(one)) == one
        assert len({one, pickle.loads(pickle.dumps(one))}) == 1
    assert codec("csv", "n int") != codec("csv", "n int", delimiter=";")


def test_encoding_takes_rows_of_an_older_schema():
    batch, _ = rows_to_batch([{"n": 1}], Schema.of("n int"))
    assert codec("json", "n bigint, s string").encode(batch).to_pylist() == [b'{"n":1,"s":null}']
    with pytest.raises(InvalidSchema):
        codec("json", "n string").encode(batch)


def test_unknown_codecs_and_options_list_those_that_exist():
    assert codec_names() == ["json", "avro", "csv", "string", "bytes", "protobuf"]
    with pytest.raises(InvalidSetting, match="json, avro, csv, string, bytes, protobuf"):
        codec("thrift", "n int")
    with pytest.raises(InvalidSetting, match="delimiter"):
        codec("csv", "n int", header=True)
    with pytest.raises(InvalidSetting, match="it has none"):
        codec("json", "n int", multiline=True)
    with pytest.raises(InvalidSchema, match="needs a schema"):
        codec("json")
