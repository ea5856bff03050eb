"""Approximate aggregates: a sketch of a few kilobytes stands for all rows, and knows how far it may be off.

A sketch cannot forget a row, so these aggregates need rows that are never retracted. Counts by value can.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millstream import sketches
from millstream.errors import InvalidAggregate
from millstream.expressions.column_texts import ExpressionLike
from millstream.expressions.spark_types import family
from millstream.plan.aggregates.basic import Aggregate, Fed, OfInput, check_number, known, text_of
from millstream.sketches import Estimate
from millstream.user_lines import users_line

SCALAR = "a single value: a number, string, boolean, binary, date or timestamp"
SKETCHES = "sketches: the binary values that the same aggregate makes with sketch=True"
WHOLE, FRACTION = pa.int64(), pa.float64()


def with_bounds(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("estimate", kind), ("low", kind), ("high", kind)])


@dataclass(frozen=True)
class Sketched(OfInput):
    """An aggregate whose rows are packed into a sketch. Sketches of parts merge into that of the whole."""

    bounds: bool
    sketch: bool
    of_sketches: bool

    counts_values: ClassVar[bool] = True
    """Whether `packed` takes each value once with its count, and not an array of all values."""
    options: ClassVar[tuple[str, ...]] = ("bounds", "sketch", "of_sketches")
    forgets = False

    def __str__(self) -> str:
        options = [name for name in self.options if getattr(self, name)]
        return f"{self.kind}({', '.join([self.input, *self._shown(), *(f'{name}=True' for name in options)])})"

    def _shown(self) -> list[str]:
        return []

    def check(self, argument: str, given: pa.DataType) -> None:
        if self.of_sketches:
            if not pa.types.is_binary(given):
                raise TypeError(SKETCHES)
        else:
            self.check_value(given)

    def check_value(self, given: pa.DataType) -> None:
        if family(given) in ("map", "struct", "array", "interval", "null"):
            raise TypeError(SCALAR)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.binary() if self.sketch else self.value_type

    @property
    @abstractmethod
    def value_type(self) -> pa.DataType:
        """The type of what is read from the sketch."""

    @abstractmethod
    def packed(self, values: Any) -> bytes:
        """The sketch of values that are not null: with their counts, or as an array."""

    @abstractmethod
    def merged(self, parts: Iterable[bytes]) -> bytes:
        """The sketch of all that these sketches stand for."""

    @abstractmethod
    def read(self, sketch: bytes) -> Any:
        """The result, from a sketch."""

    def result(self, sketch: bytes | None) -> Any:
        return sketch if self.sketch or sketch is None else self.read(sketch)

    def over(self, rows: Sequence[Fed]) -> Any:
        return self.result(self._over(rows))

    def _over(self, rows: Sequence[Fed]) -> bytes | None:
        if self.of_sketches:
            return self.merged(known(rows))
        if not self.counts_values:
            return self.packed(np.array([float(value) for value in known(rows)], dtype=np.float64))
        counts = Counter[Any]()
        for row in rows:
            if row.values["input"] is not None:
                counts[sketches.hashed_value(row.values["input"])] += row.weight
        return self.packed(counts)


@dataclass(frozen=True)
class ApproxDistinct(Sketched):
    error: float

    kind = "approx_distinct"

    @property
    def value_type(self) -> pa.DataType:
        return with_bounds(WHOLE) if self.bounds else WHOLE

    @property
    def size(self) -> int:
        """The base-2 logarithm of the number of registers."""
        return sketches.distinct_size(self.error)

    def packed(self, values: Iterable[Any]) -> bytes:
        return sketches.distinct(values, self.size)

    def merged(self, parts: Iterable[bytes]) -> bytes:
        return sketches.merged_distinct(parts, self.size)

    def read(self, sketch: bytes) -> Any:
        return _whole(sketches.distinct_count(sketch), self.bounds)


@dataclass(frozen=True)
class ApproxSet(Sketched):
    error: float

    kind = "approx_set"

    @property
    def value_type(self) -> pa.DataType:
        return pa.binary()

    @property
    def _size(self) -> int:
        return sketches.set_lg_k(self.error)

    def packed(self, values: Mapping[Any, int]) -> bytes:
        return sketches.set_of(values, self._size)

    def merged(self, parts: Iterable[bytes]) -> bytes:
        return sketches.union(parts, self._size)

    def read(self, sketch: bytes) -> bytes:
        return sketch


@dataclass(frozen=True)
class ApproxIntersection(Sketched):
    """Null for no sketches: what no sets have in common is not known."""

    kind = "approx_intersection"
    options = ("bounds", "sketch")

    @property
    def value_type(self) -> pa.DataType:
        return with_bounds(WHOLE) if self.bounds else WHOLE

    def packed(self, values: Any) -> bytes:
        raise TypeError(SKETCHES)

    def merged(self, parts: Iterable[bytes]) -> bytes:
        return sketches.intersection(*parts)

    def _over(self, rows: Sequence[Fed]) -> bytes | None:
        parts = known(rows)
        return self.merged(parts) if parts else None

    def read(self, sketch: bytes) -> Any:
        return _whole(sketches.set_size(sketch), self.bounds)


@dataclass(frozen=True)
class ApproxQuantiles(Sketched):
    fractions: tuple[float, ...]
    is_list: bool
    error: float

    kind = "approx_quantiles"
    counts_values = False

    def _shown(self) -> list[str]:
        shown = ", ".join(f"{fraction:g}" for fraction in self.fractions)
        return [f"[{shown}]" if self.is_list else shown]

    def check_value(self, given: pa.DataType) -> None:
        check_number(given)

    @property
    def value_type(self) -> pa.DataType:
        each = with_bounds(FRACTION) if self.bounds else FRACTION
        return pa.list_(each) if self.is_list else each

    def packed(self, values: Any) -> bytes:
        return sketches.quantiles(values, sketches.quantiles_size(self.error))

    def merged(self, parts: Iterable[bytes]) -> bytes:
        return sketches.merged_quantiles(parts, sketches.quantiles_size(self.error))

    def read(self, sketch: bytes) -> Any:
        found = [sketches.quantile(sketch, fraction) for fraction in self.fractions]
        if None in found:
            return None
        shown = [each._asdict() if self.bounds else each.estimate for each in found if each is not None]
        return shown if self.is_list else shown[0]


@dataclass(frozen=True)
class ApproxTop(Sketched):
    count: int

    kind = "approx_top"

    def _shown(self) -> list[str]:
        return [str(self.count)]

    def check_value(self, given: pa.DataType) -> None:
        if not pa.types.is_string(given):
            raise TypeError("a string")

    @property
    def value_type(self) -> pa.DataType:
        return pa.list_(pa.struct([("value", pa.string()), ("estimate", WHOLE), ("low", WHOLE), ("high", WHOLE)]))

    @property
    def _size(self) -> int:
        return max(10, math.ceil(math.log2(self.count * 16)))

    def packed(self, values: Mapping[str, int]) -> bytes:
        return sketches.frequent(values, self._size)

    def merged(self, parts: Iterable[bytes]) -> bytes:
        return sketches.merged_frequent(parts, self._size)

    def read(self, sketch: bytes) -> list[dict[str, Any]]:
        return [each._asdict() for each in sketches.most_frequent(sketch, self.count)]


@dataclass(frozen=True)
class ApproxCount(Sketched):
    """Adds the weights of rows, so a retracted row no longer counts."""

    of: str | int | None
    error: float

    kind = "approx_count"
    adds_weights = True
    forgets = True

    def _shown(self) -> list[str]:
        return [] if self.of is None else [f"of={self.of!r}"]

    def check_value(self, given: pa.DataType) -> None:
        if not (pa.types.is_string(given) or pa.types.is_integer(given)):
            raise TypeError("a string or an integer")
        if self.of is not None and isinstance(self.of, str) != pa.types.is_string(given):
            raise TypeError(f"the type of {self.of!r}")

    @property
    def value_type(self) -> pa.DataType:
        return with_bounds(WHOLE) if self.bounds else WHOLE

    def packed(self, values: Mapping[Any, int]) -> bytes:
        return sketches.counts(values, self.error)

    def merged(self, parts: Iterable[bytes]) -> bytes:
        return sketches.merged_counts(parts, self.error)

    def read(self, sketch: bytes) -> Any:
        return _whole(sketches.count_of(sketch, self.of), self.bounds)


def _whole(found: Estimate, bounds: bool) -> Any:
    middle = round(found.estimate)
    return {"estimate": middle, "low": math.floor(found.low), "high": math.ceil(found.high)} if bounds else middle


# ---------------------------------------------------------------- public functions


def approx_distinct(
    expression: ExpressionLike,
    *,
    error: float = 0.02,
    bounds: bool = False,
    sketch: bool = False,
    of_sketches: bool = False,
) -> Aggregate:
    """About how many different values; `error` is the relative standard error.

    `bounds` gives a struct of the estimate and its bounds, with a confidence of 95 percent. `sketch` gives the HLL
    sketch itself, and `of_sketches` merges such sketches.
    """
    check_error("approx_distinct", error)
    return ApproxDistinct(text_of(expression, "approx_distinct"), bounds, sketch, of_sketches, error)


def approx_set(expression: ExpressionLike, *, error: float = 0.02, of_sketches: bool = False) -> Aggregate:
    """The theta sketch of the different values; `millstream.sketches` has its size, union, intersection, difference."""
    check_error("approx_set", error)
    return ApproxSet(text_of(expression, "approx_set"), False, True, of_sketches, error)


def approx_intersection(expression: ExpressionLike, *, bounds: bool = False, sketch: bool = False) -> Aggregate:
    """About how many values are in all of the sets that `approx_set` has made, such as those of two windows.

    `bounds` gives a struct of the estimate and its bounds, with a confidence of 95 percent. `sketch` gives the theta
    sketch of the intersection itself.
    """
    return ApproxIntersection(text_of(expression, "approx_intersection"), bounds, sketch, True)


def approx_quantiles(
    expression: ExpressionLike,
    fractions: float | Sequence[float],
    *,
    error: float = 0.0133,
    bounds: bool = False,
    sketch: bool = False,
    of_sketches: bool = False,
) -> Aggregate:
    """The value at a fraction of all values in order, or at each of several; `error` is the error of that fraction.

    `bounds` gives structs of the estimate and its bounds, with a confidence of 99 percent. `sketch` gives the KLL
    sketch itself, and `of_sketches` merges such sketches.
    """
    is_list = not isinstance(fractions, int | float)
    asked = tuple(fractions) if isinstance(fractions, Sequence) else (fractions,)
    if not asked or not all(isinstance(each, int | float) and 0 <= each <= 1 for each in asked):
        raise InvalidAggregate(
            f"approx_quantiles takes a fraction between 0 and 1, or a list of them, not {fractions!r}",
            where=users_line(),
            next_step="approx_quantiles('latency', [0.5, 0.99])",
        )
    check_error("approx_quantiles", error, smallest=0.0001)
    return ApproxQuantiles(
        text_of(expression, "approx_quantiles"), bounds, sketch, of_sketches, tuple(map(float, asked)), is_list, error
    )


def approx_top(expression: ExpressionLike, count: int, *, sketch: bool = False, of_sketches: bool = False) -> Aggregate:
    """The `count` most frequent strings: a list of structs with the value, about how often it occurs, and the bounds.

    `sketch` gives the frequent items sketch itself, and `of_sketches` merges such sketches.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 10_000:
        raise InvalidAggregate(
            f"approx_top takes a whole number from 1 to 10000, not {count!r}",
            where=users_line(),
            next_step="approx_top('url', 10)",
        )
    return ApproxTop(text_of(expression, "approx_top"), True, sketch, of_sketches, count)


def approx_count(
    expression: ExpressionLike,
    *,
    of: str | int | None = None,
    error: float = 0.005,
    bounds: bool = False,
    sketch: bool = False,
    of_sketches: bool = False,
) -> Aggregate:
    """About how often the value `of` occurs; `error` is a fraction of all rows.

    The sketch (`sketch=True`) holds the counts of every value: ask it with `millstream.sketches.count_of`.
    `of_sketches` merges such sketches. Rows may be retracted.
    """
    check_error("approx_count", error)
    if of is None and not sketch:
        raise InvalidAggregate(
            "approx_count needs a value to count",
            where=users_line(),
            next_step="approx_count('url', of='/home'), or sketch=True to ask for any value later",
        )
    return ApproxCount(text_of(expression, "approx_count"), bounds, sketch, of_sketches, of, error)


def check_error(what: str, error: object, smallest: float = 0.0005) -> None:
    if not isinstance(error, float) or not smallest <= error <= 0.5:
        raise InvalidAggregate(
            f"{what} takes an error from {smallest:g} to 0.5, not {error!r}",
            where=users_line(),
            next_step=f"for example {what}(…, error=0.01)",
        )
