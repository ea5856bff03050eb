"""Runs a plan in this process on the columnar operators: no JVM, for tests and small jobs.

A step is a bundle per source. Inside, rows travel as frames; only at the edges, for tests, are they single rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from millstream.operators import elementwise
from millstream.operators.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.elementwise import HIDDEN, computed
from millstream.operators.store import NEVER, Store
from millstream.operators.windowed import ROW, Clock, WindowedOperator
from millstream.plan import nodes
from millstream.plan.bundles import BEGINNING, END, Bundle, Row
from millstream.plan.nodes import Mode, Node
from millstream.records import batch_to_rows


@dataclass(frozen=True, slots=True)
class Flowing:
    """One step of a stream: its rows as a frame, and how far watermark and clock have come."""

    rows: pl.DataFrame
    clock: Clock


class Local:
    """Runs the part of a plan that some nodes need, a step at a time."""

    def __init__(self, observed: Sequence[Node]) -> None:
        self.order: list[Node] = []
        for node in observed:
            self._visit(node)
        self._windows: dict[Node, LocalWindows] = {
            node: LocalWindows(node, passes_on=self._is_chained(node))
            for node in self.order
            if isinstance(node, nodes.WindowedAggregate)
        }
        self._dead: dict[Node, pl.DataFrame] = {}

    def _visit(self, node: Node) -> None:
        for given in node.inputs:
            self._visit(given)
        if node not in self.order:
            self.order.append(node)

    def _is_chained(self, node: Node) -> bool:
        """Whether a step with windows comes after this one, and so needs to know its watermark."""
        followers = [follower for follower in self.order if node in follower.inputs]
        return any(
            isinstance(follower, nodes.WindowedAggregate) or self._is_chained(follower) for follower in followers
        )

    def step(self, sources: Mapping[Node, Bundle]) -> dict[Node, Bundle]:
        """What every node sends in one step, given what the sources send, row by row."""
        given = {node: _flowing(node, bundle) for node, bundle in sources.items()}
        return {node: _bundle(node, flowing) for node, flowing in self.run(given).items()}

    def run(self, sources: Mapping[Node, Flowing]) -> dict[Node, Flowing]:
        """The same in frames."""
        sent: dict[Node, Flowing] = {}
        for node in self.order:
            sent[node] = (
                sources[node] if isinstance(node, nodes.Read) else self._run(node, [sent[n] for n in node.inputs])
            )
        return sent

    def _run(self, node: Node, given: list[Flowing]) -> Flowing:
        first = given[0]
        if isinstance(node, nodes.WindowedAggregate):
            return self._windows[node].run(first)
        if isinstance(node, nodes.Late):
            return replace(first, rows=self._windows[node.inputs[0]].late)
        if isinstance(node, nodes.Dead):
            return replace(first, rows=self._dead.get(node.inputs[0], elementwise.frame_of([], None)))
        if isinstance(node, nodes.Where):
            return replace(first, rows=elementwise.where(first.rows, node))
        if isinstance(node, nodes.Project):
            return replace(first, rows=elementwise.project(first.rows, node))
        if isinstance(node, nodes.MapRows):
            rows, self._dead[node] = elementwise.mapped(first.rows, node, first.clock.now)
            return replace(first, rows=rows)
        if isinstance(node, nodes.Union):
            return _united(given)
        assert isinstance(node, nodes.Write)
        return first


NO_DEADLINE = pl.lit(None, pl.Int64)


class LocalWindows:
    """A windowed aggregation with its state in memory."""

    def __init__(self, node: nodes.WindowedAggregate, *, passes_on: bool) -> None:
        self.node = node
        self._passes_on = passes_on
        self._in_processing_time = getattr(node.window, "time", "event") == "processing"
        self._count = 0
        given = node.inputs[0]
        nothing = self._fed(elementwise.frame_of([], given))
        self._operator = WindowedOperator(node, nothing.schema, changing=is_changing(given))
        self._store = Store(self._operator.keys, self._operator.no_windows())
        self._counters = Store(self._operator.keys, self._operator.no_counters())
        self.late = pl.DataFrame()
        self._passed_on = BEGINNING

    def run(self, flowing: Flowing) -> Flowing:
        clock = flowing.clock
        rows = flowing.rows
        if self._in_processing_time:  # the clock is the watermark, and a row's time is when it came
            before = END if clock.watermark_before >= END else clock.now_before
            after = END if clock.watermark >= END else clock.now  # at the end of time it ends too
            clock = Clock(before, after, clock.now_before, clock.now)
            rows = rows.with_columns(pl.lit(clock.now, pl.Int64).alias(TIME))
        fed = self._fed(rows)
        found, places = self._store.held(fed, clock.watermark, clock.now)
        asked = fed if self._operator.by_rows else fed.clear()
        counters, counter_places = self._counters.held(asked, BEGINNING, BEGINNING)
        changes, sent = self._operator.step({"windows": found, "counters": counters}, {"rows": fed}, clock)
        self._store.replace(places, changes["windows"], *self._operator.deadlines(clock.watermark))
        self._counters.replace(counter_places, changes["counters"], NO_DEADLINE, NO_DEADLINE)
        self.late = self._late_rows(sent["late"])
        hold = self._store.smallest(self._operator.hold()) if self._passes_on else NEVER
        before, self._passed_on = self._passed_on, max(self._passed_on, min(clock.watermark, hold))
        return Flowing(
            self._panes(sent["panes"]), replace(flowing.clock, watermark_before=before, watermark=self._passed_on)
        )

    def _fed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """What the operator takes: keys, arguments, time, weight, order, and the whole row for `.late`."""
        given = self.node.inputs[0].schema
        keys = [rows[name].alias(f"key.{name}") for name in self.node.keys]
        order = pl.int_range(self._count, self._count + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        self._count += len(rows)
        arguments = computed(rows, given, self.node.arguments).get_columns() if self.node.arguments else []
        return pl.DataFrame(
            [rows.select(*given.names, *HIDDEN).to_struct(ROW), *keys, *arguments, rows[TIME], rows[WEIGHT], order]
        )

    def _panes(self, panes: pl.DataFrame) -> pl.DataFrame:
        node = self.node
        pane = [pl.col(f"pane.{field.name}").alias(field.name) for field in nodes.PANE]
        columns = [pl.col(f"key.{name}").alias(name) for name in node.keys]
        columns += [
            pl.struct(_instant("start"), _instant("end")).alias("window"),
            pl.struct(pane).alias("pane"),
            pl.col("weight"),
        ]
        columns += [pl.col(name) for name, _ in node.aggregates]
        columns += [_instant("event_time"), pl.col("event_time").alias(TIME), pl.col("weight").alias(WEIGHT)]
        return panes.select(columns)

    def _late_rows(self, late: pl.DataFrame) -> pl.DataFrame:
        """The rows as they came, with the window that lost them and the reason."""
        start, end = (_instant(name, pl.col("window").struct.field(name)) for name in ("start", "end"))
        span = pl.when(pl.col("window").is_not_null()).then(pl.struct(start, end)).alias("window")
        return late.select(pl.col(ROW).struct.unnest()).with_columns(late.select(span, "reason"))


def _instant(name: str, value: pl.Expr | None = None) -> pl.Expr:
    return (pl.col(name) if value is None else value).cast(pl.Datetime("us", "UTC")).alias(name)


def _united(given: Sequence[Flowing]) -> Flowing:
    clock = replace(
        given[0].clock,
        watermark_before=min(flowing.clock.watermark_before for flowing in given),
        watermark=min(flowing.clock.watermark for flowing in given),
    )
    return Flowing(pl.concat([flowing.rows for flowing in given]), clock)


def _flowing(node: Node, bundle: Bundle) -> Flowing:
    rows = [{**row.values, TIME: row.time, WEIGHT: row.weight} for row in bundle.rows]
    clock = Clock(bundle.watermark_before, bundle.watermark, bundle.clock_before, bundle.clock)
    return Flowing(elementwise.frame_of(rows, node), clock)


def _bundle(node: Node, flowing: Flowing) -> Bundle:
    table = flowing.rows.drop(HIDDEN).select(node.schema.names).to_arrow().cast(node.schema.arrow)
    values = [row for batch in table.to_batches() for row in batch_to_rows(batch)]
    hidden = flowing.rows.select(HIDDEN).rows()
    rows = [Row(row, time, weight) for row, (time, weight) in zip(values, hidden, strict=True)]
    clock = flowing.clock
    return Bundle(rows, clock.watermark_before, clock.watermark, clock.now_before, clock.now)


def is_changing(node: Node) -> bool:
    """Whether rows of a stream may be taken back."""
    if isinstance(node, nodes.WindowedAggregate):
        return node.mode is Mode.RETRACTING
    if isinstance(node, nodes.Read):
        return node.changes
    return any(is_changing(given) for given in node.inputs)
