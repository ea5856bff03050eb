"""Aggregates that pick values: those of the row with the largest or smallest of another value, and each value once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.expressions.column_texts import ExpressionLike
from millstream.plan.aggregates.basic import (
    Aggregate,
    Fed,
    OfInput,
    check_comparable,
    check_order,
    known,
    rank,
    text_of,
)


@dataclass(frozen=True)
class PickedBy(OfInput):
    """The value in the row whose `by` is the largest or smallest; of several, the first to arrive."""

    by: str

    @property
    def arguments(self) -> dict[str, str]:
        return {"input": self.input, "by": self.by}

    def check(self, argument: str, given: pa.DataType) -> None:
        if argument == "by":
            check_order(given)


@dataclass(frozen=True)
class MaxBy(PickedBy):
    kind = "max_by"

    def over(self, rows: Sequence[Fed]) -> Any:
        ranked = [row for row in rows if row.values["by"] is not None]
        return max(ranked, key=_rank).values["input"] if ranked else None


@dataclass(frozen=True)
class MinBy(PickedBy):
    kind = "min_by"

    def over(self, rows: Sequence[Fed]) -> Any:
        ranked = [row for row in rows if row.values["by"] is not None]
        return min(ranked, key=_rank).values["input"] if ranked else None


@dataclass(frozen=True)
class CollectSet(OfInput):
    kind = "collect_set"
    null_without_rows = False

    def check(self, argument: str, given: pa.DataType) -> None:
        check_comparable(given)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.list_(given)

    def over(self, rows: Sequence[Fed]) -> list[Any]:
        found: dict[str, Any] = {}
        for value in known(rows):
            found.setdefault(identity(value), value)
        return list(found.values())


def identity(value: Any) -> str:
    """Equal for values that are equal in Spark: 0.0 and -0.0 are, and so is NaN with itself."""
    return repr(value + 0.0 if isinstance(value, float) else value)


def _rank(row: Fed) -> tuple[bool, Any]:
    return rank(row.values["by"])


# ---------------------------------------------------------------- public functions


def max_by(expression: ExpressionLike, by: ExpressionLike) -> Aggregate:
    """The value in the row with the largest `by`, which is not null; of several, the first to arrive."""
    return MaxBy(text_of(expression, "max_by"), text_of(by, "by"))


def min_by(expression: ExpressionLike, by: ExpressionLike) -> Aggregate:
    """The value in the row with the smallest `by`, which is not null; of several, the first to arrive."""
    return MinBy(text_of(expression, "min_by"), text_of(by, "by"))


def collect_set(expression: ExpressionLike) -> Aggregate:
    """Each value once, in order of first arrival; nulls are ignored."""
    return CollectSet(text_of(expression, "collect_set"))
