"""What a run does when records were deleted before they were read: as its sources say, or as the run says for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.plan.nodes import Node, Read, Write
from millstream.plan.places import Kafka
from millstream.plan.rewiring import rewired


def with_on_lost(outputs: Sequence[Write], choice: str) -> tuple[Write, ...]:
    """The same outputs, over topics that are read with this choice."""

    def chosen(node: Node) -> Node:
        if not isinstance(node, Read):
            return node
        source = replace(node.source, on_lost=choice) if isinstance(node.source, Kafka) else node.source
        return replace(node, source=source, on_lost=choice)

    return rewired(outputs, chosen)
