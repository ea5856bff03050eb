"""Spark SQL without Spark: every expression here gives what Spark 4 gives (ANSI mode, UTC), or is refused by name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import ExpressionFailed, InvalidExpression
from millstream.expressions.expression import evaluate
from millstream.expressions.expression import lowered_expression as expression
from millstream.expressions.functions import FUNCTIONS
from millstream.expressions.refused import ABOUT_MORE_ROWS, DIFFERENT
from millstream.records import Schema, batch_to_rows, rows_to_batch

from .columns import ROW, SCHEMA


def value_of(text: str) -> Any:
    made = expression(text, SCHEMA)
    batch, failures = rows_to_batch([ROW], SCHEMA)
    assert not failures
    table = evaluate({"result": made.duckdb}, pa.Table.from_batches([batch]))
    assert table.schema.field("result").type == made.type
    return batch_to_rows(table.to_batches()[0])[0]["result"]


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


VALUES: list[tuple[str, Any]] = [
    # numbers
    ("n / 2", 3.5),
    ("-7 / 2", -3.5),
    ("n div 2", 3),
    ("-n div 2", -3),
    ("-n % 3", -1),
    ("pmod(-n, 3)", 2),
    ("mod(-n, 3)", -1),
    ("'it\\'s'", "it's"),
    ("round(cast(0.35 as float), 1) < 0.32", True),
    ("if(yes, null, xs)[5]", None),
    ("pmod(-d, 2)", 1.5),
    ("n + 1", 8),
    ("small + 1", 32768),
    ("big * 2", 10_000_000_000),
    ("3000000000", 3_000_000_000),
    ("-2147483648", -2147483648),
    ("-n", -7),
    ("1.5", Decimal("1.5")),
    ("1e3", 1000.0),
    ("1L", 1),
    ("1.5D", 1.5),
    ("p + 1", Decimal("13.34")),
    ("p * 2", Decimal("24.68")),
    ("p * 1.5", Decimal("18.510")),
    ("p - n", Decimal("5.34")),
    ("p % 5", Decimal("2.34")),
    ("p / d", 4.936),
    ("cast(p as double) / 2", 6.17),
    ("f + 1", 2.5),
    ("f + p", 13.84),
    ("n & 3", 3),
    ("n | 8", 15),
    ("n ^ 2", 5),
    ("~n", -8),
    ("abs(-n)", 7),
    ("ceil(d)", 3),
    ("floor(-d)", -3),
    ("ceil(p)", Decimal(13)),
    ("round(d)", 3.0),
    ("round(-d)", -3.0),
    ("round(2.675D, 2)", 2.68),
    ("round(1e300D, 2)", 1e300),
    ("round(p, 1)", Decimal("12.3")),
    ("round(n, 2)", 7),
    ("sqrt(16)", 4.0),
    ("isnan(sqrt(-1))", True),
    ("ln(0)", None),
    ("log(1)", 0.0),
    ("log(2, 8)", pytest.approx(3.0)),
    ("log10(1000)", pytest.approx(3.0)),
    ("power(2, 10)", 1024.0),
    ("sign(-3)", -1.0),
    ("greatest(1, none, n)", 7),
    ("least(n, 2.5)", Decimal("2.5")),
    ("n + none", None),
    ("none / 0", None),
    # conditions
    ("n <=> none", False),
    ("none <=> none", True),
    ("none <=> null", True),
    ("n = none", None),
    ("n == 7 and s like 'Hello%'", True),
    ("n <> 7 or not yes", False),
    ("!yes", False),
    ("n in (1, 7)", True),
    ("n in (1, none)", None),
    ("n not in (1, 2)", True),
    ("n between 7 and 8", True),
    ("n is not null", True),
    ("yes is true", True),
    ("none = 1 is null", True),
    ("d > n", False),
    ("n > 6.5", True),
    ("cast('NaN' as string) = 'NaN'", True),
    ("zero <> 0 and n / zero > 1", False),
    ("zero = 0 or n / zero > 1", True),
    ("case when zero <> 0 then n / zero end", None),
    ("if(zero = 0, -1.0D, n / zero)", -1.0),
    ("coalesce(none, n, n div zero)", 7),
    ("case n when 7 then 'seven' else 'other' end", "seven"),
    ("case when n > 10 then 1 end", None),
    ("case when yes then 1 else 2.5 end", Decimal("1.0")),
    ("nvl(none, 3)", 3),
    ("nvl2(none, 1, 2)", 2),
    ("nullif(n, 7)", None),
    ("isnull(none)", True),
    # text
    ("length(s)", 12),
    ("length('日本𝒳')", 3),
    ("upper(s)", "HELLO, WORLD"),
    ("substring(s, 1, 5)", "Hello"),
    ("substring(s, 0, 5)", "Hello"),
    ("substring(s, -5, 3)", "Wor"),
    ("substring('abc', -5, 3)", "a"),
    ("substring(s, 8)", "World"),
    ("substr(s, 100)", ""),
    ("substring(s, 2, -1)", ""),
    ("left(s, 2)", "He"),
    ("left(s, -2)", ""),
    ("right(s, 2)", "ld"),
    ("right(s, 0)", ""),
    ("trim(t)", "a b"),
    ("ltrim(t)", "a b  "),
    ("trim('\\t x ')", "\t x"),
    ("trim(both 'H' from s)", "ello, World"),
    ("lpad('7', 3, '0')", "007"),
    ("rpad('abc', 2)", "ab"),
    ("lpad('abc', 5, '')", "abc"),
    ("concat(s, '!')", "Hello, World!"),
    ("concat('n', n)", "n7"),
    ("concat(s, null)", None),
    ("s || none", None),
    ("concat_ws('-', 'a', null, 'b')", "a-b"),
    ("replace(s, 'World', 'x')", "Hello, x"),
    ("instr(s, 'World')", 8),
    ("locate('World', s)", 8),
    ("position('World' in s)", 8),
    ("repeat('ab', 2)", "abab"),
    ("translate('abc', 'ab', 'x')", "xc"),
    ("split('a,b,,', ',')", ["a", "b", "", ""]),
    ("split('a1b22c', '[0-9]+')", ["a", "b", "c"]),
    ("split(s, ', ')[1]", "World"),
    ("regexp_extract('id=42', '(\\\\d+)')", "42"),
    ("regexp_extract('id=42', '(\\\\w+)=(\\\\d+)', 2)", "42"),
    ("regexp_extract('none', '(\\\\d+)')", ""),
    ("regexp_extract_all('1a2', '(\\\\d)')", ["1", "2"]),
    ("regexp_replace('a1b2', '(\\\\d)', '<$1>')", "a<1>b<2>"),
    ("s rlike 'W.r'", True),
    ("s like '%\\\\%%'", False),
    ("'a%b' like 'a\\\\%b'", True),
    ("'a%b' like 'a!%b' escape '!'", True),
    ("'a%b' not like 'a!%b' escape '!'", False),
    ("'ab' not like 'a%'", False),
    ("'ab' not like 'b%'", True),
    ("'ab' not ilike 'A%'", False),
    ("'ab' not rlike 'a.'", False),
    ("s ilike 'hello%'", True),
    ("startswith(s, 'He')", True),
    ("contains(s, 'lo, W')", True),
    ("md5('x')", "9dd4e461268c8034f5c8564e155c67a6"),
    # casts
    ("cast('42' as int)", 42),
    ("cast(' 42 ' as int)", 42),
    ("int('42')", 42),
    ("cast(1.7 as int)", 1),
    ("cast(-1.7D as bigint)", -1),
    ("cast(p as int)", 12),
    ("cast('1.5' as double)", 1.5),
    ("cast('1.005' as decimal(5,2))", Decimal("1.01")),
    ("cast(1.005D as decimal(5,2))", Decimal("1.01")),
    ("cast(n as string)", "7"),
    ("cast(p as string)", "12.34"),
    ("cast(yes as string)", "true"),
    ("cast(yes as int)", 1),
    ("cast('yes' as boolean)", True),
    ("cast(n as boolean)", True),
    ("n::bigint", 7),
    ("cast('2026-01-31' as date)", date(2026, 1, 31)),
    ("cast('2026-01-31T12:00:00.5Z' as timestamp)", at(2026, 1, 31, 12, 0, 0, 500000)),
    ("cast('2026-01-31' as timestamp)", at(2026, 1, 31)),
    ("cast(at as string)", "2026-03-01 13:45:06.789012"),
    ("cast(timestamp '2026-03-01 00:00:00' as string)", "2026-03-01 00:00:00"),
    ("cast(day as string)", "2026-01-31"),
    ("cast(at as date)", date(2026, 3, 1)),
    ("cast(at as bigint)", 1772372706),
    ("cast(timestamp '1969-12-31 23:59:59.5' as bigint)", -1),
    ("cast(60 as timestamp)", at(1970, 1, 1, 0, 1)),
    ("cast('x' as binary)", b"x"),
    ("cast(b as string)", "x"),
    ("try_cast(s as int)", None),
    ("try_cast('1.5' as int)", None),
    ("try_cast(big as int)", None),
    ("try_cast('no date' as date)", None),
    ("cast(null as string)", None),
    # dates and times
    ("date_trunc('hour', at)", at(2026, 3, 1, 13)),
    ("date_trunc('WEEK', at)", at(2026, 2, 23)),
    ("date_trunc('MM', day)", at(2026, 1, 1)),
    ("trunc(day, 'year')", date(2026, 1, 1)),
    ("year(at)", 2026),
    ("quarter(at)", 1),
    ("month(day)", 1),
    ("day(at)", 1),
    ("hour(at)", 13),
    ("minute(at)", 45),
    ("second(at)", 6),
    ("dayofweek(at)", 1),
    ("weekday(at)", 6),
    ("dayofyear(day)", 31),
    ("weekofyear(day)", 5),
    ("extract(hour from at)", 13),
    ("extract(dow from at)", 1),
    ("date_part('week', day)", 5),
    ("unix_timestamp(at)", 1772372706),
    ("unix_timestamp('2026-03-01', 'yyyy-MM-dd')", 1772323200),
    ("unix_millis(at)", 1772372706789),
    ("unix_micros(at)", 1772372706789012),
    ("unix_seconds(timestamp '1969-12-31 23:59:59.5')", -1),
    ("timestamp_millis(1500)", at(1970, 1, 1, 0, 0, 1, 500000)),
    ("from_unixtime(0)", "1970-01-01 00:00:00"),
    ("from_unixtime(0, 'yyyy/MM/dd')", "1970/01/01"),
    ("to_timestamp('2026-03-01 13:00:00')", at(2026, 3, 1, 13)),
    ("to_timestamp('2026-03-01T13:00:00+02:00')", at(2026, 3, 1, 11)),
    ("to_timestamp('01.03.2026 13:05', 'dd.MM.yyyy HH:mm')", at(2026, 3, 1, 13, 5)),
    ("to_timestamp('2026-03-01T13:05:06.250', \"yyyy-MM-dd'T'HH:mm:ss.SSS\")", at(2026, 3, 1, 13, 5, 6, 250000)),
    ("to_date('2026-03-01')", date(2026, 3, 1)),
    ("to_date('01/03/2026', 'dd/MM/yyyy')", date(2026, 3, 1)),
    ("to_date(at)", date(2026, 3, 1)),
    ("date_format(at, 'yyyy-MM-dd HH:mm:ss.SSS')", "2026-03-01 13:45:06.789"),
    ("date_format(at, \"EEE d MMM yyyy 'at' h a\")", "Sun 1 Mar 2026 at 1 PM"),
    ("datediff(at, day)", 29),
    ("datediff('2026-01-01', '2026-01-03')", -2),
    ("date_add(day, 1)", date(2026, 2, 1)),
    ("date_sub(day, 31)", date(2025, 12, 31)),
    ("day + 1", date(2026, 2, 1)),
    ("add_months(day, 1)", date(2026, 2, 28)),
    ("last_day(at)", date(2026, 3, 31)),
    ("make_date(2026, 2, 3)", date(2026, 2, 3)),
    ("at + interval 1 hour", at(2026, 3, 1, 14, 45, 6, 789012)),
    ("at - interval '1' day", at(2026, 2, 28, 13, 45, 6, 789012)),
    ("at + interval 1 day 2 hours", at(2026, 3, 2, 15, 45, 6, 789012)),
    ("at > '2026-01-01'", True),
    ("day = '2026-01-31'", True),
    ("at > day", True),
    ("at between timestamp '2026-03-01 00:00:00' and '2026-03-02'", True),
    # arrays, maps, structs
    ("xs[0]", 10),
    ("xs[n - 5]", 30),
    ("element_at(xs, 1)", 10),
    ("element_at(xs, -1)", 30),
    ("get(xs, 5)", None),
    ("get(xs, -1)", None),
    ("size(xs)", 3),
    ("size(cast(null as string))", "refused"),
    ("size(if(yes, null, xs))", None),
    ("size(m)", 1),
    ("m['a']", 1),
    ("m['b']", None),
    ("m.a", 1),
    ("element_at(m, 'b')", None),
    ("u.name", "Ann"),
    ("U.NAME", "Ann"),
    ("u.age + 1", 31),
    ("array(1, n)", [1, 7]),
    ("array_contains(xs, 20)", True),
    ("array_contains(xs, 21)", False),
    ("array_contains(holes, 1)", True),
    ("array_contains(holes, 2)", None),
    ("array_join(words, '-')", "a-b"),
    ("array_max(holes)", 1),
    ("sort_array(array(3, null, 1))", [None, 1, 3]),
    ("map_keys(m)", ["a"]),
    ("named_struct('x', n, 'y', s)", {"x": 7, "y": "Hello, World"}),
    ("struct(n, s as word)", {"n": 7, "word": "Hello, World"}),
    # names
    ("N", 7),
    ("`odd name` + 1", 4),
    ("wall", datetime(2026, 1, 1)),
    ('"text"', "text"),
]


@pytest.mark.parametrize(("text", "expected"), VALUES, ids=[text for text, _ in VALUES])
def test_an_expression_gives_what_spark_gives(text: str, expected: Any) -> None:
    if expected == "refused":
        with pytest.raises(InvalidExpression):
            expression(text, SCHEMA)
        return
    found = value_of(text)
    assert found == expected
    if not isinstance(expected, type(pytest.approx(1.0))):
        assert type(found) is type(expected)


TYPES = [
    ("n + 1", "int"),
    ("n + big", "bigint"),
    ("small + small", "smallint"),
    ("n / 2", "double"),
    ("n div 2", "bigint"),
    ("f + 1", "double"),
    ("f * f", "float"),
    ("p + p", "decimal(11,2)"),
    ("p * p", "decimal(21,4)"),
    ("p * 2", "decimal(12,2)"),
    ("p + n", "decimal(13,2)"),
    ("length(s)", "int"),
    ("ceil(d)", "bigint"),
    ("hour(at)", "int"),
    ("unix_timestamp(at)", "bigint"),
    ("datediff(day, day)", "int"),
    ("if(yes, n, big)", "bigint"),
    ("coalesce(n, 1.5)", "decimal(11,1)"),
    ("wall", "timestamp_ntz"),
    ("date_trunc('day', day)", "timestamp"),
]


@pytest.mark.parametrize(("text", "ddl"), TYPES, ids=[text for text, _ in TYPES])
def test_an_expression_has_the_type_spark_gives(text: str, ddl: str) -> None:
    made = expression(text, SCHEMA)
    assert made.type == Schema.of(f"x {ddl}").arrow.field(0).type


FAILURES = [
    "n / zero",
    "n % zero",
    "n div zero",
    "pmod(n, zero)",
    "d / 0",
    "cast(2147483647 as int) + n",
    "small + cast(1 as smallint)",
    "big * 5000000000",
    "-cast(-2147483648 as int) - zero",
    "cast(s as int)",
    "cast('1.5' as int)",
    "cast(big as int)",
    "cast(s as boolean)",
    "cast(s as date)",
    "cast('2026-01-31 00:00:00+19:00' as timestamp)",
    "to_timestamp('1.3.2026', 'dd.MM.yyyy')",
    "xs[3]",
    "xs[-1]",
    "element_at(xs, 0)",
    "element_at(xs, 4)",
    "make_date(2026, 2, 30)",
]


@pytest.mark.parametrize("text", FAILURES)
def test_what_fails_on_spark_fails_here(text: str) -> None:
    """Goal: nothing becomes null in silence. A constant may be refused at once, a row when it comes."""
    with pytest.raises((ExpressionFailed, InvalidExpression)):
        value_of(text)


def test_a_condition_is_true_or_false() -> None:
    with pytest.raises(InvalidExpression, match="'n' is int, but a condition must be true or false"):
        expression("n", SCHEMA, boolean=True)


def test_a_function_stands_in_one_table_only() -> None:
    assert not FUNCTIONS.keys() & DIFFERENT.keys()
    assert not FUNCTIONS.keys() & ABOUT_MORE_ROWS.keys()
    assert not DIFFERENT.keys() & ABOUT_MORE_ROWS.keys()


def test_an_expression_knows_its_columns() -> None:
    assert expression("N + u.age > 3", SCHEMA).columns == {"n", "u"}


def test_a_column_that_is_passed_on_keeps_its_type() -> None:
    """Goal: DuckDB's types do not leak. Method: every column of the schema goes through untouched."""
    batch, _ = rows_to_batch([ROW], SCHEMA)
    chosen = {name: expression(f"`{name}`", SCHEMA).duckdb for name in SCHEMA.names}
    assert evaluate(chosen, pa.Table.from_batches([batch])).to_batches()[0] == batch


def test_a_guard_protects_its_row_among_others() -> None:
    """Goal: DuckDB works on many rows at once and must still not compute what a row's guard excludes."""
    schema = Schema.of("a int, b int, s string")
    rows = [{"a": 10, "b": n % 3, "s": str(n) if n % 2 else "x"} for n in range(5000)]
    batch, _ = rows_to_batch(rows, schema)
    texts = {
        "both": "b <> 0 and a div b = 5",
        "either": "b = 0 or a div b = 5",
        "chosen": "case when b = 0 then -1 else a % b end",
        "read": "if(s = 'x', null, cast(s as int))",
        "first": "coalesce(if(b = 0, 7L, null), a div b)",
    }
    made = {name: expression(text, schema).duckdb for name, text in texts.items()}
    found = batch_to_rows(evaluate(made, pa.Table.from_batches([batch])).combine_chunks().to_batches()[0])
    for row, result in zip(rows, found, strict=True):
        b, s = row["b"], row["s"]
        assert result == {
            "both": b == 2,
            "either": b in (0, 2),
            "chosen": -1 if b == 0 else 10 % b,
            "read": None if s == "x" else int(str(s)),
            "first": 7 if b == 0 else 10 // b,
        }
