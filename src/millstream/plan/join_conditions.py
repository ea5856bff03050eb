"""What pairs of rows must satisfy beyond equal keys: checked against the columns of both sides.

A join evaluates its condition next to its state, without Spark. A pair of an inner join may be filtered later, so there
the condition may also be one that only Spark can evaluate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from millstream.errors import InvalidExpression
from millstream.expressions.expression import Expression, expression
from millstream.plan.checks import refusal
from millstream.plan.nodes import COMPUTED
from millstream.plan.stream import Stream
from millstream.plan.table_nodes import How, JoinCondition
from millstream.plan.tables import Table
from millstream.records import Schema
from millstream.user_lines import AtUsersLine

AnyStream = TypeVar("AnyStream", bound=Stream)


@dataclass(frozen=True)
class Behind:
    """A condition that a step behind the join evaluates, as the user gave it."""

    given: str


def checked_condition(
    given: str | None, fields: Sequence[pa.Field], how: How
) -> tuple[JoinCondition | None, Behind | None]:
    """The condition that the join evaluates itself, or the one that is evaluated behind it; neither if none is given.

    The fields are those of a pair: the columns of both sides under their names in the output.
    """
    if given is None:
        return None, None
    shown = [field for field in fields if not field.name.startswith(COMPUTED)]
    with AtUsersLine():
        columns = Schema.from_arrow(pa.schema(shown))
    made = _expression(given, columns)
    if made.makes_rows:
        raise refusal(f"'{made}' makes several rows of one, which a condition cannot", "make them in a select(…) first")
    if not made.columns:
        raise refusal(f"the condition '{made}' uses no column", "compare columns of both sides, or leave it out")
    if not made.needs_spark and not made.uses_clock:
        return JoinCondition(made, pa.schema([field for field in shown if field.name in made.columns])), None
    if how != "inner":
        why = f"needs Spark: {made.reason}" if made.needs_spark else "uses the clock"
        raise refusal(
            f"'{made}' {why}; the condition of a join that is not inner is evaluated next to its state",
            "compute what concerns one side with with_column(…) before the join, and compare these columns",
        )
    return None, Behind(given)


def kept_where(joined: AnyStream, condition: Behind | None) -> AnyStream:
    """The pairs that satisfy a condition; late rows are those of the join."""
    if condition is None:
        return joined
    made = joined._where(condition.given, None, "join condition")
    joined.flow._behind[made.node] = joined.flow._behind.get(joined.node, joined.node)
    key = (joined.key,) if isinstance(joined, Table) else ()
    return type(joined)(joined.flow, made.node, *key)


def _expression(given: str, columns: Schema) -> Expression:
    try:
        return expression(given, columns, boolean=True)
    except InvalidExpression as error:
        if "there is no column" not in error.what:
            raise
        names = f"columns have their names in the result of the join: {', '.join(columns.names)}"
        raise InvalidExpression(error.what, where=error.where, next_step=names) from None
