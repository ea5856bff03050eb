"""Which steps of a plan only Spark can run, because an expression in them cannot be translated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from millstream.errors import InvalidExpression, InvalidPlan, NeedsSpark
from millstream.expressions.expression import Expression, InDriver
from millstream.expressions.spark_types import instead_of, quoted
from millstream.plan.nodes import COMPUTED, Node, Project, Where, WindowedAggregate, WithEventTime
from millstream.plan.steps.columns import kept
from millstream.plan.table_nodes import Grouped, Latest, Top
from millstream.records import Schema
from millstream.records.variants import VARIANT, variant_columns
from millstream.user_lines import users_line

AnyNode = TypeVar("AnyNode", bound=Node)


@dataclass(frozen=True, eq=False)
class SparkFunction(Node):
    """A user's function of a DataFrame, which makes rows of single rows."""

    called: str
    function: InDriver = field(repr=False)

    @property
    def label(self) -> str:
        return f"spark {self.called}"


def expressions_of(node: Node) -> list[Expression]:
    """The expressions that a step evaluates over its rows."""
    if isinstance(node, Where):
        return [node.condition]
    if isinstance(node, Project):
        return [made for _, made in node.columns]
    if isinstance(node, WindowedAggregate | Grouped):
        return [made for _, made in node.arguments]
    if isinstance(node, WithEventTime):
        return [node.time]
    if isinstance(node, Latest):
        return [made for made in (node.deleted, getattr(node, "emptied", None)) if made is not None]
    return [order.by for order in node.order] if isinstance(node, Top) else []


def reasons(node: Node) -> list[str]:
    """Why only Spark can run a step; nothing if it also runs without."""
    if isinstance(node, SparkFunction):
        return [f"{node.called} is a function of a DataFrame"]
    made = [f"{made.reason}, in '{made}'" for made in expressions_of(node) if made.needs_spark]
    variants = [name for given in node.inputs for name in variant_columns(given.schema.arrow)]
    made += [f"the column '{name}' is a variant" for name in variants]
    return list(dict.fromkeys(made))


def needs_spark(node: Node) -> bool:
    return bool(reasons(node))


def check_without_spark(order: Iterable[Node]) -> None:
    """Refuses a plan that only Spark can run, in a run without Spark."""
    for node in order:
        for why in reasons(node):
            raise NeedsSpark(
                f"the step '{node.name}' needs Spark: {why}",
                where=node.user_line,
                next_step='run the flow on Spark: flow.run(), or play(on="spark") in a test',
            )


def computed_before(node: AnyNode, named: Callable[[Project], Project]) -> AnyNode:
    """A step that evaluates what it needs itself: what needs Spark, or the clock, becomes a column before it."""
    apart = [made for made in expressions_of(node) if made.needs_spark or made.uses_clock]
    _check_rows(node)
    is_aggregate = isinstance(node, WindowedAggregate | Grouped)
    variants = variant_columns(node.inputs[0].schema.arrow) if is_aggregate else []
    if isinstance(node, Where | Project | WithEventTime) or not (apart or variants):
        return node
    assert isinstance(node, WindowedAggregate | Grouped)  # other steps have made columns of them
    given = node.inputs[0]
    columns = [(name, kept(given.schema, name)) for name in given.schema.names if name not in variants]
    arguments = []
    for number, (name, made) in enumerate(node.arguments):
        if made in apart and made.type == VARIANT:
            raise InvalidPlan(
                f"'{made}' is a variant, which an aggregate cannot take",
                where=users_line(),
                next_step=instead_of("variant", str(made)),
            )
        if made in apart:
            column = f"{COMPUTED}{number}"
            columns.append((column, made))
            made = Expression(made.spark, quoted(column), made.type, frozenset({column}))
        arguments.append((name, made))
    schema = Schema.from_arrow(pa.schema([(name, made.type) for name, made in columns]))
    before = named(Project("", schema, (given,), node.user_line, tuple(columns)))
    return replace(node, inputs=(before,), arguments=tuple(arguments))


def check_variants(node: Node) -> None:
    """Refuses a step that would take variants out of Spark's own engine, where they are."""
    if isinstance(node, Where | Project | SparkFunction):
        return
    for given in node.inputs:
        for column in variant_columns(given.schema.arrow):
            raise InvalidPlan(
                f"the column '{column}' is a variant, which only where, select and other expressions can use",
                where=users_line(),
                next_step=f"drop('{column}') first; before that, {instead_of('variant', column)}",
            )


def _check_rows(node: Node) -> None:
    """Several rows of one are made by a select, and by one column of it."""
    making = [made for made in expressions_of(node) if made.makes_rows]
    if making and (not isinstance(node, Project) or len(making) > 1):
        raise InvalidExpression(
            f"'{making[-1]}' makes several rows of one, which "
            + ("a condition cannot" if isinstance(node, Where) else "only one column of a select can"),
            where=users_line(),
            next_step="make the rows in a select(…) of its own, and go on with its column",
        )
