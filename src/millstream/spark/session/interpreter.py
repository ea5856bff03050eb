"""The Python interpreter of a session that the user created."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from millstream.spark.session.shipping import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_interpreter(spark: SparkSession) -> None:
    """Makes the workers of a session that the user created run this interpreter, if the user chose none.

    PySpark would look for "python3" on the PATH, which may have neither PySpark nor Millstream. On a cluster, where
    paths may differ, the user has to choose.
    """
    context = spark.sparkContext
    if os.environ.get("PYSPARK_PYTHON") or not is_local(context.master):
        return
    chosen = spark.conf.get("spark.pyspark.python", None) or sys.executable
    os.environ["PYSPARK_PYTHON"] = chosen
    context.pythonExec = chosen
