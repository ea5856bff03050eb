"""Goal: Python rows go in and come out unchanged, and one bad row never changes what happens to another."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.records import Failure, Schema, batch_to_rows, rows_to_batch
from properties import examples

from .arbitrary import oddities, row_text, rows_of, schema_and_rows, schemas, seen

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@examples(100)
@given(schema_and_rows(schemas()))
def test_rows_come_back_as_they_went_in(schema_rows):
    schema, rows = schema_rows
    batch, failures = rows_to_batch(rows, schema)
    assert failures == []
    assert batch.schema == schema.arrow
    assert seen(batch) == [row_text(row) for row in rows]


@examples(100)
@given(schema_and_rows(schemas()), st.integers(0, 3), st.integers(0, 3))
def test_a_slice_of_a_batch_gives_the_rows_of_the_slice(schema_rows, start, length):
    schema, rows = schema_rows
    batch, _ = rows_to_batch(rows, schema)
    assert seen(batch.slice(start, length)) == seen(batch)[start : start + length]


def _mixtures(schema):
    good = rows_of(list(schema.arrow))
    spoiled = st.tuples(good, st.sampled_from(schema.names), oddities).map(lambda made: {**made[0], made[1]: made[2]})
    return st.tuples(st.just(schema), st.lists(st.one_of(good, spoiled, oddities), max_size=6))


@examples(100)
@given(schemas().flatmap(_mixtures))
def test_a_row_is_checked_alone(schema_rows):
    schema, rows = schema_rows
    batch, failures = rows_to_batch(rows, schema)
    apart = [rows_to_batch([row], schema) for row in rows]
    assert seen(batch) == [text for one, _ in apart for text in seen(one)]
    assert failures == [Failure(index, fault.reason) for index, (_, own) in enumerate(apart) for fault in own]


ACCEPTED = [
    ("boolean", True, True),
    ("boolean", np.True_, True),
    ("int", 5, 5),
    ("int", np.int64(5), 5),
    ("double", 5, 5.0),
    ("double", 2**60 + 1, float(2**60 + 1)),
    ("float", 0.5, 0.5),
    ("decimal(5,2)", 7, Decimal("7.00")),
    ("decimal(5,2)", Decimal("1.5000"), Decimal("1.50")),
    ("decimal(5,2)", Decimal("1E+2"), Decimal("100.00")),
    ("binary", bytearray(b"x"), b"x"),
    ("date", date(2024, 5, 1), date(2024, 5, 1)),
    ("timestamp", NOON.astimezone(ZoneInfo("Asia/Tokyo")), NOON),
    ("timestamp", datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
    ("timestamp_ntz", datetime(2024, 5, 1), datetime(2024, 5, 1)),
    ("interval day to second", timedelta(days=-1), timedelta(days=-1)),
    ("array<int>", (1, 2), [1, 2]),
    ("array<double>", np.array([1.0, 2.0]), [1.0, 2.0]),
    ("map<int,string>", {1: "a"}, {1: "a"}),
    ("map<array<int>,string>", {}, []),
]


@pytest.mark.parametrize(("dtype", "value", "result"), ACCEPTED)
def test_values_that_fit(dtype, value, result):
    batch, failures = rows_to_batch([{"x": value}], Schema.of(f"x {dtype}"))
    assert failures == []
    assert batch_to_rows(batch) == [{"x": result}]


REFUSED = [
    ("int", True, "True (bool)"),
    ("int", 1.0, "1.0 (float)"),
    ("int", "1", "'1' (str)"),
    ("int", 2**31, "2147483648, which is out of its range"),
    pytest.param("bigint", 10**5000, "an integer of", id="too long to print"),
    ("double", "1.0", "'1.0' (str)"),
    ("double", True, "True (bool)"),
    ("double", 10**400, "an int of"),
    ("float", 1e300, "out of its range"),
    ("decimal(5,2)", 1.5, "not exact; give a Decimal"),
    ("decimal(5,2)", Decimal("1.555"), "more than 2 decimal places"),
    ("decimal(5,2)", Decimal("1000"), "too many digits"),
    ("decimal(5,2)", Decimal("1E+999999"), "too many digits"),
    ("decimal(5,2)", Decimal("NaN"), "NaN"),
    ("string", b"x", "b'x' (bytes)"),
    ("string", "\ud800", "surrogate"),
    ("binary", "x", "'x' (str)"),
    ("boolean", 1, "1 (int)"),
    ("date", NOON, "datetime"),
    ("timestamp", datetime(2024, 5, 1), "2024-05-01T00:00:00 without a time zone"),
    ("timestamp", "2024-05-01T00:00:00Z", "(str)"),
    ("timestamp", 5, "5 (int)"),
    ("timestamp", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "datetime"),
    ("timestamp_ntz", NOON, "with a time zone"),
    ("interval day to second", timedelta.max, "timedelta"),
    ("array<int>", 5, "expected a list"),
    ("array<int>", [1, "x"], "column 'x[]': expected int, found 'x'"),
    ("struct<a int>", {"b": 1}, "has no field 'b'; those that exist: a"),
    ("struct<a int NOT NULL>", {}, "column 'x.a': is missing or null"),
    ("struct<a int>", [1], "expected a dict"),
    ("map<string,int>", {"a": "b"}, "column 'x{}'"),
    ("map<string,int>", {None: 1}, "column 'x{key}'"),
    ("map<string,int>", {1: 1}, "column 'x{key}'"),
]


@pytest.mark.parametrize(("dtype", "value", "reason"), REFUSED)
def test_values_that_do_not_fit(dtype, value, reason):
    schema = Schema.of(f"x {dtype}, n int")
    batch, failures = rows_to_batch([{"n": 1}, {"x": value, "n": 2}, {"n": 3}], schema)
    assert [row["n"] for row in batch_to_rows(batch)] == [1, 3]
    assert [failure.index for failure in failures] == [1]
    assert "column 'x" in failures[0].reason
    assert reason in failures[0].reason


def test_unknown_missing_and_null_fields():
    schema = Schema.of("user string NOT NULL, score int")
    rows = [{"user": "a"}, {"user": "b", "scroe": 1}, {"score": 1}, {"user": None}, 5, {"user": "c", "score": 2}]
    batch, failures = rows_to_batch(rows, schema)
    assert batch_to_rows(batch) == [{"user": "a", "score": None}, {"user": "c", "score": 2}]
    assert [failure.index for failure in failures] == [1, 2, 3, 4]
    assert failures[0].reason == "there is no column 'scroe'; those that exist: user, score"
    assert "'user'" in failures[1].reason
    assert "NOT NULL" in failures[1].reason
    assert "expected a dict" in failures[3].reason


def test_no_rows():
    batch, failures = rows_to_batch([], Schema.of("a array<int>, b map<string,struct<x int>>"))
    assert (batch.num_rows, failures, batch_to_rows(batch)) == (0, [], [])


def test_instants_come_out_in_utc_with_microseconds():
    moment = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    batch, _ = rows_to_batch([{"at": moment}], Schema.of("at timestamp"))
    out = batch_to_rows(batch)[0]["at"]
    assert out == moment
    assert out.tzinfo is UTC
