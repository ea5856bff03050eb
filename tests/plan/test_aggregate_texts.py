"""Aggregates as text are the aggregates of the functions of that name; anything else is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.aggregates.basic import Aggregate
from millstream.plan.aggregates.texts import AS_IN_SPARK, FUNCTIONS, named

SCHEMA = "team string, user string, n int"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(n)", ms.sum("n")),
        ("SUM( n + 1 )", ms.sum("n + 1")),
        ("count(*)", ms.count()),
        ("count(1)", ms.count()),
        ("count()", ms.count()),
        ("count(user)", ms.count_if("(user) is not null")),
        ("count(distinct user)", ms.distinct_count("user")),
        ("count(*) filter (where n > (1))", ms.count_if("n > (1)")),
        ("sum(n) filter (where user = ')')", ms.sum("if(user = ')', n, null)")),
        ("max_by(user, n) filter (where n < 9)", ms.max_by("if(n < 9, user, null)", "if(n < 9, n, null)")),
        ("top(user, 3, by => n) filter (where n < 9)", ms.top("if(n < 9, user, null)", 3, by="if(n < 9, n, null)")),
        ("max_by(user, abs(n, 2))", ms.max_by("user", "abs(n, 2)")),
        ("every(n > 3)", ms.all("n > 3")),
        ("any_value(n)", ms.first("n")),
        ("top(user, 3, by => n + 1)", ms.top("user", 3, by="n + 1")),
        ("percentile(n, array(0, 0.5, 1))", ms.percentile("n", [0, 0.5, 1])),
        ("approx_count_distinct(user)", ms.approx_distinct("user")),
        ("approx_count_distinct(user, 0.05)", ms.approx_distinct("user", error=0.05)),
        ("approx_percentile(n, 0.5D, 10000)", ms.approx_quantiles("n", 0.5, error=0.0001)),
        ("approx_count(user, of => 'it''s', error => 0.1)", ms.approx_count("user", of="it's", error=0.1)),
        ("approx_count(n, of => -1)", ms.approx_count("n", of=-1)),
        ("hll_sketch_agg(user)", ms.approx_distinct("user", sketch=True)),
        ("hll_union_agg(users)", ms.approx_distinct("users", sketch=True, of_sketches=True)),
        ("theta_sketch_agg(user)", ms.approx_set("user")),
        ("theta_intersection_agg(users)", ms.approx_intersection("users", sketch=True)),
        ("kll_sketch_agg_double(n)", ms.approx_quantiles("n", 0.5, sketch=True)),
        ("sample(user, 3, weight => n)", ms.sample("user", 3, weight="n")),
    ],
)
def test_a_text_is_the_aggregate_of_its_function(text: str, expected: Aggregate) -> None:
    assert named((), {"found": text}) == named((f"{text} as found",), {}) == {"found": expected}


def test_every_aggregate_has_a_text() -> None:
    """Method: all public functions that return an aggregate are known by their names; `combine` takes functions."""
    public = {name for name in dir(ms) if name in ms.__all__}
    made = {
        name
        for name in public
        if getattr(getattr(ms, name), "__annotations__", {}).get("return") == "Aggregate" and name != "combine"
    }
    assert len(made) > 35
    assert made - {"count"} <= FUNCTIONS.keys()
    assert not (FUNCTIONS.keys() - AS_IN_SPARK.keys()) - made


@pytest.mark.parametrize(
    ("texts", "made", "what", "next_step"),
    [
        ((), {"x": "n"}, "'n' is not an aggregate", "sum(score)"),
        ((), {"x": "sum(n) / 2"}, "'sum(n) / 2' is not an aggregate", "select"),
        ((), {"x": "sum(n) over (partition by user)"}, "is not an aggregate", "select"),
        ((), {"x": "sums(n)"}, "there is no aggregate 'sums', in 'sums(n)'", "did you mean 'sum'?"),
        ((), {"x": "approx_top_k(user, 3)"}, "there is no aggregate 'approx_top_k'", "approx_top(user, 3)"),
        ((), {"x": "sum(n"}, "'sum(n' cannot be read", "one expression"),
        ((), {"x": "sum()"}, "sum takes other arguments", "expression"),
        ((), {"x": "count(user, n)"}, "count takes other arguments", "expression"),
        ((), {"x": "sum(distinct n)"}, "distinct is for count(distinct column)", ".distinct(…)"),
        ((), {"x": "approx_quantiles(n, n)"}, "'n' is not a constant", "array(…)"),
        ((), {"x": "approx_distinct(n, eror => 0.1)"}, "unexpected keyword argument 'eror'", "error"),
        ((), {"x": "approx_distinct(n, 0.1)"}, "too many positional arguments", "error"),
        ((), {"x": "approx_distinct(n, error => 0.9)"}, "takes an error from 0.0005 to 0.5", ""),
        ((), {"x": "sum(m)"}, "there is no column 'm'", ""),
        ((), {"x": "approx_top(n, 3)"}, "a string", ""),
        (("sum(n)",), {}, "'sum(n)' needs a name for its result", "'sum(n) as result'"),
        (("sum(n) as x", "count(*) as x"), {}, "two results are named 'x'", ""),
        (("count(*) as x",), {"x": "sum(n)"}, "two results are named 'x'", ""),
        ((), {"x": 3}, "x=3 is not an aggregate", "ms.sum"),
    ],
)
def test_what_is_no_aggregate_is_refused(
    texts: tuple[str, ...], made: dict[str, Any], what: str, next_step: str
) -> None:
    rows = ms.Flow("texts").read("rows", SCHEMA)
    with pytest.raises(InvalidInput) as refused:
        rows.group_by("team").agg(*texts, **made)
    assert what in str(refused.value)
    assert next_step in (refused.value.next_step or "")
    assert (refused.value.where or "").startswith(f"{__file__}:")


def test_sketches_of_rows_that_may_be_retracted_are_refused_as_text_too() -> None:
    table = ms.Flow("texts").read("rows", SCHEMA).to_table(key="user")
    with pytest.raises(InvalidInput, match=r"users=approx_distinct\(user\) needs rows that are never retracted"):
        table.group_by("team").agg(users="approx_count_distinct(user)")
