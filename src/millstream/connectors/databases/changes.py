"""The changes that a batch of weighted rows makes to a table, computed before the table is touched.

An append table contains every row as often as the sum of its weights. An upsert table is changed row by row: one of
weight +1 replaces the row of its key, one of weight -1 deletes it if the two are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

WEIGHT = "__weight"
PLACE = "__place"
COPIES = "__copies"


@dataclass(frozen=True)
class Changes:
    """Applied in this order; all frames have the columns of the table, `deleted` also the number of copies."""

    deleted: pl.DataFrame
    """Rows to delete, if the table has them."""
    cleared: pl.DataFrame
    """Rows whose keys are deleted unconditionally. Upsert tables only."""
    put: pl.DataFrame
    """Rows to insert; in an upsert table they replace the rows of their keys, at most one per key."""


def append_changes(rows: pl.DataFrame, weights: pl.Series | None) -> Changes:
    nothing = rows.clear()
    if weights is None or bool((weights == 1).all()):
        return Changes(_copies(nothing), nothing, rows)
    sums = (
        rows.with_columns(weights.cast(pl.Int64).alias(WEIGHT))
        .group_by(rows.columns, maintain_order=True)
        .agg(pl.col(WEIGHT).sum())
    )
    gone = sums.filter(pl.col(WEIGHT) < 0).with_columns((-pl.col(WEIGHT)).alias(COPIES)).drop(WEIGHT)
    come = sums.filter(pl.col(WEIGHT) > 0)
    put = come.select(pl.exclude(WEIGHT).repeat_by(WEIGHT).list.explode()) if come.height else nothing
    return Changes(gone, nothing, put)


def upsert_changes(rows: pl.DataFrame, weights: pl.Series | None, key: Sequence[str]) -> Changes:
    nothing = rows.clear()
    if weights is None or bool((weights > 0).all()):
        return Changes(_copies(nothing), nothing, rows.unique(key, keep="last", maintain_order=True))
    placed = rows.with_row_index(PLACE).with_columns(weights.alias(WEIGHT))
    newest = placed.filter(pl.col(WEIGHT) > 0).unique(key, keep="last", maintain_order=True).drop(WEIGHT)
    back = placed.filter(pl.col(WEIGHT) < 0).drop(WEIGHT)
    # Retracted after it was added: it replaced whatever the table had before, so the key is deleted.
    gone = (
        back.join(newest, on=rows.columns, how="inner", nulls_equal=True, suffix="_new", maintain_order="left")
        .filter(pl.col(PLACE) > pl.col(f"{PLACE}_new"))
        .select(rows.columns)
        .unique(key, maintain_order=True)
    )
    put = newest.join(gone, on=key, how="anti", nulls_equal=True, maintain_order="left").select(rows.columns)
    # Keys without a new row depend on the row in the table.
    deleted = (
        back.join(newest, on=key, how="anti", nulls_equal=True, maintain_order="left")
        .select(rows.columns)
        .unique(maintain_order=True)
    )
    return Changes(_copies(deleted), gone, put)


def _copies(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.lit(1, pl.Int64).alias(COPIES))
