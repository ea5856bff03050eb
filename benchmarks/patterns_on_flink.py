"""MATCH_RECOGNIZE of Flink SQL, streaming mode, over Parquet files. When time counts, rows end in its blackhole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyflink.table import (  # type: ignore[import-not-found]  # it is in an environment of its own
    EnvironmentSettings,
    TableDescriptor,
    TableEnvironment,
)

from pattern_statements import CORES, READERS, answer, only_on_two_cores

SETTINGS = {
    "parallelism.default": str(CORES),
    "taskmanager.numberOfTaskSlots": str(CORES),
    "table.local-time-zone": "UTC",
    "pipeline.object-reuse": "true",
    "taskmanager.memory.network.min": "256 mb",
    "taskmanager.memory.network.max": "256 mb",
    "taskmanager.memory.managed.size": "512 mb",
}
TABLE = """
    create table events (
        card bigint, amount double, paid_at timestamp(3), watermark for paid_at as paid_at - interval '1' second
    ) with (
        'connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'
    )
"""


def environment(folder: Path) -> Any:
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    env.get_config().set("pipeline.jars", ";".join(f"file://{jar}" for jar in os.environ["FLINK_JARS"].split(":")))
    for key, value in SETTINGS.items():
        env.get_config().set(key, value)
    env.execute_sql(TABLE.format(folder=folder / READERS))
    return env


def query(statement: str) -> str:
    return f"select * from events match_recognize ({statement}) as found"


def run(statement: str, folder: Path) -> None:
    blackhole = TableDescriptor.for_connector("blackhole").build()
    environment(folder).sql_query(query(statement)).execute_insert(blackhole).wait()


def rows(statement: str, folder: Path) -> list[Any]:
    with environment(folder).execute_sql(query(statement)).collect() as found:
        return [list(row) for row in found]


if __name__ == "__main__":
    only_on_two_cores()
    answer(run, rows)
