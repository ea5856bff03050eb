"""A stateful step of rows that belong to one batch: it works like any other, and keeps nothing for the next batch."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from millstream.operators.clock import Clock, Frames
from millstream.operators.stateful import Stateful
from millstream.state.tables import Marks


class Forgetting:
    """A step whose changes of state are dropped, so that nothing is ever held for it."""

    def __init__(self, step: Stateful) -> None:
        self._step = step
        self.keys = step.keys
        self.own_keys = step.own_keys
        self.nothing = step.nothing

    def tables(self) -> Frames:
        return self._step.tables()

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        return self._step.fed(rows, first, side)

    def folded(
        self, rows: pl.DataFrame, first: int, watermark: int, side: int = 0
    ) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        return self._step.folded(rows, first, watermark, side)

    def joined(self, partials: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return self._step.joined(partials)

    def clock(self, clock: Clock) -> Clock:
        return self._step.clock(clock)

    def asked(self, inputs: Frames) -> Frames:
        return self._step.asked(inputs)

    def whole_tables(self, held: Frames, inputs: Frames, clock: Clock) -> Sequence[str]:
        return self._step.whole_tables(held, inputs, clock)

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        _, sent = self._step.step(held, inputs, clock)
        return {}, sent

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return self._step.marks(clock)
