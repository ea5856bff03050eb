"""Simple conditions as Python functions: comparisons and arithmetic of numbers, texts and times, with AND, OR and NOT.

A condition that depends on the rows of a partial match is asked row by row, and a call of DuckDB for each would cost a
thousand times as much. What is not simple is left to DuckDB, and so is what could fail, such as an overflow.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.expressions.expression import Expression
from millstream.expressions.spark_types import INSTANT

Values = Mapping[str, Any]
Part = Callable[[Values], Any]
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


class LeftToDuckDB(Exception):
    """Raised while a condition is translated, or evaluated, that DuckDB has to evaluate."""


@dataclass(frozen=True, slots=True)
class PythonCondition:
    columns: tuple[str, ...]
    function: Part

    def holds(self, values: Values) -> bool:
        """Whether it is true; raises LeftToDuckDB if DuckDB has to say."""
        return self.function(values) is True


def python_condition(condition: Expression, types: Mapping[str, pa.DataType]) -> PythonCondition | None:
    """The condition as a function of the values of its columns; None if it is not simple."""
    from sqlglot import parse_one

    from millstream.expressions.spark_sql import SparkGrammar

    found = _Translation({name.lower(): (name, kind) for name, kind in types.items()})
    try:
        function, family = found.part(parse_one(condition.spark, dialect=SparkGrammar))
    except LeftToDuckDB:
        return None
    return PythonCondition(tuple(found.columns), function) if family == "boolean" else None


class _Translation:
    def __init__(self, types: Mapping[str, tuple[str, pa.DataType]]) -> None:
        self.types = types
        self.columns: dict[str, None] = {}

    def part(self, node: Any) -> tuple[Part, str]:
        """A function, and the family of its result: int, long, double, string, boolean, instant."""
        visit = getattr(self, f"visit_{type(node).__name__.lower()}", None)
        if visit is None:
            raise LeftToDuckDB
        found: tuple[Part, str] = visit(node)
        return found

    def visit_paren(self, node: Any) -> tuple[Part, str]:
        return self.part(node.this)

    def visit_column(self, node: Any) -> tuple[Part, str]:
        if node.table or node.name.lower() not in self.types:
            raise LeftToDuckDB
        name, kind = self.types[node.name.lower()]
        self.columns[name] = None
        return operator.itemgetter(name), _family(kind)

    def visit_literal(self, node: Any) -> tuple[Part, str]:
        if node.is_string:
            text = node.this
            return (lambda values: text), "string"
        number = float(node.this) if "." in node.this or "e" in node.this.lower() else int(node.this)
        kind = "double" if isinstance(number, float) else "int" if number <= INT_MAX else "long"
        return (lambda values: number), kind

    def visit_boolean(self, node: Any) -> tuple[Part, str]:
        value = bool(node.this)
        return (lambda values: value), "boolean"

    def visit_and(self, node: Any) -> tuple[Part, str]:
        one, other = self._conditions(node.left, node.right)

        def both(values: Values) -> Any:
            left = one(values)
            if left is False:
                return False
            right = other(values)
            return False if right is False else None if left is None or right is None else True

        return both, "boolean"

    def visit_or(self, node: Any) -> tuple[Part, str]:
        one, other = self._conditions(node.left, node.right)

        def either(values: Values) -> Any:
            left = one(values)
            if left is True:
                return True
            right = other(values)
            return True if right is True else None if left is None or right is None else False

        return either, "boolean"

    def visit_not(self, node: Any) -> tuple[Part, str]:
        (one,) = self._conditions(node.this)

        def negated(values: Values) -> Any:
            value = one(values)
            return None if value is None else not value

        return negated, "boolean"

    def visit_is(self, node: Any) -> tuple[Part, str]:
        if type(node.expression).__name__ != "Null":
            raise LeftToDuckDB
        one, _ = self.part(node.this)
        return (lambda values: one(values) is None), "boolean"

    def _conditions(self, *nodes: Any) -> list[Part]:
        parts = [self.part(node) for node in nodes]
        if any(family != "boolean" for _, family in parts):
            raise LeftToDuckDB
        return [function for function, _ in parts]

    # ------------------------------------------------------------ comparisons and arithmetic

    def _compared(self, node: Any, compare: Callable[[Any, Any], bool]) -> tuple[Part, str]:
        (one, left), (other, right) = self.part(node.left), self.part(node.right)
        numbers = {"int", "long", "double"}
        if left != right and not {left, right} <= numbers:
            raise LeftToDuckDB
        if "double" in (left, right) and "long" in (left, right):  # a long may have more digits than a double
            raise LeftToDuckDB

        def comparison(values: Values) -> Any:
            a, b = one(values), other(values)
            if a is None or b is None:
                return None
            if a != a or b != b:  # NaN is equal to itself and larger than all others in Spark
                raise LeftToDuckDB
            return compare(a, b)

        return comparison, "boolean"

    def visit_eq(self, node: Any) -> tuple[Part, str]:
        return self._compared(node, operator.eq)

    def visit_neq(self, node: Any) -> tuple[Part, str]:
        return self._compared(node, operator.ne)

    def visit_gt(self, node: Any) -> tuple[Part, str]:
        return self._compared(node, operator.gt)

    def visit_gte(self, node: Any) -> tuple[Part, str]:
        return self._compared(node, operator.ge)

    def visit_lt(self, node: Any) -> tuple[Part, str]:
        return self._compared(node, operator.lt)

    def visit_lte(self, node: Any) -> tuple[Part, str]:
        return self._compared(node, operator.le)

    def _computed(self, node: Any, compute: Callable[[Any, Any], Any]) -> tuple[Part, str]:
        (one, left), (other, right) = self.part(node.left), self.part(node.right)
        kinds = {left, right}
        of_decimals = (_is_decimal(node.left) and right == "int") or (_is_decimal(node.right) and left == "int")
        if not kinds <= {"int", "double"} or of_decimals or (_is_decimal(node.left) and _is_decimal(node.right)):
            raise LeftToDuckDB
        limit = None if "double" in kinds else INT_MAX

        def result(values: Values) -> Any:
            a, b = one(values), other(values)
            if a is None or b is None:
                return None
            value = compute(a, b)
            if limit is not None and abs(value) > limit:
                raise LeftToDuckDB
            return value

        return result, "double" if "double" in kinds else "int"

    def visit_add(self, node: Any) -> tuple[Part, str]:
        return self._computed(node, operator.add)

    def visit_sub(self, node: Any) -> tuple[Part, str]:
        return self._computed(node, operator.sub)

    def visit_mul(self, node: Any) -> tuple[Part, str]:
        return self._computed(node, operator.mul)


def _is_decimal(node: Any) -> bool:
    """Whether a node is a literal such as 1.5, which is a decimal in Spark."""
    name = type(node).__name__
    return name == "Literal" and not node.is_string and "." in node.this and "e" not in node.this.lower()


def _family(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_int64(kind):
        return "long"
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_float64(kind):
        return "double"
    if pa.types.is_string(kind):
        return "string"
    if kind == INSTANT:
        return "instant"
    raise LeftToDuckDB
