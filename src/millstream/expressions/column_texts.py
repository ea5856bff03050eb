"""A Column of PySpark as text: the same in every run, because the names of steps, and so their state, depend on it.

Spark is never imported here, except by type checkers: a Column is recognized by the name of its class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column

ExpressionLike: TypeAlias = "str | Column"
"""What a user writes as an expression: Spark SQL as text, or a Column of PySpark."""
ColumnsLike: TypeAlias = "ExpressionLike | Sequence[ExpressionLike]"

_ARGUMENT = re.compile(r"\b[xyz]_\d+\b")
_DECLARED = re.compile(r"[xyz]_\d+ ->|\([xyz]_\d+(?:, [xyz]_\d+)*\) ->")
WRAPPED = "columnnodeexpression("
"""How Spark prints an argument of a Python function, with the addresses of objects in it."""


class ColumnText(str):
    """A Column of PySpark as text, for steps that are described by text; the Column stays in the driver."""

    column: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def is_pyspark(value: Any, name: str) -> bool:
    """Whether a value is of a class of PySpark, recognized by its name."""
    return any(kind.__name__ == name and kind.__module__.startswith("pyspark.") for kind in type(value).__mro__)


def as_text(given: Any) -> Any:
    """A Column as Spark prints it; anything else as it is."""
    if not is_pyspark(given, "Column"):
        return given
    shown = shown_column(given)
    text = ColumnText(shown[:-2] if shown.endswith(".*.*") else shown)  # Spark shows col("s.*") like that
    text.column = given
    return text


def shown_column(column: Any) -> str:
    """The text of a Column; the arguments of Python functions as they were written."""
    shown = str(column).removeprefix("Column<'").removesuffix("'>")
    return _numbered(_text(column._jc.node()) if WRAPPED in shown else shown)


def _numbered(text: str) -> str:
    """The text with the arguments of lambdas numbered from 1: Spark counts them over all Columns that were made."""
    declared = [name for found in _DECLARED.findall(text) for name in _ARGUMENT.findall(found)]
    names = {name: f"{name[0]}_{number}" for number, name in enumerate(dict.fromkeys(declared), 1)}
    return _ARGUMENT.sub(lambda found: names.get(found[0], found[0]), text) if names else text


def _text(node: Any) -> str:
    """The text of a node of a Column, whose parts contain the texts of their own parts."""
    text = str(node.sql())
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if str(part.getClass().getSimpleName()) == "ExpressionColumnNode":
            text = text.replace(str(part.sql()), _of_expression(part.expression()))
        waiting += _all(part.children())
    return text


def _of_expression(given: Any) -> str:
    """The text of a Python function's call, or of an argument of it."""
    kind = str(given.getClass().getSimpleName())
    if kind == "ColumnNodeExpression":
        return _text(given.node())
    if kind.startswith("Python"):
        return f"{given.name()}({', '.join(_of_expression(each) for each in _all(given.children()))})"
    return str(given.sql())


def _all(several: Any) -> list[Any]:
    return [several.apply(place) for place in range(several.size())]
