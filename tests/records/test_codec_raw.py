"""Goal: raw values are their own column; only text that is no UTF-8 is refused."""

import pytest

from millstream.errors import InvalidSchema
from millstream.records import batch_to_rows, codec, rows_to_batch


def test_strings():
    decoded = codec("string").decode(["ä".encode(), None, b"\xff", b"", b"a\nb"])
    assert batch_to_rows(decoded.rows) == [{"value": "ä"}, {"value": ""}, {"value": "a\nb"}]
    assert decoded.indices.tolist() == [0, 3, 4]
    assert decoded.tombstones.tolist() == [1]
    assert [(failure.index, failure.reason) for failure in decoded.failures] == [(2, "not valid UTF-8 at byte 0")]


def test_bytes():
    decoded = codec("bytes", "raw binary").decode([b"\xff", None, b""])
    assert batch_to_rows(decoded.rows) == [{"raw": b"\xff"}, {"raw": b""}]
    assert decoded.failures == []


def test_a_null_is_encoded_as_a_tombstone():
    one = codec("string")
    rows, _ = rows_to_batch([{"value": "a"}, {"value": None}], one.schema)
    assert one.encode(rows).to_pylist() == [b"a", None]


@pytest.mark.parametrize(
    ("name", "schema"), [("string", "a binary"), ("bytes", "a string"), ("string", "a string, b int")]
)
def test_other_schemas_are_refused(name, schema):
    with pytest.raises(InvalidSchema, match="exactly one column"):
        codec(name, schema)
