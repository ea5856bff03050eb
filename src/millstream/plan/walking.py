"""Plan traversal: every step is visited once, however many paths lead to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from millstream.plan.nodes import Node

T = TypeVar("T")


def in_order(ends: Iterable[Node]) -> list[Node]:
    """The steps that lead to some nodes, each after its inputs."""
    found: dict[Node, None] = {}
    waiting = [(end, False) for end in reversed(list(ends))]
    while waiting:
        node, inputs_are_done = waiting.pop()
        if inputs_are_done:
            found.setdefault(node)
        elif node not in found:
            waiting.append((node, True))
            waiting += [(given, False) for given in reversed(node.inputs)]
    return list(found)


def before_state(order: Sequence[Node]) -> set[Node]:
    """The steps upstream of a stateful step, given all steps in order."""
    found: set[Node] = set()
    for node in reversed(order):
        if node.keeps_state or node in found:
            found.update(node.inputs)
    return found


def derived(end: Node, rule: Callable[[Node, list[T]], T]) -> T:
    """Applies a rule to a node, given its results for the node's inputs."""
    found: dict[Node, T] = {}
    for node in in_order([end]):
        found[node] = rule(node, [found[given] for given in node.inputs])
    return found[end]
