"""How rows are spread over the partitions of a topic that a job creates: their key, and the number of partitions."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.plan.nodes import Node, Read, Write
from millstream.plan.table_nodes import Join
from millstream.plan.walking import in_order


def partitions_of(output: Write, read: Mapping[str, int]) -> int:
    """The number that the user gave, otherwise that of the largest topic that feeds the output: readers share the work.

    Results that are not by key are a single sequence, which only one partition keeps in order. `read` has the number
    of partitions by the step that reads the topic.
    """
    if output.partitions is not None:
        return output.partitions
    if _grouping_keys(output) == ():
        return 1
    feeding = [node.name for node in in_order([output]) if isinstance(node, Read)]
    return max((read[name] for name in feeding if name in read), default=1)


def keys_of(output: Write) -> tuple[str, ...]:
    """The key columns of an output's rows."""
    if output.net:
        return output.keys
    keys = _grouping_keys(output) or ()
    return keys if all(key in output.schema.names for key in keys) else ()


def _grouping_keys(output: Write) -> tuple[str, ...] | None:
    """The keys of the last step that groups rows; None if no step does."""
    node: Node = output.inputs[0]
    while node.inputs:
        keys = tuple(own for own, _ in node.on) if isinstance(node, Join) else getattr(node, "keys", None)
        if keys is not None and not isinstance(node, Write):  # dead letters of an output are those of its rows
            return keys
        node = node.inputs[0]
    return None
