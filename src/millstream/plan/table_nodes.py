"""The nodes of tables and joins. A table is the sum of the weights of its rows; as of a time, of those up to then.

A change of a table has the event time from which it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal

import pyarrow as pa

from millstream.expressions.expression import Expression
from millstream.plan.aggregates import Aggregate
from millstream.plan.nodes import Node
from millstream.plan.windows import Window
from millstream.records import format_duration

How = Literal["inner", "left", "right", "full", "semi", "anti"]
HOWS: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
Columns = tuple[tuple[str, str], ...]
"""Names in what a join gives, each with the column of one of its inputs."""


@dataclass(frozen=True, eq=False)
class Latest(Node):
    """A stream as a table: per key the row with the newest event time, or the last to come where rows have none."""

    keys: tuple[str, ...]
    deleted: Expression | None
    """For which rows it holds, these delete their key; without it, those whose `values` are all null."""
    values: tuple[str, ...]
    by_time: bool
    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return True

    @property
    def is_table(self) -> bool:
        return True

    @property
    def label(self) -> str:
        deleted = f", deleted where {self.deleted}" if self.deleted else ""
        return f"latest per {', '.join(self.keys)}{deleted}"


@dataclass(frozen=True, eq=False)
class AllRows(Node):
    """A stream as a table without a key: each row is there as often as it came, less those that were taken back."""

    @property
    def is_table(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return "all rows"


@dataclass(frozen=True, eq=False)
class Grouped(Node):
    """Aggregates per key over all rows that are not taken back; a key without rows has no row."""

    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    arguments: tuple[tuple[str, Expression], ...]
    """Expressions over the input rows that the aggregates are fed with, by name."""
    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return True

    @property
    def is_table(self) -> bool:
        return True

    @property
    def label(self) -> str:
        what = ", ".join(f"{name}={made}" for name, made in self.aggregates)
        return what + (f" per {', '.join(self.keys)}" if self.keys else " over all rows")


@dataclass(frozen=True, eq=False)
class Changes(Node):
    """A table as a stream: each change is a row, with columns `weight` and `event_time`, that is never taken back."""

    @property
    def is_changing(self) -> bool:
        return False

    @property
    def is_table(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return "changes of the table"


@dataclass(frozen=True, eq=False)
class AsOf(Node):
    """A table as it was at a time, in whole microseconds since 1970: the changes up to then."""

    time: int
    said: str

    @property
    def is_table(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return f"as of {self.said}"


@dataclass(frozen=True, eq=False)
class Distinct(Node):
    """Of rows alike in the keys: of a stream the first to come, of a table one for as long as there is one."""

    keys: tuple[str, ...]
    within: timedelta | None
    """Rows as far apart in event time as this, or further, are not alike. Only of a stream."""
    keeps_state: ClassVar[bool] = True

    @property
    def is_table(self) -> bool:
        return self.is_changing or super().is_table

    @property
    def label(self) -> str:
        within = "" if self.within is None else f" within {format_duration(self.within)}"
        return f"distinct {', '.join(self.keys)}{within}"


@dataclass(frozen=True, eq=False)
class Take(Node):
    """The first rows of a stream, or the first of each key, in order of arrival."""

    count: int
    keys: tuple[str, ...]
    keeps_state: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"take {self.count}" + (f" per {', '.join(self.keys)}" if self.keys else "")


@dataclass(frozen=True)
class Order:
    """By what rows are ordered: nulls stand last, whichever the direction."""

    by: Expression
    descending: bool

    def __str__(self) -> str:
        return f"{self.by} desc" if self.descending else str(self.by)


@dataclass(frozen=True, eq=False)
class Top(Node):
    """The first rows of each group in an order; rows equal in it stand in the order of all their columns.

    With ties they stand in the same place, one behind all rows before them: all of them are in, or none.
    """

    count: int
    keys: tuple[str, ...]
    order: tuple[Order, ...]
    rank: str | None
    """The name of the column that holds a row's place, from 1."""
    ties: bool
    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return True

    @property
    def is_table(self) -> bool:
        return True

    @property
    def label(self) -> str:
        per = f" per {', '.join(self.keys)}" if self.keys else ""
        rank = f", place in {self.rank}" if self.rank else ""
        ties = " with ties" if self.ties else ""
        return f"top {self.count}{ties}{per} by {', '.join(map(str, self.order))}{rank}"


@dataclass(frozen=True, eq=False)
class Join(Node):
    """What joins have in common: rows of two inputs that are equal in pairs of columns. Null equals nothing."""

    on: Columns
    """A column of the first input and one of the second."""
    how: How
    left: Columns
    right: Columns
    """The columns of the first input and those of the second, under the names they have in what the join gives.

    A column that both name in `on` stands in `left`, and has the other's value where there is no row of the first.
    Of a semi or an anti join only those in `left` are given.
    """

    @property
    def _on(self) -> str:
        return ", ".join(one if one == other else f"{one} = {other}" for one, other in self.on)


@dataclass(frozen=True, eq=False)
class IntervalJoin(Join):
    """Two streams: the time of the first's row minus that of the second's lies between two durations, both included."""

    low: timedelta
    high: timedelta
    lateness: timedelta
    keeps_state: ClassVar[bool] = True

    @property
    def label(self) -> str:
        late = f", lateness {format_duration(self.lateness)}" if self.lateness else ""
        low, high = (format_duration(abs(each)) for each in (self.low, self.high))
        between = f"{'-' if self.low < timedelta(0) else ''}{low} to {'-' if self.high < timedelta(0) else ''}{high}"
        return f"{self.how} join on {self._on} within {between}{late}"


@dataclass(frozen=True, eq=False)
class WindowJoin(Join):
    """Two streams: rows that lie in the same window. The answer is sent once, when the window is over.

    `right` does not name a column `window`; the join gives one, the span of the window.
    """

    window: Window
    lateness: timedelta
    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return False

    @property
    def label(self) -> str:
        late = f", lateness {format_duration(self.lateness)}" if self.lateness else ""
        return f"{self.how} join on {self._on} in {self.window}{late}"


@dataclass(frozen=True, eq=False)
class TableJoin(Join):
    """Two tables, kept up to date."""

    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return True

    @property
    def is_table(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return f"{self.how} join of tables on {self._on}"


@dataclass(frozen=True, eq=False)
class LookupJoin(Join):
    """A stream and a table: each row of the stream with the table as it was at its event time, or as it is now."""

    at_event_time: bool
    keeps_state: ClassVar[bool] = True

    @property
    def awaited_inputs(self) -> int:
        return 2 if self.at_event_time else 1

    @property
    def is_changing(self) -> bool:
        return self.inputs[0].is_changing

    @property
    def is_table(self) -> bool:
        return self.inputs[0].is_table

    @property
    def label(self) -> str:
        return f"{self.how} join on {self._on} as of {'its event time' if self.at_event_time else 'now'}"


@dataclass(frozen=True, eq=False)
class SideJoin(Join):
    """A stream and rows that are known beforehand and do not change. It has one input and keeps nothing."""

    rows: pa.Table
    said: str

    @property
    def label(self) -> str:
        return f"{self.how} join on {self._on} with {self.said}"
