"""The queries as flows of Millstream on a local Spark. When time counts, rows are counted where they are made and let
go, those of q10 go to files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import engine
import event_files
import filed
import queries
from engine import CORES, Row, Task, Timed
from generator import SCHEMAS

import millstream as ms
from millstream.connectors.files.endpoint import Files
from millstream.plan.stream import Stream
from millstream.spark.session.start import session

MEMORY = "4g"


def built(task: Task, name: str) -> Stream:
    flow = ms.Flow(name)
    streams = {
        topic: flow.read(
            ms.files(task.folder / topic, files_per_batch=1), schema, queries.EVENT_TIME, queries.WATERMARK
        )
        for topic, schema in SCHEMAS.items()
    }
    settings = {"side": task.folder / event_files.SIDE} if name == "q13" else {}
    return queries.QUERIES[name](**streams, **settings)


def timed(task: Task, name: str) -> Timed:
    query = built(task, name)
    query.write(_files(filed.new_folder(task)) if name == filed.FILED else ms.discard())
    times: list[float] = query.flow.run(broker=_log(task), until="caught up", progress="none").batch_times()
    return task.steady, sum(times[1:])


def rows(task: Task, name: str) -> list[Row]:
    query = built(task, name)
    if name == filed.FILED:
        folder = filed.new_folder(task)
        query.write(_files(folder))
        query.flow.run(broker=_log(task), until="caught up", progress="none")
        return filed.read(folder)
    kept = ms.memory(f"{name}-{time.time_ns()}")
    query.write(kept)
    # Windows of processing time end with the batch run; all others end with the last events.
    how: dict[str, Any] = {"batch": True} if name == "q12" else {"until": "caught up"}
    query.flow.run(broker=_log(task), progress="none", **how)
    try:
        return list(kept.rows())
    finally:
        kept.clear()


def _files(folder: Path) -> Files:
    return ms.files(folder, partition_by=filed.PARTITIONS)


def _log(task: Task) -> Path:
    return task.scratch / f"log-{time.time_ns()}"


def run(tasks: Sequence[Task]) -> None:
    session(master=f"local[{CORES}]", partitions=CORES, settings={"spark.driver.memory": MEMORY})
    engine.serve(tasks, timed, rows)


if __name__ == "__main__":
    engine.main(run)
