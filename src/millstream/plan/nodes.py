"""The plan: frozen nodes that say what a flow means. Each has a stable name, the columns it gives, and its inputs."""

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
from millstream.plan.aggregates import Aggregate
from millstream.plan.endpoints import Discard
from millstream.plan.triggers import Trigger
from millstream.plan.watermarks import Watermark
from millstream.plan.windows import Window
from millstream.records import Schema, format_duration

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


class PaneTime(Enum):
    """Which event time a pane has."""

    END_OF_WINDOW = "end_of_window"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, eq=False)
class Node:
    name: str
    schema: Schema
    inputs: tuple[Node, ...]
    place: str | None = field(repr=False)
    keeps_state: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """What the step does, in one line."""
        return type(self).__name__.lower()

    @property
    def awaited_inputs(self) -> int:
        """Of how many inputs, from the first on, the watermarks count."""
        return len(self.inputs)

    @property
    def is_changing(self) -> bool:
        """Whether rows of it may be taken back."""
        return self._follows_changes

    @property
    def is_table(self) -> bool:
        """Whether its rows are changes of a table: one that takes a row back holds from a later time than that row."""
        return self._follows_a_table

    # A plan may have many ways from one step to another: what a step knows by those before it, it finds out once.

    @cached_property
    def _follows_changes(self) -> bool:
        return any(given.is_changing for given in self.inputs)

    @cached_property
    def _follows_a_table(self) -> bool:
        return any(given.is_table for given in self.inputs)


@dataclass(frozen=True, eq=False)
class Read(Node):
    source: Any
    event_time: str | None
    watermark: Watermark | None
    changes: bool = False
    """Whether its rows have weights: one of weight -1 takes an equal row back."""
    on_lost: str = "error"
    """What to do when records of a topic were deleted before they were read."""

    @property
    def is_changing(self) -> bool:
        return self.changes

    @property
    def label(self) -> str:
        time = f" by {self.event_time}, {self.watermark}" if self.event_time else ""
        return f"read {self.source}{time}"


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
        said = [name if str(made) == f"`{name}`" else f"{made} as {name}" for name, made in self.columns]
        return f"select {', '.join(said)}"


@dataclass(frozen=True, eq=False)
class MapRows(Node):
    """A user's function: of a row or of a batch, to one row (or batch), to none, or to several."""

    function: Callable[..., Any]
    per_batch: bool
    flat: bool
    batch_type: str = "polars"
    """What a batch is given as: "polars", a DataFrame, or "arrow", a pyarrow Table. Either may be given back."""

    @property
    def label(self) -> str:
        verb = "flat_map" if self.flat else "map"
        per = f" per {self.batch_type} batch" if self.per_batch else ""
        return f"{verb} {_name_of(self.function)}{per}"


@dataclass(frozen=True, eq=False)
class Union(Node):
    @property
    def label(self) -> str:
        return "union"


@dataclass(frozen=True, eq=False)
class WindowedAggregate(Node):
    """The four questions: what (aggregates), where (window), when (trigger), how (mode)."""

    keys: tuple[str, ...]
    window: Window
    lateness: timedelta
    pane_time: PaneTime
    trigger: Trigger
    mode: Mode
    aggregates: tuple[tuple[str, Aggregate], ...]
    arguments: tuple[tuple[str, Expression], ...]
    """Expressions over the input rows that the aggregates and the window are fed with, by name."""
    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return self.mode is Mode.RETRACTING

    @property
    def is_table(self) -> bool:
        return False

    @property
    def label(self) -> str:
        what = ", ".join(f"{name}={made}" for name, made in self.aggregates)
        keys = f" per {', '.join(self.keys)}" if self.keys else ""
        late = f", lateness {format_duration(self.lateness)}" if self.lateness else ""
        time = f", at {self.pane_time.value}" if self.pane_time is not PaneTime.END_OF_WINDOW else ""
        return f"{what}{keys} in {self.window}{late}{time} when {self.trigger}, {self.mode.value}"


@dataclass(frozen=True, eq=False)
class Process(Node):
    """A user's function of each row and its key, which has state and timers."""

    keys: tuple[str, ...]
    function: Callable[..., Any]
    on_timer: Callable[..., Any] | None
    event_time: str | None
    """The column that holds the event time of what it gives; without one it is that of the row or of the timer."""
    keeps_state: ClassVar[bool] = True

    @property
    def is_table(self) -> bool:
        return False

    @property
    def label(self) -> str:
        timers = f", timers to {_name_of(self.on_timer)}" if self.on_timer else ""
        time = f", by {self.event_time}" if self.event_time else ""
        return f"process {_name_of(self.function)} per {', '.join(self.keys)}{timers}{time}"


@dataclass(frozen=True, eq=False)
class Late(Node):
    """The rows that came too late for its input."""

    @property
    def is_changing(self) -> bool:
        return any(given.is_changing for given in self.inputs[0].inputs)

    @property
    def is_table(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return "late rows"


@dataclass(frozen=True, eq=False)
class Dead(Node):
    """The rows that a step before could not handle."""

    @property
    def is_table(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return "dead letters"


@dataclass(frozen=True, eq=False)
class Write(Node):
    sink: Any
    net: bool = False
    """Whether a batch of it is what changed in a table all in all: each row once, what is taken back first."""
    keys: tuple[str, ...] = ()
    """The key of that table, if it has one."""
    traced: bool = False
    """Whether the sink may refuse single rows, so that it must be known where they came from."""
    partitions: int | None = None
    """Of the topic, if it does not exist yet. Default: as many as the largest topic has that feeds it."""

    @property
    def is_changing(self) -> bool:
        """What is written of a table has weights, even where none of its rows goes: equal rows are one, of weight n."""
        return self.net or super().is_changing

    @property
    def is_discarded(self) -> bool:
        """Whether its rows need only be counted."""
        return isinstance(self.sink, Discard)

    @property
    def label(self) -> str:
        if self.partitions is None:
            return f"write {self.sink}"
        return f"write {self.sink}, {self.partitions} partition{'s' if self.partitions > 1 else ''}"


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "function")
