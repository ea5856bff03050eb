"""The rows of a captured table: the newest of each key, and a truncation deletes all keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.expressions.expression import Expression, expression
from millstream.plan.stream import Stream
from millstream.plan.table_nodes import Latest
from millstream.plan.tables import Table
from millstream.user_lines import users_line


@dataclass(frozen=True, eq=False)
class CapturedRows(Latest):
    emptied: Expression = field(kw_only=True)
    """Rows that satisfy it delete all keys, also those that other partitions of the source have."""
    places: tuple[str, ...] = field(kw_only=True)
    """Columns that order rows with equal event time, before they are ordered by arrival; nulls come first."""

    @property
    def label(self) -> str:
        return f"{super().label}, emptied where {self.emptied}"


def captured_rows(stream: Stream, key: Sequence[str], deleted: str, emptied: str, places: Sequence[str]) -> Table:
    """The table of a stream with event time whose rows are changes."""
    conditions = [expression(each, stream.schema, boolean=True) for each in (deleted, emptied)]
    node = CapturedRows(
        "",
        stream.schema,
        (stream.node,),
        users_line(),
        keys=tuple(key),
        deleted=conditions[0],
        values=(),
        by_time=True,
        emptied=conditions[1],
        places=tuple(places),
    )
    return Table(stream.flow, stream.flow.named(node, "to_table", None), tuple(key))
