"""The schema of late rows. Which rows are late is decided in operators/lateness.py."""

from __future__ import annotations

import pyarrow as pa

from millstream.plan.nodes import COMPUTED, SPAN, Node, Process, RowOrder, WindowedAggregate
from millstream.plan.patterns.node import Match, MatchRules
from millstream.plan.search.node import MatchQueries
from millstream.plan.table_nodes import Distinct, IntervalJoin, Join, Latest, LookupJoin, WindowJoin

REASON = pa.field("reason", pa.string())
WINDOW = pa.field("window", SPAN)
SIDE = pa.field("side", pa.string())


def late_columns(node: Node) -> pa.Schema | None:
    """The input row and the reason; for a join, the columns of both sides and the side. None: no late rows."""
    if isinstance(node, WindowedAggregate):
        return pa.schema([*_without(node.inputs[0].schema.arrow, "window", "reason"), WINDOW, REASON])
    if (
        (isinstance(node, Latest) and node.by_time)
        or (isinstance(node, Distinct) and node.within is not None)
        or (isinstance(node, Process) and node.order is RowOrder.EVENT_TIME)
        or isinstance(node, Match | MatchRules | MatchQueries)
    ):
        return pa.schema([*_without(node.inputs[0].schema.arrow, "reason"), REASON])
    if isinstance(node, IntervalJoin | WindowJoin) or (isinstance(node, LookupJoin) and node.at_event_time):
        added = [SIDE, WINDOW, REASON] if isinstance(node, WindowJoin) else [SIDE, REASON]
        return pa.schema([*_without(pa.schema(_either(node)), *(field.name for field in added)), *added])
    return None


def _either(node: Join) -> list[pa.Field]:
    """The columns of both sides, all nullable."""
    return [
        (node.schema if name in node.schema else given.schema)
        .field(name if name in node.schema else column)
        .with_name(name)
        .with_nullable(True)
        for given, columns in zip(node.inputs[:2], (node.left, node.right), strict=True)
        for name, column in columns
    ]


def _without(schema: pa.Schema, *names: str) -> list[pa.Field]:
    return [field for field in schema if field.name not in names and not field.name.startswith(COMPUTED)]
