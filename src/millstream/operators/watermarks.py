"""How far a source has come: one watermark per partition, the smallest counts, and none ever goes back.

A partition that has sent nothing holds the watermark at the beginning of time; one that has been silent for `idle` of
processing time does not count until it speaks again. While all are idle the watermark stands still.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from millstream.operators.accumulators import TIME
from millstream.operators.elementwise import computed, table_of
from millstream.plan.bundles import BEGINNING, micros
from millstream.plan.expressions import expression
from millstream.plan.nodes import Read
from millstream.plan.watermarks import Bounded, Custom, Punctuated
from millstream.plan.windows import microseconds
from millstream.records import batch_to_rows


@dataclass(slots=True)
class _Partition:
    watermark: int
    heard_at: int


class SourceWatermark:
    """The watermark of one source, from the rows of its partitions."""

    def __init__(self, node: Read, partitions: Iterable[Hashable], clock: int) -> None:
        assert node.watermark is not None
        self._node = node
        self._strategy = node.watermark
        self._idle = None if self._strategy.idle is None else microseconds(self._strategy.idle)
        self._partitions = {name: _Partition(BEGINNING, clock) for name in partitions}
        self._watermark = BEGINNING

    def observe(self, partition: Hashable, rows: pl.DataFrame, clock: int) -> None:
        """Rows of a partition came; a partition not heard of before is added."""
        state = self._partitions.setdefault(partition, _Partition(BEGINNING, clock))
        if len(rows):
            state.heard_at = clock
            told = self._told(rows)
            if told is not None:
                state.watermark = max(state.watermark, told)

    def now(self, clock: int) -> int:
        """The watermark at a processing time."""
        active = [
            state.watermark
            for state in self._partitions.values()
            if self._idle is None or clock - state.heard_at < self._idle
        ]
        if active:
            self._watermark = max(self._watermark, min(active))
        return self._watermark

    def _told(self, rows: pl.DataFrame) -> int | None:
        """What rows say about how far their partition has come."""
        schema = self._node.schema
        if isinstance(self._strategy, Bounded):
            newest: Any = rows[TIME].max()
            return None if newest is None else int(newest) - microseconds(self._strategy.delay)
        if isinstance(self._strategy, Punctuated):
            marks = computed(rows, schema, [("mark", expression(self._strategy.expression, schema))])
            latest: Any = marks["mark"].max()
            return None if latest is None else micros(latest)
        assert isinstance(self._strategy, Custom)
        assert self._strategy.function is not None
        given = [row for batch in table_of(rows, schema).to_batches() for row in batch_to_rows(batch)]
        said = self._strategy.function(given)
        return None if said is None else micros(said)
