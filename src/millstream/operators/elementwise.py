"""Steps that process one row at a time, on whole frames.

A frame has the stream's columns, a time and a weight, and, directly after a source, offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.errors import ExpressionFailed
from millstream.expressions.clock import NOW
from millstream.expressions.expression import Expression, evaluate
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.joins.side_join import side_join
from millstream.operators.windows.assignment import instant
from millstream.plan import nodes, table_nodes
from millstream.plan.nodes import Node
from millstream.plan.on_spark.needs_spark import expressions_of
from millstream.plan.time.bundles import AHEAD
from millstream.plan.time.windows import FIRST, LAST
from millstream.records import DEAD_LETTER_SCHEMA, Schema, rows_to_batch

OFFSET = "__offset"
HIDDEN = [TIME, WEIGHT]


def hidden_of(frame: pl.DataFrame) -> list[str]:
    return [*HIDDEN, OFFSET] if OFFSET in frame.columns else HIDDEN


def table_of(frame: pl.DataFrame, schema: Schema) -> pa.Table:
    return frame.select(schema.names).to_arrow().cast(schema.arrow)


def computed(frame: pl.DataFrame, schema: Schema, made: Sequence[tuple[str, Expression]]) -> pl.DataFrame:
    """Computes expressions over a frame; a mere column name is not computed."""
    plain = {name: expression.column for name, expression in made if expression.column is not None}
    rest = {name: expression.lowered for name, expression in made if expression.column is None}
    columns = {name: frame[column] for name, column in plain.items()}
    if rest:
        result = pl.from_arrow(evaluate(rest, _looked_at(frame, schema, made)))
        assert isinstance(result, pl.DataFrame)
        columns |= {name: result[name] for name in rest}
    return pl.DataFrame([columns[name].alias(name) for name, _ in made])


def _looked_at(frame: pl.DataFrame, schema: Schema, made: Sequence[tuple[str, Expression]]) -> pa.Table:
    """The columns that expressions use, since passing strings on is not free; at least one, for the row count."""
    columns = frozenset().union(*(each.columns for _, each in made if each.column is None))
    fields = [field for field in schema.arrow if field.name in columns]
    if any(each.uses_clock for _, each in made):
        fields.append(pa.field(NOW, nodes.INSTANT))
    return table_of(frame, Schema(pa.schema(fields))) if fields else frame.select(WEIGHT).to_arrow()


def conditions_of(frame: pl.DataFrame, steps: Sequence[nodes.Where]) -> dict[Node, pl.Series]:
    """By step, which of the same rows it keeps; computed at once, since each computation has a fixed cost.

    If one of the conditions fails on a row, nothing is returned: each step then computes its own, and fails by itself.
    """
    different = {each.condition.lowered: each.condition for each in steps}
    numbers = {text: str(number) for number, text in enumerate(different)}
    try:
        found = computed(frame, steps[0].inputs[0].schema, [(numbers[text], made) for text, made in different.items()])
    except ExpressionFailed:
        return {}
    return {each: found[numbers[each.condition.lowered]].fill_null(False) for each in steps}


def where(frame: pl.DataFrame, node: nodes.Where) -> pl.DataFrame:
    held = computed(frame, node.inputs[0].schema, [("holds", node.condition)])
    return frame.filter(held["holds"].fill_null(False))


def project(frame: pl.DataFrame, node: nodes.Project) -> pl.DataFrame:
    # A column that no later step uses may not have been read.
    there = [(name, made) for name, made in node.columns if made.column is None or made.column in frame.columns]
    made = computed(frame, node.inputs[0].schema, there)
    types = pl.Schema({name: kind for name, kind in types_of(node.schema).items() if name in made.columns})
    hidden = frame.select(hidden_of(frame)).get_columns()
    for name in (name for name, each in there if each.makes_rows):
        whole = made.with_columns(hidden)
        return whole.filter(pl.col(name).list.len() > 0).explode(name).cast(types)
    # Not added to the others: if no later step uses any of them there are none, and a frame of none has no rows.
    return pl.DataFrame([*made.cast(types).get_columns(), *hidden])


def with_event_time(frame: pl.DataFrame, node: nodes.WithEventTime) -> pl.DataFrame:
    times = computed(frame, node.inputs[0].schema, [(TIME, node.time)])[TIME]
    return frame.with_columns(within_range(times.dt.cast_time_unit("us").to_physical().alias(TIME)))


def within_range(times: pl.Series) -> pl.Series:
    """Times that can be represented, else null: one of them must not push the watermark past all others."""
    if not len(times) or ((times.min() or 0) >= FIRST and (times.max() or 0) <= LAST):  # type: ignore[operator]
        return times
    return pl.select(pl.when(times.is_between(FIRST, LAST)).then(times)).to_series().alias(times.name)


def as_of(frame: pl.DataFrame, node: table_nodes.AsOf) -> pl.DataFrame:
    """The changes up to a time. A change without a time has always been valid."""
    return frame.filter((pl.col(TIME) <= node.time).fill_null(True))


def changes(frame: pl.DataFrame, node: table_nodes.Changes) -> pl.DataFrame:
    """Exposes the hidden columns: the weight, and the time from which the change is valid."""
    time = pl.when(pl.col(TIME) != AHEAD).then(pl.col(TIME))  # a row too far ahead counts as one without event time
    made = frame.with_columns(pl.col(WEIGHT).alias("weight"), instant("event_time", time))
    return made.select(*node.schema.names, TIME, pl.lit(1, pl.Int32).alias(WEIGHT))


def unchanged(frame: pl.DataFrame, node: Node) -> pl.DataFrame:
    return frame


ROW_BY_ROW: dict[type[Node], Callable[[pl.DataFrame, Any], pl.DataFrame]] = {
    nodes.Where: where,
    nodes.Project: project,
    nodes.WithEventTime: with_event_time,
    nodes.Write: unchanged,
    table_nodes.AllRows: unchanged,
    table_nodes.AsOf: as_of,
    table_nodes.Changes: changes,
    table_nodes.SideJoin: side_join,
}
"""Steps from rows to rows that can only fail in an expression."""


def row_by_row(node: Node, frame: pl.DataFrame, now: int) -> pl.DataFrame:
    if not any(made.uses_clock for made in expressions_of(node)):
        return ROW_BY_ROW[type(node)](frame, node)
    clocked = frame.with_columns(instant(NOW, pl.lit(now, pl.Int64)))
    return ROW_BY_ROW[type(node)](clocked, node).drop(NOW, strict=False)


def net(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The net change of a table: each row once, retractions first."""
    if not len(frame):
        return frame
    made = frame.group_by(names, maintain_order=True).agg(pl.col(WEIGHT).sum().cast(pl.Int32))
    gone, come = made.filter(pl.col(WEIGHT) < 0), made.filter(pl.col(WEIGHT) > 0)
    return pl.concat([gone, come])


def types_of(schema: Schema) -> pl.Schema:
    empty = pl.from_arrow(schema.arrow.empty_table())
    assert isinstance(empty, pl.DataFrame)
    return empty.schema


def frame_of(rows: Sequence[dict[str, Any]], node: Node | None, hidden: Sequence[str] = (TIME, WEIGHT)) -> pl.DataFrame:
    """Rows with their time and weight as a frame."""
    schema = DEAD_LETTER_SCHEMA if node is None else node.schema
    values = [{name: row[name] for name in schema.names} for row in rows]
    batch, failures = rows_to_batch(values, schema)
    assert not failures, failures
    frame = pl.from_arrow(pa.Table.from_batches([batch]))
    assert isinstance(frame, pl.DataFrame)
    types = {TIME: pl.Int64, WEIGHT: pl.Int32, OFFSET: pl.Int64}
    return frame.with_columns([pl.Series(name, [row[name] for row in rows], types[name]) for name in hidden])
