"""What a step over tables cannot evaluate itself, and the keys of a join, are hidden columns before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from millstream.errors import InvalidExpression
from millstream.expressions.expression import Expression
from millstream.expressions.spark_types import quoted
from millstream.plan.nodes import COMPUTED
from millstream.plan.steps.columns import kept
from millstream.user_lines import users_line

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

AnyStream = TypeVar("AnyStream", bound="Stream")


def computed_apart(stream: Stream, made: Sequence[Expression], kind: str) -> tuple[Stream, list[Expression]]:
    """The stream with hidden columns for expressions that must be evaluated before a step, and what replaces them."""
    columns, instead = [(name, kept(stream.schema, name)) for name in stream.schema.names], []
    hidden = []
    for number, each in enumerate(made):
        check_repeatable(each, stream.node.is_changing)
        if each.needs_spark or each.uses_clock:
            column = f"{COMPUTED}{number}"
            hidden.append((column, each))
            each = Expression(each.spark, quoted(column), each.type, frozenset({column}))
        instead.append(each)
    if not hidden:
        return stream, instead
    return stream._project([*columns, *hidden], None, f"{kind} arguments"), instead


def check_repeatable(made: Expression, is_changing: bool) -> None:
    """Refuses the clock for rows that may be retracted, or that are computed once."""
    if made.uses_clock and is_changing:
        raise InvalidExpression(
            f"'{made}' uses the clock, so a row and its retraction would differ",
            where=users_line(),
            next_step="use a column of the rows",
        )


def without_hidden(stream: AnyStream, kind: str) -> AnyStream:
    """The stream or table without hidden columns; its late rows are those of the step."""
    from millstream.plan.tables import Table

    shown = [name for name in stream.schema.names if not name.startswith(COMPUTED)]
    if len(shown) == len(stream.schema.names):
        return stream
    made = stream._project([(name, kept(stream.schema, name)) for name in shown], None, f"{kind} columns")
    stream.flow._behind[made.node] = stream.node
    key = (stream.key,) if isinstance(stream, Table) else ()
    return type(stream)(stream.flow, made.node, *key)
