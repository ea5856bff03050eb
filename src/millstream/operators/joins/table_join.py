"""Joins two tables: as of any time, the emitted changes add up to the join of the tables at that time.

A change on one side is joined with the changes of the other side, old and new; weights are multiplied, and the result
is valid from the later of the two times. A second, small table tells which rows have a partner: for each key, when it
gets its first row and when it loses its last one. Joining with it gives the rows that have a partner; the others are
the difference. With a condition, rows of the same key have different partners: then that table is about single rows.

Each side is stored as changes with the time from which they are valid. Nobody can ask for a time before the watermark
any more: changes up to it have always been valid, and rows retracted up to it are gone.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.joins.conditions import holds, met_pairs, wide
from millstream.operators.joins.joining import SIDES, netted, singly
from millstream.operators.keyed_rows import NUMBER, numbered, summed
from millstream.operators.stateful import EVERY_INPUT, INPUTS, MATCHING, SENT, PlainStep, of_keys
from millstream.plan.table_nodes import Join, TableJoin
from millstream.plan.time.bundles import BEGINNING
from millstream.records import Schema
from millstream.state.tables import Marks

MATCHED = "matched "
"""Before the name of a side: its rows that are in a pair, if another step finds the pairs."""
FOLDED_AT = "folded_at"
"""For a retracted row: when it and its retraction cancel out."""
PARTNER_TIME, PARTNER_WEIGHT = "__partner_time", "__partner_weight"
PLACE, OWN_TIME, SAME = "__place", "__own_time", "__same"
EVER: Any = pl.col(TIME).fill_null(BEGINNING)
"""A change without a time has always been valid."""


class JoinedSides(PlainStep):
    """Shared by joins with tables: a row has its keys in `key.<n>`, the rest in `left.` or `right.`."""

    def __init__(self, node: Join) -> None:
        self.node = node
        self.keys = [f"key.{number}" for number in range(len(node.on))]
        self.only_left = node.how in ("semi", "anti")
        self.rest = [
            [f"{table}.{name}" for name, column in columns if column not in on]
            for table, columns, on in zip(SIDES, (node.left, node.right), zip(*node.on, strict=True), strict=True)
        ]
        if self.only_left:
            used = {f"{SIDES[1]}.{name}" for name, _ in node.compared[1]}
            self.rest[1] = [name for name in self.rest[1] if name in used]
        none = pa.schema([]) if node.condition is None else node.condition.columns
        self._compared: Any = dict(elementwise.types_of(Schema(none)))
        self._types: Any = dict(elementwise.types_of(node.schema))
        self.nothing: Frames = {
            name: self.fed(elementwise.frame_of([], given), 0, side)
            for side, (name, given) in enumerate(zip(EVERY_INPUT, node.inputs, strict=False))
        }

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """Its keys, its other columns, its time and its weight. The order of arrival does not matter."""
        if side >= len(SIDES):
            both = zip(SIDES, (self.node.left, self.node.right), self.rest, strict=True)
            columns = [
                rows[name].alias(f"{of}.{name}")
                for of, given, rest in both
                for name, _ in given
                if f"{of}.{name}" in rest
            ]
            return met_pairs(rows, self.node, columns)
        keys = [wide(rows[pair[side]]).alias(key) for pair, key in zip(self.node.on, self.keys, strict=True)]
        chosen = set(self.rest[side])
        columns = [
            rows[column].alias(f"{SIDES[side]}.{name}")
            for name, column in (self.node.left, self.node.right)[side]
            if f"{SIDES[side]}.{name}" in chosen
        ]
        return pl.DataFrame([*keys, *columns, rows[TIME], rows[WEIGHT]])

    def table(self, side: int, *more: str) -> pl.DataFrame:
        """The empty table of a side."""
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

    def met(self, inputs: Frames) -> pl.DataFrame | None:
        """The pairs that satisfy the condition, if another step has evaluated it."""
        return None if self.node.matching is None else inputs[MATCHING].select(self._columns_compared())

    def meeting(self, pairs: pl.DataFrame, met: pl.DataFrame | None = None) -> pl.DataFrame:
        """Of pairs of rows with equal keys, those that satisfy the condition."""
        if self.node.condition is None or pairs.is_empty():
            return pairs
        return pairs.filter(holds(pairs.select(self._columns_compared()), self.node.condition, met))

    def _columns_compared(self) -> list[pl.Expr]:
        """The columns that the condition uses, of pairs."""
        return [*self.columns(0, self._compared), *self.columns(1, self._compared)]

    def given(self, side: int, *, other: bool = True) -> list[pl.Expr]:
        """The columns of the result, with or without a row of the other side."""
        left = self.columns(0, self._types, there=side == 0 or other)
        return left if self.only_left else left + self.columns(1, self._types, there=side == 1 or other)

    def columns(self, side: int, types: dict[str, Any], *, there: bool = True) -> list[pl.Expr]:
        """Those columns of a side that have a type, under their output names.

        Without a row they are null, except for shared key columns.
        """
        made = []
        keys = {pair[side]: (key, pair) for key, pair in zip(self.keys, self.node.on, strict=True)}
        for name, column in (self.node.left, self.node.right)[side]:
            if name not in types:
                continue
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
        """For each side, whether it matters when a key has rows."""

    def tables(self) -> Frames:
        if self.node.matching is None:
            return {name: self.table(side, FOLDED_AT) for side, name in enumerate(SIDES)}
        sides = [(side, name) for side, name in enumerate(SIDES) if self._counted[1 - side]]
        return {f"{prefix}{name}": self.table(side, FOLDED_AT) for side, name in sides for prefix in ("", MATCHED)}

    def asked(self, inputs: Frames) -> Frames:
        keys = of_keys(self.keys, inputs).select(self.keys)
        keys = keys.filter(self.has_keys(keys))
        return dict.fromkeys(self.tables(), keys)

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        if self.node.matching is not None:
            return self._step_of_matches(held, inputs, clock)
        came, lonely = [], []
        for side, name in enumerate(INPUTS):
            rows = inputs[name]
            known = self.has_keys(rows)
            came.append(self.changes(rows.filter(known), side))
            lonely.append(self.changes(rows.filter(~known), side))
        # Not past the previous watermark: rows after this step may ask for any time since.
        old = [_folded(held[name], clock.watermark_before).drop(FOLDED_AT) for name in SIDES]
        sent = []
        if not self.only_left:
            pairs = self.meeting(_joined(self.keys, old[0], came[0], old[1], came[1]))
            sent.append(pairs.select(*self.given(0), TIME, WEIGHT))
        for side in (0, 1):
            if self._counted[1 - side]:
                own, others = [old[side], came[side]], [old[1 - side], came[1 - side]]
                keys = self.keys
                if self.node.condition is not None:
                    keys, own = [NUMBER], numbered([*self.keys, *self.rest[side]], *own)
                    others = self._partners_of_rows(side, own, others)
                sent.append(self._by_partners(side, keys, own, others, lonely[side]))
        changes = {
            name: self._kept(side, pl.concat([old[side], came[side]]), clock)
            for side, name in enumerate(SIDES)
            if len(came[side]) or (held[name][FOLDED_AT] <= clock.watermark).any()
        }
        return changes, {SENT: self._sent(pl.concat(sent))}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return dict.fromkeys(self.tables(), Marks(pl.col(FOLDED_AT), pl.lit(None, pl.Int64)))

    def _step_of_matches(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        """The same, given the changes of the pairs: beside its rows, a side has how often each is in a pair."""
        met = inputs[MATCHING].with_columns(EVER.alias(TIME), pl.col(WEIGHT).cast(pl.Int64))
        sent = [] if self.only_left else [met.select(*self.given(0), TIME, WEIGHT)]
        changes: Frames = {}
        for side, name in enumerate(SIDES):
            if name not in held:
                continue
            known = self.has_keys(inputs[INPUTS[side]])
            lonely, came = (self.changes(inputs[INPUTS[side]].filter(which), side) for which in (~known, known))
            arrived = {name: came, f"{MATCHED}{name}": met.select(came.columns)}
            old = {of: _folded(held[of], clock.watermark_before).drop(FOLDED_AT) for of in arrived}
            frames = [each[of] for of in arrived for each in (old, arrived)]
            numbers = numbered([*self.keys, *self.rest[side]], *frames)
            sent.append(self._by_partners(side, [NUMBER], numbers[:2], numbers[2:], lonely))
            changes |= {
                of: self._kept(side, pl.concat([old[of], arrived[of]]), clock)
                for of in arrived
                if len(arrived[of]) or (held[of][FOLDED_AT] <= clock.watermark).any()
            }
        return changes, {SENT: self._sent(pl.concat(sent))}

    def _by_partners(
        self, side: int, keys: list[str], own: list[pl.DataFrame], others: list[pl.DataFrame], lonely: pl.DataFrame
    ) -> pl.DataFrame:
        """Changes of the rows of a side that have a partner, in a semi join, or that have none."""
        before, turns = _partners(keys, others[0], others[1])
        joined = _joined if self.node.how == "semi" else _alone
        found = joined(keys, own[0], own[1], before, turns).select(lonely.columns)
        found = found if self.node.how == "semi" else pl.concat([lonely, found])
        return found.select(*self.given(side, other=False), TIME, WEIGHT)

    def _partners_of_rows(self, side: int, own: list[pl.DataFrame], others: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """The partners of single rows, old and new, by the number of the row.

        Only of rows that come, and of those that get or lose a partner: a key may have many more.
        """
        old, came = others
        rows = pl.concat(own).select(NUMBER, *self.keys, *self.rest[side]).unique(NUMBER)
        new = self._matches(rows, came)
        concerned = pl.concat([own[1].select(NUMBER), new.select(NUMBER)])
        return [self._matches(rows.join(concerned, on=NUMBER, how="semi"), old), new]

    def _matches(self, rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
        return self.meeting(rows.join(others, on=self.keys, how="inner")).select(NUMBER, TIME, WEIGHT)

    def _kept(self, side: int, rows: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """The stored changes of a side: those of a row up to the watermark merged."""
        columns = [*self.keys, *self.rest[side]]
        rows = _folded(rows, clock.watermark)
        twice = alike(rows, columns)
        merged = summed(rows.filter(twice), [*columns, TIME], WEIGHT)
        # A retracted row is dropped once the watermark has passed, and all its changes must be held then. Others with
        # the same hash may be included.
        goes = pl.when((pl.col(WEIGHT) < 0) & (pl.col(TIME) > BEGINNING)).then(TIME)
        same = merged.select(columns).hash_rows().alias(SAME)
        merged = merged.with_columns(same).with_columns(goes.min().over(SAME).alias(FOLDED_AT)).drop(SAME)
        single = rows.filter(~twice).with_columns(pl.lit(None, pl.Int64).alias(FOLDED_AT))
        return pl.concat([single, merged.select(single.columns)])

    def _sent(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Merges equal rows, retractions first."""
        time = pl.when(pl.col(TIME) > BEGINNING).then(TIME).alias(TIME)
        twice = alike(rows, [*self._types, TIME])
        rows = pl.concat([netted(rows.filter(twice)), singly(rows.filter(~twice))])
        back = rows[WEIGHT] < 0
        rows = pl.concat([rows.filter(back), rows.filter(~back)])
        return rows.with_columns(time, pl.col(WEIGHT).cast(pl.Int32))


def _partners(keys: list[str], old: pl.DataFrame, came: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The table of keys that have rows: as it was, and how it changes."""
    counts = summed(old, [*keys, TIME], WEIGHT)
    before = _turns(keys, counts)
    if came.is_empty():
        return before, before.clear()
    touched = counts.join(came, on=keys, how="semi")
    after = _turns(keys, summed(pl.concat([touched, came.select(counts.columns)]), [*keys, TIME], WEIGHT))
    gone = before.join(came, on=keys, how="semi").with_columns(-pl.col(WEIGHT))
    return before, summed(pl.concat([after, gone]), [*keys, TIME], WEIGHT)


def _alone(
    keys: list[str], old: pl.DataFrame, came: pl.DataFrame, before: pl.DataFrame, turns: pl.DataFrame
) -> pl.DataFrame:
    """Changes of the rows without a partner: all changes, minus those with one."""
    columns = came.columns
    placed = came.with_row_index(PLACE).with_columns(pl.col(TIME).alias(OWN_TIME))
    found = _pairs(keys, placed, pl.concat([before, turns]))
    # Most have had a partner from their own time on: they are not emitted and retracted again.
    at_once = found[TIME] == found[OWN_TIME]
    less = found.filter(at_once).group_by(PLACE).agg(pl.col(WEIGHT).sum().alias(PARTNER_WEIGHT))
    rest = placed.join(less, on=PLACE, how="left", maintain_order="left")
    rest = rest.with_columns(pl.col(WEIGHT) - pl.col(PARTNER_WEIGHT).fill_null(0)).filter(pl.col(WEIGHT) != 0)
    later = [found.filter(~at_once).select(columns)]
    if len(turns) and len(old):
        later.append(_pairs(keys, old, turns))
    return pl.concat([rest.select(columns), *(rows.with_columns(-pl.col(WEIGHT)) for rows in later)])


def alike(rows: pl.DataFrame, columns: list[str]) -> pl.Series:
    """Which rows may be equal to another: only these need the far slower comparison by column."""
    return rows.select(columns).hash_rows().is_duplicated()


def _folded(changes: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Changes up to the watermark as if they had always been valid."""
    if not (changes[TIME] > BEGINNING).any():
        return changes
    passed = pl.col(TIME) <= watermark
    return changes.with_columns(pl.when(passed).then(pl.lit(BEGINNING, pl.Int64)).otherwise(TIME).alias(TIME))


def _turns(keys: list[str], counts: pl.DataFrame) -> pl.DataFrame:
    """When each key gets rows, and when it loses the last one, from how its row count changes."""
    more = alike(counts, keys)
    line = counts.filter(more).sort(TIME)
    # 1 if there are rows, else 0; and the difference to just before.
    line = line.with_columns((pl.col(WEIGHT).cum_sum().over(keys) > 0).cast(pl.Int64).alias(WEIGHT))
    line = line.with_columns(pl.col(WEIGHT) - pl.col(WEIGHT).shift(1, fill_value=0).over(keys))
    once = counts.filter(~more & (counts[WEIGHT] > 0)).with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))
    return pl.concat([once, line.filter(pl.col(WEIGHT) != 0)])


def _joined(
    keys: list[str], old: pl.DataFrame, came: pl.DataFrame, others: pl.DataFrame, others_came: pl.DataFrame
) -> pl.DataFrame:
    """Changes of the pairs: new changes with everything on the other side, and old ones with what is new there."""
    columns = others_came.columns
    parts = [_pairs(keys, came, pl.concat([others.select(columns), others_came]))]
    if len(others_came) and len(old):
        parts.append(_pairs(keys, old, others_came))
    return pl.concat(parts)


def _pairs(keys: list[str], rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    others = others.rename({TIME: PARTNER_TIME, WEIGHT: PARTNER_WEIGHT})
    pairs = rows.join(others, on=keys, how="inner").with_columns(
        pl.max_horizontal(TIME, PARTNER_TIME).alias(TIME), pl.col(WEIGHT) * pl.col(PARTNER_WEIGHT)
    )
    return pairs.drop(PARTNER_TIME, PARTNER_WEIGHT)
