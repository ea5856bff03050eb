"""What a PySpark user brings: a session of one's own, a static DataFrame to look rows up in, and models of MLlib."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.ml.feature import Binarizer
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan
from millstream.log import EmbeddedLog

OWN_SESSION = """
from pyspark.sql import SparkSession
import millstream as ms

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
log = ms.connect("data")
log.create_topic("scores", schema="user string, n int")
with log.producer() as producer:
    for n in (1, 2):
        producer.send("scores", {"user": "ann", "n": n})
flow = ms.Flow("totals", log="data")
flow.read("scores").group_by("user").agg(total=ms.sum("n")).write(ms.sqlite("totals.db", "totals"))
flow.run(until="caught up", progress="none")

from millstream.spark import register

register(spark, broker="data")
print(spark.read.format("millstream").load("scores").count(), "records")
"""


@pytest.mark.own_processes
@pytest.mark.more
def test_a_session_of_ones_own_needs_no_interpreter_named(tmp_path: Path) -> None:
    """The first python3 on the path is one without PySpark."""
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").write_text("#!/bin/sh\nexit 3\n")
    (bare / "python3").chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environ["PATH"] = f"{bare}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", OWN_SESSION], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["2 records"]), done.stderr[-3000:]


# ---------------------------------------------------------------- lookup tables


@pytest.mark.usefixtures("log")
def test_a_static_dataframe_is_a_lookup_table(spark: SparkSession, log: EmbeddedLog) -> None:
    log.create_topic("orders", schema="item int, n int")
    with log.producer() as producer:
        producer.send("orders", {"item": 1, "n": 3})
    items = spark.sql("SELECT 1 AS item, 'pen' AS name, timestamp'2026-01-02 00:00:00+00:00' AS since")
    flow = ms.Flow("named", log=log.path)
    known = flow.table(items)
    assert str(known.schema) == "item int, name string, since timestamp"
    flow.read("orders").join(known, on="item").select("name", "n").write("named")
    flow.run(until="caught up", progress="none")
    with log.consumer("named") as consumer:
        assert [record.value for record in consumer.until_caught_up()] == [{"name": "pen", "n": 3}]


def test_frames_have_a_schema_and_lists_do_not() -> None:
    assert str(ms.Flow("f").table(pl.DataFrame({"id": [1], "name": ["a"]})).schema) == "id bigint, name string"
    with pytest.raises(InvalidInput, match=r"need a schema(?s:.*)table\(rows, "):
        ms.Flow("f").table([{"id": 1}])


def test_a_streaming_dataframe_is_no_lookup_table(spark: SparkSession) -> None:
    with pytest.raises(InvalidPlan, match=r"not a streaming DataFrame(?s:.*)to_table"):
        ms.Flow("f").table(spark.readStream.format("rate").load())


# ---------------------------------------------------------------- models of MLlib


def model_itself(model: Any) -> Any:
    return model


def its_method(model: Any) -> Any:
    return model.transform


def in_a_closure(model: Any) -> Any:
    return lambda row: model.transform(row)


def in_a_partial(model: Any) -> Any:
    return partial(lambda model, row: row, model)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("made", [model_itself, its_method, in_a_closure, in_a_partial])
def test_a_model_of_mllib_in_map_is_refused_with_what_to_do(made: Callable[[Any], Any]) -> None:
    model = Binarizer(threshold=1.0, inputCol="n", outputCol="high")
    rows = ms.Flow("f").read("scores", "n double")
    refused = r"Binarizer of MLlib works on DataFrames(?s:.*)model\.transform"
    with pytest.raises(InvalidPlan, match=refused):
        rows.map(made(model))
    with pytest.raises(InvalidPlan, match=refused):
        rows.flat_map(made(model))


def test_vectors_of_mllib_are_plain_values() -> None:
    weights = Vectors.dense([1.0, 2.0])
    ms.Flow("f").read("scores", "n double").map(lambda row: {"n": float(weights[0]) * row["n"]})


# ---------------------------------------------------------------- progress of a started job


def test_a_started_job_shows_its_progress_if_asked(
    spark: SparkSession, log: EmbeddedLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.create_topic("scores", schema="n int")
    flow = ms.Flow("shown", log=log.path)
    flow.read("scores").write("copy")
    for progress in (False, "lines"):
        job = flow.start(until="caught up", progress=progress)  # type: ignore[arg-type]
        job.wait()
        assert ("shown: checking the sources" in capsys.readouterr().err) == (progress == "lines")
    with pytest.raises(InvalidInput, match="progress='line' is unknown"):
        flow.start(progress="line")  # type: ignore[arg-type]
