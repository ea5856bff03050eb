"""A job that has run, without Spark: its topic, and a checkpoint that records the batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.plan.time.bundles import micros

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "user string, team string, score int, at timestamp"


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def score(team: str, points: int, seconds: float) -> dict[str, Any]:
    return {"user": "u", "team": team, "score": points, "at": at(seconds)}


@dataclass(frozen=True)
class Batch:
    """What a batch reads, by partition, and the time on its clock in seconds after noon."""

    clock_s: float
    rows: Mapping[int, Sequence[Any]]


def record(log_folder: Path, job: str, source: str, topic: str, batches: Sequence[Batch], partitions: int = 1) -> None:
    """Sends the rows of batches to a topic, and records the batches as Spark does."""
    offsets = {str(number): 0 for number in range(partitions)}
    folder = log_folder / "jobs" / job
    for name in ("offsets", "commits"):
        (folder / "checkpoint" / name).mkdir(parents=True)
    (folder / "lock").touch()
    with ms.connect(log_folder) as log:
        for number, batch in enumerate(batches):
            with log.producer() as producer:
                for partition, rows in batch.rows.items():
                    for row in rows:
                        producer.send(topic, row, partition=partition)
                    offsets[str(partition)] += len(rows)
            end = {"clock": micros(at(batch.clock_s)), "ended": False, "sources": {source: dict(offsets)}, "done": {}}
            (folder / "checkpoint" / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
            (folder / "checkpoint" / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
