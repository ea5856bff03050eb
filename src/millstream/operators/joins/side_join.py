"""Joins a stream with static rows: row by row and stateless."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import polars as pl
import pyarrow as pa

from millstream.operators.joins.conditions import holds, wide
from millstream.plan.table_nodes import SideJoin

PLACE = "__place"

_prepared: WeakKeyDictionary[SideJoin, tuple[pl.DataFrame, Any]] = WeakKeyDictionary()
"""For each join, its side prepared for lookups and the types of its columns; cached per process."""


def side_join(frame: pl.DataFrame, node: SideJoin, met: pl.DataFrame | None = None) -> pl.DataFrame:
    """Columns that are only passed on may be missing: no later step uses them. For `met` see `holds`."""
    prepared = _prepared.get(node)
    if prepared is None:
        prepared = _prepared[node] = _searched(node), dict(_frame(node.schema.arrow.empty_table()).schema)
    side, types = prepared
    keys = _keys(node)
    hidden = [name for name in frame.columns if name not in node.inputs[0].schema]
    left = [frame[column].alias(name) for name, column in node.left if column in frame.columns]
    own = [wide(frame[one]).alias(key) for key, (one, _) in zip(keys, node.on, strict=True)]
    rows = pl.DataFrame([*left, *own, *(frame[name] for name in hidden)])
    how: Any = node.how
    if node.condition is None:
        joined = rows.join(side, on=keys, how=how, maintain_order="left")
    else:
        rows = rows.with_row_index(PLACE)
        pairs = rows.join(side, on=keys, how="inner", maintain_order="left")
        pairs = pairs.filter(holds(pairs, node.condition, met))
        found = pairs.select(PLACE, *(name for name in side.columns if name not in keys))
        joined = rows.join(found, on=PLACE, how=how, maintain_order="left")
    given = [name for name in node.schema.names if name in joined.columns]
    return joined.select(*given, *hidden).cast({name: types[name] for name in given})


def _searched(node: SideJoin) -> pl.DataFrame:
    """The rows with non-null keys, each with its keys and output columns."""
    rows = _frame(node.rows)
    own = [wide(rows[other]).alias(key) for key, (_, other) in zip(_keys(node), node.on, strict=True)]
    if node.how in ("semi", "anti"):
        compared = [rows[column].alias(name) for name, column in node.compared[1]]
        return pl.DataFrame([*own, *compared]).drop_nulls(_keys(node)).unique()
    given = [rows[column].alias(name) for name, column in node.right]
    return pl.DataFrame([*own, *given]).drop_nulls(_keys(node))


def _keys(node: SideJoin) -> list[str]:
    return [f"key.{number}" for number in range(len(node.on))]


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
