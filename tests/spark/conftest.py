"""One Spark session for all tests of this folder: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millstream.spark import session, stop


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    yield session(name="tests")
    stop()
