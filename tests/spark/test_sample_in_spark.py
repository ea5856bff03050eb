"""A sample has the same rows whether Spark or this process evaluates its condition."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.testing import Add, play

SCHEMA = "s string, n bigint, b boolean, d decimal(12,3), day date, at timestamp, x double"
ODD: list[dict[str, Any]] = [
    {"s": None, "n": None, "b": None, "d": None, "day": None, "at": datetime(1970, 1, 1, tzinfo=UTC)},
    {
        "s": "",
        "n": 0,
        "b": False,
        "d": Decimal(0),
        "day": date(1970, 1, 1),
        "at": datetime(1969, 12, 31, 23, tzinfo=UTC),
    },
    {
        "s": "ü|💧",
        "n": -(2**63),
        "b": True,
        "d": Decimal("-1.500"),
        "day": date(1582, 10, 4),
        "at": datetime(1, 1, 1, tzinfo=UTC),
    },
]


@pytest.mark.parametrize("seed", [0, -7])
def test_a_sample_of_a_dataframe_and_of_rows(seed: int, spark: SparkSession) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {**ODD[n % 3], "n": n - 50, "at": start + timedelta(microseconds=n * 999_999_937), "x": n / 3}
        for n in range(100)
    ] + [{**row, "x": None} for row in ODD]
    (sampled,) = play(
        lambda stream: stream.sample(0.5, seed=seed), [Add(rows)], schema=SCHEMA, event_time="at", on="local"
    )
    stream = ms.Flow("f").read("in", SCHEMA, event_time="at").sample(0.5, seed=seed)
    condition = stream.node.condition.spark  # type: ignore[attr-defined]
    frame = spark.createDataFrame([tuple(row[name] for name in stream.schema.names) for row in rows], SCHEMA)
    in_spark = [row["n"] for row in frame.where(condition).select("n").collect()]
    assert sorted(in_spark, key=str) == sorted((row["n"] for row in sampled), key=str)
    assert 30 < len(sampled) < 75
