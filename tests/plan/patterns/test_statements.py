"""MATCH_RECOGNIZE of a stream: a mistake is reported at the user's line, with its place in the text."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput

SCHEMA = "id string, kind string, price int, at timestamp"
COLUMNS = "columns that exist: id, kind, price, at"


def statement(text: str) -> Any:
    return ms.Flow("test").read("rows", SCHEMA, event_time="at").match_recognize(text)


def refused(text: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        statement(text)
    assert __file__ in str(caught.value.where)
    assert caught.value.next_step
    return caught.value


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("partition by nowhere pattern (A) define A as price > 1", 14, "nowhere"),
        ("order by price pattern (A) define A as price > 1", 10, "which is 'at'"),
        ("partition by id order by at, price pattern (A) define A as price > 1", 26, "order of the log"),
        ("pattern (A) define A as price > 1", 9, "no columns"),
        ("partition by id pattern (A ^ B) define A as price > 1", 25, "can never match: it has a row before ^"),
        ("partition by id pattern ((A $ | B) C+) define A as price > 1", 25, "can never match: it has a row after $"),
        ("partition by id pattern ((^ A){2}) define A as price > 1", 25, "can never match: it has a row before ^"),
        ("partition by id pattern (A (B*)*) define A as price > 1", 25, "repeated without end"),
        ("partition by id pattern (A | B) define B as A.price > 1", 45, "'A' does not come before it"),
    ],
)
def test_mistakes_of_clauses(text: str, column: int, message: str) -> None:
    error = refused(text)
    assert error.what.startswith(f"line 1, column {column} of MATCH_RECOGNIZE: ")
    assert message in error.what


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("prev(first(price) + last(price)) as p", "PREV looks from one row"),
        ("next(price, n) as p", "the offset of next is a whole number"),
        ("next(A.price + B.price) as p", "takes the rows of one variable"),
        ("Q.price as p", "there is no variable 'Q'"),
        ("A.nowhere as p", "there is no column 'nowhere'"),
        ("A.price + nowhere as p", "there is no column 'nowhere', in 'A.price + nowhere'"),
        ("classifier(Q) as p", "CLASSIFIER takes no argument, or a variable"),
        ("classifier(A, B) as p", "CLASSIFIER takes no argument, or a variable"),
        ("match_number(A) as p", "MATCH_NUMBER takes no argument"),
        ("prev(classifier()) as p", "prev(classifier(…)) is not possible"),
        ("last(classifier() || 'x') as p", "last(classifier() …) takes nothing else"),
        ("sum(last(A.price)) as p", "sum(last(…)) is not possible"),
        ("first(A.price, 1, 2) as p", "first(…) takes a column and an offset"),
        ("first() as p", "first() needs an argument"),
        ("count(distinct A.price) as p", "count(distinct …) is not possible"),
        ("sum(A.kind) as p", "sum needs a number, but 'kind' is string"),
        ("final avg(at) as p", "avg needs a number, but 'at' is timestamp"),
        ("stddev(A.price) as p", "STDDEV(A.price) looks at more than one row"),
        ('"A".price as p', "is a text in Spark SQL"),
        ("A.price as ID", "the result has a column 'ID' already"),
        ("final upper(A.id) as p", "FINAL stands before FIRST, LAST, PREV, NEXT or an aggregate, not before 'upper'"),
        ("running classifier() as p", "RUNNING stands before FIRST"),
    ],
)
def test_mistakes_of_measures(measure: str, message: str) -> None:
    error = refused(f"partition by id measures count(*) as n,\n {measure} pattern (A B) define A as price > 1")
    assert error.what.startswith("line 2, column 2 of MATCH_RECOGNIZE: ")
    assert message in error.what


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("nowhere > prev(price)", "there is no column 'nowhere', in 'nowhere > prev(price)'"),
        ("price", "a condition must be true or false"),
        ("price < > 1", "cannot be read as Spark SQL"),
        ("B.price > 1", "looks ahead: 'B' does not come before it"),
        ("next(B.price) > 1", "looks ahead: 'B' does not come before it"),
        ("classifier(B) = 'B'", "looks ahead: 'B' does not come before it"),
        ("classifier() = 'B'", "no row can be 'A'"),
        ("Q.price > 1", "there is no variable 'Q'"),
        ("prev(prev(price)) > 1", "prev(prev(…)) is not possible"),
        ("prev(price) < 1 and current_timestamp() > at", "'prev(price) < 1 and current_timestamp() > at' cannot be"),
        ("price > 1 or rand() > 1", "results must be repeatable"),
        ("false", "no row can be 'A'"),
        ("not true or 1 = 2", "no row can be 'A'"),
        (" and ".join(["price > 1"] * 3000), "nested too deeply"),
    ],
)
def test_mistakes_of_conditions(condition: str, message: str) -> None:
    error = refused(f"partition by id pattern (A B)\n  define A as {condition}")
    assert error.what.startswith("line 2, column 15 of MATCH_RECOGNIZE: ")
    assert message in error.what


def test_the_columns_that_exist_are_those_of_the_stream() -> None:
    assert refused("partition by id pattern (A) define A as prev(price) > nowhere").next_step == COLUMNS
    assert refused("measures A.price > nowhere as n pattern (A) define A as price > 1").next_step == COLUMNS


def test_columns_may_be_named_running_and_final() -> None:
    stream = ms.Flow("test").read("rows", "running boolean, final int, at timestamp", event_time="at")
    assert stream.match_recognize(
        """measures final as ends, A.running and final in (1, 2) as fits, final sum(A.final) as total
           pattern (A+) define A as running and final is not null"""
    ).schema.names == ("ends", "fits", "total")
