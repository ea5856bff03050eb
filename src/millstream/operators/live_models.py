"""Scores rows with the newest model of a stream of models. Models of a bundle are applied first, then its rows scored.

The state is the newest model, which every key group has: rows are spread over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import polars as pl

from millstream.errors import InvalidInput
from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import frame_of, types_of
from millstream.operators.stateful import DEAD, INPUTS, NO_MARKS, NOTE, NOTES, SENT, PlainStep
from millstream.plan.models.formats import model_of
from millstream.plan.models.live_models import CONTENT, FORMAT, scored
from millstream.plan.nodes import PredictLive
from millstream.plan.time.bundles import dead_letter_values
from millstream.records import batch_to_rows
from millstream.state.tables import Marks

MODEL = "model"
KEY = "key.place"


class PredictLiveStep(PlainStep):
    own_keys: Mapping[str, list[str]] = MappingProxyType({MODEL: []})
    keys: list[str] = [KEY]  # noqa: RUF012 never changed

    def __init__(self, node: PredictLive) -> None:
        self.node = node
        self._types: Any = dict(types_of(node.schema))
        self._kind = node.schema.field(node.into).type
        self.nothing = {
            name: self.fed(elementwise.frame_of([], given), 0, side)
            for side, (name, given) in enumerate(zip(INPUTS, node.inputs, strict=True))
        }

    def tables(self) -> Frames:
        return {MODEL: self.nothing[INPUTS[1]].select(FORMAT, CONTENT)}

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        return rows.with_columns(order, order.alias(KEY))

    def asked(self, inputs: Frames) -> Frames:
        return {MODEL: pl.DataFrame()}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return {MODEL: NO_MARKS}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        rows, came = inputs[INPUTS[0]].sort(ORDER), inputs[INPUTS[1]].sort(ORDER)
        newest, notes = held[MODEL], []
        for place in reversed(range(len(came))):
            candidate = came.select(FORMAT, CONTENT)[place]
            try:
                model_of(*candidate.row(0))
            except InvalidInput as error:  # the one before stays
                notes.append(f"{self.node.name}: a model was refused: {error.what}")
                continue
            newest = candidate
            break
        sent, dead = self._scored(rows, newest, clock)
        changes = {} if newest is held[MODEL] else {MODEL: newest}
        return changes, {SENT: sent, DEAD: dead, NOTES: pl.DataFrame({NOTE: notes}, schema={NOTE: pl.String})}

    def _scored(self, rows: pl.DataFrame, newest: pl.DataFrame, clock: Clock) -> tuple[pl.DataFrame, pl.DataFrame]:
        columns = [*self.node.schema.names, TIME, WEIGHT]
        kind = self._types[self.node.into]
        if not len(newest) or not len(rows):
            empty = rows.with_columns(pl.lit(None, kind).alias(self.node.into))
            return empty.select(columns).cast(self._types), frame_of([], None)
        model = model_of(*newest.row(0))
        try:
            made = scored(model, rows.select(self.node.features), self._kind)
            return rows.with_columns(made.alias(self.node.into)).select(columns).cast(self._types), frame_of([], None)
        except Exception as error:  # whatever a library raises: row by row shows which ones it cannot handle
            if len(rows) > 1:
                parts = [self._scored(rows[place], newest, clock) for place in range(len(rows))]
                sent, dead = zip(*parts, strict=True)
                return pl.concat(sent), pl.concat(dead, how="diagonal")
            reason = f"{self.node.name}: {type(error).__name__}: {error}"
        given = self.node.inputs[0].schema
        (values,) = batch_to_rows(elementwise.table_of(rows, given).to_batches()[0])
        letter = dead_letter_values(values, reason, clock.now) | rows.select(TIME, WEIGHT).row(0, named=True)
        return rows.clear().with_columns(pl.lit(None, kind).alias(self.node.into)).select(columns).cast(
            self._types
        ), frame_of([letter], None)
