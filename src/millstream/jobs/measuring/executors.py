"""The executors of a job on a cluster: where each runs, since when, and what it uses. Other processes read the list.

On a local master there is none: the driver runs the tasks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.spark.session.shipping import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = "executors.json"
WRITE_S = 5.0
DRIVER = "driver"
JVM_MEMORY = ("JVMHeapMemory", "JVMOffHeapMemory")
PYTHON_MEMORY = "ProcessTreePythonRSSMemory"


class ExecutorsFile:
    """Written every few seconds by the thread that takes samples."""

    def __init__(self, folder: Path, spark: Callable[[], SparkSession | None]) -> None:
        self._path = folder / FILE
        self._spark = spark
        self._written_at = float("-inf")
        with suppress(OSError):  # those of an earlier run
            self._path.unlink(missing_ok=True)

    def update(self) -> None:
        spark = self._spark()
        if spark is None or is_local(spark.sparkContext.master) or time.monotonic() - self._written_at < WRITE_S:
            return
        self._written_at = time.monotonic()
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps(executors_of(spark)))
        draft.replace(self._path)


def executors_of(spark: SparkSession) -> list[dict[str, Any]]:
    """What Spark knows of them. Memory is the most that an executor used, which it reports every ten seconds."""
    context: Any = spark.sparkContext
    listed = context._jsc.sc().statusStore().executorList(True)
    every = [listed.apply(number) for number in range(listed.size())]
    return [_described(each) for each in every if each.id() != DRIVER]


def _described(executor: Any) -> dict[str, Any]:
    host, _, port = executor.hostPort().rpartition(":")
    peaks = executor.peakMemoryMetrics()
    used = {name: peaks.get().getMetricValue(name) if peaks.isDefined() else 0 for name in (*JVM_MEMORY, PYTHON_MEMORY)}
    jvm = sum(used[name] for name in JVM_MEMORY)
    return {
        "id": executor.id(),
        "host": host,
        "port": int(port),
        "since": executor.addTime().getTime() / 1000,
        "cores": executor.totalCores(),
        "tasks": executor.activeTasks(),
        "task_s": executor.totalDuration() / 1000,
        "jvm_memory_bytes": jvm or None,
        "python_memory_bytes": used[PYTHON_MEMORY] or None,
    }


def read_executors(folder: Path) -> list[dict[str, Any]]:
    """The executors of a running job; empty on a local master."""
    try:
        found = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
