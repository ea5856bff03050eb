"""A row has a time and a weight; a bundle is one step of a stream. Times are whole microseconds since 1970."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from millstream.plan.nodes import Node
from millstream.plan.time.windows import FIRST, LAST
from millstream.records import rows_to_batch

BEGINNING = -(1 << 62)
END = 1 << 62
AHEAD = BEGINNING - 1
"""The time of a row that is too far ahead of the clock, by its source's watermark: before all times, so always late."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ARGUMENTS = "\0arguments"
"""Under this name a row also carries the arguments of the step's aggregates and window."""


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def moment(micros_: int | None) -> datetime | None:
    """The nearest representable instant."""
    return None if micros_ is None else EPOCH + max(FIRST, min(micros_, LAST)) * MICROSECOND


def late_reason(time: int | None) -> str:
    """Why a row with this time is late."""
    if time is None:
        return "no event time"
    return "ahead" if time == AHEAD else "expired"


@dataclass(frozen=True, slots=True)
class Row:
    """A row, its event time, and its weight: -1 retracts an equal row."""

    values: dict[str, Any]
    time: int | None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """One step of a stream: its rows, and the watermark and the clock before and after it."""

    rows: list[Row]
    watermark_before: int
    watermark: int
    clock_before: int
    clock: int


def table_of(rows: Sequence[Row], node: Node) -> pa.Table:
    batch, failures = rows_to_batch([row.values for row in rows], node.schema)
    assert not failures, failures
    return pa.Table.from_batches([batch])


def dead_letter_values(row: dict[str, Any], reason: str, clock: int) -> dict[str, Any]:
    """A row that a step could not handle, as a dead letter."""
    return {
        "value": repr(row).encode(),
        "topic": None,
        "partition": None,
        "offset": None,
        "reason": reason,
        "at": moment(clock),
    }
