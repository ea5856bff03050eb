"""What pairs of rows must satisfy beyond equal keys: checked against the columns of both sides.

A join evaluates its condition next to its state, without Spark. What concerns one side only and needs Spark becomes a
hidden column of that side. The pairs of an inner join may be filtered later, so there the condition may be any. For
any other join, a step of its own finds the pairs with equal keys, Spark filters them, and the join gets the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from millstream.errors import InvalidExpression
from millstream.expressions.column_texts import ColumnText, ExpressionLike, as_text
from millstream.expressions.expression import ANALYZER, Expression, expression, lowered_expression, parsed
from millstream.plan.checks import refusal
from millstream.plan.nodes import COMPUTED
from millstream.plan.stream import Stream
from millstream.plan.table_nodes import Columns, How, Join, JoinCondition, MatchedSideJoin, SideJoin
from millstream.plan.tables import Table
from millstream.records import Schema
from millstream.user_lines import AtUsersLine

if TYPE_CHECKING:
    from sqlglot import Expr

    from millstream.plan.flow import Flow

AnyStream = TypeVar("AnyStream", bound=Stream)
Parts = tuple[dict[str, str], dict[str, str]]
"""Hidden columns of each side, and their expressions."""


@dataclass(frozen=True)
class Checked:
    """A condition, and where it is evaluated; by default there is none."""

    inside: JoinCondition | None = None
    """By the join itself."""
    behind: str | None = None
    """By a step behind the join, as the user gave it."""
    before: str | None = None
    """By a step before the join, over pairs with equal keys."""
    parts: Parts = field(default_factory=lambda: ({}, {}))
    """For each side, the hidden columns that the condition uses, to be made before the join."""


def checked_condition(
    condition: ExpressionLike | None, sides: Sequence[Columns], fields: Sequence[pa.Field], how: How
) -> Checked:
    """Checks a condition over the columns of a pair, whose fields are those of both sides under their output names."""
    if condition is None:
        return Checked()
    shown = [each for each in fields if not each.name.startswith(COMPUTED)]
    with AtUsersLine():
        columns = Schema.from_arrow(pa.schema(shown))
    given: str = as_text(condition)
    made = _expression(given, columns)
    if made.makes_rows:
        raise refusal(f"'{made}' makes several rows of one, which a condition cannot", "make them in a select(…) first")
    if not made.columns:
        raise refusal(f"the condition '{made}' uses no column", "compare columns of both sides, or leave it out")
    if not made.needs_spark and not made.uses_clock:
        return Checked(_inside(made, columns))
    if how == "inner":
        return Checked(behind=given)
    text = import_module(ANALYZER).sql_of(given.column, columns) if isinstance(given, ColumnText) else given
    parts: Parts = ({}, {})
    try:
        rest, parts = _apart(text, sides, columns)
        types = _with_parts(columns, sides, parts)
        lowered = lowered_expression(rest, types, boolean=True)
    except InvalidExpression:
        lowered = made
    if lowered.uses_clock:
        raise refusal(
            f"'{made}' uses the clock, so the result of a join that is not inner would depend on when rows arrive",
            "compute what concerns one side with with_column(…) before the join, and compare these columns",
        )
    if lowered.needs_spark:
        return Checked(_inside(made, columns), before=given)
    return Checked(_inside(replace(lowered, spark=made.spark), types), parts=parts)


def kept_where(joined: AnyStream, condition: ExpressionLike | None) -> AnyStream:
    """The pairs that satisfy a condition; late rows are those of the join."""
    if condition is None:
        return joined
    made = joined._where(condition, None, "join condition")
    joined.flow._behind[made.node] = joined.flow._behind.get(joined.node, joined.node)
    key = (joined.key,) if isinstance(joined, Table) else ()
    return type(joined)(joined.flow, made.node, *key)


def matched(flow: Flow, node: Join, columns: Sequence[pa.Field], condition: ExpressionLike) -> Join:
    """A join with an input for the pairs that satisfy its condition, given the columns of a pair.

    An inner join of the same rows finds the pairs, in the batch in which the join needs them.
    """
    every = replace(node, schema=Schema.from_arrow(pa.schema(columns)), how="inner", condition=None, for_condition=True)
    found = Stream(flow, flow.named(every, "join pairs", None))._where(condition, None, "join condition")
    if isinstance(node, SideJoin):
        node = MatchedSideJoin(**{each.name: getattr(node, each.name) for each in fields(node)})
    return replace(node, inputs=(*node.inputs, found.node))


def _inside(made: Expression, columns: Schema) -> JoinCondition:
    return JoinCondition(made, pa.schema([each for each in columns.arrow if each.name in made.columns]))


def _expression(given: str, columns: Schema) -> Expression:
    try:
        return expression(given, columns, boolean=True)
    except InvalidExpression as error:
        if "there is no column" not in error.what:
            raise
        names = f"columns have their names in the result of the join: {', '.join(columns.names)}"
        raise InvalidExpression(error.what, where=error.where, next_step=names) from None


# ---------------------------------------------------------------- parts that concern one side


def _apart(text: str, sides: Sequence[Columns], columns: Schema) -> tuple[str, Parts]:
    """The condition with hidden columns for the largest parts that need Spark and concern one side, and these parts."""
    from sqlglot import exp

    from millstream.expressions.spark_sql import SparkGrammar

    owners = {name.lower(): (number, column) for number, side in enumerate(sides) for name, column in side}
    parts: Parts = ({}, {})

    def moved(node: Expr) -> Expr:
        used = [owners.get(each.parts[0].name.lower()) for each in node.find_all(exp.Column)]
        concerned = {None if each is None else each[0] for each in used}
        if len(concerned) != 1 or None in concerned or node.find_ancestor(exp.Lambda) is not None:
            return node  # what is in a lambda may use its arguments
        if _is_lowered(node.sql(dialect=SparkGrammar), columns):
            return node
        side = next(number for number in concerned if number is not None)
        name = f"{COMPUTED}condition_{sum(map(len, parts))}"
        parts[side][name] = _renamed(node, owners).sql(dialect=SparkGrammar)
        return exp.column(exp.to_identifier(name, quoted=True))

    return parsed(text).transform(moved).sql(dialect=SparkGrammar), parts


def _is_lowered(text: str, columns: Schema) -> bool:
    try:
        return not lowered_expression(text, columns).uses_clock
    except InvalidExpression:
        return False


def _renamed(node: Expr, owners: Mapping[str, tuple[int, str]]) -> Expr:
    """With the names that columns have in their input."""
    from sqlglot import exp

    made = node.copy()
    for each in made.find_all(exp.Column):
        first = each.parts[0]
        first.replace(exp.to_identifier(owners[first.name.lower()][1], quoted=True))
    return made


def _with_parts(columns: Schema, sides: Sequence[Columns], parts: Parts) -> Schema:
    """The columns of a pair with those of the parts."""
    fields: list[Any] = list(columns.arrow)
    for side, made in zip(sides, parts, strict=True):
        own = pa.schema([columns.field(name).with_name(column) for name, column in side if name in columns.names])
        fields += [pa.field(name, expression(text, Schema(own)).type) for name, text in made.items()]
    return Schema.from_arrow(pa.schema(fields))
