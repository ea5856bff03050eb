"""Every function of Spark works in an expression: the examples of its own documentation are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import InvalidExpression
from millstream.expressions.expression import expression
from millstream.expressions.spark_functions import SPARK_FUNCTIONS
from millstream.records import Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MORE_ROWS = ("agg_funcs", "window_funcs", "generator_funcs")
EXAMPLE = re.compile(r"> SELECT ((?:(?!\bFROM\b|;).)*);\s*$", re.MULTILINE)
SYNTAX = re.compile(r"[a-z_0-9]+")
REFUSED = (
    "repeatable",  # it differs with each call, or between machines
    "which a column of a stream cannot be",  # a variant or an interval by itself
    "TIME is not supported",  # in Spark's own words: the type is not enabled
    "always null",  # it only raises an error
    "makes several columns",  # json_tuple
    "names its result",  # the example has an AS
)
NOT_HERE = {
    "schema_of_avro",  # needs a package that Spark does not contain
    "timestamp_nanos",  # of a type that PySpark cannot read
    "unix_nanos",  # the same
}


def functions(spark: SparkSession) -> Iterator[tuple[str, Any]]:
    session: Any = spark._jsparkSession
    registry = session.sessionState().functionRegistry()
    found = registry.listFunction().iterator()
    while found.hasNext():
        name = found.next()
        yield name.funcName(), registry.lookupFunction(name).get()


def test_the_list_of_names_is_sparks(spark: SparkSession) -> None:
    words = {"and", "between", "case", "div", "ilike", "in", "is", "like", "not", "or"}
    known = {name for name, info in functions(spark) if SYNTAX.fullmatch(name) and info.getDb() is None}
    assert known - words - SPARK_FUNCTIONS <= {name for name in known if name.startswith("twice")}
    assert known >= SPARK_FUNCTIONS - {"cast", "extract", "trim", "when", "position"}


@pytest.mark.more
def test_every_function_works(spark: SparkSession) -> None:
    schema, refused, tried = Schema.of("x int"), {}, 0
    for name, info in functions(spark):
        if info.getGroup() in MORE_ROWS or name in NOT_HERE:
            continue
        for example in EXAMPLE.findall(info.getExamples().replace("_FUNC_", name))[:1]:
            tried += 1
            try:
                expression(example, schema)
            except InvalidExpression as error:
                refused[example] = error.what
    unexpected = {example: what for example, what in refused.items() if not any(reason in what for reason in REFUSED)}
    assert not unexpected
    assert tried > 400
