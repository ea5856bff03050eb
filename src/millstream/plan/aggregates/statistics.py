"""Statistics of numbers: their spread, their percentiles, and the most frequent value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from millstream.errors import InvalidAggregate
from millstream.expressions.column_texts import ExpressionLike
from millstream.plan.aggregates.basic import (
    Aggregate,
    Fed,
    OfInput,
    check_comparable,
    check_number,
    known,
    rank,
    text_of,
    total,
)
from millstream.plan.aggregates.picks import identity
from millstream.user_lines import users_line


@dataclass(frozen=True)
class OfNumbers(OfInput):
    def check(self, argument: str, given: pa.DataType) -> None:
        check_number(given)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.float64()


@dataclass(frozen=True)
class Variance(OfNumbers):
    kind = "variance"
    degrees: ClassVar[int] = 1
    """What is subtracted from the count of values."""

    def over(self, rows: Sequence[Fed]) -> float | None:
        values = [float(value) for value in known(rows)]
        if len(values) <= self.degrees:
            return None
        middle = total(values) / len(values)
        return total([(value - middle) * (value - middle) for value in values]) / (len(values) - self.degrees)


@dataclass(frozen=True)
class VarPop(Variance):
    kind = "var_pop"
    degrees = 0


@dataclass(frozen=True)
class StddevPop(VarPop):
    kind = "stddev_pop"

    def over(self, rows: Sequence[Fed]) -> float | None:
        squared = super().over(rows)
        return None if squared is None else math.sqrt(squared)


@dataclass(frozen=True)
class Percentile(OfNumbers):
    """Exact: between two values it is interpolated. NaN is larger than any other number."""

    fractions: tuple[float, ...]
    is_list: bool

    kind = "percentile"

    def __str__(self) -> str:
        shown = ", ".join(f"{fraction:g}" for fraction in self.fractions)
        return f"{self.kind}({self.input}, {f'[{shown}]' if self.is_list else shown})"

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.list_(pa.float64()) if self.is_list else pa.float64()

    def over(self, rows: Sequence[Fed]) -> float | list[float] | None:
        values = sorted((float(value) for value in known(rows)), key=rank)
        if not values:
            return None
        found = [_between(values, fraction) for fraction in self.fractions]
        return found if self.is_list else found[0]


@dataclass(frozen=True)
class Mode(OfInput):
    kind = "mode"

    def check(self, argument: str, given: pa.DataType) -> None:
        check_comparable(given)

    def over(self, rows: Sequence[Fed]) -> Any:
        counts = Counter[str]()
        values: dict[str, Any] = {}
        for value in known(rows):
            counts[identity(value)] += 1
            values.setdefault(identity(value), value)
        return values[max(counts, key=lambda same: counts[same])] if counts else None


def _between(values: Sequence[float], fraction: float) -> float:
    place = (len(values) - 1) * fraction
    low, high = math.floor(place), math.ceil(place)
    if values[low] == values[high]:
        return values[low]
    return (high - place) * values[low] + (place - low) * values[high] if low < high else values[low]


# ---------------------------------------------------------------- public functions


def variance(expression: ExpressionLike) -> Aggregate:
    """The sample variance; null for fewer than two values."""
    return Variance(text_of(expression, "variance"))


def var_pop(expression: ExpressionLike) -> Aggregate:
    """The population variance; nulls are ignored."""
    return VarPop(text_of(expression, "var_pop"))


def stddev_pop(expression: ExpressionLike) -> Aggregate:
    """The population standard deviation; nulls are ignored."""
    return StddevPop(text_of(expression, "stddev_pop"))


def percentile(expression: ExpressionLike, fraction: float | Sequence[float]) -> Aggregate:
    """The exact percentile, interpolated, for a fraction from 0 to 1; for a list of fractions, a list."""
    is_list = not isinstance(fraction, int | float)
    fractions = tuple(fraction) if isinstance(fraction, Sequence) and not isinstance(fraction, str) else (fraction,)
    if not fractions or not all(_is_fraction(each) for each in fractions):
        raise InvalidAggregate(
            f"percentile takes a fraction from 0 to 1, or a list of them, not {fraction!r}",
            where=users_line(),
            next_step="percentile('latency', 0.95)",
        )
    return Percentile(text_of(expression, "percentile"), tuple(map(float, fractions)), is_list)


def median(expression: ExpressionLike) -> Aggregate:
    """The exact median, a double; the mean of the middle two of an even count."""
    return Percentile(text_of(expression, "median"), (0.5,), is_list=False)


def mode(expression: ExpressionLike) -> Aggregate:
    """The most frequent value; of several, the first to arrive. Nulls are ignored."""
    return Mode(text_of(expression, "mode"))


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


var_samp = variance
