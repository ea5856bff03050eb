"""The first rows of each group in an order.

If rows are never retracted, only the first ones are kept: a row that was pushed out never comes back. Otherwise all are
kept, each with the sum of its weights, in case those before it are retracted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.operators.aggregates.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import computed
from millstream.operators.keyed_rows import COUNTED, NUMBER, KeyedRows, numbered, singly, summed
from millstream.operators.stateful import INPUTS, NO_MARKS, SENT
from millstream.operators.windows.group_times import GroupTimes
from millstream.plan import table_nodes
from millstream.state.tables import Marks

ROWS, GROUPS = "rows", "groups"
WORTHWHILE = 0.7  # if more than this share is left, pre-filtering before the shuffle does not pay off
BEFORE, RANK = "__before", "__rank"
"""For a row, how many of its group are before it, and its rank. With ties, equal ones do not count."""


class TopStep(KeyedRows):
    """The order is by the values that the node names, then by all columns; nulls last.

    The table changes at the newest event time that arrived for the group.
    """

    def __init__(self, node: table_nodes.Top) -> None:
        self.node = node
        self._made = {f"by.{number}": part.by for number, part in enumerate(node.order) if part.by.column is None}
        """Sort expressions that are not just a column."""
        self.by = [
            f"by.{number}"
            if (column := part.by.column) is None
            else f"{'key' if column in node.keys else 'row'}.{column}"
            for number, part in enumerate(node.order)
        ]
        self._downwards: dict[str, bool] = {}
        for name, part in zip(self.by, node.order, strict=True):
            self._downwards.setdefault(name, part.descending)  # if a column is named twice, the first one counts
        super().__init__(node, node.keys)
        self._times = GroupTimes(self)
        self.identity = [*self.keys, *self.rest, *self._made]
        self._grows = not self.given.is_changing and not node.ties

    def tables(self) -> Frames:
        return {ROWS: self.table(self.identity, **{COUNTED: pl.Int64}), GROUPS: self._times.table}

    def more(self, rows: pl.DataFrame) -> list[pl.Series]:
        return computed(rows, self.given.schema, list(self._made.items())).get_columns() if self._made else []

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        return super().fed(rows, first, side).drop(ORDER)  # the order of arrival does not matter

    def folded(
        self, rows: pl.DataFrame, first: int, watermark: int, side: int = 0
    ) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        """Rows that are not among the first here cannot be among the first of all, if none is retracted."""
        fed = self.fed(rows, first)
        return None, self._prefiltered(fed) if self._grows and self.keys else fed

    def _prefiltered(self, fed: pl.DataFrame) -> pl.DataFrame:
        sizes = fed.group_by(self.keys).agg(pl.len().alias(COUNTED), pl.col(TIME).max())
        if sizes[COUNTED].clip(upper_bound=self.node.count).sum() > WORTHWHILE * len(fed):
            return fed
        small = pl.col(COUNTED) <= self.node.count
        rest = fed.join(sizes.filter(small), on=self.keys, how="semi", nulls_equal=True)
        many = fed.join(sizes.filter(~small).select(*self.keys, TIME), on=self.keys, nulls_equal=True, suffix=".newest")
        many = many.with_columns(pl.col(f"{TIME}.newest").alias(TIME)).select(fed.columns)  # the group's time counts
        return pl.concat([rest, self._possible(many)])

    def asked(self, inputs: Frames) -> Frames:
        return {ROWS: inputs[INPUTS[0]], GROUPS: inputs[INPUTS[0]]}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        rows, before = inputs[INPUTS[0]], held[ROWS]
        groups = self._times.after(held[GROUPS], rows)
        if self._grows:
            return self._grown(before, rows, groups)
        rows = rows if self.given.is_changing else self._possible(rows)
        new = rows.select(*self.identity, pl.col(WEIGHT).cast(pl.Int64).alias(COUNTED))
        after = summed(pl.concat([before, new]), self.identity, COUNTED)
        first_before, first = self._first(before), self._first(after)
        parts = [self._placed(first_before, -1), self._placed(first, 1)]
        columns = [*self.row, RANK] if self.node.rank else self.row
        changes = self._times.dated(summed(pl.concat(parts), columns, WEIGHT), groups)
        kept = after if self.given.is_changing else first.select(after.columns)
        return (
            {ROWS: kept, GROUPS: self._times.kept(groups, kept, clock)},
            {SENT: self._sent(singly(changes))},
        )

    def _sent(self, changes: pl.DataFrame) -> pl.DataFrame:
        return self.sent(changes, *([pl.col(RANK).alias(self.node.rank)] if self.node.rank else []))

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return {ROWS: NO_MARKS, GROUPS: self._times.marks}

    # ------------------------------------------------------------ rows that are never retracted

    def _grown(
        self, before: pl.DataFrame, rows: pl.DataFrame, groups: pl.DataFrame
    ) -> tuple[dict[str, pl.DataFrame], dict[str, pl.DataFrame]]:
        """New rows push others out. A held row is ranked before an equal new one, and so stays."""
        new = rows.select(*self.identity, pl.lit(1, pl.Int64).alias(COUNTED))
        line = numbered(self.keys, pl.concat([before, new]))[0]
        order, tied = self._order(line)
        number, old = line[NUMBER].to_numpy()[order], order < len(before)
        place = np.arange(len(order))
        start = np.maximum.accumulate(np.where(number != np.roll(number, 1), place, 0)) if len(order) else place
        rank = place - start + 1
        held_before: npt.NDArray[np.int64] = np.cumsum(old, dtype=np.int64) - old
        rank_before = held_before - held_before[start] + 1
        stays = rank <= self.node.count
        moved = old & stays & (rank != rank_before) if self.node.rank else np.zeros(len(order), np.bool_)
        gone, come = (old & ~stays) | moved, (~old & stays) | moved
        columns = pl.DataFrame([pl.Series(RANK, rank_before[gone])]), pl.DataFrame([pl.Series(RANK, rank[come])])
        changes = pl.concat(
            [
                line.select(self.row)[order[picked]].hstack(ranks).with_columns(pl.lit(weight, pl.Int32).alias(WEIGHT))
                for picked, ranks, weight in zip((gone, come), columns, (-1, 1), strict=True)
            ]
        )
        if self.node.rank and (doubtful := np.concatenate([tied[gone], tied[come]])).any():
            # If equal rows move up or down together, some swap places.
            moving = summed(changes.filter(doubtful), [*self.row, RANK], WEIGHT)
            changes = pl.concat([changes.filter(~doubtful), moving]).sort(WEIGHT, maintain_order=True)
        kept = line.drop(NUMBER)[np.sort(order[stays])]
        sent = self._sent(self._times.dated(changes, groups))
        return {ROWS: kept, GROUPS: self._times.filled(groups)}, {SENT: sent}

    def _order(self, line: pl.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The rows in order, by group, and which of them equal a neighbour in the first value.

        Only those are compared any further.
        """
        first, descending = self.by[0], self.node.order[0].descending
        by_first = pl.arg_sort_by([NUMBER, first], descending=[False, descending], nulls_last=True, maintain_order=True)
        order = line.select(by_first.cast(pl.Int64)).to_series().to_numpy().copy()
        lined = line.select(NUMBER, first)[order]
        same = lined.select(
            (pl.col(NUMBER) == pl.col(NUMBER).shift()) & pl.col(first).eq_missing(pl.col(first).shift())
        ).to_series()
        follows = same.fill_null(False).to_numpy()
        tied = follows | np.append(follows[1:], False)
        if tied.any():
            here = np.flatnonzero(tied)
            runs = pl.Series(NUMBER, np.cumsum(~follows)[here])
            rows = line[order[here]].with_columns(runs)
            by = [*self.by[1:], *(name for name in self.rest if name not in self.by)]
            further = pl.arg_sort_by(
                [NUMBER, *by],
                descending=[False, *(self._downwards.get(name, False) for name in by)],
                nulls_last=True,
                maintain_order=True,
            )
            order[here] = order[here][rows.select(further.cast(pl.Int64)).to_series().to_numpy()]
        return order, tied

    # ------------------------------------------------------------ rows that may be retracted

    def _possible(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with fewer than `count` others before them by the first value alone: only few need sorting."""
        value, count = pl.col(self.by[0]), self.node.count
        place, known = value.rank("min", descending=self.node.order[0].descending), value.count()
        if self.keys:
            place, known = place.over(self.keys), known.over(self.keys)
        return rows.filter(pl.when(value.is_null()).then(known < count).otherwise(place <= count))

    def _first(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The first rows of each group in order, each as often as it is among them; with ties, as often as it is."""
        by = [*self.keys, *self.by, *self.rest]
        descending = [self._downwards.get(name, False) for name in by]
        there = rows.filter(pl.col(COUNTED) > 0).sort(by, descending=descending, nulls_last=True)
        before = pl.col(COUNTED).cum_sum() - pl.col(COUNTED)
        there = there.with_columns((before.over(self.keys) if self.keys else before).alias(BEFORE))
        if self.node.ties:
            there = there.with_columns(pl.col(BEFORE).min().over([*self.keys, *self.by]))
            return there.filter(pl.col(BEFORE) < self.node.count)
        left = self.node.count - pl.col(BEFORE)
        return there.filter(left > 0).with_columns(pl.min_horizontal(COUNTED, left).alias(COUNTED))

    def _placed(self, first: pl.DataFrame, weight: int) -> pl.DataFrame:
        """The rows of the resulting table: with a rank, each occurs once."""
        weights = (pl.col(COUNTED) * weight).cast(pl.Int32).alias(WEIGHT)
        if not self.node.rank:
            return first.select(*self.row, weights)
        if self.node.ties:
            return first.select(*self.row, (pl.col(BEFORE) + 1).alias(RANK), weights)
        places = pl.int_ranges(pl.col(BEFORE) + 1, pl.col(BEFORE) + 1 + pl.col(COUNTED)).alias(RANK)
        placed = first.with_columns(places).explode(RANK)
        return placed.select(*self.row, RANK, pl.lit(weight, pl.Int32).alias(WEIGHT))
