"""What a step over tables cannot evaluate itself, because it needs Spark or the clock, is a hidden column before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import InvalidExpression
from millstream.expressions.expression import Expression
from millstream.expressions.spark_types import quoted
from millstream.plan.columns import kept
from millstream.plan.needs_spark import COMPUTED
from millstream.user_lines import users_line

if TYPE_CHECKING:
    from millstream.plan.stream import Stream
    from millstream.plan.tables import Table


def computed_apart(stream: Stream, made: Sequence[Expression], kind: str) -> tuple[Stream, list[Expression]]:
    """The stream with hidden columns for expressions that must be evaluated before a step, and what replaces them."""
    columns, instead = [(name, kept(stream.schema, name)) for name in stream.schema.names], []
    hidden = []
    for number, each in enumerate(made):
        if each.uses_clock and stream.node.is_changing:
            raise InvalidExpression(
                f"'{each}' uses the clock, so a row and its retraction would differ",
                where=users_line(),
                next_step="use a column of the rows",
            )
        if each.needs_spark or each.uses_clock:
            column = f"{COMPUTED}{number}"
            hidden.append((column, each))
            each = Expression(each.spark, quoted(column), each.type, frozenset({column}))
        instead.append(each)
    if not hidden:
        return stream, instead
    return stream._project([*columns, *hidden], None, f"{kind} arguments"), instead


def without_hidden(table: Table, kind: str) -> Table:
    """The table without hidden columns; its late rows are those of the step."""
    from millstream.plan.tables import Table

    shown = [name for name in table.schema.names if not name.startswith(COMPUTED)]
    if len(shown) == len(table.schema.names):
        return table
    made = table._project([(name, kept(table.schema, name)) for name in shown], None, f"{kind} columns")
    table.flow._behind[made.node] = table.node
    return Table(table.flow, made.node, table.key)
