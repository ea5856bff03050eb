"""Functions in `select` that make rows, and name their columns themselves: `posexplode(xs) as (place, x)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.expressions.column_texts import ExpressionLike
from millstream.expressions.expression import expression
from millstream.expressions.generators import STRUCT, Call, call_of, generated
from millstream.expressions.lowered import Mistake
from millstream.plan.checks import refusal
from millstream.plan.steps.choosing import EVERY_COLUMN
from millstream.plan.steps.columns import kept

if TYPE_CHECKING:
    from millstream.plan.stream import Stream


def with_generated(
    stream: Stream, columns: Sequence[str], made: Mapping[str, ExpressionLike]
) -> tuple[Stream, tuple[str, ...], dict[str, ExpressionLike]]:
    """What is left to select once rows are made: the stream of them, the columns to keep, and expressions by name."""
    calls = {
        column: call
        for column in columns
        if isinstance(column, str) and column not in stream.schema.names and (call := call_of(column)) is not None
    }
    if not calls:
        return stream, tuple(columns), dict(made)
    if len(calls) > 1:
        raise refusal(
            f"'{list(calls)[1]}' makes rows, which only one column of a select can",
            "make the rows in a select(…) of its own, and go on with its columns",
        )
    ((text, call),) = calls.items()
    rest = [column for column in columns if column != text]
    if EVERY_COLUMN in rest:  # without the column of structs
        place = rest.index(EVERY_COLUMN)
        rest[place : place + 1] = stream.schema.names
    try:
        found = generated(call, _kind(stream, call))
    except Mistake as mistake:
        raise refusal(f"{mistake.what}, in '{text}'", mistake.next_step) from None
    if found.rows is not None:
        whole = [(name, kept(stream.schema, name)) for name in stream.schema.names]
        stream = stream._project([*whole, (STRUCT, expression(found.rows, stream.schema))], None, call.name)
    return stream, tuple(dict.fromkeys(rest)), {**dict(found.columns), **made}


def _kind(stream: Stream, call: Call) -> object:
    if not call.arguments or call.name in ("stack", "json_tuple"):
        return None
    return expression(call.arguments[0], stream.schema).type
