"""Stable sorting of integers, sixteen bits at a time: numpy sorts such small numbers by counting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from polars.dataframe.group_by import GroupBy

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
DIGIT = 16
COMBINATIONS_MAX = 1 << 62


def in_order(*columns: Numbers) -> Numbers:
    """The order by the first column, then by the next ones; stable."""
    if len(columns) == 1 and columns[0].dtype == np.uint16:
        return np.argsort(columns[0], kind="stable")
    if _are_ordered(columns):
        return np.arange(len(columns[0]))
    order: Numbers | None = None
    for column in reversed(columns):
        least = int(column.min())
        for shift in range(0, (int(column.max()) - least).bit_length(), DIGIT):
            digits = ((column if order is None else column[order]) - least) >> shift
            turn = np.argsort((digits & 0xFFFF).astype(np.uint16), kind="stable")
            order = turn if order is None else order[turn]
    return np.arange(len(columns[0])) if order is None else order


def narrow(numbers: Numbers) -> Numbers:
    """Numbers from 0 on, in sixteen bits if they fit: those are sorted fastest."""
    return numbers.astype(np.uint16) if len(numbers) and numbers.max() >> DIGIT == 0 else numbers


def _are_ordered(columns: Sequence[Numbers]) -> bool:
    is_equal = np.ones(max(0, len(columns[0]) - 1), np.bool_)
    for column in columns:
        step = np.diff(column)
        if (is_equal & (step < 0)).any():
            return False
        is_equal &= step == 0
        if not is_equal.any():
            break
    return True


def grouped(frame: pl.DataFrame, by: list[str]) -> GroupBy:
    """Rows with the same values, grouped by one number in their place where there is one: that takes half the time."""
    number, combinations = pl.lit(0, pl.Int64), 1
    for name in by:
        values = frame[name]
        least: Any = values.min()
        most: Any = values.max()
        if not values.dtype.is_signed_integer() or values.dtype == pl.Int128 or values.null_count() or least is None:
            return frame.group_by(pl.col(name).alias(f"__by.{name}") for name in by)
        width = most - least + 1
        combinations *= width
        if combinations >= COMBINATIONS_MAX:
            return frame.group_by(pl.col(name).alias(f"__by.{name}") for name in by)
        number = number * width + (pl.col(name).cast(pl.Int64) - least)
    return frame.group_by(number.alias("__by"))


def dense(values: pl.Series) -> Numbers:
    """Dense ranks of the values: nulls first, equal for equal ones."""
    filled = values.to_numpy() if not values.null_count() else values.fill_null(values.min() or 0).to_numpy()
    known = np.sort(values.drop_nulls().unique().to_numpy())
    codes = np.searchsorted(known, filled) + 1
    return codes if not values.null_count() else np.where(values.is_null().to_numpy(), 0, codes)


def by_key(frame: pl.DataFrame, keys: list[str]) -> tuple[Numbers, Numbers]:
    """The stable order of a frame by its keys; and how many rows each key has, in this order."""
    if not keys:
        return np.arange(len(frame)), np.array([len(frame)] if len(frame) else [], np.int64)
    groups = frame.select(*keys, pl.int_range(pl.len(), dtype=pl.Int64).alias("__place"))
    groups = groups.group_by(keys, maintain_order=True).agg("__place").sort(keys, nulls_last=False)
    order = groups["__place"].explode(empty_as_null=False).to_numpy()
    return order, groups["__place"].list.len().cast(pl.Int64).to_numpy()
