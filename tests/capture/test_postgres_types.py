"""Types of Postgres: a snapshot and changes have the same values, and what cannot be mapped is an error."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from millstream.capture.postgres.types import column
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog

from .support import captured_postgres as capture
from .support import records

MAKE = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'so, so');
CREATE DOMAIN cents AS numeric(8, 2);
CREATE DOMAIN small AS int CHECK (VALUE < 100);
CREATE DOMAIN smalls AS small[];
CREATE TYPE pair AS (n int, text text);
CREATE TYPE versions AS RANGE (subtype = text);
"""
TOKYO_NOON = datetime(2024, 1, 1, 3, tzinfo=UTC)
LAST, FIRST = datetime(9999, 12, 31, 23, 59, 59, 999_999), datetime(1, 1, 1)
TYPES = {
    # numbers
    "numeric(10,2)": ("-1.50", Decimal("-1.50")),
    "numeric(38,0)": ("9" * 38, Decimal("9" * 38)),
    "numeric(39,1)": ("1.5", "1.5"),
    "numeric(3,-2)": ("12345", "12300"),
    "numeric": (
        "123456789012345678901234567890.000000000012345678900",
        "123456789012345678901234567890.000000000012345678900",
    ),
    "smallint": ("-7", -7),
    "bigint": (str(-(2**63)), -(2**63)),
    "real": ("Infinity", float("inf")),
    "double precision": ("1e-300", 1e-300),
    "boolean": ("true", True),
    "oid": (str(2**32 - 1), 2**32 - 1),
    # texts and bytes
    "text": ('a,"b"\n\\N\t', 'a,"b"\n\\N\t'),
    "varchar(9)": ("", ""),
    "char(3)": ("a", "a  "),
    "bytea": ("\\x00ff0a22", b'\x00\xff\n"'),
    "bit(3)": ("101", "101"),
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",) * 2,
    "json": ('{"b":1,  "a":[1.0,null]}',) * 2,
    "jsonb": ('{"b":1,"a":[1.0,null]}', '{"a": [1.0, null], "b": 1}'),
    # times; the sessions that write them are in Tokyo
    "timestamptz": ("2024-01-01 12:00", TOKYO_NOON),
    "timestamptz(0)": ("infinity", LAST.replace(tzinfo=UTC)),
    "timestamptz(3)": ("1890-01-01 00:00:00.5+00", datetime(1890, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
    "timestamp": ("infinity", LAST),
    "timestamp(0)": ("-infinity", FIRST),
    "timestamp(6)": ("2024-01-01 12:00:00.123456", datetime(2024, 1, 1, 12, 0, 0, 123_456)),
    "date": ("-infinity", date(1, 1, 1)),
    "interval": ("-1 day 2 hours", "P-1DT2H"),
    "time": ("24:00:00",) * 2,
    "timetz": ("12:00:00.5+09",) * 2,
    # ranges
    "int4range": ("(0,4]", "[1,5)"),
    "int8range": ("empty", "empty"),
    "numrange": ("[1.50,)",) * 2,
    "daterange": ("[2024-01-01,infinity]",) * 2,
    "tstzrange": ("[2024-01-01 12:00,]", '["2024-01-01 03:00:00+00",)'),
    "versions": ('["a,b",c)',) * 2,
    "int4multirange": ("{[7,8),[1,3),[2,5)}", "{[1,5),[7,8)}"),
    "tstzmultirange": ("{[2024-01-01 12:00,)}", '{["2024-01-01 03:00:00+00",)}'),
    # types of the database itself
    "mood": ("so, so", "so, so"),
    "cents": ("12.34", Decimal("12.34")),
    "small": ("7", 7),
    "smalls": ("{7,NULL}", [7, None]),
    "pair": ('(1,"a,b")',) * 2,
    # others
    "point": ("(1.5,-2)",) * 2,
    "box": ("(3,4),(1,2)",) * 2,
    "inet": ("10.0.0.1/8",) * 2,
    "tsvector": ("'a':1 'b':2",) * 2,
    "pg_lsn": ("A/1B",) * 2,
    # arrays
    "int[]": ("{1,NULL,3}", [1, None, 3]),
    "int8[]": ("{}", []),
    "numeric(10,2)[]": ("{1,-2.5}", [Decimal("1.00"), Decimal("-2.50")]),
    "numeric[]": ("{NaN,1.10}", ["NaN", "1.10"]),
    "float8[]": ("{-Infinity,0.1}", [float("-inf"), 0.1]),
    "boolean[]": ("{t,f,NULL}", [True, False, None]),
    "text[]": ('{"a b",NULL,"NULL","q\\"x\\\\y","","{,}"}', ["a b", None, "NULL", 'q"x\\y', "", "{,}"]),
    "bytea[]": ('{"\\\\x00ff","\\\\x"}', [b"\x00\xff", b""]),
    "uuid[]": ("{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    "timestamptz[]": ('{"2024-01-01 12:00",infinity}', [TOKYO_NOON, LAST.replace(tzinfo=UTC)]),
    "date[]": ("{2024-02-29,-infinity}", [date(2024, 2, 29), date(1, 1, 1)]),
    "jsonb[]": ('{"{\\"a\\": [1, 2]}","null"}', ['{"a": [1, 2]}', "null"]),
    "int4range[]": ('{"[1,5)",empty}', ["[1,5)", "empty"]),
    "int4multirange[]": ('{"{[1,5),[7,8)}"}', ["{[1,5),[7,8)}"]),
    "mood[]": ('{sad,"so, so"}', ["sad", "so, so"]),
    "cents[]": ("{1,2.50}", [Decimal("1.00"), Decimal("2.50")]),
    "pair[]": ('{"(1,\\"a,b\\")",NULL}', ['(1,"a,b")', None]),
    "smalls[]": ('{"{1,2}"}', ["{1,2}"]),
    "point[]": ('{"(1,2)","(3,4)"}', ["(1,2)", "(3,4)"]),
    "box[]": ("{(3,4),(1,2);(7,8),(5,6)}",) * 2,
}


def test_types_are_kept_by_snapshot_and_changes_alike(log, db, dsn) -> None:
    db.execute(MAKE)
    names = {f"c{number}": kind for number, kind in enumerate(TYPES)}
    db.execute(f"CREATE TABLE kinds (id int PRIMARY KEY, {', '.join(map(' '.join, names.items()))})")
    texts = [text for text, _ in TYPES.values()]
    insert = f"INSERT INTO kinds VALUES (%s, {', '.join(f'%s::{kind}' for kind in TYPES)})"
    db.execute("SET TimeZone TO 'Asia/Tokyo'")
    for start in (10, 20):
        db.execute(insert, [start, *texts])
        db.execute("INSERT INTO kinds (id) VALUES (%s)", [start + 1])
        with capture(log, dsn, "kinds") as running:
            running.catch_up()
    changes = records(log, "kinds")
    assert [(each["op"], each["after"].pop("id")) for each in changes] == [
        ("snapshot", 10),
        ("snapshot", 11),
        ("insert", 20),
        ("insert", 21),
    ]
    expected = {kind: value for kind, (_, value) in TYPES.items()}
    for number, change in enumerate(changes):
        found = {names[name]: value for name, value in change["after"].items()}
        assert found == (dict.fromkeys(TYPES) if number % 2 else expected)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.decimal128(10, 2), b"NaN"),
        (pa.list_(pa.int32()), b"{{1,2},{3,4}}"),
        (pa.list_(pa.int32()), b"[0:1]={1,2}"),
        (pa.timestamp("us"), b"10000-01-01 00:00:00"),
        (pa.date32(), b"0044-03-15 BC"),
    ],
)
def test_what_a_type_cannot_hold_is_an_error(kind, text) -> None:
    with pytest.raises((ValueError, pa.ArrowException)):
        column(pa.array([text]), kind)


def test_a_value_that_cannot_be_mapped_names_the_row_and_what_to_do(log, db, dsn) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'tea', 'NaN')")
    said = "'amount' of table 'orders' has 'NaN'"
    with capture(log, dsn, "orders") as running, pytest.raises(InvalidInput, match=said):
        running.catch_up()
    with EmbeddedLog(log.path.parent / "other") as other:
        types = {("orders", "amount"): pa.string()}
        with capture(other, dsn, "orders", name="texts", types=types) as running:
            running.catch_up()
        assert records(other, "orders")[0]["after"]["amount"] == "NaN"
