"""Which pairs of rows satisfy the condition of a join."""

from __future__ import annotations

import polars as pl

from millstream.expressions.expression import evaluate
from millstream.plan.table_nodes import JoinCondition


def holds(pairs: pl.DataFrame, condition: JoinCondition) -> pl.Series:
    """For each pair, given its columns under their output names. Null does not satisfy a condition."""
    table = pairs.select(condition.columns.names).to_arrow().cast(condition.columns)
    made = pl.from_arrow(evaluate({"holds": condition.holds.lowered}, table))
    assert isinstance(made, pl.DataFrame)
    return made["holds"].fill_null(False)
