"""The nodes of tables and joins. A table is the sum of its changes; as of a time, of the changes up to then.

A change of a table is valid from its event time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from typing import ClassVar, Literal

import pyarrow as pa

from millstream.expressions.expression import Expression
from millstream.plan.aggregates.basic import Aggregate
from millstream.plan.nodes import COMPUTED, Node, Project, StreamNode
from millstream.plan.time.windows import Window
from millstream.records import format_duration

How = Literal["inner", "left", "right", "full", "semi", "anti"]
HOWS: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
Columns = tuple[tuple[str, str], ...]
"""Output columns of a join, each with its column in one of the inputs."""


@dataclass(frozen=True, eq=False)
class TableNode(Node):
    """The base of steps that make a table, even of a stream."""

    @property
    def is_table(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class KeptTable(TableNode):
    """The base of steps that keep state and retract the rows that it replaces.

    One that forgets its state after each batch never retracts: its rows are a stream.
    """

    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return not self.per_batch_state

    @property
    def is_table(self) -> bool:
        return not self.per_batch_state


@dataclass(frozen=True, eq=False)
class Latest(KeptTable):
    """A stream as a table: per key the row with the newest event time, or the last to arrive if rows have none."""

    keys: tuple[str, ...]
    deleted: Expression | None
    """Rows that satisfy it delete their key; without it, rows whose `values` are all null do."""
    values: tuple[str, ...]
    by_time: bool
    forget_after: timedelta | None = None
    """How far the watermark must be past a deletion before it is forgotten; None: it never is. By time only."""

    @property
    def label(self) -> str:
        deleted = f", deleted where {self.deleted}" if self.deleted else ""
        after = self.forget_after
        forgotten = "" if after is None else f", deleted keys forgotten after {format_duration(after)}"
        return f"latest per {', '.join(self.keys)}{deleted}{forgotten}"


@dataclass(frozen=True, eq=False)
class AllRows(TableNode):
    """A stream as a table without a key: every row that was not retracted, duplicates included."""

    @property
    def label(self) -> str:
        return "all rows"


@dataclass(frozen=True, eq=False)
class Grouped(KeptTable):
    """Aggregates per key over all rows that were not retracted; a key without rows has no result."""

    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    arguments: tuple[tuple[str, Expression], ...]
    """The arguments of the aggregates: expressions over the input rows, by name."""

    @property
    def label(self) -> str:
        what = ", ".join(f"{name}={made}" for name, made in self.aggregates)
        return what + (f" per {', '.join(self.keys)}" if self.keys else " over all rows")


@dataclass(frozen=True, eq=False)
class Changes(StreamNode):
    """A table as a stream: each change is a row with columns `weight` and `event_time`, and is never retracted."""

    @property
    def is_changing(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return "changes of the table"


@dataclass(frozen=True, eq=False)
class AsOf(TableNode):
    """A table as it was at a time, in whole microseconds since 1970: the changes up to then."""

    time: int
    description: str

    @property
    def label(self) -> str:
        return f"as of {self.description}"


@dataclass(frozen=True, eq=False)
class Distinct(Node):
    """One of the rows with equal keys: in a stream the first to arrive, in a table any, as long as there is one."""

    keys: tuple[str, ...]
    within: timedelta | None
    """Rows at least this far apart in event time are not duplicates. Streams only."""
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
    """An ordering of rows; nulls come last in either direction."""

    by: Expression
    descending: bool

    def __str__(self) -> str:
        return f"{self.by} desc" if self.descending else str(self.by)


@dataclass(frozen=True, eq=False)
class Top(KeptTable):
    """The first rows of each group in an order; ties are broken by all columns.

    With `ties`, equal rows share a rank, as SQL's RANK() does: either all of them are included or none.
    """

    count: int
    keys: tuple[str, ...]
    order: tuple[Order, ...]
    rank: str | None
    """The name of the rank column; ranks start at 1."""
    ties: bool

    @property
    def label(self) -> str:
        per = f" per {', '.join(self.keys)}" if self.keys else ""
        rank = f", place in {self.rank}" if self.rank else ""
        ties = " with ties" if self.ties else ""
        return f"top {self.count}{ties}{per} by {', '.join(map(str, self.order))}{rank}"


@dataclass(frozen=True)
class JoinCondition:
    """What pairs of rows must satisfy besides being equal in `on`; null does not satisfy it."""

    holds: Expression
    """Over the columns of both inputs, under their names in the output. One that needs Spark has an input."""
    columns: pa.Schema
    """The columns that it uses."""


@dataclass(frozen=True, eq=False)
class Join(Node):
    """The base of all joins: rows of two inputs that are equal in pairs of columns. Null equals nothing."""

    on: Columns
    """A column of the first input and one of the second."""
    how: How
    left: Columns
    right: Columns
    """The columns of the first and of the second input, under their names in the output.

    A column that both inputs have in `on` is in `left`, and has the second's value where there is no row of the first.
    A semi or anti join outputs only `left`.
    """
    condition: JoinCondition | None
    for_condition: bool = field(default=False, kw_only=True)
    """Whether its pairs only serve to find those that satisfy the condition of the join behind."""
    sides: ClassVar[int] = 2

    @property
    def matching(self) -> Node | None:
        """The step that finds the pairs that satisfy the condition, if the join does not evaluate it itself.

        It is the input after those that are joined, and has the columns of both.
        """
        return self.inputs[self.sides] if len(self.inputs) > self.sides else None

    @property
    def awaited_inputs(self) -> int:
        return self.sides

    @property
    def compared(self) -> tuple[Columns, Columns]:
        """The columns of each input that the condition uses, under their names in the output."""
        used = () if self.condition is None else self.condition.columns.names
        left, right = (tuple(pair for pair in columns if pair[0] in used) for columns in (self.left, self.right))
        return left, right

    @property
    def _on(self) -> str:
        pairs = [[_shown(*side) for side in zip_longest(self.inputs[: self.sides], pair)] for pair in self.on]
        shown = ", ".join(" = ".join(dict.fromkeys(pair)) for pair in pairs)
        return shown if self.condition is None else f"{shown} and ({self.condition.holds})"


def _shown(given: Node | None, column: str) -> str:
    """What an input is joined on, as it was written; static rows are no input."""
    if not column.startswith(COMPUTED) or not isinstance(given, Project):
        return column
    made = dict(given.columns).get(column)
    return column if made is None else made.spark


@dataclass(frozen=True, eq=False)
class IntervalJoin(Join):
    """Two streams: the first's event time minus the second's is between two durations, inclusive."""

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
    """Two streams: rows in the same window. The result is emitted once, when the window closes.

    `right` has no column `window`; the join adds one, the span of the window.
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
class TableJoin(KeptTable, Join):
    """Two tables, kept up to date."""

    @property
    def label(self) -> str:
        return f"{self.how} join of tables on {self._on}"


@dataclass(frozen=True, eq=False)
class LookupJoin(Join):
    """A stream and a table: each row of the stream with the table as of its event time, or as of now."""

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
    """A stream and static rows. It has one input and no state."""

    rows: pa.Table
    description: str
    sides: ClassVar[int] = 1

    @property
    def label(self) -> str:
        return f"{self.how} join on {self._on} with {self.description}"


@dataclass(frozen=True, eq=False)
class MatchedSideJoin(SideJoin):
    """The same, with an input for the pairs that satisfy the condition; it runs where steps with state do."""

    keeps_state: ClassVar[bool] = True
