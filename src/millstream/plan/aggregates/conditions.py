"""Aggregates of conditions: how many rows satisfy one, whether any does, whether all do."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millstream.expressions.column_texts import ExpressionLike
from millstream.plan.aggregates.basic import Aggregate, Fed, OfInput, known, text_of

CONDITION = "a condition, which is true or false"


@dataclass(frozen=True)
class OfCondition(OfInput):
    """An aggregate of a condition. Nulls are neither true nor false."""

    def check(self, argument: str, given: pa.DataType) -> None:
        if not pa.types.is_boolean(given):
            raise TypeError(CONDITION)


@dataclass(frozen=True)
class CountIf(OfCondition):
    kind = "count_if"
    null_without_rows = False
    adds_weights = True

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def over(self, rows: Sequence[Fed]) -> int:
        return sum(row.weight for row in rows if row.values["input"])


@dataclass(frozen=True)
class Any(OfCondition):
    kind = "any"

    def over(self, rows: Sequence[Fed]) -> bool | None:
        values = known(rows)
        return builtins.any(values) if values else None


@dataclass(frozen=True)
class All(OfCondition):
    kind = "all"

    def over(self, rows: Sequence[Fed]) -> bool | None:
        values = known(rows)
        return builtins.all(values) if values else None


# ---------------------------------------------------------------- public functions


def count_if(condition: ExpressionLike) -> Aggregate:
    """The number of rows for which the condition is true."""
    return CountIf(text_of(condition, "count_if"))


def any(condition: ExpressionLike) -> Aggregate:
    """Whether the condition is true for at least one row; null if it is null for all."""
    return Any(text_of(condition, "any"))


def all(condition: ExpressionLike) -> Aggregate:
    """Whether the condition is true for every row in which it is not null; null if it is null for all."""
    return All(text_of(condition, "all"))


some = bool_or = any
bool_and = all
