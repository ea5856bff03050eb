"""The logical plan: frozen nodes. Each has a stable name, its output columns, and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from millstream.expressions.expression import Expression
from millstream.expressions.spark_types import INSTANT as INSTANT
from millstream.plan.aggregates.basic import Aggregate
from millstream.plan.steps.retries import Retry
from millstream.plan.time.triggers import Trigger
from millstream.plan.time.watermarks import Watermark
from millstream.plan.time.windows import Window
from millstream.records import Codec, Schema, format_duration

COMPUTED = "__computed_"
"""The prefix of hidden columns, which are computed for the step behind them."""
SPAN = pa.struct([("start", INSTANT), ("end", INSTANT)])
PANE = pa.struct(
    [
        ("timing", pa.string()),
        ("index", pa.int64()),
        ("on_time_index", pa.int64()),
        ("first", pa.bool_()),
        ("last", pa.bool_()),
    ]
)


class Mode(Enum):
    """How the panes of a window relate."""

    DISCARDING = "discarding"
    ACCUMULATING = "accumulating"
    RETRACTING = "retracting"


class RowOrder(Enum):
    """In which order `process` is called with the rows of a key."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event_time"


class PaneTime(Enum):
    """The event time of a pane."""

    END_OF_WINDOW = "end_of_window"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, eq=False)
class Node:
    name: str
    schema: Schema
    inputs: tuple[Node, ...]
    user_line: str | None = field(repr=False)
    """Where the user wrote the step: file and line."""
    per_batch_state: bool = field(default=False, kw_only=True)
    """Whether a stateful step forgets its state after each batch: its rows belong to requests, which end with it."""
    keeps_state: ClassVar[bool] = False
    broadcast_input: ClassVar[int | None] = None
    """The number of the input whose rows are for every key, if there is one."""

    @property
    def label(self) -> str:
        """What the step does, in one line."""
        return type(self).__name__.lower()

    @property
    def state_label(self) -> str:
        """What its state depends on, in one line: a step that differs in nothing else continues with it."""
        return self.label

    @property
    def awaited_inputs(self) -> int:
        """How many inputs, from the first, hold back the watermark."""
        return len(self.inputs)

    @property
    def is_changing(self) -> bool:
        """Whether its rows may be retracted."""
        return self._follows_changes

    @property
    def is_table(self) -> bool:
        """Whether its rows are changes of a table: a retraction has a later time than the row it retracts."""
        return self._follows_a_table

    def check_in_job(self) -> None:
        """Raises an error if the step is possible in a test, but not in a job, whose rows never end."""

    # A plan may have many paths between two steps: properties derived from the inputs are cached.

    @cached_property
    def _follows_changes(self) -> bool:
        return any(given.is_changing for given in self.inputs)

    @cached_property
    def _follows_a_table(self) -> bool:
        return any(given.is_table for given in self.inputs)


@dataclass(frozen=True, eq=False)
class StreamNode(Node):
    """The base of steps that make a stream even of a table."""

    @property
    def is_table(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class Read(Node):
    source: Any  # an Endpoint; a Connector when the flow runs
    event_time: str | None
    watermark: Watermark | None
    changes: bool = False
    """Whether its rows have weights: one of weight -1 retracts an equal row."""
    on_lost: str = "error"
    """What to do if records of a topic were deleted before they were read."""
    loop: bool = False
    """Whether the flow may also write what it reads here."""

    @property
    def is_changing(self) -> bool:
        return self.changes

    @property
    def label(self) -> str:
        terms = f" ({self.source.terms})" if self.source.terms else ""
        return f"read {self.source}{terms}{self._time}"

    @property
    def state_label(self) -> str:
        return f"read {self.source}{self._time}"

    @property
    def _time(self) -> str:
        return f" by {self.event_time}, {self.watermark}" if self.event_time else ""


@dataclass(frozen=True, eq=False)
class WithEventTime(Node):
    """Sets the event time of rows; the watermark of their sources follows from it."""

    event_time: str
    time: Expression
    watermark: Watermark
    follows_rows: bool
    """Whether a watermark was given: in a test, only then do rows move it."""

    @property
    def label(self) -> str:
        return f"event time {self.event_time}, {self.watermark}"


@dataclass(frozen=True, eq=False)
class Where(Node):
    condition: Expression

    @property
    def label(self) -> str:
        return f"where {self.condition}"


@dataclass(frozen=True, eq=False)
class Project(Node):
    columns: tuple[tuple[str, Expression], ...]

    @property
    def label(self) -> str:
        shown = [name if str(made) == f"`{name}`" else f"{made} as {name}" for name, made in self.columns]
        return f"select {', '.join(shown)}"


@dataclass(frozen=True, eq=False)
class Mapped(Node):
    """A step that makes rows of single rows, and dead letters of those that it cannot handle."""


@dataclass(frozen=True, eq=False)
class MapRows(Mapped):
    """A user's function of a row or a batch, which returns one row (or batch), none, or several."""

    function: Callable[..., Any]
    per_batch: bool
    flat: bool
    batch_type: str = "polars"
    """How a batch is passed: "polars", "pandas" or "arrow". Any of them may be returned."""

    @property
    def label(self) -> str:
        verb = "flat_map" if self.flat else "map"
        per = f" per {self.batch_type} batch" if self.per_batch else ""
        return f"{verb} {_name_of(self.function)}{per}"


@dataclass(frozen=True, eq=False)
class Parse(Mapped):
    """Replaces a column with the columns that are encoded in it; those of a null are null."""

    column: str
    codec: Codec

    @property
    def label(self) -> str:
        return f"parse {self.column} as {self.codec.name}: {self.codec.schema}"


@dataclass(frozen=True, eq=False)
class MapAsync(Mapped):
    """A user's function of a row that waits for another system, called for many rows at the same time."""

    function: Callable[..., Any]
    concurrency: int
    timeout: timedelta | None
    retries: int
    ordered: bool

    @property
    def label(self) -> str:
        limit = "" if self.timeout is None else f", {format_duration(self.timeout)} each"
        order = "" if self.ordered else ", in any order"
        return (
            f"map_async {_name_of(self.function)}, {self.concurrency} at a time{limit}, {self.retries} retries{order}"
        )


@dataclass(frozen=True, eq=False)
class Union(Node):
    """The rows of all inputs."""


@dataclass(frozen=True, eq=False)
class WindowedAggregate(StreamNode):
    """The four questions: what (aggregates), where (window), when (trigger), how (mode)."""

    keys: tuple[str, ...]
    window: Window
    lateness: timedelta
    pane_time: PaneTime
    trigger: Trigger
    mode: Mode
    aggregates: tuple[tuple[str, Aggregate], ...]
    arguments: tuple[tuple[str, Expression], ...]
    """The arguments of the aggregates and the window: expressions over the input rows, by name."""
    until_expiry: bool = False
    """Whether the last pane of a window is retracted when the window expires."""
    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return self.mode is Mode.RETRACTING

    @property
    def label(self) -> str:
        what = ", ".join(f"{name}={made}" for name, made in self.aggregates)
        keys = f" per {', '.join(self.keys)}" if self.keys else ""
        late = f", lateness {format_duration(self.lateness)}" if self.lateness else ""
        time = f", at {self.pane_time.value}" if self.pane_time is not PaneTime.END_OF_WINDOW else ""
        until = " until expiry" if self.until_expiry else ""
        return f"{what}{keys} in {self.window}{late}{time} when {self.trigger}, {self.mode.value}{until}"


@dataclass(frozen=True, eq=False)
class Process(StreamNode):
    """A user's function of each row and its key, which has state and timers."""

    keys: tuple[str, ...]
    function: Callable[..., Any]
    on_timer: Callable[..., Any] | None
    event_time: str | None
    """The result's event time column; by default, results have the event time of the row or the timer."""
    order: RowOrder = RowOrder.ARRIVAL
    keeps_state: ClassVar[bool] = True

    @property
    def label(self) -> str:
        timers = f", timers to {_name_of(self.on_timer)}" if self.on_timer else ""
        time = f", by {self.event_time}" if self.event_time else ""
        order = ", in order of event time" if self.order is RowOrder.EVENT_TIME else ""
        keys = f" per {', '.join(self.keys)}" if self.keys else ""
        return f"process {_name_of(self.function)}{keys}{timers}{time}{order}"


@dataclass(frozen=True, eq=False)
class PredictLive(StreamNode):
    """Scores the rows of its first input with the newest model of the second; null before the first one."""

    features: tuple[str, ...]
    into: str
    keeps_state: ClassVar[bool] = True
    broadcast_input: ClassVar[int | None] = 1

    @property
    def awaited_inputs(self) -> int:
        return 1

    @property
    def label(self) -> str:
        return f"predict {self.into} from {', '.join(self.features)} with the newest model"


@dataclass(frozen=True, eq=False)
class Late(StreamNode):
    """The rows that arrived too late for its input."""

    @property
    def is_changing(self) -> bool:
        return any(given.is_changing for given in self.inputs[0].inputs)

    @property
    def label(self) -> str:
        return "late rows"


@dataclass(frozen=True, eq=False)
class Dead(StreamNode):
    """The rows that its input could not handle."""

    @property
    def label(self) -> str:
        return "dead letters"


@dataclass(frozen=True, eq=False)
class Write(Node):
    sink: Any  # like Read.source
    net: bool = False
    """Whether a batch is the net change of a table: each row once, retractions first."""
    keys: tuple[str, ...] = ()
    """The key of the table, if it has one."""
    traced: bool = False
    """Whether the sink may reject single rows, so that their origin must be tracked."""
    partitions: int | None = None
    """For a topic that does not exist yet. Default: as many as the largest input topic has."""
    retry: Retry | None = None
    """How long to try while the sink is unavailable. Default: until it is available, or the job is stopped."""

    @property
    def is_changing(self) -> bool:
        """A table is written with weights, even if no row is ever retracted: n equal rows are one of weight n."""
        return self.net or super().is_changing

    @property
    def is_discarded(self) -> bool:
        """Whether its rows only need to be counted."""
        return bool(self.sink.only_counts)

    @property
    def label(self) -> str:
        partitions = ""
        if self.partitions is not None:
            partitions = f", {self.partitions} partition{'s' if self.partitions > 1 else ''}"
        terms = f" ({self.sink.terms})" if self.sink.terms else ""
        return f"write {self.sink}{terms}{partitions}{'' if self.retry is None else f', {self.retry}'}"


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "function")
