"""What happens at a record that a step cannot handle: somebody takes its dead letter, or the run stops there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from millstream.errors import RecordFailed, StepFailed
from millstream.expressions.spark_types import DIGITS_MAX
from millstream.plan.endpoints import Place
from millstream.plan.nodes import Dead, Node, Read, WindowedAggregate, Write
from millstream.plan.table_nodes import Grouped
from millstream.records.ddl import format_type


def listened_to(steps: Iterable[Node]) -> frozenset[Node]:
    """The steps whose dead letters somebody takes."""
    return frozenset(node.inputs[0] for node in steps if isinstance(node, Dead))


def stopped_by_bad_records(steps: Sequence[Node]) -> frozenset[Node]:
    """The sources of a whole flow at whose first malformed record its job stops.

    Whether a topic's name stands for records that are parsed is known where the topic is.
    """
    parsed = [node for node in steps if isinstance(node, Read) and isinstance(node.source, Place)]
    return frozenset(node for node in parsed if node.source.decodes) - listened_to(steps)


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


def sum_too_large(
    step: WindowedAggregate | Grouped,
    name: str,
    total: int | Decimal,
    key: Sequence[Any],
    window: tuple[datetime | None, datetime | None] | None = None,
) -> StepFailed:
    """The error of a step that would have to send a sum that its type cannot hold."""
    kind, made = step.schema.field(name).type, dict(step.aggregates)[name]
    of = ", ".join(f"{column}={value!r}" for column, value in zip(step.keys, key, strict=True))
    place = f" for {of}" if of else ""
    if window is not None and None not in window:
        place += f" in the window from {window[0]} to {window[1]}"
    summed = made.arguments["input"]
    wider = f"double: sum('cast({summed} as double)')"
    if not pa.types.is_decimal(kind):
        wider = f"decimal({DIGITS_MAX},0): sum('cast({summed} as decimal({DIGITS_MAX},0))')"
    return StepFailed(
        f"the step '{step.name}' cannot send {name} = {made}{place}: {total} does not fit into {format_type(kind)}",
        where=step.place,
        next_step=f"leave out the rows that make it so large with where(…), or sum as {wider}",
    )
