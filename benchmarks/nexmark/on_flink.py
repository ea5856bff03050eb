"""The queries as Flink SQL, streaming mode, in Flink's own environment. When time counts, rows end in its blackhole,
those of q10 in files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import engine
import filed
from engine import Refused, Row, Task, Timed
from pyarrow.parquet import read_metadata
from pyflink.table import (  # type: ignore[import-not-found]  # it is in an environment of its own
    EnvironmentSettings,
    TableDescriptor,
    TableEnvironment,
)

STATEMENTS = Path(__file__).parent / "flink_sql"
BY_READER, FIRST_BY_READER, SIDE = "by_reader", "first_by_reader", "side.csv"
KINDS = {"INSERT": 1, "UPDATE_AFTER": 1, "UPDATE_BEFORE": -1, "DELETE": -1}
SETTINGS = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "table.local-time-zone": "UTC",
    "pipeline.object-reuse": "true",
    # What its own Nexmark runs with.
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "taskmanager.memory.network.min": "256 mb",
    "taskmanager.memory.network.max": "256 mb",
    "taskmanager.memory.managed.size": "512 mb",
}


def made(task: Task, files: str, *, watched: bool = False) -> Any:
    """A new environment with the tables. `watched`: the job waits for more bids when it has read them all."""
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    env.get_config().set("pipeline.jars", ";".join(f"file://{jar}" for jar in os.environ["FLINK_JARS"].split(":")))
    for key, value in SETTINGS.items():
        env.get_config().set(key, value)
    places = {
        "folder": f"file://{task.folder / files}",
        "side": f"file://{task.folder / SIDE}",
        "watched": ", 'source.monitor-interval' = '1 s'" if watched else "",
    }
    for statement in (STATEMENTS / "tables.sql").read_text().split(";"):
        if statement.strip():
            env.execute_sql(statement.format(**places))
    return env


def asked(name: str) -> str:
    """The statement of a query; {other} in it stands for what is in other.sql."""
    return re.sub(r"\{(\w+)\}", lambda other: asked(other[1]).rstrip(), (STATEMENTS / f"{name}.sql").read_text())


def refused(error: Exception) -> Refused:
    """The innermost reason that Flink gives, without where it happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [
        line for line in lines if re.match(r"(Caused by: )?(org\.apache|java\.)[\w.$]+(Exception|Error): ", line)
    ]
    return Refused((reasons or lines)[-1].partition(": ")[2] if reasons else lines[0])


def is_refusal(error: Exception) -> bool:
    said = str(error)
    return any(kind in said for kind in ("TableException", "ValidationException", "SqlParserException"))


def timed(task: Task, name: str) -> Timed:
    """Over the first events, to warm up, then over all of them. The start of a job is in its time."""
    written(made(task, FIRST_BY_READER), name, sink_of(task, name))
    return task.events, written(made(task, BY_READER), name, sink_of(task, name))


def sink_of(task: Task, name: str) -> Any:
    return (
        as_files(filed.new_folder(task)) if name == filed.FILED else TableDescriptor.for_connector("blackhole").build()
    )


def as_files(folder: Path) -> Any:
    """Without checkpoints a file is finished when it is large enough, or at the end of the input."""
    return (
        TableDescriptor.for_connector("filesystem")
        .option("path", f"file://{folder}")
        .format("parquet")
        .option("parquet.utc-timezone", "true")
        .partitioned_by(*filed.PARTITIONS)
        .build()
    )


def written(env: Any, name: str, sink: Any) -> float:
    try:
        started = time.perf_counter()
        env.sql_query(asked(name)).execute_insert(sink).wait()
        return time.perf_counter() - started
    except Exception as error:
        if is_refusal(error):
            raise refused(error) from None
        raise


def rows(task: Task, name: str) -> list[Row]:
    if name == filed.FILED:
        folder = filed.new_folder(task)
        written(made(task, BY_READER), name, as_files(folder))
        return filed.read(folder)
    try:
        # The end of files ends windows of event time, and leaves those of processing time open for ever.
        result = made(task, BY_READER, watched=name == "q12").execute_sql(asked(name))
        columns = result.get_table_schema().get_field_names()
        with result.collect() as found:
            every = (
                {**dict(zip(columns, row, strict=True)), "weight": KINDS[row.get_row_kind().name]} for row in found
            )
            return list(until_all(every, task) if name == "q12" else every)
    except Exception as error:
        if is_refusal(error):
            raise refused(error) from None
        raise


def until_all(counts: Iterable[Row], task: Task) -> Iterator[Row]:
    """Counts, until every bid was counted."""
    bids = sum(read_metadata(path).num_rows for path in (task.folder / BY_READER / "bids").glob("*.parquet"))
    for row in counts:
        yield row
        bids -= row["bid_count"]
        if bids <= 0:
            return


def run(tasks: Sequence[Task]) -> None:
    engine.serve(tasks, timed, rows)


if __name__ == "__main__":
    engine.main(run)
