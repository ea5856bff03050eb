"""The columns of a result: expressions over the rows of the variables of a match.

A match is one row with, by variable, the list of its rows. So a measure is an ordinary expression over lists, which
every runner can evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.expressions.column_texts import ColumnText, ExpressionLike
from millstream.expressions.expression import Expression, expression
from millstream.plan.checks import refusal
from millstream.plan.patterns.node import Match
from millstream.plan.patterns.references import ALL, Reader, Reference
from millstream.plan.steps.columns import kept
from millstream.records import Schema
from millstream.records.ddl import format_type
from millstream.user_lines import users_line


def measured(node: Match, columns: Sequence[str], made: Mapping[str, ExpressionLike]) -> list[tuple[str, Expression]]:
    """The columns of `select` on matches."""
    if not columns and not made:
        raise refusal("select needs at least one column", f"columns that exist: {', '.join(node.schema.names)}")
    found: list[tuple[str, Expression]] = []
    for column in columns:
        if column == "*":
            found += [(each, kept(node.schema, each)) for each in node.schema.names]
        elif column in node.schema.names:
            found.append((column, kept(node.schema, column)))
        else:
            found.append((str(column).rpartition(".")[2].strip("` "), measure(node, column)))
    found += [(column, measure(node, text)) for column, text in made.items()]
    lower = [column.lower() for column, _ in found]
    for column, value in found:
        if lower.count(column.lower()) > 1:
            raise refusal(f"two columns are named '{column}'", f"name one of them: {column}_of_it={str(value)!r}")
    return found


def measure(node: Match, text: ExpressionLike) -> Expression:
    """An expression over a match."""
    if not isinstance(text, str) or isinstance(text, ColumnText):
        raise refusal(f"a measure is text, not {text!r}", "for example select(total='sum(order.amount)')")
    given = node.inputs[0].schema
    rules = node.search.rules
    reader = _Measures(given, [*rules.variables, *rules.subsets], line=users_line())
    replaced = reader.replaced(text)
    for reference in reader.references:
        replaced = replaced.replace(f"{reference.column}§", _over_lists(node, reference))
    return expression(replaced, node.schema)


class _Measures(Reader):
    """References in a measure, marked so that they can be replaced by what they mean over lists."""

    def _neighbour(self, name: str, variable: str | None, argument: str, offset: int) -> str:
        raise self.refused(
            f"{name}(…) is for conditions and for match_recognize", "use first(…) or last(…) of a variable"
        )

    def _classifier(self, tokens: Sequence[Any], place: int) -> tuple[int, str | None]:
        raise self.refused("classifier() is for conditions and for match_recognize", "with rows='all': variable")

    def _refer(self, kind: str, variable: str | None, argument: str | None, offset: int) -> str:
        return super()._refer(kind, variable, argument, offset) + "§"


def _over_lists(node: Match, reference: Reference) -> str:
    names = node.search.variables if reference.variable == ALL else node.search.rules.members(reference.variable or "")
    if len(names) > 1:
        if reference.kind in ("first", "last"):
            raise refusal(
                f"{reference.kind}(…) over several variables has no order here", "name the variable: last(a.x)"
            )
        rows = f"flatten(array({', '.join(f'`{name}`' for name in names)}))"
    else:
        rows = f"`{names[0]}`"
    if reference.argument is None:
        return f"cast(size({rows}) as bigint)"
    values = f"transform({rows}, __row -> {_of_row(reference.argument, node.inputs[0].schema)})"
    if reference.kind == "first":
        return f"try_element_at({values}, {reference.offset + 1})"
    if reference.kind == "last":
        return f"try_element_at({values}, {-1 - reference.offset})"
    known = f"filter({values}, __value -> __value is not null)"
    if reference.kind == "count":
        return f"cast(size({known}) as bigint)"
    if reference.kind in ("min", "max"):
        return f"array_{reference.kind}({values})"
    kind = "double" if reference.kind in ("avg", "mean") else format_type(reference.type)
    total = f"aggregate({known}, cast(0 as {kind}), (__sum, __value) -> cast(__sum + __value as {kind}))"
    total = f"(case when size({known}) > 0 then {total} end)"
    return f"({total} / size({known}))" if reference.kind in ("avg", "mean") else total


def _of_row(argument: Expression, schema: Schema) -> str:
    """The expression with the fields of a row in place of columns."""
    from millstream.expressions.spark_sql import SparkGrammar

    text = argument.spark
    names = {name.lower() for name in schema.names}
    tokens = SparkGrammar().tokenize(text)
    made, end = "", 0
    for place, token in enumerate(tokens):
        if token.text.lower() not in names or text[token.start] in "'\"" or (place and tokens[place - 1].text == "."):
            continue
        if place + 1 < len(tokens) and tokens[place + 1].text == "(":
            continue
        made += text[end : token.start] + "__row."
        end = token.start
    return made + text[end:]
