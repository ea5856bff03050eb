"""Goal: one value is one CSV record; nulls, quotes and line breaks are distinguished exactly."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSchema, InvalidSetting
from millstream.records import batch_to_rows, codec
from properties import examples

from .test_codecs import assert_each_value_is_decoded_alone


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (b"1,x", {"a": 1, "b": "x"}),
        (b"1,", {"a": 1, "b": None}),
        (b'1,""', {"a": 1, "b": ""}),
        (b',"a ""b"", c"', {"a": None, "b": 'a "b", c'}),
        (b'1,"a\r\nb"', {"a": 1, "b": "a\r\nb"}),
        (b'"1",x\n', {"a": 1, "b": "x"}),
        (b"1, x \r\n", {"a": 1, "b": " x "}),
        (b'+7,"x"', {"a": 7, "b": "x"}),
        ("1,größe".encode(), {"a": 1, "b": "größe"}),
    ],
)
def test_values_that_fit(value, row):
    assert batch_to_rows(codec("csv", "a int, b string").decode([value]).rows) == [row]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"1", "expected 2 fields, found 1"),
        (b"1,x,y", "expected 2 fields, found 3"),
        (b"", "expected 2 fields, found 1"),
        (b"x,1", "column 'a': expected int, found 'x'"),
        (b" 1,x", "column 'a': expected int, found ' 1'"),
        (b"1_0,x", "column 'a': expected int"),
        (b"0x10,x", "column 'a': expected int"),
        (b"1.0,x", "column 'a': expected int"),
        (b"3000000000,x", "out of its range"),
        (b"1,a\n2,b", "a line break outside quotes"),
        (b'1,"a"\n2,"b"', "field 2: text follows the closing quote"),
        (b'1,"a"b', "field 2: text follows the closing quote"),
        (b'1,"a', "field 2: the quote is never closed"),
        (b'1,a"b', "field 2: a quote inside an unquoted field"),
        (b"1,\xff", "not valid UTF-8 at byte 2"),
        (b'1,"' + b'a""' * 50_000, "the quote is never closed"),
    ],
)
def test_values_that_do_not_fit(value, reason):
    decoded = codec("csv", "a int, b string").decode([b"0,x", value, b"2,y"])
    assert decoded.rows.column("a").to_pylist() == [0, 2]
    assert reason in decoded.failures[0].reason


TEXTS = st.text(st.sampled_from('a1,;"\n\r\t .+-eé'), max_size=6)


@examples(100)
@given(values=st.lists(st.none() | TEXTS.map(str.encode) | st.binary(max_size=4), max_size=8))
@pytest.mark.parametrize("schema", ["a int", "a string, b double", "a float, b boolean, c decimal(4,1)"])
def test_a_value_is_decoded_alone(schema, values):
    assert_each_value_is_decoded_alone(codec("csv", schema), values)


@examples(100)
@given(st.lists(TEXTS, min_size=2, max_size=4), st.sampled_from([",", ";", "\t", "|", "^", "]"]))
def test_what_other_programs_write_is_read(texts, delimiter):
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerow(texts)
    one = codec("csv", ", ".join(f"c{index} string" for index in range(len(texts))), delimiter=delimiter)
    decoded = one.decode([written.getvalue().encode()])
    assert list(batch_to_rows(decoded.rows)[0].values()) == texts
    assert one.decode(one.encode(decoded.rows)).rows == decoded.rows


def test_invalid_schemas_and_delimiters_are_refused_when_the_codec_is_built():
    with pytest.raises(InvalidSchema, match="column 'tags' is array<string>"):
        codec("csv", "a int, tags array<string>")
    for delimiter in ("", '"', "\n", "ab", 5):
        with pytest.raises(InvalidSetting, match="delimiter"):
            codec("csv", "a int", delimiter=delimiter)
