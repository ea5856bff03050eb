"""Queues inside a flow: in a job, a topic that the flow writes and reads again; elsewhere, rows pass through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from millstream.plan.checks import NAME, refusal
from millstream.plan.endpoints import Endpoint
from millstream.plan.nodes import Node, Project, Read, Write
from millstream.plan.walking import in_order
from millstream.user_lines import users_line

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

INPUT = "in"


def queued(stream: Stream, name: str, made: Endpoint) -> Project:
    """The step of a queue: the rows as they are."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refusal(f"{name!r} is not a name for a queue", "use letters, digits and . _ -")
    if stream.is_table or stream.node.is_changing:
        raise refusal(
            "a queue holds rows, and these may be retracted",
            "put the queue before the step that makes a table or retracts rows",
        )
    if not stream.flow.requests.isdisjoint(in_order([stream.node])):
        raise refusal("a request is answered in the batch that reads it, so it cannot wait in a queue", "leave it out")
    if any(isinstance(node, Write) for node in in_order([stream.node])):
        raise refusal(
            "the rows that a sink rejects cannot wait in a queue of the same flow",
            "write them to a topic, and read that in another flow",
        )
    made.check_written(stream.schema)
    made.check_columns(stream.schema)
    columns = tuple((column, stream._kept(column)) for column in stream.schema.names)
    step, _ = stream.flow.step(name, name), stream.flow.step(f"{name}.{INPUT}", name)
    return Project(step, stream.schema, (stream.node,), users_line(), columns)


def in_job(outputs: Sequence[Write], queues: Mapping[str, Endpoint]) -> tuple[Write, ...]:
    """The outputs of a job: each queue is written, and read in a later batch."""
    made: dict[Node, Node] = {}
    filled: list[Write] = []
    for node in in_order(outputs):
        inputs = tuple(made[given] for given in node.inputs)
        if node.name in queues and isinstance(node, Project):
            queue = queues[node.name]
            filled.append(Write(f"{node.name}.{INPUT}", node.schema, inputs, node.user_line, queue))
            made[node] = Read(node.name, node.schema, (), node.user_line, queue, None, None, loop=True)
        else:
            made[node] = node if inputs == node.inputs else replace(node, inputs=inputs)
    return (*(cast(Write, made[output]) for output in outputs), *filled)
