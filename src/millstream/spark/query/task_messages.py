"""Messages of tasks: controls to the next steps, and reports to the driver.

Every message is a frozen, tagged record in MessagePack; decoding checks every field.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# ---------------------------------------------------------------- to the next steps


class ClockControl(Message, frozen=True):
    """The processing time of a batch, for sources that do not carry it."""

    now: int


class SourceControl(Message, frozen=True):
    """What a task has read of a source."""

    origin: str
    now: int
    partitions: dict[str, tuple[int | None, bool]] = {}
    """By partition, the watermark of its rows, and whether it had any rows."""
    done: tuple[str, ...] = ()
    """Partitions that count as idle from now on."""
    watermark: int | None = None
    """A watermark for all partitions, such as the end of time."""
    ends: dict[str, int] = {}
    """The offsets that the batch ends at, by partition, if a step may read rows of the past and this task says so."""


class StepControl(Message, frozen=True):
    """The watermark that a key group of a step passes on."""

    origin: str
    group: int
    watermark: int
    idle: bool
    now: int


class RowsOrigin(Message, frozen=True):
    """Where rows for Spark's own engine come from: what the steps behind it need to continue."""

    origin: str
    task: int
    label: int
    now: int
    watermark_max: int
    source: str | None = None
    partition: str | None = None


Control = ClockControl | SourceControl | StepControl

# ---------------------------------------------------------------- to the driver


class SourceReport(Message, frozen=True):
    """What a task has read of a source."""

    source: str
    rows: int
    dead: int = 0
    now: int = 0
    ends: dict[str, int] = {}
    """The offsets that the batch ends at, by partition, if this task reports them."""
    partitions: dict[str, int | None] = {}
    """By partition, the watermark of its rows."""
    notes: tuple[str, ...] = ()
    """Notices for the user."""
    waited_s: float = 0.0
    """How long the planner waited for rows before this batch, if this task reports it."""
    planned_s: float = 0.0
    """How long it took to plan, without waiting."""
    read: tuple[tuple[str, int, int], ...] = ()
    """The ranges that the task has read: partition, start, end."""
    dropped: int | None = None
    """How many records the source has dropped in this run, if this task reports it."""


class StepReport(Message, frozen=True):
    """The result of a batch in a key group of a step, and the rows it holds."""

    step: str
    watermark: int
    rows: int
    late: int
    now: int
    notes: tuple[str, ...] = ()
    """Notices for the user."""
    passed_on: int | None = None
    """The watermark that it passes on."""
    size_bytes: int = 0
    """The size of the rows it holds."""


class RowsReport(Message, frozen=True):
    """By step, the number of rows that came out of it in a task."""

    rows: dict[str, int]
    origin: str = ""
    """The source or the stateful step before them."""


class DiscardReport(Message, frozen=True):
    """By output, the number of rows that tasks discarded."""

    rows: dict[str, int]


class PreparedReport(Message, frozen=True):
    """The rows of an output that a task has prepared, and what its sink needs to commit them."""

    output: str
    rows: int
    receipt: Any


Report = SourceReport | StepReport | RowsReport | DiscardReport | PreparedReport

_controls: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


_origins: msgspec.msgpack.Decoder[RowsOrigin] = msgspec.msgpack.Decoder(RowsOrigin)


def to_bytes(message: Control | Report | RowsOrigin) -> bytes:
    return msgspec.msgpack.encode(message)


def control_from_bytes(blob: bytes) -> Control:
    return _controls.decode(blob)


def report_from_bytes(blob: bytes) -> Report:
    return _reports.decode(blob)


def origin_from_bytes(blob: bytes) -> RowsOrigin:
    return _origins.decode(blob)
