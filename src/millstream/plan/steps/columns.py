"""Steps that choose, rename and align columns. Each is a projection; `sample` is a condition over columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.expressions.column_texts import ExpressionLike
from millstream.expressions.expression import Expression, expression
from millstream.expressions.lowered import type_name
from millstream.expressions.spark_types import quoted
from millstream.plan.checks import column_of, differences, refusal
from millstream.plan.nodes import Union
from millstream.records import Schema
from millstream.records.ddl import format_type
from millstream.user_lines import users_line

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

Made = list[tuple[str, Expression]]
HASHES = 1 << 128
"""How many values md5 has."""


def kept(schema: Schema, column: str) -> Expression:
    """A column as it is."""
    return Expression(f"`{column}`", quoted(column), schema.field(column).type, frozenset({column}))


def replaced(schema: Schema, made: Mapping[str, ExpressionLike], verb: str) -> Made:
    """All columns, with new ones added or replaced; every expression sees the columns as they were."""
    if not made:
        raise refusal(f"{verb} needs at least one column", f"for example {verb}(total='price * quantity')")
    columns = {known.lower(): (known, kept(schema, known)) for known in schema.names}
    for column, text in made.items():
        if not isinstance(column, str) or not column:
            raise refusal(f"a column name is a string, not {column!r}", f"{verb}(name='expression')")
        columns[column.lower()] = (column, expression(text, schema))
    return list(columns.values())


def without(schema: Schema, columns: Sequence[str]) -> Made:
    if not columns:
        raise refusal("drop needs at least one column", f"columns that exist: {', '.join(schema.names)}")
    gone = {column_of(schema, column) for column in columns}
    rest = [(column, kept(schema, column)) for column in schema.names if column not in gone]
    if not rest:
        raise refusal("drop would remove every column", "keep at least one, or use select(…)")
    return rest


def renamed(schema: Schema, names: Mapping[str, str]) -> Made:
    if not isinstance(names, Mapping) or not names:
        raise refusal(
            "rename takes new names by old ones", "for example rename(id='user'), or rename({'name': 'user'})"
        )
    for old, new in names.items():
        column_of(schema, old)
        if not isinstance(new, str) or not new:
            raise refusal(f"a column name is a string, not {new!r}", "rename(old='new')")
    result = [names.get(column, column) for column in schema.names]
    lower = [name.lower() for name in result]
    if twice := [name for name in result if lower.count(name.lower()) > 1]:
        raise refusal(f"there would be two columns named '{twice[0]}'", "drop(…) the other one first")
    return [(new, kept(schema, old)) for old, new in zip(schema.names, result, strict=True)]


# ---------------------------------------------------------------- union by name


def union(stream: Stream, others: Sequence[Stream], missing: bool, name: str | None) -> Stream:
    from millstream.plan.stream import Stream

    if not others:
        raise refusal("union needs at least two streams", "a.union(b)")
    for other in others:
        if not isinstance(other, Stream):
            raise refusal(f"union takes streams, not {other!r}", "a.union(b)")
        if other.flow is not stream.flow:
            raise refusal(
                f"union needs streams of one flow, but these are of '{stream.flow.name}' and '{other.flow.name}'",
                "read both in one flow, or write a topic in one and read it in the other",
            )
    streams = _aligned([stream, *others], missing=missing)
    inputs = tuple(each.node for each in streams)
    fields = [
        field.with_nullable(any(node.schema.field(field.name).nullable for node in inputs))
        for field in streams[0].schema.arrow
    ]
    made = Union("", Schema.from_arrow(pa.schema(fields)), inputs, users_line())
    made = stream.flow.named(made, "union", name)
    return next((each._next(made) for each in streams if each.is_table), stream._next(made))


def _aligned(streams: Sequence[Stream], *, missing: bool) -> list[Stream]:
    """Streams with the columns of all, in one order; with `missing`, a column that one lacks is null there."""
    if missing:
        fields = {field.name: field for stream in reversed(streams) for field in stream.schema.arrow}
        names = dict.fromkeys(name for stream in streams for name in stream.schema.names)
        whole = Schema.from_arrow(pa.schema([fields[name].with_nullable(True) for name in names]))
    else:
        whole = streams[0].schema
    return [_in_columns(stream, whole, missing) for stream in streams]


def _in_columns(stream: Stream, whole: Schema, missing: bool) -> Stream:
    own = stream.schema
    if missing:
        shared = [field for field in whole.arrow if field.name in own.names]
        differing = differences(Schema.from_arrow(pa.schema(shared)), own)
        hint = "convert it with with_column(…), or rename it with rename(…)"
    else:
        differing = differences(whole, own)
        hint = "use select(…) to make them equal; missing=True fills columns that one lacks with nulls"
    if differing:
        raise refusal(f"union needs streams with the same columns: {differing}", hint)
    if own.names == whole.names:
        return stream
    made = [
        (field.name, kept(own, field.name) if field.name in own.names else _null(field, own)) for field in whole.arrow
    ]
    return stream._project(made, None, "union columns")


def _null(field: pa.Field, schema: Schema) -> Expression:
    return expression(f"cast(null as {format_type(field.type)})", schema)


# ---------------------------------------------------------------- sample


def sampled(schema: Schema, fraction: float, by: Sequence[str], seed: int) -> str:
    """The condition of `sample`: a hash of the values lies in the given part of all hashes.

    So a row is chosen or not by its content alone: on every runner, in a replay, and when it is retracted.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise refusal(f"sample takes a fraction from 0 to 1, not {fraction!r}", "for example sample(0.01)")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise refusal(f"seed is an integer, not {seed!r}", "for example sample(0.01, seed=7)")
    names = [column_of(schema, column) for column in by]
    if not names:
        names = [field.name for field in schema.arrow if _as_text(field) is not None]
    values = []
    for name in names:
        text = _as_text(schema.field(name))
        if text is None:
            raise refusal(
                f"sample cannot use '{name}', which is {type_name(schema.field(name).type)}",
                "name columns that are strings, whole numbers, decimals, booleans, dates or timestamps: by='user'",
            )
        values.append(f"coalesce(concat('=', {text}), '')")  # a null differs from an empty text
    if not values:
        raise refusal("sample has no column to choose rows by", "add one that identifies a row, and name it with by=")
    hashed = f"md5(concat_ws('|', '{seed}', {', '.join(values)}))"
    if fraction == 1:
        return f"{hashed} is not null"
    return f"{hashed} < '{int(fraction * HASHES):032x}'"


def _as_text(field: pa.Field) -> str | None:
    """The value as text, the same in every engine; None if the type has no such text."""
    kind, column = field.type, f"`{field.name}`"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return f"cast(unix_micros({column}) as string)"
    if pa.types.is_date(kind):
        return f"cast(unix_date({column}) as string)"
    if pa.types.is_string(kind):
        return column
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return f"cast({column} as string)"
    return None
