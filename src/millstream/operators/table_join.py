"""Two tables joined: what is sent is at every moment the sum of all pairs, and of the rows without a partner.

A change on one side is joined with what the other side holds, and the changes of a bundle with one another; weights are
multiplied, and what comes of two rows holds from the later of their times. Which rows have a partner follows from a
second, small table: of each key, since when there are rows at all. It only changes when a key gets its first row or
loses its last one, and a join with it gives the rows that have a partner; all others are the difference.

Of each side the rows are held that are not taken back, each once with its weight and the time from which it holds. So
sums are always right; as of a time they are right unless changes come out of order for rows that are already gone.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from millstream.operators import elementwise
from millstream.operators.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.joining import SIDES, netted, singly
from millstream.operators.keyed_rows import summed
from millstream.operators.runs import Marks
from millstream.operators.side_join import wide
from millstream.operators.stateful import INPUTS, NO_MARKS, SENT, PlainStep, of_keys
from millstream.operators.windowed import Clock, Frames
from millstream.plan.bundles import BEGINNING
from millstream.plan.table_nodes import Join, TableJoin

SINCE = "__since"
"""Of a key, since when there is a row of it on this side."""
PARTNER_TIME, PARTNER_WEIGHT = "__partner_time", "__partner_weight"
PLACE, OWN_TIME, PLUS, MINUS = "__place", "__own_time", "__plus", "__minus"
EVER: Any = pl.col(TIME).fill_null(BEGINNING)
"""A change without a time has always held."""


class JoinedSides(PlainStep):
    """What joins with tables have in common: of a row, its keys stand in `key.<n>`, the rest in `left.` or `right.`."""

    def __init__(self, node: Join) -> None:
        self.node = node
        self.keys = [f"key.{number}" for number in range(len(node.on))]
        self.only_left = node.how in ("semi", "anti")
        self.rest = [
            [f"{table}.{name}" for name, column in columns if column not in on]
            for table, columns, on in zip(SIDES, (node.left, node.right), zip(*node.on, strict=True), strict=True)
        ]
        if self.only_left:
            self.rest[1] = []
        self._types: Any = dict(elementwise.types_of(node.schema))
        self.nothing: Frames = {
            name: self.fed(elementwise.frame_of([], given), 0, side)
            for side, (name, given) in enumerate(zip(INPUTS, node.inputs, strict=True))
        }

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """Its keys, its other columns, its time, its weight, and its place in the order of arrival."""
        keys = [wide(rows[pair[side]]).alias(key) for pair, key in zip(self.node.on, self.keys, strict=True)]
        chosen = set(self.rest[side])
        columns = [
            rows[column].alias(f"{SIDES[side]}.{name}")
            for name, column in (self.node.left, self.node.right)[side]
            if f"{SIDES[side]}.{name}" in chosen
        ]
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        return pl.DataFrame([*keys, *columns, rows[TIME], rows[WEIGHT], order])

    def table(self, side: int, *more: str) -> pl.DataFrame:
        """What is held of a side, empty."""
        given = self.nothing[INPUTS[side]].schema
        types = {name: given[name] for name in (*self.keys, *self.rest[side])}
        return pl.DataFrame(schema={**types, TIME: pl.Int64, WEIGHT: pl.Int64, **dict.fromkeys(more, pl.Int64)})

    def has_keys(self, frame: pl.DataFrame) -> pl.Series:
        """Which rows can have a partner: null equals nothing."""
        return frame.select(pl.all_horizontal(pl.col(self.keys).is_not_null())).to_series()

    def changes(self, rows: pl.DataFrame, side: int) -> pl.DataFrame:
        """The rows of a bundle as changes of a table."""
        columns = [*self.keys, *self.rest[side]]
        return rows.select(*columns, EVER.alias(TIME), pl.col(WEIGHT).cast(pl.Int64))

    def given(self, side: int, *, other: bool = True) -> list[pl.Expr]:
        """The columns of the result, with or without a row of the other side."""
        left = self.columns(0, self._types, there=side == 0 or other)
        return left if self.only_left else left + self.columns(1, self._types, there=side == 1 or other)

    def columns(self, side: int, types: dict[str, Any], *, there: bool = True) -> list[pl.Expr]:
        """The columns of a side, as they are called outside; null, but for those that both sides name, if not there."""
        made = []
        keys = {pair[side]: (key, pair) for key, pair in zip(self.keys, self.node.on, strict=True)}
        for name, column in (self.node.left, self.node.right)[side]:
            source, pair = keys.get(column, (f"{SIDES[side]}.{name}", None))
            known = there or (pair is not None and pair[0] == pair[1])
            made.append((pl.col(source) if known else pl.lit(None)).cast(types[name]).alias(name))
        return made


class TableJoinStep(JoinedSides):
    node: TableJoin

    def __init__(self, node: TableJoin) -> None:
        super().__init__(node)
        how = node.how
        self._counted = (how in ("right", "full"), how in ("left", "full", "semi", "anti"))
        """Of which side it matters since when a key has rows."""

    def tables(self) -> Frames:
        return {name: self.table(side, *([SINCE] if self._counted[side] else [])) for side, name in enumerate(SIDES)}

    def asked(self, inputs: Frames) -> Frames:
        keys = of_keys(self.keys, inputs).select(self.keys)
        keys = keys.filter(self.has_keys(keys))
        return dict.fromkeys(SIDES, keys)

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        came, lonely = [], []
        for side, name in enumerate(INPUTS):
            rows = inputs[name]
            known = self.has_keys(rows)
            came.append(self.changes(rows.filter(known), side))
            lonely.append(self.changes(rows.filter(~known), side))
        old = [held[name] for name in SIDES]
        partners = [self._partners(old[side], came[side]) if self._counted[side] else None for side in (0, 1)]
        sent = []
        if not self.only_left:
            pairs = _joined(self.keys, old[0], came[0], old[1], came[1])
            sent.append(pairs.select(*self.given(0), TIME, WEIGHT))
        for side, other in enumerate(reversed(partners)):
            if other is not None:
                before, turns, _ = other
                if self.node.how == "semi":
                    found = _joined(self.keys, old[side], came[side], before, turns)
                else:
                    found = pl.concat([lonely[side], self._alone(old[side], came[side], before, turns)])
                sent.append(found.select(*self.given(side, other=False), TIME, WEIGHT))
        changes = {
            name: self._kept(side, old[side], came[side], partners[side])
            for side, name in enumerate(SIDES)
            if len(came[side])
        }
        return changes, {SENT: self._sent(pl.concat(sent))}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return dict.fromkeys(SIDES, NO_MARKS)

    def _partners(self, old: pl.DataFrame, came: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """The table of keys that have rows: as it was, how it changes, and since when the keys that came have some."""
        keys = self.keys
        counts = old.group_by(keys).agg(pl.col(WEIGHT).sum(), pl.col(SINCE).first().alias(TIME))
        before = counts.filter(pl.col(WEIGHT) > 0).select(*keys, TIME, pl.lit(1, pl.Int64).alias(WEIGHT))
        if came.is_empty():
            return before, before.clear(), before.clear()
        touched = counts.select(*keys, EVER.alias(TIME), WEIGHT).join(came, on=keys, how="semi")
        line = pl.concat([touched, came.select(touched.columns)])
        line = line.group_by(*keys, TIME).agg(pl.col(WEIGHT).sum()).sort(TIME)
        # One where there are rows, else nothing; and how much that is more than just before.
        line = line.with_columns((pl.col(WEIGHT).cum_sum().over(keys) > 0).cast(pl.Int64).alias(WEIGHT))
        turns = line.with_columns(pl.col(WEIGHT) - pl.col(WEIGHT).shift(1, fill_value=0).over(keys))
        turns = turns.filter(pl.col(WEIGHT) != 0)
        last = turns.group_by(keys, maintain_order=True).last()
        since = last.filter(pl.col(WEIGHT) > 0).select(*keys, pl.col(TIME).alias(SINCE))
        gone = before.join(came, on=keys, how="semi").with_columns(-pl.col(WEIGHT))
        return before, summed(pl.concat([turns, gone]), [*keys, TIME], WEIGHT), since

    def _alone(self, old: pl.DataFrame, came: pl.DataFrame, before: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
        """How the rows without a partner change: all that came, less those that have one."""
        columns, keys = came.columns, self.keys
        numbered = came.with_row_index(PLACE).with_columns(pl.col(TIME).alias(OWN_TIME))
        found = _pairs(keys, numbered, pl.concat([before, turns]))
        # Most have had a partner from their own time on: they are not sent and taken back again.
        at_once = found[TIME] == found[OWN_TIME]
        less = found.filter(at_once).group_by(PLACE).agg(pl.col(WEIGHT).sum().alias(PARTNER_WEIGHT))
        rest = numbered.join(less, on=PLACE, how="left", maintain_order="left")
        rest = rest.with_columns(pl.col(WEIGHT) - pl.col(PARTNER_WEIGHT).fill_null(0)).filter(pl.col(WEIGHT) != 0)
        later = [found.filter(~at_once).select(columns)]
        if len(turns) and len(old):
            later.append(_pairs(keys, old.select(columns), turns))
        return pl.concat([rest.select(columns), *(rows.with_columns(-pl.col(WEIGHT)) for rows in later)])

    def _kept(
        self,
        side: int,
        old: pl.DataFrame,
        came: pl.DataFrame,
        partners: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame] | None,
    ) -> pl.DataFrame:
        """What is held of a side, with what came. A row holds from the newest time at which it was put there."""
        keys, columns = self.keys, [*self.keys, *self.rest[side]]
        rows = pl.concat([old.select(came.columns), came])
        is_plus = pl.col(WEIGHT) > 0
        twice = alike(rows, columns)
        merged = (
            summed(rows.filter(twice), [*columns, TIME], WEIGHT)
            .with_columns(pl.when(is_plus).then(TIME).alias(PLUS), pl.when(~is_plus).then(TIME).alias(MINUS))
            .group_by(columns)
            .agg(pl.col(PLUS, MINUS).max(), pl.col(WEIGHT).sum())
            .with_columns(pl.when(is_plus).then(PLUS).otherwise(MINUS).alias(TIME))
        )
        rows = pl.concat([rows.filter(~twice), merged.select(rows.columns)]).filter(pl.col(WEIGHT) != 0)
        if partners is None:
            return rows
        _, _, since = partners
        untouched = old.join(came, on=keys, how="anti").select(*keys, SINCE).unique(keys)
        return rows.join(pl.concat([since, untouched]), on=keys, how="left")

    def _sent(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Equal rows as one, what is taken back first."""
        time = pl.when(pl.col(TIME) > BEGINNING).then(TIME).alias(TIME)
        twice = alike(rows, [*self._types, TIME])
        rows = pl.concat([netted(rows.filter(twice)), singly(rows.filter(~twice))])
        back = rows[WEIGHT] < 0
        rows = pl.concat([rows.filter(back), rows.filter(~back)])
        return rows.with_columns(time, pl.col(WEIGHT).cast(pl.Int32))


def alike(rows: pl.DataFrame, columns: list[str]) -> pl.Series:
    """Which rows may be equal to another: only these need be compared column by column, which takes far longer."""
    return rows.select(columns).hash_rows().is_duplicated()


def _joined(
    keys: list[str], old: pl.DataFrame, came: pl.DataFrame, others: pl.DataFrame, others_came: pl.DataFrame
) -> pl.DataFrame:
    """How the pairs change: what came, with all there is on the other side; what was there, with what came there."""
    columns = others_came.columns
    parts = [_pairs(keys, came, pl.concat([others.select(columns), others_came]))]
    if len(others_came) and len(old):
        parts.append(_pairs(keys, old.select(came.columns), others_came))
    return pl.concat(parts)


def _pairs(keys: list[str], rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    others = others.rename({TIME: PARTNER_TIME, WEIGHT: PARTNER_WEIGHT})
    pairs = rows.join(others, on=keys, how="inner").with_columns(
        pl.max_horizontal(TIME, PARTNER_TIME).alias(TIME), pl.col(WEIGHT) * pl.col(PARTNER_WEIGHT)
    )
    return pairs.drop(PARTNER_TIME, PARTNER_WEIGHT)
