"""Saves a batch DataFrame as files in the job's folder: read like any source, and unchanged after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from millstream.connectors.files.endpoint import Files
from millstream.plan.nodes import Read, Write
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.rewiring import rewired

DONE = "_SUCCESS"
TIMES = "spark.sql.parquet.outputTimestampType"


def as_files(outputs: Sequence[Write], folder: Path) -> tuple[Write, ...]:
    """The same outputs, with batch DataFrames replaced by files."""
    return rewired(
        outputs, lambda node: _from_files(node, folder) if isinstance(node, Read) and _is_bounded(node) else node
    )


def _is_bounded(node: Read) -> bool:
    return isinstance(node.source, SparkFrame) and not node.source.streams


def _from_files(node: Read, folder: Path) -> Read:
    path = folder / "frames" / node.name
    if not (path / DONE).exists():
        spark = node.source.frame.sparkSession
        before = spark.conf.get(TIMES)
        spark.conf.set(TIMES, "TIMESTAMP_MICROS")  # Spark's own INT96 has no time zone
        try:
            node.source.frame.write.mode("overwrite").parquet(str(path))
        finally:
            spark.conf.set(TIMES, before)
    return replace(node, source=Files(str(path), "parquet", max_expansion=None))
