"""The columns of a join: its input rows, and the output for a pair or for a row without a match.

An input row has its keys as `key.0`, `key.1` … on both sides, and its columns under their output names, prefixed with
the side; so users' names never clash with ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Frames
from millstream.operators.joins.conditions import holds, met_pairs, wide
from millstream.operators.stateful import EVERY_INPUT, MATCHING
from millstream.operators.windows.assignment import instant
from millstream.plan.nodes import SPAN
from millstream.plan.table_nodes import Join

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")
Places = npt.NDArray[np.int64]
WINDOW = "window"
MET = "met"


class Joining:
    """How the rows of a join are fed and emitted."""

    def __init__(self, node: Join) -> None:
        self.node = node
        self.keys = [f"key.{number}" for number in range(len(node.on))]
        self.columns = (node.left, node.right)
        self.values = tuple([f"{side}.{name}" for name, _ in self.columns[n]] for n, side in enumerate(SIDES))
        """For each side, the value columns of an input row."""
        self.compared = tuple([f"{side}.{name}" for name, _ in node.compared[n]] for n, side in enumerate(SIDES))
        """For each side, those that the condition uses."""
        self.is_kept_alone = (node.how in ("left", "full"), node.how in ("right", "full"))
        """For each side, whether a row without a match is emitted with nulls."""
        self.is_half = node.how in ("semi", "anti")
        self._given = elementwise.types_of(node.schema)
        types = [elementwise.types_of(given.schema) for given in node.inputs]
        self.types: dict[str, pl.DataType] = {
            name: self._given.get(name, types[side][column])
            for side, columns in enumerate(self.columns)
            for name, column in columns
        }
        """The types of all columns of both sides, in the output and in `.late`."""
        # A column that both sides name the same appears once: without a row of the first, it is the key.
        named = [column for _, column in node.right]
        shared = {one: key for key, (one, other) in zip(self.keys, node.on, strict=True) if other not in named}
        self.shared = {name: shared[column] for name, column in node.left if column in shared}

    def fed(self, rows: pl.DataFrame, first: int, side: int) -> pl.DataFrame:
        """Keys, values, time and weight. Integer keys have one width, so that both sides hash alike.

        The order of arrival does not matter.
        """
        if side >= len(SIDES):
            names = [] if self.node.condition is None else self.node.condition.columns.names
            return met_pairs(rows, self.node, [rows[name].alias(f"{MET}.{name}") for name in names])
        keys = [wide(rows[pair[side]]).alias(key) for key, pair in zip(self.keys, self.node.on, strict=True)]
        values = [
            rows[column].alias(value) for value, (_, column) in zip(self.values[side], self.columns[side], strict=True)
        ]
        return pl.DataFrame([*keys, *values, rows[TIME], rows[WEIGHT]])

    def no_rows(self) -> Frames:
        """Each input without rows."""
        return {
            name: self.fed(elementwise.frame_of([], given), 0, side)
            for side, (name, given) in enumerate(zip(EVERY_INPUT, self.node.inputs, strict=False))
        }

    def met(self, inputs: Frames) -> pl.DataFrame | None:
        """The pairs that satisfy the condition, if another step has evaluated it."""
        if self.node.matching is None:
            return None
        return inputs[MATCHING].select(pl.col(f"^{MET}\\..*$").name.map(lambda name: name[len(MET) + 1 :]))

    def has_null_key(self) -> pl.Expr:
        return pl.any_horizontal(pl.col(key).is_null() for key in self.keys)

    def meeting(
        self, left: pl.DataFrame, right: pl.DataFrame, here: Places, there: Places, met: pl.DataFrame | None
    ) -> tuple[Places, Places]:
        """Of pairs of rows with equal keys, given by position, those that satisfy the condition."""
        if self.node.condition is None or not len(here):
            return here, there
        columns = [
            rows[value].gather(at).alias(name)
            for rows, at, values, names in zip(
                (left, right), (here, there), self.compared, self.node.compared, strict=True
            )
            for value, (name, _) in zip(values, names, strict=True)
        ]
        are_met = holds(pl.DataFrame(columns), self.node.condition, met).to_numpy()
        return here[are_met], there[are_met]

    # ------------------------------------------------------------ output

    def pairs(self, left: pl.DataFrame, right: pl.DataFrame, here: Places, there: Places) -> pl.DataFrame:
        """The output columns of pairs of rows, given by position."""
        columns = left.select(self.values[LEFT])[here].get_columns()
        columns += right.select(self.values[RIGHT])[there].get_columns()
        return pl.DataFrame(columns).select(
            pl.col(f"{SIDES[side]}.{name}").cast(self.types[name]).alias(name)
            for side, names in enumerate(self.columns)
            for name, _ in names
        )

    def alone(self, side: int) -> list[pl.Expr]:
        """The columns of both sides for rows of one of them: nulls for the other's."""
        return [self._of(name, side, of) for of, names in enumerate(self.columns) for name, _ in names]

    def halves(self) -> list[pl.Expr]:
        """The columns of the first input only."""
        return [self._of(name, LEFT, LEFT) for name, _ in self.node.left]

    def _of(self, name: str, side: int, of: int) -> pl.Expr:
        if of == side:
            value = pl.col(f"{SIDES[side]}.{name}")
        elif side == RIGHT and name in self.shared:
            value = pl.col(self.shared[name])
        else:
            value = pl.lit(None)
        return value.cast(self.types[name]).alias(name)

    def sent(self, frames: list[pl.DataFrame]) -> pl.DataFrame:
        """The output: the columns of the node, a time and a weight."""
        types: Any = {**self._given, TIME: pl.Int64(), WEIGHT: pl.Int32()}
        empty = pl.DataFrame(schema=types)
        columns = [*self._given, TIME, WEIGHT]
        return pl.concat([empty, *(frame.select(columns).cast(types) for frame in frames if len(frame))])

    def late(self, rows: pl.DataFrame, side: int, *more: pl.Expr) -> pl.DataFrame:
        """Late rows: all columns of both sides, the side, and extra columns."""
        extra = [pl.lit(SIDES[side]).alias("side"), *more, pl.col(TIME), pl.col(WEIGHT)]
        return rows.select(chosen(*self.alone(side), *extra))


def chosen(*columns: pl.Expr) -> list[pl.Expr]:
    """Of columns of the same name the last, in its own position."""
    last = {column.meta.output_name(): place for place, column in enumerate(columns)}
    return [columns[place] for place in sorted(last.values())]


def netted(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that cancel out are dropped; retractions come first, and each row has weight 1 or -1."""
    if rows.is_empty():
        return rows
    same = [name for name in rows.columns if name != WEIGHT]
    summed = rows.group_by(same, maintain_order=True).agg(pl.col(WEIGHT).sum())
    return singly(summed.filter(pl.col(WEIGHT) < 0), summed.filter(pl.col(WEIGHT) > 0)).select(rows.columns)


def singly(*parts: pl.DataFrame) -> pl.DataFrame:
    """A row of weight n as n rows: downstream steps that count rows need not know about weights."""
    rows = pl.concat(parts)
    weights = rows[WEIGHT].to_numpy()
    if not (np.abs(weights) == 1).all():
        rows = rows[np.repeat(np.arange(len(rows)), np.abs(weights))]
    return rows.with_columns(pl.col(WEIGHT).sign())


def span() -> pl.Expr:
    """The window, of columns `start` and `end`."""
    return pl.struct(instant(field.name) for field in SPAN).alias(WINDOW)
