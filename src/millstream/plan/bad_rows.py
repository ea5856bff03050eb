"""What happens at a record that a step cannot handle: somebody takes its dead letter, or the run stops there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.errors import RecordFailed
from millstream.plan.nodes import Dead, Node, Write


def listened_to(steps: Iterable[Node]) -> frozenset[Node]:
    """The steps whose dead letters somebody takes."""
    return frozenset(node.inputs[0] for node in steps if isinstance(node, Dead))


def record_failed(step: Node, letter: Mapping[str, Any]) -> RecordFailed:
    """The error of a step at a record, by its dead letter."""
    place = [f"{name} {letter[name]}" for name in ("topic", "partition", "offset") if letter.get(name) is not None]
    kept_apart = f"take .dead behind '{step.name}' and write it to a topic"
    if isinstance(step, Write):
        kept_apart = "write the rows that the sink refuses to a topic: .write(…).dead.write(…)"
    return RecordFailed(
        f"the step '{step.name}' cannot handle a record: {letter['reason']}",
        where=", ".join(place) or step.place,
        next_step=(
            "fix the function or the record, and run the job again: it continues there; or keep such records apart: "
            + kept_apart
        ),
    )
