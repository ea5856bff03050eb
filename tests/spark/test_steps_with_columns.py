"""A Column of PySpark works wherever a step takes an expression.

Goal: it does what the same expression as text does. Method: play both on Spark; mypy checks the calls themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import millstream as ms
from millstream.errors import InvalidPlan
from millstream.testing import Add, Watermark, play

from . import steps_with_columns as given

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Build = Callable[[ms.Stream], dict[str, ms.Stream]]


def at(minute: int) -> datetime:
    return datetime(2026, 1, 31, 12, minute, tzinfo=UTC)


USERS = [("ann", 1), ("bob", 2), ("ann", 5), (None, 6), ("bob", 3), ("ann", None)]
ROWS = [{"id": number, "user": user, "n": n, "at": at(number)} for number, (user, n) in enumerate(USERS)]


def played(build: Build) -> Any:
    return play(build, [Add(ROWS), Watermark(at(30))], schema=given.SCHEMA, event_time="at", on="spark")


@pytest.mark.parametrize(
    ("columns", "texts"),
    [(given.row_by_row, given.row_by_row_as_text), (given.with_state, given.with_state_as_text)],
    ids=["row by row", "with state"],
)
def test_a_column_does_what_text_does(spark: SparkSession, columns: Build, texts: Build) -> None:
    found, expected = played(columns), played(texts)
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.keys() == other.keys()
        for output in one:
            assert _sorted(one[output]) == _sorted(other[output]), (step, output)


def _sorted(rows: Any) -> list[str]:
    return sorted(repr(sorted(dict(row).items(), key=lambda item: item[0])) for row in rows)


def test_event_time_is_a_column(spark: SparkSession) -> None:
    flow = ms.Flow("times")
    assert given.read_with_event_time(flow).schema.names == ("ms",)
    assert given.with_event_time(flow.read("more", "ms long")).schema.names == ("ms",)


def test_what_takes_only_text_says_so(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    rows: Any = ms.Flow("texts").read("raw", "id int, n int")
    with pytest.raises(InvalidPlan, match="by is given as a Column, and an order is text"):
        rows.top(1, by=sf.col("n").desc())
    with pytest.raises(InvalidPlan, match="'trace' is given as a Column"):
        rows.with_headers(trace=sf.col("id"))
    with pytest.raises(InvalidPlan, match="there is no column 'lower"):
        rows.take(1, per=sf.lower("id"))
