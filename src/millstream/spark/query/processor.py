"""A stage as a stateful processor of Spark. Cheap to import, because Spark first loads it only to declare its state."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from millstream.spark.query.state_runner import Received, Shipment, StepRunner

PackedRow = Row("label", "step", "kind", "task", "blob")


class StageProcessor(StatefulProcessor):
    """Runs the steps of a stage in order; rows for later stages and for outputs are passed on."""

    def __init__(
        self, shipment: Shipment, numbers: Sequence[int], slots: Sequence[int], resting: Sequence[int] = ()
    ) -> None:
        """`slots` number the state of these steps, whatever other steps the stage has; `resting` that of others."""
        self._packed = pickle.dumps(shipment)
        self._numbers = list(numbers)
        self._slots = [*slots, *resting]

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._states = [
            (
                handle.getValueState(f"head{slot}", "head binary"),
                handle.getMapState(f"deltas{slot}", "number long", "delta binary"),
            )
            for slot in self._slots
        ]
        self._runners: dict[int, StepRunner] = {}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        received: dict[int, list[Received]] = {number: [] for number in self._numbers}
        for row in rows:
            if row.step in received:
                received[row.step].append((row.kind, row.task, bytes(row.blob)))
            else:
                yield row
        for number in self._numbers:
            if received[number]:
                for packed in self._runner(number).run(key[0], received.pop(number)):
                    if packed[1] in received:  # a step of this stage: its rows are in the same key group
                        assert packed[0] == key[0]
                        received[packed[1]].append((packed[2], packed[3], packed[4]))
                    else:
                        yield PackedRow(*packed)

    def _runner(self, number: int) -> StepRunner:
        if number not in self._runners:
            from millstream.spark.query.state_runner import StepRunner

            states = self._states[self._numbers.index(number)]
            self._runners[number] = StepRunner(pickle.loads(self._packed), number, *states)
        return self._runners[number]

    def close(self) -> None: ...
