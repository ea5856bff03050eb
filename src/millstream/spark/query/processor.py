"""A stage as Spark sees it: a stateful processor. Light to load, for Spark asks it for its state first."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from millstream.spark.query.state_runner import Mine, Shipment, StepRunner

PackedRow = Row("label", "step", "kind", "task", "blob")


class StageProcessor(StatefulProcessor):
    """Runs some steps of the chain, one after the other; rows for later stages and for outputs are passed on."""

    def __init__(self, shipment: Shipment, numbers: Sequence[int], places: Sequence[int]) -> None:
        """`places` are the numbers under which the state of these steps is kept, which others must not shift."""
        self._packed = pickle.dumps(shipment)
        self._numbers = list(numbers)
        self._places = list(places)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._states = [
            (
                handle.getValueState(f"head{place}", "head binary"),
                handle.getMapState(f"deltas{place}", "number long", "delta binary"),
            )
            for place in self._places
        ]
        self._runners: dict[int, StepRunner] = {}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        mine: dict[int, list[Mine]] = {number: [] for number in self._numbers}
        for row in rows:
            if row.step in mine:
                mine[row.step].append((row.kind, row.task, bytes(row.blob)))
            else:
                yield row
        for number in self._numbers:
            if mine[number]:
                for packed in self._runner(number).run(key[0], mine.pop(number)):
                    if packed[1] in mine:  # a step of this stage: its rows are in the same key group
                        assert packed[0] == key[0]
                        mine[packed[1]].append((packed[2], packed[3], packed[4]))
                    else:
                        yield PackedRow(*packed)

    def _runner(self, number: int) -> StepRunner:
        if number not in self._runners:
            from millstream.spark.query.state_runner import StepRunner

            states = self._states[self._numbers.index(number)]
            self._runners[number] = StepRunner(pickle.loads(self._packed), number, *states)
        return self._runners[number]

    def close(self) -> None: ...
