"""Renames the outputs of a flow, for results that are recomputed next to the existing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.errors import InvalidInput
from millstream.plan.checks import check_loop
from millstream.plan.nodes import Dead, Late, Node, Read, Write
from millstream.plan.patterns.node import TimedOut
from millstream.plan.rewiring import rewired
from millstream.plan.walking import in_order
from millstream.user_lines import users_line


def renamed(outputs: Sequence[Write], into: str) -> tuple[Write, ...]:
    """The one main output is called `into`; the others, such as late rows, get the same ending."""
    main = [output for output in outputs if not _is_side(output)]
    if len(main) != 1 or main[0].sink.topic_name is None:
        raise InvalidInput(
            f"into='{into}' needs a flow with one main output that is a topic, and this one has "
            f"{', '.join(str(output.sink) for output in main) or 'none'}",
            where=users_line(),
            next_step="give the flow another name and its outputs other topics, and run it",
        )
    before = main[0].sink.topic_name
    if into == before:
        raise InvalidInput(f"the flow already writes to '{into}'", where=users_line(), next_step="choose a new name")
    ending = into.removeprefix(before) if into.startswith(before) else f".{into}"

    def change(node: Node) -> Node:
        if not isinstance(node, Write):
            return node
        # The main output is not a side output, so its inputs are unchanged and it is still the same node.
        return replace(node, sink=node.sink.renamed(into) if node is main[0] else node.sink.with_suffix(ending))

    changed = rewired(outputs, change)
    reads = [node for node in in_order(changed) if isinstance(node, Read)]
    if looped := next((node for node in reads if node.loop), None):
        raise InvalidInput(
            f"the flow reads what it writes to '{looped.source}', so its results cannot be recomputed beside them",
            where=users_line(),
            next_step="give the flow another name and its topics other names, and run it",
        )
    sources = [node.source for node in reads]
    check_loop(sources, [output.sink for output in changed])  # a pattern may match the new name
    return changed


def _is_side(node: Node) -> bool:
    while node.inputs:
        if isinstance(node, Late | Dead | TimedOut):
            return True
        node = node.inputs[0]
    return False
