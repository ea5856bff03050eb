"""Every function that runs without Spark gives what a running Spark gives, over values that engines disagree about."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import functions_page
from millstream.expressions.functions import FUNCTIONS
from millstream.expressions.lambda_functions import FUNCTIONS as HIGHER_ORDER

from .differential import ERROR, differences, in_duckdb, on_spark
from .function_cases import APPROXIMATE, GENERAL, NUMBERS, OPERATORS, TEXT_AND_TIME, TIMES_AS_TEXT
from .json_cases import JSON_TEXT
from .nasty import nasty_rows, switching_rows
from .nested_cases import BUILD_MAPS, NESTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXACT = [*OPERATORS, *GENERAL, *TEXT_AND_TIME, *NUMBERS, *NESTED, *JSON_TEXT]
LAST_DIGITS = 1e-14


def compared(spark: SparkSession, texts: list[str], rows: pa.Table, tolerance: float = 0) -> list[str]:
    wanted = on_spark(spark, texts, rows)
    found = {text: in_duckdb(text, rows) for text in texts}
    return [each for text in texts for each in differences(text, wanted[text], found[text], rows, tolerance)]


@pytest.mark.more
def test_values_types_and_errors_are_those_of_spark(spark: SparkSession) -> None:
    """Every eighth expression; all of them take a minute, and are in the test of random rows."""
    wrong = compared(spark, EXACT[::8], nasty_rows(60))
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.more
def test_floating_point_functions_are_close_to_spark(spark: SparkSession) -> None:
    wrong = compared(spark, APPROXIMATE, nasty_rows(60), LAST_DIGITS)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.more
def test_maps_are_built_as_on_spark(spark: SparkSession) -> None:
    """Rows that are errors here are left out on Spark, and a few of them are checked one by one: see BUILD_MAPS."""
    rows = nasty_rows(70)
    for text in BUILD_MAPS:
        here = in_duckdb(text, rows)
        fine = pa.array([value != ERROR for value in here[1]])
        good, bad = rows.filter(fine), rows.filter(pa.compute.invert(fine))
        kept = (here[0], [value for value in here[1] if value != ERROR])
        wrong = differences(text, on_spark(spark, [text], good)[text], kept, good)
        assert not wrong, "\n".join(wrong[:5])
        for at in range(min(2, bad.num_rows)):
            assert on_spark(spark, [text], bad.slice(at, 1))[text][1] == [ERROR], f"{text}: {bad.slice(at, 1)}"


@pytest.mark.more
@pytest.mark.parametrize("part", range(8))
def test_random_rows_are_those_of_spark(spark: SparkSession, part: int) -> None:
    """All expressions, in parts, each over rows of its own."""
    wrong = compared(spark, EXACT[part::8], nasty_rows(120, seed=part))
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.more
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_daylight_saving_is_that_of_spark(spark: SparkSession, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around the hours that a zone skips or has twice, in a process of that zone, with times as text."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        wrong = compared(spark, [*TEXT_AND_TIME, *TIMES_AS_TEXT], switching_rows(zone))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert not wrong, "\n".join(wrong[:20])


def test_the_page_of_functions_is_about_this_spark(spark: SparkSession) -> None:
    assert functions_page.PAGE.read_text() == functions_page.page(spark), "run python tools/functions_page.py"


ALIASES = {
    "ceiling", "character_length", "char_length", "datepart", "date_diff", "dateadd", "dayofmonth", "getbit", "ifnull",
    "iff", "lcase", "len", "nvl", "power", "regexp", "rlike", "signum", "substr", "ucase", "char", "if", "isnull",
    "isnotnull", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "date", "timestamp",
}  # fmt: skip
"""Other names of functions that are tested, and casts, which are tested as casts."""


def test_every_function_is_compared_with_spark() -> None:
    tested = " ".join([*EXACT, *APPROXIMATE, *BUILD_MAPS])
    names = set(re.findall(r"\b([a-z_0-9]+)\(", tested))
    assert not {*FUNCTIONS, *HIGHER_ORDER} - names - ALIASES
