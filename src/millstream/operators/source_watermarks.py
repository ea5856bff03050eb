"""The watermark of a source: one per partition, the smallest counts, and none ever decreases.

A partition without any rows yet holds the watermark at the beginning of time; one that has been silent for `idle` of
processing time does not count until it has rows again. While all are idle the watermark stands still.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from millstream.expressions.expression import lowered_expression
from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.elementwise import computed, table_of
from millstream.plan.time.bundles import AHEAD, BEGINNING, micros
from millstream.plan.time.timing import Timed
from millstream.plan.time.watermarks import Bounded, Custom, Punctuated
from millstream.plan.time.windows import microseconds
from millstream.records import batch_to_rows


@dataclass(slots=True)
class _Partition:
    watermark: int
    active_at: int


class SourceWatermark:
    """The watermark of one source, from those of its partitions."""

    def __init__(self, node: Timed, partitions: Iterable[Hashable], clock: int) -> None:
        assert node.watermark is not None
        self._node = node
        idle = node.watermark.idle
        self._idle = None if idle is None else microseconds(idle)
        self._partitions = {name: _Partition(BEGINNING, clock) for name in partitions}
        self._watermark = BEGINNING

    def observe(self, partition: Hashable, rows: pl.DataFrame, clock: int) -> None:
        """Called with new rows of a partition; an unknown partition is added."""
        self.update(partition, implied_watermark(self._node, rows), clock, has_rows=len(rows) > 0)

    def update(self, partition: Hashable, watermark: int | None, clock: int, *, has_rows: bool) -> None:
        """Updates a partition with the watermark of its rows, if it had any."""
        state = self._partitions.setdefault(partition, _Partition(BEGINNING, clock))
        if has_rows:
            state.active_at = clock
        if watermark is not None:
            state.watermark = max(state.watermark, watermark)

    def leave(self, partition: Hashable) -> None:
        """Marks a partition as idle until it has rows again."""
        self._partitions[partition].active_at = BEGINNING

    def now(self, clock: int) -> int:
        """The watermark at a processing time."""
        active = self._active(clock)
        if active:
            self._watermark = max(self._watermark, min(state.watermark for state in active))
        return self._watermark

    def is_idle(self, clock: int) -> bool:
        """Whether all partitions are idle."""
        return bool(self._partitions) and not self._active(clock)

    def _active(self, clock: int) -> list[_Partition]:
        partitions = self._partitions.values()
        return [state for state in partitions if self._idle is None or clock - state.active_at < self._idle]

    def kept(self) -> tuple[Any, ...]:
        """The state to store in a checkpoint."""
        return self._watermark, [(name, p.watermark, p.active_at) for name, p in self._partitions.items()]

    def restore(self, kept: tuple[Any, ...]) -> None:
        self._watermark, partitions = kept
        self._partitions = {name: _Partition(watermark, active_at) for name, watermark, active_at in partitions}


def advanced(before: tuple[int | None, bool], node: Timed | None, rows: pl.DataFrame | None) -> tuple[int | None, bool]:
    """The watermark of a partition, and whether it had rows, after more of them.

    `rows` are None where they have not reached the node that gives them their event time.
    """
    if rows is None:
        return before
    watermark, is_active = before
    implied = None if node is None else implied_watermark(node, rows)
    known = [each for each in (watermark, implied) if each is not None]
    return max(known, default=None), is_active or len(rows) > 0


def implied_watermark(node: Timed, rows: pl.DataFrame) -> int | None:
    """The watermark that new rows of a partition imply."""
    strategy, schema = node.watermark, node.schema
    if rows.is_empty() or strategy is None:
        return None
    if isinstance(strategy, Bounded):
        newest: Any = rows[TIME].max()
        return None if newest is None or newest == AHEAD else int(newest) - microseconds(strategy.delay)
    if isinstance(strategy, Punctuated):
        marks = computed(rows, schema, [("mark", lowered_expression(strategy.expression, schema))])
        latest: Any = marks["mark"].max()
        return None if latest is None else micros(latest)
    assert isinstance(strategy, Custom)
    assert strategy.function is not None
    given = [row for batch in table_of(rows, schema).to_batches() for row in batch_to_rows(batch)]
    watermark = strategy.function(given)
    return None if watermark is None else micros(watermark)
