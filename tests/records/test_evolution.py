"""Goal: only changes that neither lose nor invent a value are allowed, and `align` carries out all of those."""

import pyarrow as pa
import pytest
from hypothesis import given

from millstream.errors import InvalidSchema
from millstream.records import Schema, align, batch_to_rows, can_evolve, rows_to_batch
from properties import examples

from .arbitrary import schema_and_rows, schemas, seen


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a int", "a int"),
        ("a int, b string", "z string, a int, m date, b string"),
        ("a int, b string", "b string, a int"),
        ("a tinyint", "a smallint"),
        ("a tinyint", "a bigint"),
        ("a int", "a double"),
        ("a smallint", "a float"),
        ("a float", "a double"),
        ("a int", "a decimal(12,2)"),
        ("a decimal(5,2)", "a decimal(7,3)"),
        ("a int NOT NULL", "a int"),
        ("p struct<x int>", "p struct<y string, x bigint>"),
        ("p array<struct<x int>>", "p array<struct<x bigint, y string>>"),
        ("p map<string,int>", "p map<string,bigint>"),
    ],
)
def test_allowed_changes_are_carried_out(old, new):
    assert can_evolve(old, new) == []
    batch = pa.RecordBatch.from_pylist([], schema=Schema.of(old).arrow)
    assert align(batch, Schema.of(new).arrow).schema == Schema.of(new).arrow


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("a int, b int → a int", "'b' was removed"),
        ("a int → A int", "'a' is now spelled 'A'"),
        ("a int → a int, b int NOT NULL", "'b' is new and NOT NULL"),
        ("a int → a int NOT NULL", "'a' became NOT NULL"),
        ("a bigint → a int", "from bigint to int"),
        ("a bigint → a double", "from bigint to double"),
        ("a int → a float", "from int to float"),
        ("a double → a float", "from double to float"),
        ("a int → a string", "from int to string"),
        ("a decimal(5,2) → a decimal(5,3)", "from decimal(5,2) to decimal(5,3)"),
        ("a timestamp → a timestamp_ntz", "from timestamp to timestamp_ntz"),
        ("p struct<x int> → p struct<x string>", "'p.x' changed"),
        ("p array<struct<x int>> → p array<struct<y int>>", "'p[].x' was removed"),
        ("p map<int,int> → p map<bigint,int>", "'p' changed"),
    ],
)
def test_other_changes_are_refused_with_a_reason(change, reason):
    reasons = can_evolve(*change.split(" → "))
    assert len(reasons) >= 1
    assert reason in reasons[0]


def test_align_adds_widens_and_shares_what_is_equal():
    old = Schema.of("name string, n int, places array<struct<x int>>")
    new = Schema.of("extra date, places array<struct<x bigint, y string>>, n double, name string")
    batch, _ = rows_to_batch([{"name": "a", "n": 1, "places": [{"x": 5}, None]}, {"name": None}], old)
    aligned = align(batch.slice(0, 2), new.arrow)
    assert batch_to_rows(aligned) == [
        {"extra": None, "places": [{"x": 5, "y": None}, None], "n": 1.0, "name": "a"},
        {"extra": None, "places": None, "n": None, "name": None},
    ]
    assert aligned.column("name").buffers()[2].address == batch.column("name").buffers()[2].address
    assert align(batch, old.arrow) is batch


def test_align_refuses_what_can_evolve_refuses():
    batch = pa.RecordBatch.from_pydict({"a": ["1", None]})
    for wanted in ("a int", "a string NOT NULL", "a string, b int NOT NULL"):
        with pytest.raises(InvalidSchema):
            align(batch, Schema.of(wanted).arrow)


def test_align_takes_other_encodings():
    batch = pa.RecordBatch.from_pydict({"a": pa.array(["x", "y", "x"]).dictionary_encode()})
    assert align(batch, Schema.of(batch.schema).arrow).to_pydict() == {"a": ["x", "y", "x"]}


@examples(100)
@given(schemas())
def test_a_schema_evolves_into_itself_and_into_a_nullable_one(schema):
    assert can_evolve(schema, schema) == []
    relaxed = pa.schema([field.with_nullable(True) for field in schema.arrow])
    assert can_evolve(schema, relaxed) == []


@examples(100)
@given(schema_and_rows(schemas()))
def test_align_keeps_rows(schema_rows):
    schema, rows = schema_rows
    batch, failures = rows_to_batch(rows, schema)
    assert failures == []
    relaxed = pa.schema([field.with_nullable(True) for field in reversed(schema.arrow)])
    assert seen(align(align(batch, relaxed), schema.arrow)) == seen(batch)
