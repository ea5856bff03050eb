"""A stage as a stateful processor of Spark. Cheap to import, because Spark first loads it only to declare its state."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millstream.spark.query.slot_states import DELTAS, DELTAS_KEY, HEADS, HEADS_KEY, SlotDeltas, SlotHead

if TYPE_CHECKING:
    from millstream.spark.query.state_runner import Received, Shipment, StepRunner

PackedRow = Row("label", "step", "kind", "task", "blob")
PLAN = -2
"""That of `packing`, which is expensive to import."""


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
        self._states: Sequence[tuple[Any, Any]] = [
            (
                handle.getValueState(f"head{slot}", "head binary"),
                handle.getMapState(f"deltas{slot}", "number long", "delta binary"),
            )
            for slot in self._slots
        ]
        self._runners: dict[int, StepRunner] = {}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield from self._run(key, rows)

    def _run(self, key: Any, rows: Iterable[Row]) -> Iterator[Row]:
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
            self._runners[number] = StepRunner(self._shipment(), number, *states)
        return self._runners[number]

    def _shipment(self) -> Shipment:
        shipment: Shipment = pickle.loads(self._packed)
        return shipment

    def close(self) -> None: ...


class SharedStageProcessor(StageProcessor):
    """Of a query whose plan may change: the steps of the stage are those of the batch's plan."""

    def __init__(self, shipment: Shipment, stage: int, numbers: Sequence[int], slots: Sequence[int]) -> None:
        super().__init__(shipment, numbers, slots)
        self._stage = stage
        self._plan: str | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._heads = handle.getMapState(HEADS, HEADS_KEY, "head binary")
        self._deltas = handle.getMapState(DELTAS, DELTAS_KEY, "delta binary")
        self._runners = {}
        self._use(self._slots)

    def _use(self, slots: Sequence[int]) -> None:
        self._states = [(SlotHead(self._heads, slot), SlotDeltas(self._deltas, slot)) for slot in slots]

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """The row with the name of the plan, if there is one, may be any of them."""
        found = list(rows)
        self._follow(next((bytes(row.blob).decode() for row in found if row.step == PLAN), None))
        yield from self._run(key, found)

    def _follow(self, plan: str | None) -> None:
        """A task is of one batch, so its plan stays."""
        if plan is None or plan == self._plan:
            return
        from millstream.spark.query.plan_changes import changed_plan

        self._plan = plan
        self._numbers, slots = changed_plan(plan).steps_of(self._stage)
        self._use(slots)
        self._runners = {}

    def _shipment(self) -> Shipment:
        if self._plan is None:
            return super()._shipment()
        from millstream.spark.query.plan_changes import changed_plan

        return changed_plan(self._plan).feed.shipment
