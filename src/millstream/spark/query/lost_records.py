"""What a run does about records that were deleted before it read them: set per source, or for the whole run.

A source reports skipped records where it is read, in the planner or in a worker, and the job warns its user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.plan.nodes import Node, Read, Write
from millstream.plan.rewiring import rewired


def with_on_lost(outputs: Sequence[Write], choice: str) -> tuple[Write, ...]:
    """The same outputs, with this choice for all sources."""

    def chosen(node: Node) -> Node:
        if not isinstance(node, Read):
            return node
        return replace(node, source=node.source.with_lost_choice(choice), on_lost=choice)

    return rewired(outputs, chosen)
