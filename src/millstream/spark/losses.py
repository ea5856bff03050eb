"""What a run does when records were deleted before they were read: as its sources say, or as the run says for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.plan.explain import in_order
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.places import Kafka


def with_on_lost(outputs: Sequence[Write], choice: str) -> tuple[Write, ...]:
    """The same outputs, over topics that are read with this choice."""
    made: dict[Node, Node] = {}
    for node in in_order(outputs):
        kept = replace(node, inputs=tuple(made[given] for given in node.inputs))
        if isinstance(kept, Read):
            source = replace(kept.source, on_lost=choice) if isinstance(kept.source, Kafka) else kept.source
            kept = replace(kept, source=source, on_lost=choice)
        made[node] = kept
    return tuple(found for output in outputs if isinstance(found := made[output], Write))
