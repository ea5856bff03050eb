"""Goal: schema text means what it means to Spark, is written back faithfully, and mistakes are named in their place."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given

from millstream.errors import InvalidSchema
from millstream.records import Schema
from properties import examples

from .arbitrary import schemas


def test_every_type_has_its_arrow_type():
    schema = Schema.parse(
        "a boolean, b tinyint, c BYTE, d smallint, e short, f int, g Integer, h bigint, i long, j float, k real,"
        " l double, m decimal, n dec(5), o numeric(7, 2), p string, q varchar(10), r char(3), s binary, t date,"
        " u timestamp, v timestamp_ltz, w timestamp_ntz, x interval day to second"
    )
    assert schema.arrow.types == [
        pa.bool_(), pa.int8(), pa.int8(), pa.int16(), pa.int16(), pa.int32(), pa.int32(), pa.int64(), pa.int64(),
        pa.float32(), pa.float32(), pa.float64(), pa.decimal128(10, 0), pa.decimal128(5, 0), pa.decimal128(7, 2),
        pa.string(), pa.string(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"),
        pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "place struct<lat double, lon double>, tags array<string>",
        "place struct<lat: double, lon: double>, tags: array<string>",
        "`place` STRUCT< lat :double,lon double COMMENT 'east' > COMMENT \"where\",\n\ttags Array < String >",
    ],
)
def test_spellings_of_one_schema_are_equal(text):
    assert Schema.of(text) == Schema.of("place struct<lat:double,lon:double>, tags array<string>")
    assert hash(Schema.of(text)) == hash(Schema.of(Schema.of(text)))


def test_not_null_and_odd_names():
    schema = Schema.of("`a b``c` int NOT NULL, `select` struct<x int not null>, größe map<string,array<array<int>>>")
    assert schema.names == ("a b`c", "select", "größe")
    assert not schema.field("a b`c").nullable
    assert not schema.field("select").type.field("x").nullable
    assert schema.ddl.startswith("`a b``c` int NOT NULL, select struct<x:int NOT NULL>, `größe` map<")


@examples(100)
@given(schemas())
def test_the_canonical_text_parses_back(schema):
    assert Schema.of(schema.ddl) == schema
    assert Schema.of(schema.arrow) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["empty"]),
        ("   ", ["empty"]),
        ("a", ["expected a type after the name 'a'", "end of the text", "character 2"]),
        ("user string, score itn", ["unknown type 'itn'", "character 20", "did you mean 'int'", "bigint"]),
        ("a int b int", ["expected ','", "found 'b'", "character 7"]),
        ("a int,", ["expected a column name", "end of the text"]),
        ("a int, A long", ["'A'", "clashes with 'a'", "ignores case"]),
        ("a int, a long", ["'a'", "appears twice"]),
        ("p struct<x int, X int>", ["struct 'p'", "clashes"]),
        ("p struct<>", ["expected a column name", "found '>'"]),
        ("`` int", ["empty"]),
        ("1 int", ["number 1", "backticks"]),
        ("a-b int", ["character 2", "backticks"]),
        ("a array<int", ["expected '>'"]),
        ("a map<string>", ["expected ','"]),
        ("a decimal(39)", ["1 to 38", "39"]),
        ("a decimal(3,4)", ["more decimal places"]),
        ("a decimal(x)", ["expected a number"]),
        ("a varchar", ["length"]),
        ("a int NOT", ["expected 'null'"]),
        ("a int comment b", ["quoted string"]),
        ("a interval", ["expected 'day'"]),
        ("a " + "array<" * 5000, ["nested more than"]),
    ],
)
def test_mistakes_say_what_and_where(text, expected):
    with pytest.raises(InvalidSchema) as refusal:
        Schema.of(text)
    for part in expected:
        assert part in str(refusal.value)


def test_a_missing_column_lists_those_that_exist():
    schema = Schema.of("user string, score int")
    assert schema.field("score").type == pa.int32()
    assert "score" in schema
    assert len(schema) == 2
    with pytest.raises(InvalidSchema, match=r"did you mean 'score'\? .*user, score"):
        schema.field("Score")


def test_other_arrow_encodings_become_the_plain_type():
    schema = Schema.from_arrow(
        pa.schema(
            [
                ("a", pa.large_string()),
                ("b", pa.string_view()),
                ("c", pa.dictionary(pa.int32(), pa.large_string())),
                ("d", pa.timestamp("ns", "Europe/Berlin")),
                ("e", pa.large_list(pa.field("element", pa.date64(), nullable=False))),
                ("f", pa.binary(3)),
                ("g", pa.map_(pa.large_string(), pa.int8(), keys_sorted=True)),
            ],
            metadata={"written": "by someone"},
        )
    )
    assert schema == Schema.of(
        "a string, b string, c string, d timestamp, e array<date>, f binary, g map<string,tinyint>"
    )


@pytest.mark.parametrize("dtype", [pa.uint8(), pa.time64("us"), pa.float16(), pa.null(), pa.decimal256(50, 2)])
def test_arrow_types_without_counterpart_are_refused_by_name(dtype):
    with pytest.raises(InvalidSchema) as refusal:
        Schema.of(pa.schema([("place", pa.struct([("x", dtype)]))]))
    assert "place.x" in str(refusal.value)
    assert str(dtype) in str(refusal.value)


def test_invalid_schemas_are_refused():
    with pytest.raises(InvalidSchema, match="not int"):
        Schema.of(5)
    with pytest.raises(InvalidSchema, match="no columns"):
        Schema.of(pa.schema([]))


def test_a_struct_type_of_pyspark() -> None:
    """It is read without a JVM, with the same result as its own DDL."""
    from pyspark.sql import types as st

    inner = st.StructType(
        [st.StructField("x`y", st.ArrayType(st.MapType(st.StringType(), st.DecimalType(5, 2))), False)]
    )
    given = st.StructType(
        [
            st.StructField("a b", st.IntegerType(), False),
            st.StructField("s", inner),
            st.StructField("i", st.DayTimeIntervalType()),
            st.StructField("n", st.TimestampNTZType()),
            st.StructField("v", st.VarcharType(5)),
        ]
    )
    assert Schema.of(given) == Schema.of(
        "`a b` int NOT NULL, s struct<`x``y`: array<map<string, decimal(5,2)>> NOT NULL>, i interval day to second,"
        " n timestamp_ntz, v varchar(5)"
    )
    with pytest.raises(InvalidSchema, match="unknown type 'variant' after the name 'v'"):
        Schema.of(st.StructType([st.StructField("v", st.VariantType())]))
    with pytest.raises(InvalidSchema, match="not IntegerType"):
        Schema.of(st.IntegerType())  # type: ignore[arg-type]
