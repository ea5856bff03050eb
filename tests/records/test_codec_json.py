"""Goal: a JSON field becomes exactly the value it says or a reason a person understands, whatever stands beside it."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSchema
from millstream.records import batch_to_rows, codec
from properties import examples

from .test_codecs import assert_each_value_is_decoded_alone, spoiled


def decode_one(dtype, text):
    decoded = codec("json", f"x {dtype}").decode([b'{"x": ' + text.encode() + b"}"])
    return batch_to_rows(decoded.rows)[0]["x"] if decoded.rows.num_rows else decoded.failures[0].reason


LONG = "123456789012345678.12345678901234567890"
MOMENT = datetime(2024, 5, 1, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        ("boolean", "true", True),
        ("int", "-5", -5),
        ("bigint", "9223372036854775807", 2**63 - 1),
        ("double", "5", 5.0),
        ("double", "1e3", 1000.0),
        ("double", '"Infinity"', float("inf")),
        ("float", '"-Infinity"', float("-inf")),
        ("double", "18446744073709551616", 2.0**64),
        ("decimal(38,20)", LONG, Decimal(LONG)),
        ("decimal(5,2)", '"1.5"', Decimal("1.50")),
        ("decimal(5,2)", "1e2", Decimal("100.00")),
        ("decimal(38,0)", "99999999999999999999999999999999999999", Decimal(10**38 - 1)),
        ("string", '"a\\nb"', "a\nb"),
        ("string", '"\\ud83d\\ude00"', "😀"),
        ("binary", '"AAEC"', b"\x00\x01\x02"),
        ("date", '"2024-02-29"', date(2024, 2, 29)),
        ("timestamp", '"2024-05-01T12:30:15.123456Z"', MOMENT),
        ("timestamp", '"2024-05-01 12:30:15.123456789Z"', MOMENT),
        ("timestamp", '"2024-05-01T14:30:15.123456+02:00"', MOMENT),
        ("timestamp", '"2024-05-01T14:30:15.123456+0200"', MOMENT),
        ("timestamp", '"2024-05-01T14:30:15.123456+02"', MOMENT),
        ("timestamp", '"2024-05-01T12:30:15.123456"', MOMENT),
        ("timestamp", '"2024-05-01T12:30:15.1Z"', MOMENT.replace(microsecond=100000)),
        ("timestamp", '"1969-12-31T23:59:59.9999999Z"', datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("timestamp_ntz", '"2024-05-01T12:30:15.123456"', MOMENT.replace(tzinfo=None)),
        ("interval day to second", "\"INTERVAL '-1 02:03:04.5' DAY TO SECOND\"",
         -timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("array<int>", "[1, null]", [1, None]),
        ("map<string,int>", '{"a": 1, "b": null}', {"a": 1, "b": None}),
        ("map<int,boolean>", '{"7": true}', {7: True}),
        ("map<timestamp,int>", '{"2024-05-01T12:30:15.123456Z": 1}', {MOMENT: 1}),
        ("struct<a int, b string>", '{"b": "x", "c": 5}', {"a": None, "b": "x"}),
        ("int", "1, \"x\": 2", 2),
        ("int", "null", None),
    ],
)  # fmt: skip
def test_values_that_fit(dtype, text, value):
    assert decode_one(dtype, text) == value


@pytest.mark.parametrize(
    ("dtype", "text", "reason"),
    [
        ("boolean", '"true"', 'expected boolean, found "true"'),
        ("boolean", "1", "expected boolean, found 1"),
        ("int", '"5"', 'expected int, found "5"'),
        ("int", "5.0", "expected int, found 5.0"),
        ("int", "true", "expected int, found true"),
        ("int", "2147483648", "out of its range of -2147483648 to 2147483647"),
        ("bigint", "9223372036854775808", "out of its range"),
        ("bigint", "1" + "0" * 30, "expected bigint, found 1e+30"),
        ("int", "NaN", "not valid JSON at character 6"),
        ("double", "1e400", "out of range"),
        ("float", "1e300", "out of its range"),
        ("double", '"1.5"', 'expected double, found "1.5"'),
        ("decimal(5,2)", "1.555", "more than 2 decimal places"),
        ("decimal(5,2)", "0.1000000000000000055", "more than 2 decimal places"),
        ("decimal(5,2)", "1000", "too many digits"),
        ("decimal(5,2)", '"one"', 'found "one"'),
        ("decimal(5,2)", "true", "found true"),
        ("string", "5", "expected string, found 5"),
        ("string", '"\\ud800"', "not valid JSON"),
        ("binary", '"AAE"', "expected binary (base64 text)"),
        ("date", '"2023-02-29"', "a day that does not exist"),
        ("date", '"01.02.2024"', "expected date (YYYY-MM-DD)"),
        ("timestamp", "1714566615", "expected timestamp (ISO 8601 text), found 1714566615"),
        ("timestamp", '"2024-05-01"', "ISO 8601"),
        ("timestamp", '"2024-13-01T00:00:00Z"', "a time that does not exist"),
        ("timestamp", '"2024-05-01T24:00:00Z"', "ISO 8601"),
        ("timestamp", '"2024-W18-3T00:00:00Z"', "ISO 8601"),
        ("timestamp", '"0000-01-01T00:00:00Z"', "does not exist"),
        ("timestamp", '"0001-01-01T00:00:00+01:00"', "does not exist"),
        ("timestamp_ntz", '"2024-05-01T12:30:15Z"', "with a time zone"),
        ("interval day to second", '"5 minutes"', "expected interval"),
        ("array<int>", '{"a": 1}', "expected an array, found an object"),
        ("array<int>", '[1, "b"]', "column 'x[]': expected int, found \"b\""),
        ("map<string,int>", "[1]", "expected an object, found an array"),
        ("map<int,int>", '{"a": 1}', "column 'x{key}': expected int, found \"a\""),
        ("struct<a array<struct<b int NOT NULL>>>", '{"a": [{}]}', "column 'x.a[].b': is missing or null"),
        ("struct<a int>", '"a"', 'expected an object, found "a"'),
        ("int NOT NULL", "null", "column 'x': is missing or null, but the column is NOT NULL"),
    ],
)
def test_values_that_do_not_fit(dtype, text, reason):
    assert reason in decode_one(dtype, text)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty"),
        (b"   ", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"x": "\xff"}', "not valid UTF-8 at byte 7"),
        (b"{} {}", "not valid JSON at character 3"),
        (b"{}\n{}", "not valid JSON"),
        (b"[]", "expected a JSON object, found an array"),
        (b"null", "expected a JSON object, found null"),
        (b"7", "expected a JSON object, found 7"),
        (b'{"x": 1', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"y":' * 2000 + b"1" + b"}" * 2000, "nested too deeply"),
        (b"{'x': 1}", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("schema", ["x int", "x int, d decimal(5,2)"])
def test_values_that_are_not_json_objects(schema, value, reason):
    decoded = codec("json", schema).decode([b'{"x": 1}', value, b'\n{"x":\n2}\n'])
    assert decoded.rows.column("x").to_pylist() == [1, 2]
    assert decoded.indices.tolist() == [0, 2]
    assert [failure.index for failure in decoded.failures] == [1]
    assert reason in decoded.failures[0].reason


FIELDS = ["n", "f", "d", "s", "at", "ntz", "day", "raw", "tags", "p", "m", "unknown"]
SCHEMA = (
    "n int, f float, d decimal(6,3), s string NOT NULL, at timestamp, ntz timestamp_ntz, day date, raw binary,"
    " tags array<bigint>, p struct<x int NOT NULL, y array<string>>, m map<int,double>"
)
MOMENTS = st.one_of(
    st.datetimes().map(datetime.isoformat),
    st.tuples(
        st.sampled_from(["2024-05-01", "0001-01-01", "9999-12-31", "2023-02-29", "0000-01-01", "2024-5-1"]),
        st.sampled_from(["T", " ", "t", ""]),
        st.sampled_from(["00:00:00", "23:59:59", "23:59:60", "24:00:00", "12:00", "00:00:00.1", "00:00:00.123456789"]),
        st.sampled_from(["", "Z", "+01:00", "-23:59", "+24:00", "+0100", "+01", "z", " "]),
    ).map("".join),
)  # fmt: skip
LITERALS = st.one_of(
    MOMENTS.map(json.dumps),
    st.integers().map(str),
    st.decimals(-1000, 1000, places=3).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.text(max_size=4).map(json.dumps),
    st.sampled_from(
        [
            "null",
            "true",
            "NaN",
            "Infinity",
            '"NaN"',
            '"Infinity"',
            "1e400",
            "-0",
            "1E2",
            "01",
            '"1.5"',
            '"AAE="',
            "[]",
            "{}",
            "[1, 2]",
            "[1, null]",
            '["a"]',
            "[[[1]]]",
            '{"x": 1}',
            '{"x": null}',
            '{"a": 1}',
            '{"1": 2.5}',
            '{"x": 1, "y": ["a", null]}',
            "18446744073709551616",
            "1" * 400,
            '"\\ud800"',
            '"a\\u0000b"',
            '"a\nb"',
            '"2024-05-01"',
        ]
    ),
)
OBJECTS = st.lists(st.tuples(st.sampled_from(FIELDS), LITERALS), max_size=5).map(
    lambda pairs: ("{" + ", ".join(f'"{name}": {text}' for name, text in [("s", '"ok"'), *pairs]) + "}").encode(
        "utf-8", "surrogatepass"
    )
)


@pytest.mark.parametrize("schema", [SCHEMA, SCHEMA.replace("decimal(6,3)", "double")])
@examples(100)
@given(values=st.lists(st.none() | spoiled(OBJECTS), max_size=8))
def test_a_value_is_decoded_alone(schema, values):
    assert_each_value_is_decoded_alone(codec("json", schema), values)


@pytest.mark.parametrize("dtype", ["timestamp", "timestamp_ntz", "date"])
@examples(100)
@given(texts=st.lists(MOMENTS | st.dates().map(date.isoformat), min_size=1, max_size=4))
def test_both_routes_read_times_alike(dtype, texts):
    """A number among them sends the column down the slow route; it must not change the others."""
    one = codec("json", f"x {dtype}")
    values = [json.dumps({"x": text}).encode() for text in texts]
    for value in values:
        fast, slow = one.decode([value]), one.decode([value, b'{"x": 5}'])
        assert batch_to_rows(fast.rows) == batch_to_rows(slow.rows)
        assert fast.failures == slow.failures[:-1]


def test_encoded_rows_are_plain_json():
    one = codec("json", "a int, d decimal(5,2), at timestamp, f double, m map<int,binary>, p struct<x date>")
    value = b'{"a":1,"d":1.50,"at":"2024-05-01T12:30:15.123456Z","f":"NaN","m":{"7":"AAE="},"p":{"x":"2024-05-01"}}'
    assert one.encode(one.decode([value]).rows).to_pylist() == [value]


def test_maps_with_nested_keys_are_refused_when_the_codec_is_built():
    with pytest.raises(InvalidSchema, match=r"column 'a\.m' is a map with keys of type"):
        codec("json", "a struct<m map<array<int>,int>>")
