"""A written stream: rows that its sink rejects become dead letters for another sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import InvalidPlan
from millstream.plan.nodes import Dead, Node, Write
from millstream.plan.walking import in_order
from millstream.records import DEAD_LETTER_SCHEMA

if TYPE_CHECKING:
    from millstream.plan.stream import Stream


class Written:
    """A stream that is written to a sink."""

    def __init__(self, stream: Stream, node: Write) -> None:
        self._stream = stream
        self.node = node

    @property
    def dead(self) -> Stream:
        """The rows that the sink permanently rejects, with the reason: write them to another sink."""
        return self._stream._side(self.node, Dead, "dead", DEAD_LETTER_SCHEMA)


def check_behind_sinks(outputs: Sequence[Write]) -> None:
    """Rejects stateful steps after the dead letters of a sink: these are known only after all state has been stored."""
    behind: set[Node] = set()
    for node in in_order(outputs):
        if (isinstance(node, Dead) and isinstance(node.inputs[0], Write)) or behind.intersection(node.inputs):
            behind.add(node)
            if node.keeps_state:
                raise InvalidPlan(
                    f"the step '{node.name}' keeps state ({node.label}) after the dead letters of a sink",
                    where=node.user_line,
                    next_step="write the dead letters to a topic, and read it in another flow",
                )
