"""A step of a flow in a file, to be played with rows of a test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from millstream.errors import InvalidInput, NotFound
from millstream.plan.nodes import Node, Read, WithEventTime
from millstream.plan.parameters import VARIABLE, set_parameters
from millstream.plan.rewiring import rewired
from millstream.plan.stream import Stream
from millstream.plan.walking import in_order
from millstream.user_lines import users_line, what_exists

if TYPE_CHECKING:
    from millstream.plan.flow import Flow

Output = Literal["rows", "late", "dead"]


def flow_step(
    file: str | os.PathLike[str],
    step: str,
    *,
    output: Output = "rows",
    flow: str | None = None,
    topics: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Callable[..., Stream]:
    """What `play` takes as `build`: a step of the flow in a file, fed by the test instead of its sources.

    `schema` and `event_time` of `play` are dicts by the names of the sources. `output` is "late" or "dead" to observe
    the step's late rows or dead letters. `topics` has the schemas of topics that the flow reads with their own schema,
    so that the test needs no log; `params` are the parameters of the file.
    """

    def build(**inputs: Stream) -> Stream:
        chosen = loaded_flow(file, flow, topics or {}, params or {})
        target = _named(chosen, step)
        (made,) = rewired([target], lambda node: _fed(node, inputs))
        stream = Stream(next(iter(inputs.values())).flow, made)
        return stream if output == "rows" else stream.late if output == "late" else stream.dead

    return build


def decoded(
    file: str | os.PathLike[str],
    source: str,
    values: Sequence[bytes],
    *,
    flow: str | None = None,
    params: Mapping[str, str] | None = None,
) -> list[dict[str, Any] | str]:
    """Decodes records as a source of the flow in a file does: each becomes a row, or the reason why it is none."""
    from millstream.provenance.decoding import decoded_values

    node = _named(loaded_flow(file, flow, {}, params or {}), source)
    if not isinstance(node, Read):
        raise InvalidInput(f"'{source}' is not a source", where=users_line(), next_step="name a step that reads")
    return decoded_values(node, values)


def loaded_flow(
    file: str | os.PathLike[str], name: str | None, topics: Mapping[str, str], params: Mapping[str, str]
) -> Flow:
    """The flow of a file, built against a temporary log with these topics, if there are any."""
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.log import connect

    with _parameters(params), tempfile.TemporaryDirectory(prefix="millstream-test-") as folder:
        if topics:
            with connect(folder) as log:
                for topic, schema in topics.items():
                    log.create_topic(topic, schema=schema)
        chosen, _ = chosen_flow(Path(file), name, folder if topics else None)
    return chosen


@contextmanager
def _parameters(params: Mapping[str, str]) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    set_parameters(dict(params))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def _named(flow: Flow, name: str) -> Node:
    steps = {node.name: node for node in in_order(flow.check())}
    if name not in steps:
        raise NotFound(
            f"the flow '{flow.name}' has no step '{name}'",
            where=users_line(),
            next_step=what_exists(name, steps, kind="steps"),
        )
    return steps[name]


def _fed(node: Node, inputs: Mapping[str, Stream]) -> Node:
    if isinstance(node, WithEventTime):
        return replace(node, follows_rows=False)  # only the script moves the watermark
    if not isinstance(node, Read):
        return node
    if node.name not in inputs:
        raise InvalidInput(
            f"the step also reads '{node.name}', which has no schema in this test",
            where=users_line(),
            next_step=f"add it: schema={{'{node.name}': '{node.schema.ddl}', …}}",
        )
    return next(each for each in in_order([inputs[node.name].node]) if isinstance(each, Read))
