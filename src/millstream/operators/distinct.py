"""Of rows alike in some columns, one.

Of a stream it is the first to come; of rows that may be taken back, the smallest of those that are there. Rows of a
stream may be alike only within some event time: then each is held against the rows that were sent before it came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.operators.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.keyed_rows import (
    COUNTED,
    EMPTY,
    FORGOTTEN,
    NEWEST,
    NUMBER,
    KeyedRows,
    at_newest,
    newest,
    numbered,
    remembered,
    singly,
    summed,
)
from millstream.operators.stateful import INPUTS, LATE, NO_MARKS, SENT
from millstream.operators.windowed import Clock, Frames
from millstream.plan import table_nodes
from millstream.plan.windows import microseconds
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
        """Of rows that come together and are alike for ever, only the first might be sent."""
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
    """The first row of each key, for ever."""

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
    """A row is sent unless one of its key that was sent lies less than `span` away.

    A row behind the watermark is too late: what it may be like is no longer known.
    """

    def __init__(self, rows: KeyedRows, span: int) -> None:
        self.rows = rows
        self.span = span

    def tables(self) -> Frames:
        return {KEYS: self.rows.table([*self.rows.keys, TIME])}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        known, rows = numbered(self.rows.keys, held[KEYS], self.rows.arrived(inputs))
        in_time = (pl.col(TIME) >= clock.watermark_before).fill_null(False)
        reason = pl.when(pl.col(TIME).is_null()).then(pl.lit("no event time")).otherwise(pl.lit("expired"))
        late = self.rows.late(rows.filter(~in_time), reason)
        new = self._first(self._unlike(rows.filter(in_time), known))
        kept = pl.concat([held[KEYS], new.select(held[KEYS].columns)])
        kept = kept.filter(pl.col(TIME) + self.span > clock.watermark)
        return {KEYS: kept}, {SENT: self.rows.sent(new), LATE: late}

    def marks(self) -> dict[str, Marks]:
        return {KEYS: Marks(pl.col(TIME) + self.span, pl.lit(None, pl.Int64))}

    def _unlike(self, rows: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
        """The rows that are not like one that was sent before this step."""
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
        """The rows that are not like one that was sent before them in this step.

        A round sends the first row of each key that is left, and lets go those like it. Where a step has rows of one
        key over many spans, as when old data is read, the rounds would be many: the rest is then gone through once.
        """
        numbers, times = rows[NUMBER].to_numpy(), rows[TIME].to_numpy()
        left: npt.NDArray[Any] = np.arange(len(rows))
        chosen = []
        first = np.empty(int(numbers.max(initial=0)) + 1, np.int64)
        for _ in range(ROUNDS):
            if not len(left):
                break
            here = numbers[left]
            first[here[::-1]] = left[::-1]  # of several places for one number the last to be written stays
            sent = first[here]
            chosen.append(left[sent == left])
            left = left[np.abs(times[left] - times[sent]) >= self.span]
        if len(left):
            chosen.append(left[self._gone_through(numbers[left].tolist(), times[left].tolist())])
        return rows[np.sort(np.concatenate(chosen))] if chosen else rows

    def _gone_through(self, numbers: list[int], times: list[int]) -> list[int]:
        """The same row by row. In each stretch as long as the span there is at most one row that was sent."""
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
    """Of the rows of each key that are there, the smallest in the order of all columns; nulls stand last.

    It changes at the newest event time that came for its key.
    """

    def __init__(self, rows: KeyedRows) -> None:
        self.rows = rows

    def tables(self) -> Frames:
        keys = self.rows.keys
        return {
            ROWS: self.rows.table([*keys, *self.rows.rest], **{COUNTED: pl.Int64}),
            GROUPS: self.rows.table(keys, **{NEWEST: pl.Int64, EMPTY: pl.Boolean}),
        }

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        keys, rows, before = self.rows.keys, inputs[INPUTS[0]], held[ROWS]
        new = rows.select(*keys, *self.rows.rest, pl.col(WEIGHT).cast(pl.Int64).alias(COUNTED))
        after = summed(pl.concat([before, new]), [*keys, *self.rows.rest], COUNTED)
        groups = newest(held[GROUPS], rows, keys)
        parts = [
            self._smallest(part).with_columns(pl.lit(weight, pl.Int32).alias(WEIGHT))
            for part, weight in ((before, -1), (after, 1))
        ]
        changes = at_newest(summed(pl.concat(parts), self.rows.row, WEIGHT), groups, keys)
        return {ROWS: after, GROUPS: remembered(groups, after, keys, clock)}, {SENT: self.rows.sent(singly(changes))}

    def marks(self) -> dict[str, Marks]:
        return {ROWS: NO_MARKS, GROUPS: FORGOTTEN}

    def _smallest(self, rows: pl.DataFrame) -> pl.DataFrame:
        there = rows.filter(pl.col(COUNTED) > 0).select(self.rows.row)
        return there.sort(self.rows.row, nulls_last=True).unique(self.rows.keys, keep="first", maintain_order=True)
