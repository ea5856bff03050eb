"""Keeps stack traces of py4j and PySpark out of the output when the JVM dies: the job raises one error for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALLBACKS = "py4j.clientserver"
"""The logger for what functions raised that the JVM called."""


def silence(spark: SparkSession) -> None:
    filter_logs()
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None


def filter_logs() -> None:
    """py4j logs a lost connection with the root logger, which gets a handler by that and prints all other records."""
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger(CALLBACKS).addFilter(_is_not_of_lost_jvm)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _is_not_of_lost_jvm(record: logging.LogRecord) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    error = record.exc_info[1] if record.exc_info else None
    return not any(
        isinstance(each, ConnectionError | Py4JError) and not isinstance(each, Py4JJavaError) for each in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
