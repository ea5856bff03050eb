"""What Spark and DuckDB would not compute alike is refused, with the reason and what to write instead."""

from __future__ import annotations

import pytest

from millstream.errors import InvalidExpression
from millstream.expressions.expression import lowered_expression as expression

from .columns import SCHEMA

REFUSALS = [
    ("scor > 1", "there is no column 'scor'", "columns that exist: n, small"),
    ("wal", "there is no column 'wal'", "did you mean 'wall'?"),
    ("u.nam", "there is no field 'nam'", "did you mean 'name'?"),
    ("n.x", "int has no field 'x'", "only a struct"),
    ("n >", "cannot be read as Spark SQL", "one expression"),
    ("n, s", "cannot be read as Spark SQL", "one expression"),
    ("n; s", "is not one expression", "one at a time"),
    ("", "an expression must be Spark SQL text", "for example"),
    ("n as m", "names its result", "name='…'"),
    ("sum(n)", "looks at more than one row", ".agg(…)"),
    ("count(*)", "looks at more than one row", ".agg(…)"),
    ("row_number() over (order by n)", "looks at more than one row", ".agg(…)"),
    ("lag(n)", "looks at more than one row", "key_by"),
    ("(select 1)", "looks at more than one row", ".agg(…)"),
    ("n in (select 1)", "looks at more than one row", "list the values"),
    ("exists (select 1)", "looks at more than one row", ""),
    ("explode(xs)", "looks at more than one row", "flat_map"),
    ("window(at, '1 hour')", "looks at more than one row", ".window("),
    ("rand()", "the function rand is not supported: results must be repeatable", "provide it"),
    ("uuid()", "results must be repeatable", ""),
    ("current_time()", "results must be repeatable", ""),
    ("hash(n)", "its result would differ between the runners", "map(…)"),
    ("transform(xs, 1)", "'1' is not a function", "x -> x + 1"),
    ("transform(n, x -> x)", "transform takes an array, but got int", ""),
    ("transform(xs)", "", ""),
    ("transform(xs, (x, x) -> x)", "wrong parameters", ""),
    ("filter(xs, x -> x + 1)", "the function must be true or false", "compare"),
    ("transform(xs, x -> null)", "has no type", "cast(null"),
    ("aggregate(xs, 0L, (a, x) -> 'x')", "starts with bigint, but its function returns string", "cast"),
    ("array_sort(xs, (l, r) -> l < r)", "must return an int, but returns boolean", "-1, 0 or 1"),
    ("array_sort(xs, (l, r) -> l % r)", "may fail, and would be called for more items", ""),
    ("array_sort(xs, l -> 1)", "must have 2 parameters", ""),
    ("str_to_map(s, ', *')", "does not separate by one letter", ""),
    ("str_to_map(s, t)", "must be a string literal", ""),
    ("map(d, 1)", "keys of type double", ""),
    ("get_json_object(s, '$[*].a')", "has more than names and positions", "$.a.b[0]"),
    ("get_json_object(s, t)", "must be a string literal", ""),
    ("from_json(s, 'a timestamp')", "does not read 'a' as timestamp", "as string"),
    ("from_json(s, 'nonsense')", "is not a list of columns", "'a int'"),
    ("to_json(n)", "takes a struct, an array or a map, but got int", ""),
    ("to_json(struct(d))", "as Java does", "decimal"),
    ("xs < xs", "would order array<int> differently", ""),
    ("from_utc_timestamp(at, 'CET')", "time zones are not supported", ""),
    ("sha3(s)", "there is no function sha3", "did you mean 'sha"),
    ("lengthh(s)", "there is no function lengthh", "did you mean 'length'?"),
    ("no_such_function_at_all(s)", "there is no function", "map(…)"),
    ("f.g(n)", "is not supported", "map(…)"),
    ("upper(n)", "upper takes a string, but got int", "cast("),
    ("upper()", "upper takes a string, but got 0 arguments", ""),
    ("hour(at, 1)", "2 arguments", ""),
    ("s > 5", "has operands of types string and int", "cast("),
    ("s = n", "has operands of types string and int", "cast("),
    ("yes = 1", "has operands of types boolean and int", "cast("),
    ("coalesce(n, s)", "coalesce has operands of types int and string", "cast("),
    ("s + 1", "+ takes a number, but got string", "cast("),
    ("n and yes", "a condition must be true or false", "compare"),
    ("p / 3", "digits of a decimal division", "cast(… as double)"),
    ("cast(d as string)", "looks different on Spark", "decimal"),
    ("concat(s, d)", "looks different on Spark", "decimal"),
    ("concat(b, b)", "stays binary", "cast"),
    ("cast(day as int)", "a cast from date to int", "datediff"),
    ("cast(xs as string)", "a cast from array<int> to string", ""),
    ("cast(n as array<int>)", "is not supported", "boolean, tinyint"),
    ("cast(n as decimal(40, 2))", "there is no decimal(40, 2)", "38"),
    ("at - at", "is not supported", "unix_micros"),
    ("day - day", "is not supported", "datediff"),
    ("day + interval 1 day", "is not supported", "date_add"),
    ("interval 1 day", "is an interval", "unix_micros"),
    ("interval 'x' day", "cannot be parsed", "interval 1 day 2 hours"),
    ("null", "is always null", "cast(null as string)"),
    ("wall > wall", "timestamp_ntz, which can be passed on", "map(…)"),
    ("m = m", "maps cannot be compared", ""),
    ("m[1]", "", ""),
    ("n[0]", "int has no item", ""),
    ("xs[0:1]", "does not exist in Spark", "one position"),
    ("date_trunc('fortnight', at)", "has no unit 'fortnight'", "units: year"),
    ("date_trunc(s, at)", "must be a string literal", ""),
    ("date_format(at, 'yyyy-ww')", "'ww' in the pattern", "supported letters"),
    ("to_timestamp(s, 'd.M.yyyy')", "'d' in the pattern", "supported letters: yyyy"),
    ("extract(epoch from at)", "there is no field 'epoch'", "fields: year"),
    ("s rlike '(?=x)'", "Java's regular expressions", "look-around"),
    ("s rlike t", "must be a string literal", ""),
    ("s rlike '('", "cannot be computed", "pattern"),
    ("date '2026-02-30'", "cannot be computed", "constant"),
    ("'it''s'", "two string literals are next to each other", "\\'"),
    ("pmod(p, 5)", "of decimals would differ", "use %"),
    ("s like any ('x', 'y')", "is not supported", ""),
    ("round(d, n)", "number of places", ""),
    ("sha2(s, 100)", "256", ""),
    ("array()", "has no type", ""),
    ("99999999999999999999999999999999999999999", "more than 38 digits", ""),
    ("cast(p as decimal(38,2)) * p", "more than 38 digits", "double"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what", "next_step"), REFUSALS, ids=[text for text, _, _ in REFUSALS])
def test_what_cannot_run_the_same_is_refused_by_name(text: str, what: str, next_step: str) -> None:
    with pytest.raises(InvalidExpression) as refused:
        expression(text, SCHEMA)
    assert what in refused.value.what
    assert next_step in (refused.value.next_step or "")
    assert __file__ in (refused.value.where or "")
