"""The stateless steps of a plan: each takes one bundle per input and returns one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millstream.errors import ExpressionFailed
from millstream.expressions.clock import NOW
from millstream.expressions.expression import evaluate
from millstream.plan import nodes, table_nodes
from millstream.plan.bad_rows import expression_reason
from millstream.plan.batches import batch_given, batch_returned
from millstream.plan.captured_rows import CapturedRows
from millstream.plan.nodes import Node
from millstream.plan.patterns.node import Match, MatchRules
from millstream.plan.search.node import MatchQueries
from millstream.plan.steps.outside_calls import answers
from millstream.plan.steps.parsing import decoded
from millstream.plan.time.bundles import AHEAD, Bundle, Row, micros, moment, table_of
from millstream.records import batch_to_rows, rows_to_batch
from millstream.reference.captured_rows import CapturedRowsOperator
from millstream.reference.grouped import GroupedOperator
from millstream.reference.live_models import PredictLiveOperator
from millstream.reference.operator import Operator, dead_letter, timed_at
from millstream.reference.patterns.rules import RulesOperator
from millstream.reference.patterns.step import MatchOperator
from millstream.reference.process import OrderedProcessOperator, ProcessOperator
from millstream.reference.stored_queries import QueriesOperator
from millstream.reference.stream_joins import IntervalJoinOperator, WindowJoinOperator
from millstream.reference.table_joins import LookupJoinOperator, SideJoinOperator, TableJoinOperator
from millstream.reference.tables import DistinctOperator, LatestOperator, TakeOperator, TopOperator, computed
from millstream.reference.windows import WindowOperator


def _with_clock(rows: pa.Table, clock: int) -> pa.Table:
    """Rows with the column that `current_timestamp()` reads."""
    return rows.append_column(pa.field(NOW, nodes.INSTANT), pa.array([moment(clock)] * len(rows), nodes.INSTANT))


class ExpressionOperator(Operator):
    """A row that an expression fails on is a dead letter."""

    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        self.dead = []
        try:
            return self.evaluated(rows, clock)
        except ExpressionFailed:
            return [made for row in rows for made in self._alone(row, clock)]

    def _alone(self, row: Row, clock: int) -> list[Row]:
        try:
            return self.evaluated([row], clock)
        except ExpressionFailed as error:
            self.dead.append(dead_letter(row, expression_reason(self.node, error), clock))
            return []

    def evaluated(self, rows: list[Row], clock: int) -> list[Row]:
        raise NotImplementedError


class WhereOperator(ExpressionOperator):
    node: nodes.Where

    def evaluated(self, rows: list[Row], clock: int) -> list[Row]:
        if not rows:
            return []
        held = evaluate({"holds": self.node.condition.lowered}, _with_clock(table_of(rows, self.node.inputs[0]), clock))
        return [row for row, holds in zip(rows, held.column("holds").to_pylist(), strict=True) if holds]


class ProjectOperator(ExpressionOperator):
    node: nodes.Project

    def evaluated(self, rows: list[Row], clock: int) -> list[Row]:
        if not rows:
            return []
        given = _with_clock(table_of(rows, self.node.inputs[0]), clock)
        made = evaluate({name: made.lowered for name, made in self.node.columns}, given)
        values = batch_to_rows(made.combine_chunks().to_batches()[0])
        several = next((name for name, made in self.node.columns if made.makes_rows), None)
        if several is None:
            return [replace(row, values=new) for row, new in zip(rows, values, strict=True)]
        return [
            replace(row, values={**new, several: element})
            for row, new in zip(rows, values, strict=True)
            for element in new[several] or ()
        ]


class MapOperator(Operator):
    node: nodes.MapRows

    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        self.dead = []
        made: list[Row] = []
        for row in rows:
            try:
                made += [replace(row, values=values) for values in self._results(row)]
            except Exception as error:  # whatever a user's function raises: the row becomes a dead letter
                self.dead.append(dead_letter(row, f"{self.node.name}: {type(error).__name__}: {error}", clock))
        return made

    def _results(self, row: Row) -> list[dict[str, Any]]:
        if self.node.per_batch:
            table = table_of([row], self.node.inputs[0])
            given = batch_returned(self.node.function(batch_given(table, self.node)), self.node).to_pylist()
        else:
            result = self.node.function(dict(row.values))
            given = list(result) if self.node.flat else ([] if result is None else [result])
        batch, failures = rows_to_batch(given, self.node.schema)
        if failures:
            raise ValueError(failures[0].reason)
        return batch_to_rows(batch)


class WithEventTimeOperator(Operator):
    node: nodes.WithEventTime

    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        times = [None if time is None else micros(time) for time in computed(self.node.time, rows, self.node)]
        return [replace(row, time=timed_at(time, self.node, clock)) for row, time in zip(rows, times, strict=True)]


class ParseOperator(Operator):
    node: nodes.Parse

    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        self.dead = []
        made: list[Row] = []
        kind = self.node.inputs[0].schema.field(self.node.column).type
        for row in rows:
            rest = {name: value for name, value in row.values.items() if name != self.node.column}
            value = row.values[self.node.column]
            batch, _, reasons = decoded(pa.array([value], kind), self.node)
            if reasons:
                letter = dead_letter(row, f"{self.node.name}: {reasons[0]}", clock)
                original = value.encode() if isinstance(value, str) else value
                self.dead.append(replace(letter, values={**letter.values, "value": original}))
            else:
                made.append(replace(row, values={**rest, **batch_to_rows(batch)[0]}))
        return made


class AsyncOperator(Operator):
    """One row after the other."""

    node: nodes.MapAsync

    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        self.dead = []
        made: list[Row] = []
        for row in rows:
            (answer,) = answers(self.node, [row.values])
            made += [replace(row, values=values) for values in answer.rows]
            if answer.failure is not None:
                self.dead.append(dead_letter(row, f"{self.node.name}: {answer.failure}", clock))
        return made


class AsOfOperator(Operator):
    """A change without a time has always been valid."""

    node: table_nodes.AsOf

    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        return [row for row in rows if row.time is None or row.time <= self.node.time]


class ChangesOperator(Operator):
    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        times = [None if row.time == AHEAD else moment(row.time) for row in rows]  # too far ahead: no event time
        return [
            Row({**row.values, "weight": row.weight, "event_time": time}, row.time)
            for row, time in zip(rows, times, strict=True)
        ]


class AggregateOperator(Operator):
    def __init__(self, node: nodes.WindowedAggregate) -> None:
        super().__init__(node)
        self.windows = WindowOperator(node)

    def step(self, bundles: Sequence[Bundle]) -> Bundle:
        sent = self.windows.step(bundles[0])
        self.late = self.windows.late
        return sent


class ProcessStep(Operator):
    def __init__(self, node: nodes.Process) -> None:
        super().__init__(node)
        in_order = node.order is nodes.RowOrder.EVENT_TIME
        self.process = OrderedProcessOperator(node) if in_order else ProcessOperator(node)

    def step(self, bundles: Sequence[Bundle]) -> Bundle:
        sent = self.process.step(bundles[0])
        self.dead, self.late = self.process.dead, self.process.late
        return sent


OPERATORS: dict[type[Node], Callable[[Any], Operator]] = {
    nodes.Where: WhereOperator,
    nodes.Project: ProjectOperator,
    nodes.WithEventTime: WithEventTimeOperator,
    nodes.MapRows: MapOperator,
    nodes.Parse: ParseOperator,
    nodes.MapAsync: AsyncOperator,
    nodes.Union: Operator,
    nodes.Write: Operator,
    nodes.WindowedAggregate: AggregateOperator,
    nodes.Process: ProcessStep,
    Match: MatchOperator,
    MatchRules: RulesOperator,
    MatchQueries: QueriesOperator,
    nodes.PredictLive: PredictLiveOperator,
    table_nodes.AllRows: Operator,
    table_nodes.Grouped: GroupedOperator,
    table_nodes.AsOf: AsOfOperator,
    table_nodes.Changes: ChangesOperator,
    table_nodes.Latest: LatestOperator,
    CapturedRows: CapturedRowsOperator,
    table_nodes.Distinct: DistinctOperator,
    table_nodes.Take: TakeOperator,
    table_nodes.Top: TopOperator,
    table_nodes.TableJoin: TableJoinOperator,
    table_nodes.LookupJoin: LookupJoinOperator,
    table_nodes.SideJoin: SideJoinOperator,
    table_nodes.IntervalJoin: IntervalJoinOperator,
    table_nodes.WindowJoin: WindowJoinOperator,
}
