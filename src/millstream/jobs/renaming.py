"""The same outputs under other names, for results that are recomputed next to the existing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from millstream.errors import InvalidInput
from millstream.plan.endpoints import Files, Kafka, Table
from millstream.plan.nodes import Dead, Late, Node, Write
from millstream.plan.rewiring import rewired
from millstream.user_lines import users_line


def renamed(outputs: Sequence[Write], into: str) -> tuple[Write, ...]:
    """The one main output is called `into`; the others, such as late rows, get the same ending."""
    main = [output for output in outputs if not _is_side(output)]
    if len(main) != 1 or not isinstance(main[0].sink, str | Kafka):
        raise InvalidInput(
            f"into='{into}' is for a flow with one main output that is a topic, and this has "
            f"{', '.join(str(output.sink) for output in main) or 'none'}",
            where=users_line(),
            next_step="give the flow another name and its outputs other topics, and run it",
        )
    before = main[0].sink if isinstance(main[0].sink, str) else main[0].sink.topic
    if into == before:
        raise InvalidInput(
            f"'{into}' is where the flow writes already", where=users_line(), next_step="choose a new name"
        )
    ending = into.removeprefix(before) if into.startswith(before) else f".{into}"

    def change(node: Node) -> Node:
        if not isinstance(node, Write):
            return node
        # The main output is nobody's side, so it is fed as before and is still itself.
        return replace(node, sink=_called(node.sink, into) if node is main[0] else _with_ending(node.sink, ending))

    return rewired(outputs, change)


def _called(sink: str | Kafka, name: str) -> str | Kafka:
    return name if isinstance(sink, str) else replace(sink, topic=name)


def _is_side(node: Node) -> bool:
    while node.inputs:
        if isinstance(node, Late | Dead):
            return True
        node = node.inputs[0]
    return False


def _with_ending(sink: Any, ending: str) -> Any:
    if isinstance(sink, str):
        return sink + ending
    if isinstance(sink, Kafka):
        return replace(sink, topic=sink.topic + ending)
    if isinstance(sink, Files):
        return replace(sink, path=sink.path.rstrip("/") + ending)
    if isinstance(sink, Table):
        return replace(sink, table=sink.table + ending.replace(".", "_").replace("-", "_"))
    return sink
