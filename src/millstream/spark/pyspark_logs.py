"""What PySpark itself logs about errors: with a stack trace, although the error is also raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger

LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def errors_not_logged() -> Iterator[None]:
    """Keeps PySpark from logging errors of expressions, which are reported in the user's terms."""
    # By PySpark's own function: a logger of another class under these names makes PySpark fail.
    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
