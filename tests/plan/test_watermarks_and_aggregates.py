"""Watermark strategies and aggregates are values, checked when they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.aggregates import basic as aggregates

FUNCTIONS = (int, lambda state, value: state, lambda one, other: one, lambda state: state)


def test_watermarks_and_aggregates_as_text() -> None:
    assert str(ms.bounded("10 seconds", idle="1 minute")) == "bounded(10 seconds, idle=1 minute)"
    assert str(ms.ascending()) == "ascending()"
    assert str(ms.punctuated("mark")) == "punctuated(mark)"
    assert str(ms.custom(max)) == "custom(max)"
    assert str(ms.top("user", 3, by="score")) == "top(user, 3, by=score)"
    assert str(ms.count()) == "count()"


@pytest.mark.parametrize(
    ("made", "given", "result"),
    [
        (ms.count(), None, pa.int64()),
        (ms.sum("x"), pa.int8(), pa.int64()),
        (ms.sum("x"), pa.float32(), pa.float64()),
        (ms.sum("x"), pa.decimal128(10, 2), pa.decimal128(20, 2)),
        (ms.sum("x"), pa.decimal128(35, 2), pa.decimal128(38, 2)),
        (ms.mean("x"), pa.int32(), pa.float64()),
        (ms.min("x"), pa.string(), pa.string()),
        (ms.first("x"), pa.list_(pa.int32()), pa.list_(pa.int32())),
        (ms.collect("x"), pa.int32(), pa.list_(pa.int32())),
        (ms.top("x", 2, by="y"), pa.string(), pa.list_(pa.string())),
        (ms.distinct_count("x"), pa.string(), pa.int64()),
        (ms.combine(*FUNCTIONS, input="x", result="double"), pa.int32(), pa.float64()),
    ],
    ids=str,
)
def test_the_type_of_a_result(made: aggregates.Aggregate, given: Any, result: Any) -> None:
    assert made.result_type(given) == result


@pytest.mark.parametrize(
    ("mistake", "what", "next_step"),
    [
        (lambda: ms.bounded("-1 s"), "the delay '-1 s' is negative", ""),
        (lambda: ms.bounded(5), "the delay must be text or a timedelta", ""),
        (lambda: ms.bounded("1 s", idle="0 s"), "idle must be longer than 0", "leave it out"),
        (lambda: ms.ascending(idle="x"), "the idle 'x' cannot be read", ""),
        (lambda: ms.punctuated(""), "punctuated takes a Spark SQL expression", "case when"),
        (lambda: ms.custom("f"), "custom takes a function, not 'f'", "list of rows"),
        (lambda: ms.sum(3), "sum takes a column or a Spark SQL expression as text, not 3", "sum('score')"),
        (lambda: ms.collect(""), "collect takes a column", ""),
        (lambda: ms.top("x", 0), "top takes a positive integer, not 0", "top('score', 3)"),
        (lambda: ms.top("x", True), "top takes a positive integer", ""),
        (lambda: ms.top("x", 2, by=3), "by takes a column", ""),
        (lambda: ms.combine(0, *FUNCTIONS[1:], input="x", result="int"), "zero is 0", "zero is also a function"),
        (lambda: ms.combine(*FUNCTIONS, input=3, result="int"), "combine takes a column", ""),
        (lambda: ms.combine(*FUNCTIONS, input="x", result="strange"), "strange", ""),
        (lambda: ms.combine(*FUNCTIONS, input="x", result="int, y int"), "result must be a single type", "bigint"),
    ],
)
def test_mistakes_are_refused(mistake: Callable[[], Any], what: str, next_step: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        mistake()
    assert what in refused.value.what
    assert next_step in (refused.value.next_step or "")
    assert (refused.value.where or "").startswith(f"{__file__}:")
