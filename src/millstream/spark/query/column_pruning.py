"""Finds the columns of a source that a plan uses; the others are not read."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import pyarrow as pa

from millstream.expressions.expression import Expression, lowered_expression
from millstream.operators.windows.triggers import can_finish
from millstream.plan import nodes, table_nodes
from millstream.plan.nodes import Node, Read
from millstream.plan.time.watermarks import Custom, Punctuated, Watermark
from millstream.records import Schema

Names = frozenset[str]


def required_columns(order: Sequence[Node], outputs: Container[Node] = ()) -> dict[Read, Schema]:
    """The columns to read of every source, given all steps of a plan, each after its inputs.

    If a column is NOT NULL all are read: a row without it is a dead letter, which holds the whole row.
    """
    whole = {node.inputs[0] for node in order if isinstance(node, nodes.Late | nodes.Dead)}
    required: dict[Node, Names] = {node: _all(node) if node in outputs else frozenset() for node in order}
    for node in reversed(order):
        for given in node.inputs:
            required[given] |= _all(given) if node in whole else _used_by(node, given, required[node])
    return {node: _narrowed(node, required[node]) for node in order if isinstance(node, Read)}


def _used_by(node: Node, given: Node, required: Names) -> Names:
    """The columns of an input that a step uses, if `required` of its own columns are used."""
    used = _USED_COLUMNS.get(type(node))
    return _all(given) if used is None else used(node, required)


def _all(node: Node) -> Names:
    return frozenset(node.schema.names)


def _of_expressions(made: Iterable[tuple[str, Expression]]) -> Names:
    return frozenset().union(*(each.columns for _, each in made))


def _of_projection(node: nodes.Project, required: Names) -> Names:
    """An unused column that is only passed on is dropped. Expressions may fail, so they are always evaluated."""
    return _of_expressions((name, made) for name, made in node.columns if name in required or made.column is None)


def _of_windows(node: nodes.WindowedAggregate, required: Names) -> Names:
    if node.window.merges and can_finish(node.trigger):  # a closed session may return rows that were waiting
        return _all(node.inputs[0])
    return frozenset(node.keys) | _of_expressions(node.arguments)


def _of_side_join(node: table_nodes.SideJoin, required: Names) -> Names:
    used = {column for _, column in node.compared[0]} | {column for name, column in node.left if name in required}
    return frozenset(own for own, _ in node.on) | used


def _of_event_time(node: nodes.WithEventTime, required: Names) -> Names:
    if isinstance(node.watermark, Custom):  # the user's function gets whole rows
        return _all(node)
    return required | node.time.columns | _of_watermark(node.watermark, node.schema)


def _of_watermark(watermark: Watermark | None, schema: Schema) -> Names:
    return (
        lowered_expression(watermark.expression, schema).columns if isinstance(watermark, Punctuated) else frozenset()
    )


_USED_COLUMNS: dict[type[Node], Callable[[Any, Names], Names]] = {
    nodes.Where: lambda node, required: required | node.condition.columns,
    nodes.Project: _of_projection,
    nodes.WithEventTime: _of_event_time,
    nodes.Union: lambda node, required: required,
    table_nodes.AllRows: lambda node, required: required,
    table_nodes.SideJoin: _of_side_join,
    nodes.Dead: lambda node, required: frozenset(),
    nodes.WindowedAggregate: _of_windows,
    table_nodes.Grouped: lambda node, required: frozenset(node.keys) | _of_expressions(node.arguments),
}
"""All other steps use every column. The dead letters of a step hold its whole input."""


def _narrowed(node: Read, required: Names) -> Schema:
    if not all(field.nullable for field in node.schema.arrow):
        return node.schema
    if isinstance(node.watermark, Custom):  # the user's function gets whole rows
        return node.schema
    own = {node.event_time, *_of_watermark(node.watermark, node.schema)} | ({"weight"} if node.changes else set())
    fields = [field for field in node.schema.arrow if field.name in required | own]
    return Schema(pa.schema(fields or [node.schema.arrow.field(0)]))  # at least one column, to count rows
