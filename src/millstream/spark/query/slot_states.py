"""The state of one slot within states of Spark that all slots of a stage share, keyed by slot.

A shared state costs Spark nothing per slot, and a slot can be added while a query runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState

HEADS, HEADS_KEY = "heads", "slot long"
DELTAS, DELTAS_KEY = "deltas", "slot long, number long"


@dataclass(frozen=True)
class SlotHead:
    """Used like a value of Spark."""

    heads: MapState
    slot: int

    def get(self) -> tuple[Any, ...] | None:
        return self.heads.getValue((self.slot,))

    def update(self, value: tuple[Any, ...]) -> None:
        self.heads.updateValue((self.slot,), value)


@dataclass(frozen=True)
class SlotDeltas:
    """Used like a map of Spark from numbers to pieces."""

    deltas: MapState
    slot: int

    def getValue(self, key: tuple[int]) -> tuple[Any, ...] | None:  # noqa: N802
        return self.deltas.getValue((self.slot, *key))

    def updateValue(self, key: tuple[int], value: tuple[Any, ...]) -> None:  # noqa: N802
        self.deltas.updateValue((self.slot, *key), value)

    def keys(self) -> Iterator[tuple[int]]:
        yield from [(number,) for slot, number in self.deltas.keys() if slot == self.slot]  # noqa: SIM118 a state

    def clear(self) -> None:
        for (number,) in self.keys():
            self.deltas.removeKey((self.slot, number))
