"""Which columns of a source somebody looks at: the others need not be read."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import pyarrow as pa

from millstream.expressions.expression import Expression, expression
from millstream.operators.trigger_columns import can_finish
from millstream.plan import nodes, table_nodes
from millstream.plan.nodes import Node, Read
from millstream.plan.watermarks import Bounded, Punctuated
from millstream.records import Schema

Names = frozenset[str]


def needed_columns(order: Sequence[Node], outputs: Container[Node] = ()) -> dict[Read, Schema]:
    """Of every source what is to be read, given all steps of a plan, each after those it needs.

    Where a column must not be null, a row without it becomes a dead letter, and those hold whole rows.
    """
    late = {node.inputs[0] for node in order if isinstance(node, nodes.Late)}
    needed: dict[Node, Names] = {node: _all(node) if node in outputs else frozenset() for node in order}
    for node in reversed(order):
        for given in node.inputs:
            needed[given] |= _all(given) if node in late else _looked_at(node, given, needed[node])
    return {node: _narrowed(node, needed[node]) for node in order if isinstance(node, Read)}


def _looked_at(node: Node, given: Node, needed: Names) -> Names:
    """What a step looks at of a step before it, where `needed` is looked at of its own columns."""
    look = _LOOKS.get(type(node))
    return _all(given) if look is None else look(node, needed)


def _all(node: Node) -> Names:
    return frozenset(node.schema.names)


def _of_expressions(made: Iterable[tuple[str, Expression]]) -> Names:
    return frozenset().union(*(each.columns for _, each in made))


def _of_projection(node: nodes.Project, needed: Names) -> Names:
    """A column that is only passed on need not be there. What is computed may fail: so it is computed in any case."""
    return _of_expressions((name, made) for name, made in node.columns if name in needed or made.column is None)


def _of_windows(node: nodes.WindowedAggregate, needed: Names) -> Names:
    if node.window.merges and can_finish(node.trigger):  # a session that is closed may give rows that waited back
        return _all(node.inputs[0])
    return frozenset(node.keys) | _of_expressions(node.arguments)


def _of_side_join(node: table_nodes.SideJoin, needed: Names) -> Names:
    return frozenset(own for own, _ in node.on) | {column for name, column in node.left if name in needed}


_LOOKS: dict[type[Node], Callable[[Any, Names], Names]] = {
    nodes.Where: lambda node, needed: needed | node.condition.columns,
    nodes.Project: _of_projection,
    nodes.Union: lambda node, needed: needed,
    table_nodes.AllRows: lambda node, needed: needed,
    table_nodes.SideJoin: _of_side_join,
    nodes.Dead: lambda node, needed: frozenset(),
    nodes.WindowedAggregate: _of_windows,
    table_nodes.Grouped: lambda node, needed: frozenset(node.keys) | _of_expressions(node.arguments),
}
"""Of all other steps: every column. The dead letters of a step have what it was given."""


def _narrowed(node: Read, needed: Names) -> Schema:
    if not all(field.nullable for field in node.schema.arrow):
        return node.schema
    own = {node.event_time} | ({"weight"} if node.changes else set())
    if isinstance(node.watermark, Punctuated):
        own |= expression(node.watermark.expression, node.schema).columns
    elif node.watermark is not None and not isinstance(node.watermark, Bounded):  # the user's function sees rows
        return node.schema
    fields = [field for field in node.schema.arrow if field.name in needed | own]
    return Schema.from_arrow(pa.schema(fields or [node.schema.arrow.field(0)]))  # rows are counted by one at least
