"""The aggregates: each is one class, with its arguments, its result type and its result over plain rows.

`over` is the readable definition: the reference interpreter runs it, and `operators/aggregates`, which computes the
same on columns, is tested against it. An aggregate is defined by these two modules alone; more of them are in
`conditions.py`, `picks.py` and `statistics.py` of both packages.
"""

from __future__ import annotations

import builtins
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, localcontext
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from millstream.errors import InvalidAggregate
from millstream.expressions.column_texts import ExpressionLike, as_text
from millstream.expressions.spark_types import DIGITS_MAX, family
from millstream.records import Schema
from millstream.user_lines import AtUsersLine, users_line

NUMBERS = "a number"
ORDERED = "an orderable type: a number, string, boolean, binary, date or timestamp"
COMPARABLE = "a comparable type: anything but a map"
UNORDERED = ("map", "struct", "array", "interval")
SUM_DIGITS = 100
"""More digits than a sum of decimals can have."""


class Fed(NamedTuple):
    """A row as an aggregate sees it: the values of its arguments, its event time, and its weight."""

    values: Mapping[str, Any]
    time: int | None
    weight: int


class Aggregate(ABC):
    kind: ClassVar[str]
    """The name of its public function."""
    null_without_rows: ClassVar[bool] = True
    """Whether the result over no rows at all is null, even if it is not null over rows without values."""
    adds_weights: ClassVar[bool] = False
    """Whether rows count by weight. Otherwise a row and its retraction cancel out."""
    forgets: ClassVar[bool] = True
    """Whether its rows may be retracted."""

    @property
    def arguments(self) -> dict[str, str]:
        """The Spark SQL expressions that it aggregates, by name."""
        return {}

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.arguments.values())})"

    def check(self, argument: str, given: pa.DataType) -> None:  # noqa: B027 - most arguments may be of any type
        """Raises TypeError naming the required type, if an argument cannot have this type."""

    @abstractmethod
    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        """The type of the result, from the type of the argument `input`."""

    @abstractmethod
    def over(self, rows: Sequence[Fed]) -> Any:
        """The result over rows, in order of arrival."""

    def fits(self, result: Any, kind: pa.DataType) -> bool:
        """Whether the type of the result can hold it."""
        return True


@dataclass(frozen=True)
class OfInput(Aggregate):
    """An aggregate of one expression."""

    input: str

    @property
    def arguments(self) -> dict[str, str]:
        return {"input": self.input}

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return given


# ---------------------------------------------------------------- the aggregates


@dataclass(frozen=True)
class Count(Aggregate):
    kind = "count"
    null_without_rows = False
    adds_weights = True

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def over(self, rows: Sequence[Fed]) -> int:
        return builtins.sum(row.weight for row in rows)


@dataclass(frozen=True)
class Sum(OfInput):
    """Exact for integers and decimals, whatever its intermediate size: only an emitted sum has to fit its type.

    Floats and their retractions cancel out before the sum, because a NaN could not be subtracted.
    """

    kind = "sum"
    adds_weights = True

    def check(self, argument: str, given: pa.DataType) -> None:
        check_number(given)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        assert given is not None
        if pa.types.is_integer(given):
            return pa.int64()
        if pa.types.is_decimal(given):
            return pa.decimal128(builtins.min(DIGITS_MAX, given.precision + 10), given.scale)
        return pa.float64()

    def over(self, rows: Sequence[Fed]) -> Any:
        summed = [(row.values["input"], row.weight) for row in rows if row.values["input"] is not None]
        if not summed:
            return None
        nothing = type(summed[0][0])(0)
        if any(weight < 0 for _, weight in summed):
            values = {repr(value): value for value, _ in summed}
            counts = Counter[str]()
            for value, weight in summed:
                counts[repr(value)] += weight
            summed = [(values[text], weight) for text, weight in counts.items() if weight]
        with localcontext(prec=SUM_DIGITS):
            return builtins.sum((value * weight for value, weight in summed), nothing)

    def fits(self, result: Any, kind: pa.DataType) -> bool:
        if result is None or pa.types.is_floating(kind):
            return True
        if pa.types.is_decimal(kind):
            return bool(result.copy_abs().scaleb(kind.scale, Context(prec=SUM_DIGITS)) < 10**kind.precision)
        return bool(-(2**63) <= result < 2**63)


@dataclass(frozen=True)
class Min(OfInput):
    kind = "min"

    def check(self, argument: str, given: pa.DataType) -> None:
        check_order(given)

    def over(self, rows: Sequence[Fed]) -> Any:
        return builtins.min(known(rows), default=None, key=rank)


@dataclass(frozen=True)
class Max(OfInput):
    kind = "max"

    def check(self, argument: str, given: pa.DataType) -> None:
        check_order(given)

    def over(self, rows: Sequence[Fed]) -> Any:
        return builtins.max(known(rows), default=None, key=rank)


@dataclass(frozen=True)
class Mean(OfInput):
    kind = "mean"

    def check(self, argument: str, given: pa.DataType) -> None:
        check_number(given)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.float64()

    def over(self, rows: Sequence[Fed]) -> float | None:
        values = [float(value) for value in known(rows)]
        return total(values) / len(values) if values else None


@dataclass(frozen=True)
class Stddev(OfInput):
    kind = "stddev"

    def check(self, argument: str, given: pa.DataType) -> None:
        check_number(given)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.float64()

    def over(self, rows: Sequence[Fed]) -> float | None:
        values = [float(value) for value in known(rows)]
        if len(values) < 2:
            return None
        mean = total(values) / len(values)
        return math.sqrt(total([(value - mean) * (value - mean) for value in values]) / (len(values) - 1))


@dataclass(frozen=True)
class First(OfInput):
    kind = "first"

    def over(self, rows: Sequence[Fed]) -> Any:
        return next(iter(known(_by_time(rows))), None)


@dataclass(frozen=True)
class Last(OfInput):
    kind = "last"

    def over(self, rows: Sequence[Fed]) -> Any:
        return next(reversed(known(_by_time(rows))), None)


@dataclass(frozen=True)
class Collect(OfInput):
    kind = "collect"
    null_without_rows = False

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.list_(given)

    def over(self, rows: Sequence[Fed]) -> list[Any]:
        return known(rows)


@dataclass(frozen=True)
class DistinctCount(OfInput):
    kind = "distinct_count"

    def check(self, argument: str, given: pa.DataType) -> None:
        check_comparable(given)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def over(self, rows: Sequence[Fed]) -> int:
        return len({repr(value) for value in known(rows)})


@dataclass(frozen=True)
class Top(OfInput):
    count: int
    by: str | None = None

    kind = "top"

    @property
    def arguments(self) -> dict[str, str]:
        return {"input": self.input} | ({} if self.by is None else {"by": self.by})

    @property
    def ordered_by(self) -> str:
        """The argument by which values are ranked."""
        return "input" if self.by is None else "by"

    def __str__(self) -> str:
        by = "" if self.by is None else f", by={self.by}"
        return f"{self.kind}({self.input}, {self.count}{by})"

    def check(self, argument: str, given: pa.DataType) -> None:
        if argument == self.ordered_by:
            check_order(given)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.list_(given)

    def over(self, rows: Sequence[Fed]) -> list[Any]:
        complete = [row for row in rows if None not in (row.values["input"], row.values[self.ordered_by])]
        ordered = sorted(complete, key=lambda row: rank(row.values[self.ordered_by]), reverse=True)
        return [row.values["input"] for row in ordered[: self.count]]


@dataclass(frozen=True)
class Combine(OfInput):
    """A user-defined aggregate: mergeable, so that parts can be computed separately."""

    zero: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    extract: Callable[[Any], Any]
    result: pa.DataType

    kind = "combine"

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return self.result

    def over(self, rows: Sequence[Fed]) -> Any:
        state = self.zero()
        for row in rows:
            state = self.add(state, row.values["input"])
        return self.extract(state)


# ---------------------------------------------------------------- shared helpers


def check_order(kind: pa.DataType) -> None:
    """Raises TypeError naming the required types, if the values of a type have no order."""
    if family(kind) in UNORDERED:
        raise TypeError(ORDERED)


def check_comparable(kind: pa.DataType) -> None:
    """Raises TypeError naming the required types, if values of a type cannot be compared."""
    if family(kind) == "map":
        raise TypeError(COMPARABLE)


def check_number(kind: pa.DataType) -> None:
    """Raises TypeError naming the required type, if values of a type are not numbers."""
    if family(kind) != "number":
        raise TypeError(NUMBERS)


def rank(value: Any) -> tuple[bool, Any]:
    """The place of a value in an order: NaN is larger than any other number."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0.0 if is_nan else value


def known(rows: Sequence[Fed]) -> list[Any]:
    """The values that are not null, in order of arrival."""
    return [row.values["input"] for row in rows if row.values["input"] is not None]


def _by_time(rows: Sequence[Fed]) -> list[Fed]:
    """By event time; ties stay in order of arrival."""
    return sorted(rows, key=lambda row: row.time or 0)


def total(values: Sequence[float]) -> float:
    """Rounded once at the end; infinity or NaN if the exact sum is not a number."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return builtins.sum(values)


# ---------------------------------------------------------------- public functions


def sum(expression: ExpressionLike) -> Aggregate:
    """The sum of a number; a bigint for integers. Emitting a sum that does not fit its type is an error."""
    return Sum(text_of(expression, "sum"))


def count() -> Aggregate:
    """The number of rows."""
    return Count()


def min(expression: ExpressionLike) -> Aggregate:
    """The smallest value; nulls are ignored."""
    return Min(text_of(expression, "min"))


def max(expression: ExpressionLike) -> Aggregate:
    """The largest value; nulls are ignored."""
    return Max(text_of(expression, "max"))


def mean(expression: ExpressionLike) -> Aggregate:
    """The average, a double; nulls are ignored."""
    return Mean(text_of(expression, "mean"))


def stddev(expression: ExpressionLike) -> Aggregate:
    """The sample standard deviation; null for fewer than two values."""
    return Stddev(text_of(expression, "stddev"))


def first(expression: ExpressionLike) -> Aggregate:
    """The value in the row with the smallest event time; of several, the first to arrive."""
    return First(text_of(expression, "first"))


def last(expression: ExpressionLike) -> Aggregate:
    """The value in the row with the largest event time; of several, the last to arrive."""
    return Last(text_of(expression, "last"))


def collect(expression: ExpressionLike) -> Aggregate:
    """All values, in order of arrival."""
    return Collect(text_of(expression, "collect"))


def distinct_count(expression: ExpressionLike) -> Aggregate:
    """The number of different values; nulls are ignored."""
    return DistinctCount(text_of(expression, "distinct_count"))


def top(expression: ExpressionLike, count: int, *, by: ExpressionLike | None = None) -> Aggregate:
    """The `count` values with the largest `by`, or the largest values themselves."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InvalidAggregate(
            f"top takes a positive integer, not {count!r}", where=users_line(), next_step="top('score', 3)"
        )
    return Top(text_of(expression, "top"), count, None if by is None else text_of(by, "by"))


def combine(
    zero: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any],
    extract: Callable[[Any], Any],
    *,
    input: str,
    result: str,
) -> Aggregate:
    """Your own aggregate: `add` a value to an accumulator, `merge` two, `extract` the result, of type `result`."""
    for name, function in (("zero", zero), ("add", add), ("merge", merge), ("extract", extract)):
        if not callable(function):
            raise InvalidAggregate(
                f"combine takes functions, but {name} is {function!r}",
                where=users_line(),
                next_step="combine(zero, add, merge, extract, input='…', result='bigint'); zero is also a function",
            )
    with AtUsersLine():
        columns = Schema.of(f"result {result}")
    if len(columns) != 1:
        raise InvalidAggregate(
            f"result must be a single type, not '{result}'", where=users_line(), next_step="result='bigint'"
        )
    kind = columns.arrow.field(0).type
    return Combine(text_of(input, "combine"), zero, add, merge, extract, kind)


avg = mean
std = stddev_samp = stddev
collect_list = collect
count_distinct = distinct_count


def text_of(expression: object, what: str) -> str:
    """An argument of the aggregate `what`."""
    expression = as_text(expression)  # of a Column
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidAggregate(
            f"{what} takes a column or a Spark SQL expression as text, not {expression!r}",
            where=users_line(),
            next_step=f"for example {what}('score')",
        )
    return expression
