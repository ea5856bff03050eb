"""Runs a plan in this process on the columnar operators: no JVM, for tests and small jobs.

A step is one bundle per source. Inside, rows are frames; they are single rows only at the edges, for tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from millstream.operators import elementwise, mapping
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock
from millstream.operators.elementwise import HIDDEN
from millstream.operators.lateness import with_ahead_marked, without_ahead
from millstream.operators.stateful import DEAD, EVERY_INPUT, LATE, SENT, TIMED_OUT, Stateful, held_for, stateful
from millstream.plan import nodes
from millstream.plan.bad_rows import listened_to, record_failed
from millstream.plan.nodes import Node
from millstream.plan.on_spark.needs_spark import check_without_spark
from millstream.plan.patterns.node import TimedOut
from millstream.plan.time.bundles import BEGINNING, Bundle, Row
from millstream.plan.time.late import late_columns
from millstream.plan.walking import before_state, in_order
from millstream.records import batch_to_rows
from millstream.state.sorted_run import HOLD
from millstream.state.tables import Table, Tables


@dataclass(frozen=True, slots=True)
class Flowing:
    """One step of a stream: its rows as a frame, the watermark and the clock."""

    rows: pl.DataFrame
    clock: Clock


class Local:
    """Runs the part of a plan that some nodes need, one step at a time."""

    def __init__(self, observed: Sequence[Node]) -> None:
        self.order = in_order(observed)
        check_without_spark(self.order)
        chained = before_state(self.order)  # a later windowed step needs their watermark
        self._states = {
            node: LocalState(step, passes_on=node in chained)
            for node in self.order
            if (step := stateful(node)) is not None
        }
        self._dead: dict[Node, pl.DataFrame] = {}
        self._listening = listened_to(self.order)

    def step(self, sources: Mapping[Node, Bundle]) -> dict[Node, Bundle]:
        """The output of every node in one step, given that of the sources, as rows."""
        given = {node: flowing_of(node, bundle) for node, bundle in sources.items()}
        return {node: bundle_of(node, flowing) for node, flowing in self.run(given).items()}

    def run(
        self, sources: Mapping[Node, Flowing], dead: Mapping[Node, pl.DataFrame] | None = None
    ) -> dict[Node, Flowing]:
        """The same, as frames. `dead` has the dead letters of sources."""
        sent: dict[Node, Flowing] = {}
        for node, letters in (dead or {}).items():
            self._dead[node] = letters
            self._check_dead(node, letters)
        for node in self.order:
            sent[node] = (
                sources[node] if isinstance(node, nodes.Read) else self._run(node, [sent[n] for n in node.inputs])
            )
        return sent

    def _run(self, node: Node, given: list[Flowing]) -> Flowing:
        first = given[0]
        if node in self._states:
            state = self._states[node]
            if late_columns(node) is None:
                given = [replace(flowing, rows=without_ahead(flowing.rows)) for flowing in given]
            sent = state.run(given, node.awaited_inputs)
            self._check_dead(node, state.sent.get(DEAD))
            return sent
        if isinstance(node, nodes.Late):
            return replace(first, rows=self._states[node.inputs[0]].sent[LATE])
        if isinstance(node, TimedOut):
            return replace(first, rows=self._states[node.inputs[0]].sent[TIMED_OUT])
        if isinstance(node, nodes.Dead) and node.inputs[0] in self._states:
            return replace(first, rows=self._states[node.inputs[0]].sent[DEAD])
        if isinstance(node, nodes.Dead):
            return replace(first, rows=self._dead.get(node.inputs[0], elementwise.frame_of([], None)))
        if type(node) in mapping.MAPPED:
            rows, self._dead[node] = mapping.mapped(first.rows, node, first.clock.now)
            self._check_dead(node, self._dead[node])
            return replace(first, rows=rows)
        if isinstance(node, nodes.Union):
            return _united(given)
        rows = elementwise.row_by_row(node, first.rows, first.clock.now)
        if isinstance(node, nodes.WithEventTime):
            rows = with_ahead_marked(rows, node, first.clock.now)
        return replace(first, rows=rows)

    def _check_dead(self, node: Node, dead: pl.DataFrame | None) -> None:
        """A record that a step cannot process stops the run, unless a sink takes the step's dead letters."""
        if dead is not None and len(dead) and node not in self._listening:
            raise record_failed(node, dead.row(0, named=True))


class LocalState:
    """A stateful step with its tables in memory."""

    def __init__(self, step: Stateful, *, passes_on: bool) -> None:
        self._step = step
        self._passes_on = passes_on
        self._count = 0
        self._tables = Tables(step.keys, step.tables(), step.own_keys)
        self._passed_on = BEGINNING
        self.sent: dict[str, pl.DataFrame] = {}

    @property
    def tables(self) -> dict[str, Table]:
        """The current state, by table name."""
        return self._tables.tables

    def run(self, given: Sequence[Flowing], awaited_inputs: int | None = None) -> Flowing:
        step, fed = self._step, dict(self._step.nothing)
        for side, (name, coming) in enumerate(zip(EVERY_INPUT, given, strict=False)):
            fed[name] = step.fed(coming.rows, self._count, side)
            self._count += len(fed[name])
        return self.take(fed, _slowest(given[:awaited_inputs]))

    def take(self, fed: dict[str, pl.DataFrame], flowing: Clock) -> Flowing:
        """One step over what it is fed."""
        step = self._step
        clock = step.clock(flowing)
        changes, self.sent = step.step(held_for(step, self._tables, fed, clock), fed, clock)
        marks = step.marks(clock)
        if not self._passes_on:  # no later step needs the hold
            marks = {name: replace(each, hold=None) for name, each in marks.items()}
        change = self._tables.changed(changes, marks)
        self._tables.become(change.tables)
        passed_on, self._passed_on = self._passed_on, max(self._passed_on, min(clock.watermark, change.first[HOLD]))
        return Flowing(self.sent[SENT], replace(flowing, watermark_before=passed_on, watermark=self._passed_on))


def _slowest(given: Sequence[Flowing]) -> Clock:
    return replace(
        given[0].clock,
        watermark_before=min(flowing.clock.watermark_before for flowing in given),
        watermark=min(flowing.clock.watermark for flowing in given),
    )


def _united(given: Sequence[Flowing]) -> Flowing:
    return Flowing(pl.concat([flowing.rows for flowing in given], how="diagonal"), _slowest(given))


def flowing_of(node: Node, bundle: Bundle) -> Flowing:
    rows = [{**row.values, TIME: row.time, WEIGHT: row.weight} for row in bundle.rows]
    clock = Clock(bundle.watermark_before, bundle.watermark, bundle.clock_before, bundle.clock)
    return Flowing(elementwise.frame_of(rows, node), clock)


def bundle_of(node: Node, flowing: Flowing) -> Bundle:
    table = flowing.rows.drop(HIDDEN).select(node.schema.names).to_arrow().cast(node.schema.arrow)
    values = [row for batch in table.to_batches() for row in batch_to_rows(batch)]
    hidden = flowing.rows.select(HIDDEN).rows()
    rows = [Row(row, time, weight) for row, (time, weight) in zip(values, hidden, strict=True)]
    clock = flowing.clock
    return Bundle(rows, clock.watermark_before, clock.watermark, clock.now_before, clock.now)
