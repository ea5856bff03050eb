"""How far a source has come: one watermark per partition, the smallest counts, and none ever goes back.

A partition that has sent nothing holds the watermark at the beginning of time; one that has been silent for `idle` of
processing time does not count until it speaks again. While all are idle the watermark stands still.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from millstream.expressions.expression import expression
from millstream.operators.accumulators import TIME
from millstream.operators.elementwise import computed, table_of
from millstream.plan.bundles import BEGINNING, micros
from millstream.plan.nodes import Read
from millstream.plan.watermarks import Bounded, Custom, Punctuated
from millstream.plan.windows import microseconds
from millstream.records import batch_to_rows


@dataclass(slots=True)
class _Partition:
    watermark: int
    heard_at: int


class SourceWatermark:
    """The watermark of one source, from what is heard of its partitions."""

    def __init__(self, node: Read, partitions: Iterable[Hashable], clock: int) -> None:
        assert node.watermark is not None
        self._node = node
        idle = node.watermark.idle
        self._idle = None if idle is None else microseconds(idle)
        self._partitions = {name: _Partition(BEGINNING, clock) for name in partitions}
        self._watermark = BEGINNING

    def observe(self, partition: Hashable, rows: pl.DataFrame, clock: int) -> None:
        """Rows of a partition came; a partition not heard of before is added."""
        self.hear(partition, told(self._node, rows), clock, spoke=len(rows) > 0)

    def hear(self, partition: Hashable, watermark: int | None, clock: int, *, spoke: bool) -> None:
        """What a partition's rows told, if it spoke at all."""
        state = self._partitions.setdefault(partition, _Partition(BEGINNING, clock))
        if spoke:
            state.heard_at = clock
        if watermark is not None:
            state.watermark = max(state.watermark, watermark)

    def leave(self, partition: Hashable) -> None:
        """A partition counts as idle until it speaks again, however long it has been silent."""
        self._partitions[partition].heard_at = BEGINNING

    def now(self, clock: int) -> int:
        """The watermark at a processing time."""
        active = self._active(clock)
        if active:
            self._watermark = max(self._watermark, min(state.watermark for state in active))
        return self._watermark

    def is_idle(self, clock: int) -> bool:
        """Whether all partitions have been silent for long."""
        return bool(self._partitions) and not self._active(clock)

    def _active(self, clock: int) -> list[_Partition]:
        partitions = self._partitions.values()
        return [state for state in partitions if self._idle is None or clock - state.heard_at < self._idle]

    def kept(self) -> tuple[Any, ...]:
        """What must be kept to go on later."""
        return self._watermark, [(name, p.watermark, p.heard_at) for name, p in self._partitions.items()]

    def go_on(self, kept: tuple[Any, ...]) -> None:
        self._watermark, partitions = kept
        self._partitions = {name: _Partition(watermark, heard_at) for name, watermark, heard_at in partitions}


def told(node: Read, rows: pl.DataFrame) -> int | None:
    """What new rows of a partition say about how far it has come."""
    strategy, schema = node.watermark, node.schema
    if rows.is_empty() or strategy is None:
        return None
    if isinstance(strategy, Bounded):
        newest: Any = rows[TIME].max()
        return None if newest is None else int(newest) - microseconds(strategy.delay)
    if isinstance(strategy, Punctuated):
        marks = computed(rows, schema, [("mark", expression(strategy.expression, schema))])
        latest: Any = marks["mark"].max()
        return None if latest is None else micros(latest)
    assert isinstance(strategy, Custom)
    assert strategy.function is not None
    given = [row for batch in table_of(rows, schema).to_batches() for row in batch_to_rows(batch)]
    said = strategy.function(given)
    return None if said is None else micros(said)
