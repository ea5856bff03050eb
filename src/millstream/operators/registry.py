"""The step that implements each stateful node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.operators.joins.interval_join import IntervalJoinStep
from millstream.operators.joins.lookup_join import LookupJoinStep
from millstream.operators.joins.matched_side_join import MatchedSideJoinStep
from millstream.operators.joins.table_join import TableJoinStep
from millstream.operators.joins.window_join import WindowJoinStep
from millstream.operators.live_models import PredictLiveStep
from millstream.operators.ordered_process import process_step
from millstream.operators.patterns.rules_step import RulesStep
from millstream.operators.patterns.step import MatchStep
from millstream.operators.stateful import Stateful
from millstream.operators.stored_queries import MatchQueriesStep
from millstream.operators.tables.captured_rows import CapturedRowsStep
from millstream.operators.tables.distinct import DistinctStep
from millstream.operators.tables.grouped import GroupedStep
from millstream.operators.tables.latest import LatestStep
from millstream.operators.tables.take import TakeStep
from millstream.operators.tables.top import TopStep
from millstream.plan import nodes, table_nodes
from millstream.plan.captured_rows import CapturedRows
from millstream.plan.nodes import Node
from millstream.plan.patterns.node import Match, MatchRules
from millstream.plan.search.node import MatchQueries

STEPS: dict[type[Node], Callable[[Any], Stateful]] = {
    nodes.Process: process_step,
    Match: MatchStep,
    MatchRules: RulesStep,
    MatchQueries: MatchQueriesStep,
    nodes.PredictLive: PredictLiveStep,
    table_nodes.Grouped: GroupedStep,
    table_nodes.Distinct: DistinctStep,
    table_nodes.Latest: LatestStep,
    CapturedRows: CapturedRowsStep,
    table_nodes.Take: TakeStep,
    table_nodes.Top: TopStep,
    table_nodes.TableJoin: TableJoinStep,
    table_nodes.LookupJoin: LookupJoinStep,
    table_nodes.MatchedSideJoin: MatchedSideJoinStep,
    table_nodes.IntervalJoin: IntervalJoinStep,
    table_nodes.WindowJoin: WindowJoinStep,
}
