"""The feed of a test: a script of steps, each of them a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl
import pyarrow as pa

from millstream.operators.stateful import SENT
from millstream.spark.query.packing import from_bytes, to_batch
from millstream.spark.query.state_runner import Shipment
from millstream.spark.query.task_messages import SourceControl


class Rows(Protocol):
    def frame(self) -> pl.DataFrame: ...


@dataclass(frozen=True)
class Carried:
    """Rows that are part of the script."""

    packed: bytes

    def frame(self) -> pl.DataFrame:
        return from_bytes(self.packed)


@dataclass(frozen=True)
class Scene:
    """The output of a source in one step of a script."""

    rows: Rows
    watermark_before: int
    watermark: int
    now: int


@dataclass(frozen=True)
class ScriptFeed:
    """A feed of scripted steps, for tests: each is a batch."""

    shipment: Shipment
    steps: tuple[dict[str, Scene], ...]

    def initial(self) -> dict[str, Any]:
        return {"step": 0}

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        return {"step": min(start["step"] + 1, len(self.steps))}

    def stop_at_latest(self) -> None:
        pass

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[int]:
        return range(start["step"], end["step"])

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        plan = self.shipment.worker_plan
        reached = max(scene.watermark_before for scene in self.steps[task].values())
        for number, source in enumerate(plan.physical_plan.sources):
            scene = self.steps[task][source.name]
            packer = plan.packer(source, task=number, watermark_max=reached)
            packer.add({SENT: scene.rows.frame()}, scene.now)
            yield to_batch(list(packer.pack(SourceControl(source.name, scene.now, watermark=scene.watermark))))
