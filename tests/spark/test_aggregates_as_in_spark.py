"""The aggregates give what those of Spark SQL give, for nulls, NaN, infinities, single values and none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.testing import Add, play

SQL = {
    "min": (ms.min("x"), "min(x)"),
    "max": (ms.max("x"), "max(x)"),
    "avg": (ms.avg("x"), "avg(x)"),
    "median": (ms.median("x"), "median(x)"),
    "percentile": (ms.percentile("x", 0.9), "percentile(x, 0.9)"),
    "percentiles": (ms.percentile("n", [0.1, 0.5]), "percentile(n, array(0.1, 0.5))"),
    "variance": (ms.variance("n"), "variance(n)"),
    "var_pop": (ms.var_pop("n"), "var_pop(n)"),
    "stddev": (ms.std("n"), "std(n)"),
    "stddev_pop": (ms.stddev_pop("n"), "stddev_pop(n)"),
    "count_if": (ms.count_if("n > 1"), "count_if(n > 1)"),
    "any": (ms.any("n > 1"), "bool_or(n > 1)"),
    "all": (ms.all("n > 1"), "bool_and(n > 1)"),
    "max_by": (ms.max_by("n", "x"), "max_by(n, x)"),
    "min_by": (ms.min_by("n", "x"), "min_by(n, x)"),
    "collect_set": (ms.collect_set("n"), "collect_set(n)"),
    "mode": (ms.mode("k"), "mode(k)"),
}
ROWS = {
    "usual": [(1, 1.5), (2, 0.5), (2, 9.25), (7, -3.0), (None, 4.0), (5, None)],
    "one": [(3, 2.5)],
    "nulls": [(None, None), (None, None)],
    "nan": [(1, math.nan), (2, 1.0), (3, 2.0)],
    "nan alone": [(1, math.nan)],
    "infinite": [(1, math.inf), (2, 1.0), (4, -math.inf), (8, 2.0)],
    "large": [(2**62, 1e300), (2**62 - 1, 5e299), (-(2**62), -1e300)],
}


@pytest.mark.parametrize("case", ROWS)
def test_an_aggregate_is_what_spark_computes(case: str, spark: SparkSession) -> None:
    rows = [("k", n, x) for n, x in ROWS[case]]
    frame = spark.createDataFrame(rows, "k string, n bigint, x double")
    wanted = frame.groupBy("k").agg(*(_named(sql, name) for name, (_, sql) in SQL.items())).collect()[0].asDict()

    def build(stream: Any) -> Any:
        return stream.group_by("k").agg(**{name: made for name, (made, _) in SQL.items()}).changes()

    given = [dict(zip(("k", "n", "x"), row, strict=True)) for row in rows]
    for runner in ("reference", "local"):
        found = play(build, [Add(given)], schema="k string, n bigint, x double", on=runner)[0][-1]
        assert {name: _alike(found[name]) for name in SQL} == {name: _alike(wanted[name]) for name in SQL}


def _named(sql: str, name: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(sql).alias(name)


def _alike(value: Any) -> Any:
    """Spark's sets have no order, and sums of floats depend on it."""
    if isinstance(value, list):
        return sorted(map(repr, map(_alike, value)))
    return repr(float(f"{value:.12g}")) if isinstance(value, float) else value
