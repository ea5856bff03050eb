"""A topic that is read by priority: of the records that wait, a batch reads those with the highest priority.

The priorities of records are computed when they are seen first, in the process that plans batches.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from millstream.connectors.source import Offsets, Slice, Source, cut
from millstream.connectors.topic.taken import Taken, TakenRecords, in_order_of_priority
from millstream.connectors.wrapped_source import WrappedSource
from millstream.errors import OffsetLost
from millstream.expressions.expression import Expression, evaluate, lowered_expression
from millstream.expressions.lowered import type_name
from millstream.plan.checks import refusal
from millstream.records import Schema

BATCH_ROWS_MAX = 10_000
"""Records next to each other may be read in different batches, and each range takes time."""
LAST = sys.float_info.max
"""The rank of a record without a priority."""


def priority_of(text: str, schema: Schema) -> Expression:
    """The priority as an expression over the columns of the queue."""
    found = lowered_expression(text, schema)
    if found.uses_clock:
        raise refusal(
            f"the priority '{text}' changes with the clock", "use a time of the record: 600 * level - unix_seconds(at)"
        )
    if not (pa.types.is_integer(found.type) or pa.types.is_floating(found.type) or pa.types.is_decimal(found.type)):
        raise refusal(
            f"the priority '{text}' is {type_name(found.type)}, not a number",
            "for example priority=\"case level when 'urgent' then 2 else 1 end\"",
        )
    return found


class PrioritySource(WrappedSource):
    def __init__(
        self,
        topic: str,
        inner: Source,
        whole: Callable[[], Source],
        priority: str,
        schema: Schema,
        folder: Path,
        at_once: int | None = None,
    ) -> None:
        """`whole` opens the topic with all columns of the schema; `inner` may read fewer."""
        super().__init__(inner)
        self._topic = topic
        self._whole = whole
        self._scanned: Source | None = None
        self._schema = schema
        self._priority = priority_of(priority, schema)
        self._at_once = at_once
        self._taken = TakenRecords(folder)
        self._seen: Offsets = {}
        self._waiting: list[tuple[float, int, str, int]] = []
        """A heap: rank, first offset, partition, and the offset behind it."""

    # ------------------------------------------------------------ planning

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        latest = self._inner.latest()
        earliest = self._inner.earliest()
        begun = {name: max(0, start.get(name, earliest.get(name, 0))) for name in latest}
        self._taken.begin(begun)
        planned = self._taken.ends()
        if any(planned[name] > begun[name] for name in begun):
            return {**start, **{name: planned[name] for name in begun}}  # it was planned, and not begun
        self._see(latest, earliest)
        taken = self._next(min(each for each in (BATCH_ROWS_MAX, limit_rows, self._at_once) if each is not None))
        if taken:
            self._taken.add(taken)
            planned = self._taken.ends()
        return {**start, **{name: planned[name] for name in begun}}

    def _next(self, rows: int) -> list[tuple[str, Taken]]:
        found: list[tuple[str, Taken]] = []
        while self._waiting and rows > 0:
            rank, first, name, after = heapq.heappop(self._waiting)
            found.append((name, Taken(rank, first, after)))
            rows -= after - first
        return found

    def _see(self, latest: Offsets, earliest: Offsets) -> None:
        """Notes what waits with its priority. Offsets without a row belong to the row before or behind them."""
        whole = self._opened()
        for name, end in latest.items():
            begin = self._seen.get(name, 0)
            for start, after in self._taken.without(name, [(begin, end)] if begin < end else []):
                if start < earliest.get(name, 0):
                    raise OffsetLost(
                        f"records from offset {start} of partition {name} were deleted before they were read",
                        where=f"queue '{self._topic}'",
                        next_step="keep them for longer than they wait: records of a low priority may wait for long; "
                        "to go on with what is left, start over: millstream run flow.py --start-over",
                    )
                self._see_range(whole, name, start, after)
                self._seen[name] = after  # if the broker is away for the next range, only that is read again
            self._seen[name] = max(begin, end)

    def _see_range(self, whole: Source, name: str, start: int, after: int) -> None:
        ranks: list[float] = []
        offsets: list[int] = []
        for slab in whole.read(Slice(name, start, after)):
            numbers = evaluate({"priority": self._priority.lowered}, slab.rows)["priority"]
            ranks += [
                LAST if each is None or math.isnan(each) else -each for each in numbers.cast(pa.float64()).to_pylist()
            ]
            offsets += slab.offsets.tolist()
        ends = [*offsets[1:], after]
        begins = [start, *offsets[1:]]
        if not offsets:
            ranks, begins, ends = [LAST], [start], [after]
        for rank, first, end in zip(ranks, begins, ends, strict=True):
            heapq.heappush(self._waiting, (rank, first, name, end))

    def _opened(self) -> Source:
        if self._scanned is None:
            self._scanned = self._whole()
        return self._scanned

    # ------------------------------------------------------------ reading

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        found = [
            (name, each) for name in end for each in self._taken.between(name, self._begin_of(name, start), end[name])
        ]
        return cut([Slice(name, each.start, each.end) for name, each in in_order_of_priority(found)], tasks)

    def _begin_of(self, name: str, start: Offsets) -> int:
        return start[name] if name in start else self._taken.begin_of(name)

    def pieces(self, partition: str, start: int, end: int) -> list[Slice]:
        return [Slice(partition, each.start, each.end) for each in self._taken.between(partition, start, end)]

    def close(self) -> None:
        super().close()
        if self._scanned is not None:
            self._scanned.close()
