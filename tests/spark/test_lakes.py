"""Flows on Spark between tables of a lake: tasks write the files, and Spark reads them back."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import millstream as ms
from connectors.support import LAKES, catalog, delta_files, iceberg_files
from jobs.support import CAUGHT_UP
from millstream.log import EmbeddedLog

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.more]

ROWS = 400_000


def numbers(path: Path, first: int, count: int) -> None:
    made = np.arange(first, first + count)
    rows = pa.table({"n": pa.array(made), "text": pa.array(made).cast(pa.string()), "part": pa.array(made % 2)})
    write_deltalake(path, rows, mode="append")


@pytest.mark.parametrize("kind", LAKES)
def test_a_large_table_is_copied_by_the_tasks(kind: str, log: EmbeddedLog, tmp_path: Path, spark: SparkSession) -> None:
    """Goal: exactly the rows of the source, as Spark reads them, also after a second run with more of them."""
    into = (
        ms.delta_table(tmp_path / "lake", partition_by="part")
        if kind == "delta"
        else ms.iceberg("tests", "games.scores", partition_by="part", settings=catalog(tmp_path))
    )
    for first, count in ((0, ROWS), (ROWS, 10)):
        numbers(tmp_path / "in", first, count)
        flow = ms.Flow("copying")
        flow.read(ms.delta_table(tmp_path / "in")).where("n >= 0").write(into)
        flow.run(broker=log.path, until=CAUGHT_UP, progress="none")
    files = delta_files(tmp_path / "lake") if kind == "delta" else iceberg_files(tmp_path)
    found = spark.read.parquet(*files).selectExpr("count(*)", "count(distinct n)", "sum(n)", "max(text)").collect()[0]
    total = ROWS + 10
    assert tuple(found) == (total, total, total * (total - 1) // 2, str(99999))
    if kind == "delta":
        assert len(files) == 4


@pytest.mark.parametrize("kind", LAKES)
def test_spark_and_duckdb_read_what_an_upsert_leaves(
    kind: str, log: EmbeddedLog, tmp_path: Path, spark: SparkSession
) -> None:
    """Goal: of a table whose rows are replaced and deleted, both read exactly the rows of the newest version."""
    schema = "team string, score int"
    log.create_topic("scores", schema=schema)
    into = (
        ms.delta_table(tmp_path / "lake", key="team")
        if kind == "delta"
        else ms.iceberg("tests", "games.scores", key="team", settings=catalog(tmp_path))
    )
    for scores in ({"red": 5, "blue": 3}, {"red": -5, "green": 1}, {"blue": 4}):
        with log.producer() as producer:
            for team, score in scores.items():
                producer.send("scores", {"team": team, "score": score}, key=team)
        flow = ms.Flow("totals")
        totals = flow.read("scores", schema).group_by("team").agg(total=ms.sum("score")).where("total <> 0")
        totals.write(into)
        flow.run(broker=log.path, until=CAUGHT_UP, progress="none")
    files = delta_files(tmp_path / "lake") if kind == "delta" else iceberg_files(tmp_path)
    by_spark = [tuple(row) for row in spark.read.parquet(*files).select("team", "total").orderBy("team").collect()]
    by_duckdb = duckdb.execute("SELECT team, total FROM read_parquet(?) ORDER BY team", [files]).fetchall()
    assert by_spark == by_duckdb == [("blue", 7), ("green", 1)]
