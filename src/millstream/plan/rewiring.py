"""A plan with some nodes replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from millstream.plan.nodes import Node
from millstream.plan.walking import in_order

End = TypeVar("End", bound=Node)


def rewired(ends: Sequence[End], change: Callable[[Node], Node]) -> tuple[End, ...]:
    """The outputs of a plan with `change` applied to every node, inputs first."""
    made: dict[Node, Node] = {}
    for node in in_order(ends):
        inputs = tuple(made[given] for given in node.inputs)
        made[node] = change(node if inputs == node.inputs else replace(node, inputs=inputs))
    return tuple(cast(End, made[end]) for end in ends)
