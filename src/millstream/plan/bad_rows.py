"""Records that a step cannot handle: they become dead letters if the flow uses `.dead`, or else stop the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from millstream.errors import ExpressionFailed, InvalidPlan, RecordFailed, StepFailed
from millstream.expressions.spark_types import DIGITS_MAX
from millstream.plan.nodes import (
    Dead,
    Mapped,
    Node,
    PredictLive,
    Process,
    Project,
    Read,
    Where,
    WindowedAggregate,
    Write,
)
from millstream.plan.on_spark.needs_spark import SparkFunction, needs_spark
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.table_nodes import Grouped
from millstream.plan.walking import in_order
from millstream.records.ddl import format_type
from millstream.user_lines import users_line

HAVE_DEAD_LETTERS = (Mapped, Process, PredictLive, Read, Where, Project, SparkFunction)


def listened_to(steps: Iterable[Node]) -> frozenset[Node]:
    """The steps whose dead letters are used."""
    return frozenset(node.inputs[0] for node in steps if isinstance(node, Dead))


def stopped_by_bad_records(steps: Sequence[Node]) -> frozenset[Node]:
    """The sources of a whole flow whose first malformed record stops the job.

    For a topic given by name, only the broker knows whether its records are parsed.
    """
    parsed = [node for node in steps if isinstance(node, Read)]
    return frozenset(node for node in parsed if node.source.decodes) - listened_to(steps)


def check_dead_letters(step: Node) -> None:
    """Refuses dead letters of a step in Spark's own engine if its rows cannot be read again, to find the bad ones."""
    if not needs_spark(step):
        return
    before = in_order([step])
    state = next((node for node in before if node.keeps_state), None)
    frames = next((node for node in before if isinstance(node, Read) and isinstance(node.source, SparkFrame)), None)
    if state is None and frames is None:
        return
    behind = "a DataFrame" if state is None else f"'{state.name}', which keeps state"
    raise InvalidPlan(
        f"the step '{step.name}' has no dead letters: it runs in Spark's own engine behind {behind}, and only rows "
        "of topics and files can be read again to find the ones that it fails on",
        where=users_line(),
        next_step="use a function that returns null instead, such as try_cast(…), or a map(…), which has dead letters",
    )


def expression_reason(step: Node, error: ExpressionFailed) -> str:
    """The reason in the dead letter of a row that an expression of a step fails on."""
    return f"{step.name}: {error.what}"


def position_of(letter: Mapping[str, Any]) -> str:
    """Where the record of a dead letter was read; empty if unknown."""
    known = (name for name in ("topic", "partition", "offset") if letter.get(name) is not None)
    return ", ".join(f"{name} {letter[name]}" for name in known)


def record_failed(step: Node, letter: Mapping[str, Any]) -> RecordFailed:
    """The error for a record that a step cannot handle, given its dead letter."""
    redirect = f"write .dead of '{step.name}' to a topic"
    places = [position_of(letter), "" if isinstance(step, Read | Write) else step.user_line]
    if isinstance(step, Write):
        redirect = "write the rows that the sink rejects to a topic: .write(…).dead.write(…)"
    return RecordFailed(
        f"the step '{step.name}' cannot handle a record: {letter['reason']}",
        where="; ".join(filter(None, places)) or step.user_line,
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
