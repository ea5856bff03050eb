"""A step of the chain as Spark sees it: a stateful processor. Light to load, for Spark asks it for its state first."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from millstream.spark.fabric import Shipment, StepRunner

PackedRow = Row("label", "step", "kind", "task", "blob")


class StepProcessor(StatefulProcessor):
    """Rows for later steps and for outputs are passed on."""

    def __init__(self, shipment: Shipment, number: int) -> None:
        self._packed = pickle.dumps(shipment)
        self._number = number

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._head = handle.getValueState("head", "head binary")
        self._deltas = handle.getMapState("deltas", "number long", "delta binary")
        self._runner: StepRunner | None = None

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        mine = []
        for row in rows:
            if row.step == self._number:
                mine.append((row.kind, row.task, bytes(row.blob)))
            else:
                yield row
        if mine:
            if self._runner is None:
                from millstream.spark.fabric import StepRunner

                self._runner = StepRunner(pickle.loads(self._packed), self._number, self._head, self._deltas)
            for packed in self._runner.run(key[0], mine):
                yield PackedRow(*packed)

    def close(self) -> None: ...
