"""Columns as they are given in a call: names, lists of them, `data.*`, `data.user`, `expression as name`, and Columns.

What is not the name of a column makes a new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.expressions.column_texts import ColumnText, as_text
from millstream.expressions.expression import Expression, expression
from millstream.expressions.lowered import type_name
from millstream.plan.checks import column_of, refusal
from millstream.plan.on_spark import engine
from millstream.plan.steps.columns import kept
from millstream.records import Schema

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

Made = list[tuple[str, Expression]]
EVERY_COLUMN = "*"
_FIELDS = re.compile(r"\s*(.+)\.\*\s*", re.DOTALL)
_PATH = re.compile(r"([^\W\d]\w*)(?:\.[^\W\d]\w*)*\.([^\W\d]\w*)")
_CALL = re.compile(r"\s*([^\W\d]\w*\s*\(.*\))(?:\s+as\s*\([^()]*\))?\s*", re.DOTALL | re.IGNORECASE)
_NAMED = re.compile(r"\s*(.+?)\s+as\s+(`(?:[^`]|``)+`|[^\W\d]\w*)\s*", re.DOTALL | re.IGNORECASE)


def flat(columns: Iterable[Any]) -> list[Any]:
    """The columns one by one; a Column of PySpark as text."""
    found: list[Any] = []
    for column in columns:
        found += flat(column) if isinstance(column, list | tuple) else [as_text(column)]
    return found


def new_columns(schema: Schema, given: object) -> Made:
    """The columns that something other than the name of a column makes; none if it is not understood."""
    if not isinstance(given, str) or given in schema.names or _is_every(given):
        return []
    if fields := _FIELDS.fullmatch(given):
        return _fields(schema, fields[1])
    path, named = _PATH.fullmatch(given), _NAMED.fullmatch(given)
    if path and path[1].lower() in map(str.lower, schema.names):
        return [(path[2], expression(str(given), schema))]
    if named:
        name = named[2].strip("`").replace("``", "`")
        source = named[1].strip("`")
        if source in schema.names:
            return [(name, kept(schema, source))]
        return [(name, expression(given if isinstance(given, ColumnText) else named[1], schema))]
    if isinstance(given, ColumnText):
        return [(engine.name_of(given.column, schema), expression(given, schema))]
    return []


def _fields(schema: Schema, path: str) -> Made:
    whole = expression(path, schema)
    if not pa.types.is_struct(whole.type):
        raise refusal(
            f"'{path}.*' are the fields of a struct, but '{path}' is {type_name(whole.type)}",
            f"select it as it is: select('{path}')",
        )
    return [(field.name, expression(f"{path}.`{field.name}`", schema)) for field in whole.type]


def selected(schema: Schema, columns: Iterable[Any], made: Mapping[str, Any]) -> Made:
    """The columns of `select`: "*" means all of them, of which new ones replace those of their names."""
    given = flat(columns)
    new = [(name, expression(text, schema)) for name, text in made.items()]
    if not any(map(_is_every, given)):
        return [each for column in given for each in new_columns(schema, column) or _as_it_is(schema, column)] + new
    named: dict[str, tuple[str, Expression]] = {}
    for column in given:
        named |= {name.lower(): (name, value) for name, value in new_columns(schema, column)}
        for name in schema.names if _is_every(column) else _known(schema, column):
            named.setdefault(name.lower(), (name, kept(schema, name)))
    return list((named | {name.lower(): (name, value) for name, value in new}).values())


def _known(schema: Schema, column: object) -> list[str]:
    """The name of an existing column; none if it makes new ones."""
    return [] if new_columns(schema, column) else [column_of(schema, column)]


def _as_it_is(schema: Schema, column: object) -> Made:
    if isinstance(column, str) and column not in schema.names and (call := _CALL.fullmatch(column)):
        expression(call[1], schema)  # a mistake in it is named first
        raise refusal(f"the column '{column}' has no name", f"select('{call[1]} as …'), or select(…='{call[1]}')")
    name = column_of(schema, column)
    return [(name, kept(schema, name))]


def _is_every(column: object) -> bool:
    return isinstance(column, str) and column == EVERY_COLUMN  # other objects may compare as they like


def with_keys(
    stream: Stream, columns: Iterable[Any], made: Mapping[str, Any], verb: str
) -> tuple[Stream, tuple[str, ...]]:
    """The names of key columns; the stream has those that were given as expressions, too."""
    schema = stream.schema
    new: dict[str, Expression] = {}
    names: list[str] = []
    for column in flat(columns):
        found = new_columns(schema, column)
        new |= dict(found)
        names += [name for name, _ in found] or [column_of(schema, column)]
    new |= {name: expression(text, schema) for name, text in made.items()}
    names += made
    if not new:
        return stream, tuple(names)
    replaced = {name.lower() for name in new}
    rest = [(name, kept(schema, name)) for name in schema.names if name.lower() not in replaced]
    return stream._project([*rest, *new.items()], None, f"{verb} columns"), tuple(names)
