"""Aggregates per key over rows that are added and retracted: a table that changes.

An aggregate that folds keeps a few numbers per group. One that does not, or that cannot subtract while rows may be
retracted, is computed from the rows, which are then kept: all of them if rows may be retracted, otherwise those that
can still affect the result. If no row can be retracted, distinct counts keep the values they have seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl

from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import (
    EMPTY,
    ORDER,
    PANE,
    TIME,
    WEIGHT,
)
from millstream.operators.aggregates.distinct_values import COUNTS_MAX, MASK, Seen
from millstream.operators.aggregates.on_columns import columns_of
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import computed
from millstream.operators.stateful import INPUTS, NO_MARKS, PARTIALS, SENT, PartsOfState, of_keys
from millstream.plan.bad_rows import sum_too_large
from millstream.plan.table_nodes import Grouped
from millstream.state.tables import Marks

GROUPS, ELEMENTS = "groups", "elements"
ROWS, NEWEST = "rows", "newest"


class Arrived(NamedTuple):
    """The input of a step: parts of groups; and for distinct counts the keys of groups, and entries by table."""

    parts: list[pl.DataFrame]
    groups: pl.DataFrame
    entries: dict[str, pl.DataFrame]


class GroupedStep(PartsOfState):
    current_table: ClassVar[str] = GROUPS

    def __init__(self, node: Grouped) -> None:
        self.node = node
        self.keys = [
            f"key.{number}" for number in range(len(node.keys))
        ]  # numbered, because a key's name may clash with an argument's
        self._changing = node.inputs[0].is_changing
        self._types: Any = dict(elementwise.types_of(node.schema))
        self._arguments = [name for name, _ in node.arguments]
        fed = self.fed(elementwise.frame_of([], node.inputs[0]), 0)
        self.nothing = {INPUTS[0]: fed}
        self._accumulators, listing = columns_of(node.aggregates, fed.schema, changing=self._changing, in_table=True)
        self.defaults = {GROUPS: {name: of for fold in self._accumulators for name, of in fold.of_nothing().items()}}
        looked_up = [made.name for made in listing if made.can_be_looked_up]
        self._seen = Seen(self.keys, looked_up[:COUNTS_MAX], fed.schema)
        self.own_keys: Mapping[str, list[str]] = self._seen.own_keys
        self._last: tuple[Frames, Arrived] | None = None
        self._computed = [made for made in listing if made.name not in self._seen.names]
        self._is_partial = not self._computed and not any(fold.needs_order for fold in self._accumulators)
        self._no_groups = self._from_rows(fed).with_columns(
            *(pl.lit(0, pl.Int64).alias(count) for count in self._seen.counts.values()),
            *(pl.lit(None, self._types[made.name]).alias(f"result.{made.name}") for made in self._computed),
        )

    def tables(self) -> Frames:
        kept = self.nothing[INPUTS[0]].select(*self.keys, *self._arguments, TIME, ORDER, WEIGHT)
        return {GROUPS: self._no_groups, ELEMENTS: kept, **self._seen.tables}

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        keys = [rows[name].alias(key) for name, key in zip(self.node.keys, self.keys, strict=True)]
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        arguments = (
            computed(rows, self.node.inputs[0].schema, self.node.arguments).get_columns() if self.node.arguments else []
        )
        return pl.DataFrame([*keys, *arguments, rows[TIME], rows[WEIGHT], order])

    def folded(
        self, rows: pl.DataFrame, first: int, watermark: int, side: int = 0
    ) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        """Groups and, after them, the values of distinct counts, which belong to no counted group."""
        fed = self.fed(rows, first)
        if not self._is_partial:
            return None, fed
        if not self.own_keys:
            return self._from_rows(fed), fed.clear()
        values = self._seen.values(fed)
        if values is None:
            return None, fed
        return pl.concat([self._from_rows(fed), values], how="diagonal"), fed.clear()

    def joined(self, partials: Sequence[pl.DataFrame]) -> pl.DataFrame:
        if len(partials) == 1:
            return partials[0]
        groups, values = self._parted(pl.concat(partials))
        merged = self._merged(groups)
        return pl.concat([merged, values.unique()], how="diagonal") if self.own_keys else merged

    def _parted(self, partials: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        nothing = self._seen.nothing
        if not self.own_keys:
            return partials, nothing
        values = partials.filter(pl.col(MASK).is_not_null()).select(nothing.columns)
        return partials.filter(pl.col(MASK).is_null()).drop(set(nothing.columns) - set(self.keys)), values

    def clock(self, clock: Clock) -> Clock:
        return clock

    def asked(self, inputs: Frames) -> Frames:
        came = of_keys(self.keys, inputs)
        return {GROUPS: came, ELEMENTS: came if self._computed else came.clear(), **self._arrived(inputs).entries}

    def _arrived(self, inputs: Frames) -> Arrived:
        """The folded input. Called twice: before held state is looked up, and in the step."""
        if self._last is not None and self._last[0] is inputs:
            return self._last[1]
        fed = inputs[INPUTS[0]]
        parts, values = [self._from_rows(fed)], self._seen.nothing
        if PARTIALS in inputs:
            groups, values = self._parted(inputs[PARTIALS])
            parts.append(groups)
        came = Arrived(parts, *self._seen.entries(fed, values)) if self.own_keys else Arrived(parts, values, {})
        self._last = inputs, came
        return came

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        fed, before = inputs[INPUTS[0]], held[GROUPS]
        folded, new = self._arrived(inputs), dict[str, pl.DataFrame]()
        self._last = None
        fold = [column for column in self._no_groups.columns if not column.startswith("result.")]
        parts = [before.select(fold), *folded.parts]
        if self.own_keys:
            new, counts = self._seen.new(folded.entries, held)
            parts.append(self._seen.counted(folded.groups, counts))  # nothing else is known of its groups
        after = self._merged(pl.concat(parts, how="diagonal"))
        elements = held[ELEMENTS]
        if self._computed:
            elements = self._left(pl.concat([elements, fed.select(elements.columns)]))
            after = self._with_results(after, elements)
        is_over = pl.col(NEWEST).is_null() | (pl.col(NEWEST) < clock.watermark)
        kept = after.filter((pl.col(ROWS) != 0) | ~is_over)
        came = len(fed) or PARTIALS in inputs
        sent = self._changes(before, after) if came else elementwise.frame_of([], self.node)
        return {GROUPS: kept.select(self._no_groups.columns), ELEMENTS: elements, **new}, {SENT: sent}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        # A group without rows is remembered until no older change can arrive.
        forgotten = pl.when(pl.col(ROWS) == 0).then(pl.col(NEWEST) + 1)
        return {
            GROUPS: Marks(forgotten, pl.lit(None, pl.Int64)),
            ELEMENTS: NO_MARKS,
            **dict.fromkeys(self.own_keys, NO_MARKS),
        }

    # ------------------------------------------------------------ folding

    def _from_rows(self, fed: pl.DataFrame) -> pl.DataFrame:
        folds = [made for fold in self._accumulators for made in fold.from_rows(fed)]
        rows = pl.col(WEIGHT).cast(pl.Int64).sum() if self._changing else pl.len().cast(pl.Int64)
        return self._grouped(fed, [*folds, rows.alias(ROWS), pl.col(TIME).max().alias(NEWEST)])

    def _merged(self, parts: pl.DataFrame) -> pl.DataFrame:
        folds = [made for fold in self._accumulators for made in fold.merged(parts)]
        folds += [pl.col(count).sum() for count in self._seen.counts.values() if count in parts.columns]
        return self._grouped(parts, [*folds, pl.col(ROWS).sum(), pl.col(NEWEST).max()])

    def _grouped(self, frame: pl.DataFrame, made: list[pl.Expr]) -> pl.DataFrame:
        if self.keys:
            return frame.group_by(self.keys, maintain_order=True).agg(made)
        return frame.select(made) if len(frame) else frame.select(made).clear()

    # ------------------------------------------------------------ from the rows themselves

    def _left(self, elements: pl.DataFrame) -> pl.DataFrame:
        """Rows that were not retracted; of equal ones the last to arrive are. Early retractions are kept."""
        if not self._changing:
            return self._needed(elements)
        if (elements[WEIGHT].abs() > 1).any():
            single = pl.col(WEIGHT).sign().cast(pl.Int32)
            elements = elements.select(pl.exclude(WEIGHT), single, pl.col(WEIGHT).abs().alias("times"))
            elements = elements.select(pl.exclude("times").repeat_by("times").explode())
        if (elements[WEIGHT] > 0).all():
            return elements
        same = [*self.keys, *self._arguments]
        counted = elements.with_columns(
            pl.len().over([*same, WEIGHT]).alias("mine"),
            (pl.col(WEIGHT) == 1).sum().over(same).alias("come"),
            (pl.col(WEIGHT) == -1).sum().over(same).alias("gone"),
            pl.col(ORDER).rank("ordinal").over([*same, WEIGHT]).alias("rank"),
        )
        others = pl.when(pl.col(WEIGHT) > 0).then("gone").otherwise("come")
        left = pl.col("rank").cast(pl.Int64) <= pl.col("mine").cast(pl.Int64) - others.cast(pl.Int64)
        return counted.filter(left).select(elements.columns)

    def _needed(self, elements: pl.DataFrame) -> pl.DataFrame:
        """Of the remaining rows, those that can still affect the result: one for each value, the best of each key."""
        if not all(made.thins for made in self._computed):
            return elements
        is_needed = np.zeros(len(elements), np.bool_)
        numbered = elements.with_row_index("place")
        for made in self._computed:
            is_needed[made.thinned(numbered, self.keys)["place"].to_numpy()] = True
        return elements.filter(is_needed)

    def _with_results(self, groups: pl.DataFrame, elements: pl.DataFrame) -> pl.DataFrame:
        groups = groups.with_row_index(PANE)
        if self.keys:
            rows = elements.join(groups.select(PANE, *self.keys), on=self.keys, nulls_equal=True, maintain_order="left")
        else:
            rows = elements.with_columns(pl.lit(0, pl.UInt32).alias(PANE))
        rows = rows.filter(pl.col(WEIGHT) > 0).sort(PANE, ORDER)
        panes = groups.select(PANE, pl.lit(False).alias(EMPTY))
        found = [(made.name, made.of_panes(panes, rows, rows)) for made in self._computed]
        return groups.drop(PANE).with_columns(
            value.cast(self._types[name]).alias(f"result.{name}") for name, value in found
        )

    # ------------------------------------------------------------ changes

    def _changes(self, before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
        """Rows that are gone and rows that are new, both from the newest time on."""
        old = self._results(before.filter(pl.col(ROWS) > 0))
        new = self._results(self._without_overflow(after.filter(pl.col(ROWS) > 0)))
        names = [name for name, _ in self.node.aggregates]
        newest = after.select(*self.keys, pl.col(NEWEST).alias(TIME))
        if self.keys:
            both = old.join(new, on=self.keys, suffix=".new", nulls_equal=True)
            alike = both.filter(pl.col(name).eq_missing(pl.col(f"{name}.new")) for name in names).select(self.keys)
            old, new = (rows.join(alike, on=self.keys, how="anti", nulls_equal=True) for rows in (old, new))
            old, new = (rows.join(newest, on=self.keys, nulls_equal=True, maintain_order="left") for rows in (old, new))
        else:
            if old.equals(new, null_equal=True):
                old, new = old.clear(), new.clear()
            time = newest[TIME][0] if len(newest) else None
            old, new = (rows.with_columns(pl.lit(time, pl.Int64).alias(TIME)) for rows in (old, new))
        changed = pl.concat(
            [
                old.with_columns(pl.lit(-1, pl.Int32).alias(WEIGHT)),
                new.with_columns(pl.lit(1, pl.Int32).alias(WEIGHT)),
            ]
        )
        return self._named(changed, *names, TIME, WEIGHT)

    def _named(self, results: pl.DataFrame, *more: str) -> pl.DataFrame:
        columns = [pl.col(key).alias(name) for key, name in zip(self.keys, self.node.keys, strict=True)]
        return results.select(*columns, *more).cast(self._types)

    def current(self, rows: pl.DataFrame) -> pl.DataFrame:
        return self._named(self._results(rows.filter(pl.col(ROWS) > 0)), *(name for name, _ in self.node.aggregates))

    def _without_overflow(self, groups: pl.DataFrame) -> pl.DataFrame:
        """Groups whose sums fit their types."""
        for fold in self._accumulators:
            if (found := fold.too_large(groups)) is not None:
                group, total = found
                raise sum_too_large(self.node, fold.name, total, [group[key] for key in self.keys])
        return groups

    def _results(self, groups: pl.DataFrame) -> pl.DataFrame:
        made = {fold.name: fold.result() for fold in self._accumulators}
        made |= {each.name: pl.col(f"result.{each.name}") for each in self._computed}
        made |= {name: pl.col(count) for name, count in self._seen.counts.items()}
        return groups.select(*self.keys, *(made[name].alias(name) for name, _ in self.node.aggregates))
