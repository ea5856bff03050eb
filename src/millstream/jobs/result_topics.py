"""The number of partitions of a topic that a job creates: that of its input, so that its readers can share the work."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.plan.nodes import Read, Write
from millstream.plan.walking import in_order


def partitions_of(output: Write, read: Mapping[str, int]) -> int:
    """The number that the user gave, otherwise that of the largest topic that feeds the output.

    `read` has the number of partitions by the step that reads the topic.
    """
    if output.partitions is not None:
        return output.partitions
    feeding = [node.name for node in in_order([output]) if isinstance(node, Read)]
    return max((read[name] for name in feeding if name in read), default=1)
