"""Deduplication: one of the rows with equal values in some columns.

In a stream it is the first to arrive; if rows may be retracted, it is the smallest of those present. Deduplication may
be limited to a span of event time: then each row is compared with those sent before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.operators import lateness
from millstream.operators.aggregates.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.keyed_rows import COUNTED, NUMBER, KeyedRows, numbered, singly, summed
from millstream.operators.stateful import INPUTS, LATE, NO_MARKS, SENT
from millstream.operators.windows.group_times import GroupTimes
from millstream.plan import table_nodes
from millstream.plan.time.windows import microseconds
from millstream.state.tables import Marks

KEYS, ROWS, GROUPS = "keys", "rows", "groups"
ROUNDS = 8


class DistinctStep(KeyedRows):
    def __init__(self, node: table_nodes.Distinct) -> None:
        self.node = node
        super().__init__(node, node.keys)
        self.way: _First | _Within | _Smallest
        if self.given.is_changing:
            self.way = _Smallest(self)
        else:
            self.way = _First(self) if node.within is None else _Within(self, microseconds(node.within))

        self._tables = self.way.tables()

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """Of duplicates that arrive together, only the first might be sent."""
        if self.node.within is None and not self.given.is_changing:
            rows = rows.unique(self.node.keys, keep="first", maintain_order=True)
        return super().fed(rows, first, side)

    def tables(self) -> Frames:
        return self._tables

    def asked(self, inputs: Frames) -> Frames:
        return dict.fromkeys(self._tables, inputs[INPUTS[0]])

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        return self.way.step(held, inputs, clock)

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return self.way.marks()


class _First:
    """The first row of each key, forever."""

    def __init__(self, rows: KeyedRows) -> None:
        self.rows = rows

    def tables(self) -> Frames:
        return {KEYS: self.rows.table(self.rows.keys)}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        keys, rows = self.rows.keys, self.rows.arrived(inputs)
        first = rows.unique(keys, keep="first", maintain_order=True)
        new = first.join(held[KEYS], on=keys, how="anti", nulls_equal=True, maintain_order="left")
        return {KEYS: pl.concat([held[KEYS], new.select(keys)])}, {SENT: self.rows.sent(new)}

    def marks(self) -> dict[str, Marks]:
        return {KEYS: NO_MARKS}


class _Within:
    """A row is sent unless one of its key was sent less than `span` away.

    A row behind the watermark is too late: the rows it would be compared with are no longer known.
    """

    def __init__(self, rows: KeyedRows, span: int) -> None:
        self.rows = rows
        self.span = span

    def tables(self) -> Frames:
        return {KEYS: self.rows.table([*self.rows.keys, TIME])}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        known, rows = numbered(self.rows.keys, held[KEYS], self.rows.arrived(inputs))
        in_time = lateness.is_in_time(clock)
        late = self.rows.late(rows.filter(~in_time), lateness.reason())
        new = self._first(self._not_duplicated(rows.filter(in_time), known))
        kept = pl.concat([held[KEYS], new.select(held[KEYS].columns)])
        kept = kept.filter(pl.col(TIME) + self.span > clock.watermark)
        return {KEYS: kept}, {SENT: self.rows.sent(new), LATE: late}

    def marks(self) -> dict[str, Marks]:
        return {KEYS: Marks(pl.col(TIME) + self.span, pl.lit(None, pl.Int64))}

    def _not_duplicated(self, rows: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
        """The rows that do not duplicate one sent before this step."""
        if rows.is_empty() or known.is_empty():
            return rows
        nearest = rows.sort(TIME).join_asof(
            known.select(NUMBER, TIME, pl.col(TIME).alias("__sent")).sort(TIME),
            on=TIME,
            by=NUMBER,
            strategy="nearest",
            check_sortedness=False,
        )
        far = ((pl.col(TIME) - pl.col("__sent")).abs() >= self.span).fill_null(True)
        return nearest.filter(far).drop("__sent").sort(ORDER)

    def _first(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that do not duplicate one sent before them in this step.

        A round sends the first remaining row of each key and drops its duplicates. A step with rows of one key over
        many spans, such as old data, would take many rounds: the rest is then processed in one pass.
        """
        numbers, times = rows[NUMBER].to_numpy(), rows[TIME].to_numpy()
        left: npt.NDArray[Any] = np.arange(len(rows))
        chosen = []
        first = np.empty(int(numbers.max(initial=0)) + 1, np.int64)
        for _ in range(ROUNDS):
            if not len(left):
                break
            here = numbers[left]
            first[here[::-1]] = left[::-1]  # of several writes to one position the last one wins
            sent = first[here]
            chosen.append(left[sent == left])
            left = left[np.abs(times[left] - times[sent]) >= self.span]
        if len(left):
            chosen.append(left[self._first_in_one_pass(numbers[left].tolist(), times[left].tolist())])
        return rows[np.sort(np.concatenate(chosen))] if chosen else rows

    def _first_in_one_pass(self, numbers: list[int], times: list[int]) -> list[int]:
        """The same row by row. Any stretch as long as the span has at most one row that was sent."""
        span, sent, chosen = self.span, dict[tuple[int, int], int](), []
        for place, (number, time) in enumerate(zip(numbers, times, strict=True)):
            stretch = time // span
            before, after = sent.get((number, stretch - 1)), sent.get((number, stretch + 1))
            if (number, stretch) in sent or (before is not None and time - before < span):
                continue
            if after is None or after - time >= span:
                sent[number, stretch] = time
                chosen.append(place)
        return chosen


class _Smallest:
    """Of the rows present for each key, the smallest in the order of all columns; nulls last.

    It changes at the newest event time that arrived for its key.
    """

    def __init__(self, rows: KeyedRows) -> None:
        self.rows = rows
        self.times = GroupTimes(rows)

    def tables(self) -> Frames:
        counted = self.rows.table([*self.rows.keys, *self.rows.rest], **{COUNTED: pl.Int64})
        return {ROWS: counted, GROUPS: self.times.table}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        keys, rows, before = self.rows.keys, inputs[INPUTS[0]], held[ROWS]
        new = rows.select(*keys, *self.rows.rest, pl.col(WEIGHT).cast(pl.Int64).alias(COUNTED))
        after = summed(pl.concat([before, new]), [*keys, *self.rows.rest], COUNTED)
        groups = self.times.after(held[GROUPS], rows)
        parts = [
            self._smallest(part).with_columns(pl.lit(weight, pl.Int32).alias(WEIGHT))
            for part, weight in ((before, -1), (after, 1))
        ]
        changes = self.times.dated(summed(pl.concat(parts), self.rows.row, WEIGHT), groups)
        return {ROWS: after, GROUPS: self.times.kept(groups, after, clock)}, {SENT: self.rows.sent(singly(changes))}

    def marks(self) -> dict[str, Marks]:
        return {ROWS: NO_MARKS, GROUPS: self.times.marks}

    def _smallest(self, rows: pl.DataFrame) -> pl.DataFrame:
        there = rows.filter(pl.col(COUNTED) > 0).select(self.rows.row)
        return there.sort(self.rows.row, nulls_last=True).unique(self.rows.keys, keep="first", maintain_order=True)
