"""Scores each row with the newest model that has come by then; models of a bundle come before its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from millstream.errors import InvalidInput
from millstream.plan.models.formats import Model, model_of
from millstream.plan.models.live_models import CONTENT, FORMAT, scored
from millstream.plan.nodes import PredictLive
from millstream.plan.time.bundles import Bundle, Row, table_of
from millstream.reference.operator import StatefulOperator, dead_letter


class PredictLiveOperator(StatefulOperator):
    node: PredictLive

    def __init__(self, node: PredictLive) -> None:
        super().__init__(node)
        self.model: Model | None = None

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        self.dead = []
        for row in given[1]:
            try:
                self.model = model_of(row.values[FORMAT], row.values[CONTENT])
            except InvalidInput:  # the one before stays
                continue
        sent = []
        for row in given[0]:
            try:
                value = None if self.model is None else self._score(self.model, row)
            except Exception as error:
                reason = f"{self.node.name}: {type(error).__name__}: {error}"
                self.dead.append(dead_letter(row, reason, clock.clock))
                continue
            sent.append(replace(row, values={**row.values, self.node.into: value}))
        return sent

    def _score(self, model: Model, row: Row) -> object:
        features = pl.from_arrow(table_of([row], self.node.inputs[0]))
        assert isinstance(features, pl.DataFrame)
        kind = self.node.schema.field(self.node.into).type
        return scored(model, features.select(self.node.features), kind)[0]
