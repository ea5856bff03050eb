"""A JVM that dies is reported once: py4j's own stack traces do not surround the error of the job."""

from __future__ import annotations

import logging

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from millstream.errors import SparkFailed
from millstream.spark.session import lost_jvm


def logged(error: Exception, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What py4j reports of a function that the JVM called, with a handler at the root, as py4j's own call makes one."""
    lost_jvm.filter_logs()
    try:
        raise error
    except Exception:
        logging.getLogger("py4j.clientserver").exception("There was an exception while executing the Python Proxy")
    return caplog.messages


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("functions does not exist in the JVM"),
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_a_lost_jvm_is_not_logged_by_py4j(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert logged(error, caplog) == []


def test_neither_if_the_error_was_translated(caplog: pytest.LogCaptureFixture) -> None:
    translated = SparkFailed("the batch failed")
    translated.__cause__ = Py4JNetworkError("Answer from Java side is empty")
    assert logged(translated, caplog) == []


def test_other_errors_of_functions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(ZeroDivisionError("division by zero"), caplog) != []
