"""Flows on Spark: everything that imports pyspark is in here, and does so when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

# Not lazily, as elsewhere: the package of the same name would shadow the function.
from millstream.spark.session.start import session, stop, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session", "stop", "warm"]


def register(spark: SparkSession, *, broker: str | None = None) -> None:
    """Registers topics as a format of plain PySpark, to read and to write: .format("millstream").option("topic", …)."""
    from millstream.spark.topic_data_source import register

    register(spark, broker=broker)
