"""Which pairs of rows satisfy the condition of a join."""

from __future__ import annotations

import polars as pl

from millstream.expressions.expression import evaluate
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.plan.table_nodes import Join, JoinCondition

MET = "__met"


def holds(pairs: pl.DataFrame, condition: JoinCondition, met: pl.DataFrame | None = None) -> pl.Series:
    """For each pair, given its columns under their output names. Null does not satisfy a condition.

    If another step has evaluated it, `met` has the pairs that satisfy it.
    """
    table = pairs.select(condition.columns.names).to_arrow().cast(condition.columns)
    if met is None:
        made = pl.from_arrow(evaluate({"holds": condition.holds.lowered}, table))
        assert isinstance(made, pl.DataFrame)
        return made["holds"].fill_null(False)
    asked = pl.from_arrow(table)
    assert isinstance(asked, pl.DataFrame)
    known = met.select(asked.columns).cast(asked.schema).unique().with_columns(pl.lit(True).alias(MET))
    found = asked.join(known, on=asked.columns, how="left", nulls_equal=True, maintain_order="left")
    return found[MET].fill_null(False)


def met_pairs(rows: pl.DataFrame, node: Join, columns: list[pl.Series]) -> pl.DataFrame:
    """Pairs that satisfy the condition of a join as its input: their keys, columns, time and weight."""
    named = {column: name for name, column in node.left}
    keys = [wide(rows[named[one]]).alias(f"key.{number}") for number, (one, _) in enumerate(node.on)]
    return pl.DataFrame([*keys, *columns, rows[TIME], rows[WEIGHT]])


def wide(column: pl.Series) -> pl.Series:
    """Integers of any width as one type: keys are compared with one another."""
    return column.cast(pl.Int64) if column.dtype.is_integer() else column
