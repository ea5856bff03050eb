"""Records that a step cannot handle: they become dead letters if the flow uses `.dead`, or else stop the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from millstream.errors import RecordFailed, StepFailed
from millstream.expressions.spark_types import DIGITS_MAX
from millstream.plan.nodes import Dead, Node, Read, WindowedAggregate, Write
from millstream.plan.table_nodes import Grouped
from millstream.records.ddl import format_type


def listened_to(steps: Iterable[Node]) -> frozenset[Node]:
    """The steps whose dead letters are used."""
    return frozenset(node.inputs[0] for node in steps if isinstance(node, Dead))


def stopped_by_bad_records(steps: Sequence[Node]) -> frozenset[Node]:
    """The sources of a whole flow whose first malformed record stops the job.

    For a topic given by name, only the broker knows whether its records are parsed.
    """
    parsed = [node for node in steps if isinstance(node, Read)]
    return frozenset(node for node in parsed if node.source.decodes) - listened_to(steps)


def record_failed(step: Node, letter: Mapping[str, Any]) -> RecordFailed:
    """The error for a record that a step cannot handle, given its dead letter."""
    position = [f"{name} {letter[name]}" for name in ("topic", "partition", "offset") if letter.get(name) is not None]
    redirect = f"write .dead of '{step.name}' to a topic"
    if isinstance(step, Write):
        redirect = "write the rows that the sink rejects to a topic: .write(…).dead.write(…)"
    return RecordFailed(
        f"the step '{step.name}' cannot handle a record: {letter['reason']}",
        where=", ".join(position) or step.user_line,
        next_step=(
            "fix the function or the record, and run the job again: it resumes there; or redirect such records: "
            + redirect
        ),
    )


def sum_too_large(
    step: WindowedAggregate | Grouped,
    name: str,
    total: int | Decimal,
    key: Sequence[Any],
    window: tuple[datetime | None, datetime | None] | None = None,
) -> StepFailed:
    """The error of a step whose sum does not fit its type."""
    kind, made = step.schema.field(name).type, dict(step.aggregates)[name]
    of = ", ".join(f"{column}={value!r}" for column, value in zip(step.keys, key, strict=True))
    which = f" for {of}" if of else ""
    if window is not None and None not in window:
        which += f" in the window from {window[0]} to {window[1]}"
    summed = made.arguments["input"]
    wider = f"double: sum('cast({summed} as double)')"
    if not pa.types.is_decimal(kind):
        wider = f"decimal({DIGITS_MAX},0): sum('cast({summed} as decimal({DIGITS_MAX},0))')"
    return StepFailed(
        f"the step '{step.name}' cannot emit {name} = {made}{which}: {total} does not fit into {format_type(kind)}",
        where=step.user_line,
        next_step=f"filter out the outliers with where(…), or sum as {wider}",
    )
