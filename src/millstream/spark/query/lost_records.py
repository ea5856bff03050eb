"""What a run does when records were deleted before they were read: as its sources say, or as the run says for all.

A source that passes records over notes it where it is read, in the planner or in a worker; its task reports it, and the
process that runs the job warns its user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.connectors.opening_sources import KafkaSource, Source, TopicSource
from millstream.plan.endpoints import Kafka
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.rewiring import rewired


def taken_losses(source: Source) -> list[str]:
    """What a source has passed over since it was last asked."""
    if not isinstance(source, TopicSource | KafkaSource):
        return []
    taken = list(source.losses)
    source.losses.clear()
    return taken


def with_on_lost(outputs: Sequence[Write], choice: str) -> tuple[Write, ...]:
    """The same outputs, over topics that are read with this choice."""

    def chosen(node: Node) -> Node:
        if not isinstance(node, Read):
            return node
        source = replace(node.source, on_lost=choice) if isinstance(node.source, Kafka) else node.source
        return replace(node, source=source, on_lost=choice)

    return rewired(outputs, chosen)
