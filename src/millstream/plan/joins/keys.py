"""What two inputs are joined on: pairs of columns. An expression becomes a hidden column of its side first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa

from millstream.errors import InvalidExpression
from millstream.expressions.column_texts import ExpressionLike, as_text
from millstream.expressions.expression import Expression, evaluate, expression
from millstream.expressions.lowered import type_name
from millstream.plan.checks import check_key_type, check_keys, column_of, refusal
from millstream.plan.nodes import COMPUTED
from millstream.plan.on_spark import engine
from millstream.plan.steps.hidden_columns import check_repeatable
from millstream.plan.stream import Stream
from millstream.plan.table_nodes import Columns
from millstream.plan.tables import EXAMPLES
from millstream.records import Schema

if TYPE_CHECKING:
    from millstream.plan.joins.joining import Side

On: TypeAlias = (
    "ExpressionLike | Sequence[ExpressionLike | tuple[ExpressionLike, ExpressionLike]] | Mapping[str, ExpressionLike]"
)
"""A column or an expression of both sides, several of them, or pairs of an own and another one."""
NO_CONDITION = (
    "on= is not a condition, but what is equal on both sides: on={'lower(user)': 'lower(name)'}; "
    "condition= takes other conditions"
)
Other = TypeVar("Other", bound="Stream | Side")


def joined_on(stream: Stream, other: Other, on: On) -> tuple[Stream, Other, Columns]:
    """Both sides with what they are joined on as columns, and the pairs of these columns."""
    given = _pairs(on)
    if not given:
        raise refusal("a join needs at least one column in on=", "for example on='user'")
    own, others = _Keys(stream.schema), _Keys(other.schema)
    pairs = tuple((own.name_of(one, number), others.name_of(same, number)) for number, (one, same) in enumerate(given))
    stream = _with_columns(stream, own.made)
    with_keys: Any = _with_columns if isinstance(other, Stream) else _with_rows
    other = with_keys(other, others.made)
    check_keys(stream.schema, [one for one, _ in pairs], "on")
    check_keys(other.schema, [same for _, same in pairs], "on")
    for (one, same), shown in zip(pairs, given, strict=True):
        _check_comparable(stream.schema.field(one).type, other.schema.field(same).type, shown)
    return stream, other, pairs


def with_parts(given: Other, made: Mapping[str, str]) -> Other:
    """A side with hidden columns for parts of the condition."""
    parts = {name: expression(text, given.schema) for name, text in made.items()}
    with_made: Any = _with_columns if isinstance(given, Stream) else _with_rows
    found: Other = with_made(given, parts)
    return found


def _pairs(on: On) -> list[tuple[Any, Any]]:
    if isinstance(on, Mapping):
        found, what = [(as_text(one), as_text(other)) for one, other in on.items()], "on maps columns to columns"
    else:
        text = as_text(on)
        several = text if isinstance(text, Sequence) and not isinstance(text, str) else [text]
        found, what = [_pair(each) for each in several], "on takes one column name or several"
    if not all(isinstance(side, str) and side for pair in found for side in pair):
        raise refusal(f"{what}, not {on!r}", f"for example {EXAMPLES['on']}")
    return found


def _pair(given: Any) -> tuple[Any, Any]:
    if isinstance(given, tuple) and len(given) == 2:
        return as_text(given[0]), as_text(given[1])
    return as_text(given), as_text(given)


class _Keys:
    """The columns that one side is joined on: its own ones, and those to be made."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.made: dict[str, Expression] = {}

    def name_of(self, given: str, number: int) -> str:
        if given in self._schema.names or given.isidentifier():
            return column_of(self._schema, given)
        name = f"{COMPUTED}{number}"
        made = self.made[name] = _expression(given, self._schema)
        if made.makes_rows:
            raise refusal(f"'{made}' makes several rows of one, which on= cannot", "make them in a select(…) before it")
        check_key_type(given, made.type)
        return name


def _expression(given: str, schema: Schema) -> Expression:
    try:
        return expression(given, schema)
    except InvalidExpression as error:
        if "=" not in given:
            raise
        raise InvalidExpression(error.what, where=error.where, next_step=NO_CONDITION) from None


def _with_columns(stream: Stream, made: Mapping[str, Expression]) -> Stream:
    if not made:
        return stream
    for each in made.values():
        check_repeatable(each, stream.node.is_changing)
    kept = [(name, stream._kept(name)) for name in stream.schema.names]
    return stream._project([*kept, *made.items()], None, "join keys")


def _with_rows(side: Side, made: Mapping[str, Expression]) -> Side:
    """Static rows are computed once, here."""
    rows = side.rows
    for name, each in made.items():
        check_repeatable(each, True)
        if each.needs_spark:
            values = engine.evaluated(rows, each)
        else:
            values = evaluate({name: each.lowered}, side.rows).column(name)
        rows = rows.append_column(pa.field(name, each.type), values.cast(each.type))
    return replace(side, rows=rows, schema=Schema.from_arrow(rows.schema))


def _check_comparable(one: pa.DataType, other: pa.DataType, shown: tuple[str, str]) -> None:
    if one != other and not all(map(pa.types.is_signed_integer, (one, other))):
        raise refusal(
            f"'{shown[0]}' is {type_name(one)} and '{shown[1]}' is {type_name(other)}: they cannot be compared",
            "cast one to the other's type, for example with_column('id', 'cast(id as bigint)')",
        )
