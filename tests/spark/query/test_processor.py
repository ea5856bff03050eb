"""Spark starts a process of its own for each query only to declare its state: it must not load what it does not use."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import millstream.spark.query.processor
heavy = {"duckdb", "polars", "pyarrow", "millstream.log", "millstream.plan", "millstream.records"}
print(*sorted(heavy & set(sys.modules)))
"""


def test_declaring_state_loads_neither_the_log_nor_the_plan() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
