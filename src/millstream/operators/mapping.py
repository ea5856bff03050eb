"""Steps that make rows of single rows, and dead letters of those that they cannot handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.errors import ExpressionFailed
from millstream.operators.elementwise import OFFSET, frame_of, hidden_of, row_by_row, table_of
from millstream.plan import nodes
from millstream.plan.bad_rows import expression_reason
from millstream.plan.batches import batch_given, batch_returned
from millstream.plan.nodes import Node
from millstream.plan.steps.outside_calls import answers
from millstream.plan.steps.parsing import decoded
from millstream.plan.time.bundles import dead_letter_values
from millstream.records import batch_to_rows, rows_to_batch

Made = tuple[pl.DataFrame, pl.DataFrame]


def mapped(frame: pl.DataFrame, node: Node, clock: int) -> Made:
    """The rows that a step makes, and its dead letters."""
    return MAPPED[type(node)](frame, node, clock)


def _by_expression(frame: pl.DataFrame, node: Node, clock: int) -> Made:
    """All rows at once; if an expression fails, halves, until the rows that it fails on are found."""
    try:
        return row_by_row(node, frame, clock), frame_of([], None)
    except ExpressionFailed as error:
        if len(frame) > 1:
            middle = len(frame) // 2
            halves = [_by_expression(half, node, clock) for half in (frame.head(middle), frame.slice(middle))]
            made, dead = zip(*halves, strict=True)
            return pl.concat(made), pl.concat(dead)
        reason = expression_reason(node, error)
    (row,) = (row for batch in table_of(frame, node.inputs[0].schema).to_batches() for row in batch_to_rows(batch))
    carried = frame.select(hidden_of(frame)).row(0, named=True)
    letter = {**dead_letter_values(row, reason, clock), **carried, "offset": carried.get(OFFSET)}
    return row_by_row(node, frame.clear(), clock), frame_of([letter], None)


def _parsed(frame: pl.DataFrame, node: nodes.Parse, clock: int) -> Made:
    rows, places, reasons = decoded(frame[node.column].to_arrow(), node)
    kept = frame[places].select([name for name in node.inputs[0].schema.names if name != node.column])
    made = pl.from_arrow(pa.Table.from_batches([rows]))
    assert isinstance(made, pl.DataFrame)
    hidden = frame.select(hidden_of(frame))
    whole = pl.DataFrame([*kept, *made, *hidden[places]]).select([*node.schema.names, *hidden.columns])
    dead = []
    for place, reason in reasons.items():
        carried = hidden.row(place, named=True)
        value = frame[node.column][place]
        values = dead_letter_values({}, f"{node.name}: {reason}", clock)
        values["value"] = value.encode() if isinstance(value, str) else value
        dead.append({**values, **carried, "offset": carried.get(OFFSET)})
    return whole, frame_of(dead, None)


def _answered(frame: pl.DataFrame, node: nodes.MapAsync, clock: int) -> Made:
    given = [row for batch in table_of(frame, node.inputs[0].schema).to_batches() for row in batch_to_rows(batch)]
    hidden = frame.select(hidden_of(frame)).to_dicts()
    made: list[dict[str, Any]] = []
    dead: list[dict[str, Any]] = []
    for answer in answers(node, given):
        carried = hidden[answer.place]
        if answer.failure is None:
            made += [{**values, **carried} for values in answer.rows]
        else:
            values = dead_letter_values(given[answer.place], f"{node.name}: {answer.failure}", clock)
            dead.append({**values, **carried, "offset": carried.get(OFFSET)})
    return frame_of(made, node, hidden_of(frame)), frame_of(dead, None)


def _by_function(frame: pl.DataFrame, node: nodes.MapRows, clock: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Applies a user's function to the rows; dead letters for those it fails on."""
    if node.per_batch and (whole := _mapped_whole(frame, node)) is not None:
        return whole, frame_of([], None)
    made: list[dict[str, Any]] = []
    dead: list[dict[str, Any]] = []
    hidden = frame.select(hidden_of(frame)).to_dicts()
    table = table_of(frame, node.inputs[0].schema)
    given = [row for batch in table.to_batches() for row in batch_to_rows(batch)]
    for place, (row, carried) in enumerate(zip(given, hidden, strict=True)):
        try:
            results = _results(row, table.slice(place, 1), node)
        except Exception as error:  # whatever a user's function raises: the row becomes a dead letter
            values = dead_letter_values(row, f"{node.name}: {type(error).__name__}: {error}", clock)
            dead.append({**values, **carried, "offset": carried.get(OFFSET)})
            continue
        made += [{**values, **carried} for values in results]
    return frame_of(made, node, hidden_of(frame)), frame_of(dead, None)


def _mapped_whole(frame: pl.DataFrame, node: nodes.MapRows) -> pl.DataFrame | None:
    """A function of batches is called once; unless it returns a row for each row, it is called again row by row."""
    table = table_of(frame, node.inputs[0].schema)
    try:
        made = batch_returned(node.function(batch_given(table, node)), node)
        whole = pl.from_arrow(made.select(node.schema.names).cast(node.schema.arrow))
    except Exception:  # calling it row by row shows which rows it cannot handle
        return None
    if not isinstance(whole, pl.DataFrame) or len(whole) != len(frame):
        return None
    return whole.with_columns(frame.select(hidden_of(frame)))


def _results(row: dict[str, Any], table: pa.Table, node: nodes.MapRows) -> list[dict[str, Any]]:
    if node.per_batch:
        given = batch_returned(node.function(batch_given(table, node)), node).to_pylist()
    else:
        result = node.function(dict(row))
        given = list(result) if node.flat else ([] if result is None else [result])
    batch, failures = rows_to_batch(given, node.schema)
    if failures:
        raise ValueError(failures[0].reason)
    return batch_to_rows(batch)


MAPPED: dict[type[Node], Callable[[pl.DataFrame, Any, int], Made]] = {
    nodes.Where: _by_expression,
    nodes.Project: _by_expression,
    nodes.MapRows: _by_function,
    nodes.Parse: _parsed,
    nodes.MapAsync: _answered,
}
