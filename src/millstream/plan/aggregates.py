"""What is computed: an aggregate is a value that names a function and the expression it is fed with."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.errors import InvalidAggregate
from millstream.expressions.spark_types import DIGITS_MAX, family
from millstream.records import Schema
from millstream.user_lines import AtUsersLine, users_line

NUMBERS = "a number"
ORDERED = "something that has an order: a number, string, boolean, binary, date or timestamp"
COMPARABLE = "something that can be compared: anything but a map"
UNORDERED = ("map", "struct", "array", "interval")


@dataclass(frozen=True)
class Aggregate:
    """`kind` names the function; `input` is a Spark SQL expression over the rows, or None for the row itself."""

    kind: str
    input: str | None
    count: int | None = None
    by: str | None = None
    functions: Combine | None = None

    def __str__(self) -> str:
        said = [text for text in (self.input, None if self.count is None else str(self.count)) if text is not None]
        said += [f"by={self.by}"] if self.by else []
        return f"{self.kind}({', '.join(said)})"

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        """The type of the result, from the type of the input; raises TypeError with what is needed instead."""
        if self.kind == "count":
            return pa.int64()
        if self.kind == "combine":
            assert self.functions is not None
            return self.functions.result
        assert given is not None
        if self.kind in ("min", "max") or (self.kind == "top" and self.by is None):
            check_order(given)
        if self.kind == "distinct_count":
            if family(given) == "map":
                raise TypeError(COMPARABLE)
            return pa.int64()
        if self.kind in ("collect", "top"):
            return pa.list_(given)
        if self.kind in ("sum", "mean", "stddev") and family(given) != "number":
            raise TypeError(NUMBERS)
        if self.kind == "sum":
            return _sum_type(given)
        return pa.float64() if self.kind in ("mean", "stddev") else given


@dataclass(frozen=True)
class Combine:
    """A user's own aggregate: mergeable, so that parts can be computed apart."""

    zero: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    extract: Callable[[Any], Any]
    result: pa.DataType


def check_order(kind: pa.DataType) -> None:
    """Raises TypeError with what is needed, if the values of a type cannot be put in order."""
    if family(kind) in UNORDERED:
        raise TypeError(ORDERED)


def _sum_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(builtins.min(DIGITS_MAX, kind.precision + 10), kind.scale)
    return pa.float64()


# ---------------------------------------------------------------- what a user writes


def sum(expression: str) -> Aggregate:
    """The sum of a number; of whole numbers it is a bigint. An emitted sum that does not fit is an error."""
    return Aggregate("sum", _text(expression, "sum"))


def count() -> Aggregate:
    """The number of rows."""
    return Aggregate("count", None)


def min(expression: str) -> Aggregate:
    """The smallest value; nulls are ignored."""
    return Aggregate("min", _text(expression, "min"))


def max(expression: str) -> Aggregate:
    """The largest value; nulls are ignored."""
    return Aggregate("max", _text(expression, "max"))


def mean(expression: str) -> Aggregate:
    """The average, a double; nulls are ignored."""
    return Aggregate("mean", _text(expression, "mean"))


def stddev(expression: str) -> Aggregate:
    """The sample standard deviation; null for fewer than two values."""
    return Aggregate("stddev", _text(expression, "stddev"))


def first(expression: str) -> Aggregate:
    """The value in the row with the smallest event time; of several, the first to arrive."""
    return Aggregate("first", _text(expression, "first"))


def last(expression: str) -> Aggregate:
    """The value in the row with the largest event time; of several, the last to arrive."""
    return Aggregate("last", _text(expression, "last"))


def collect(expression: str) -> Aggregate:
    """All values, in order of arrival."""
    return Aggregate("collect", _text(expression, "collect"))


def distinct_count(expression: str) -> Aggregate:
    """The number of different values; nulls are ignored."""
    return Aggregate("distinct_count", _text(expression, "distinct_count"))


def top(expression: str, count: int, *, by: str | None = None) -> Aggregate:
    """The `count` values with the largest `by`, or the largest values themselves."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InvalidAggregate(
            f"top takes a whole number from 1 on, not {count!r}", where=users_line(), next_step="top('score', 3)"
        )
    return Aggregate("top", _text(expression, "top"), count, None if by is None else _text(by, "by"))


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
                f"combine takes functions, and {name} is {function!r}",
                where=users_line(),
                next_step="combine(zero, add, merge, extract, input='…', result='bigint'); zero is a function too",
            )
    with AtUsersLine():
        columns = Schema.of(f"result {result}")
    if len(columns) != 1:
        raise InvalidAggregate(
            f"a result has one type, not '{result}'", where=users_line(), next_step="result='bigint'"
        )
    kind = columns.arrow.field(0).type
    return Aggregate("combine", _text(input, "combine"), functions=Combine(zero, add, merge, extract, kind))


def _text(expression: object, what: str) -> str:
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidAggregate(
            f"{what} takes a column or a Spark SQL expression as text, not {expression!r}",
            where=users_line(),
            next_step=f"for example {what}('score')",
        )
    return expression
