"""A trigger as columns: its state is a few columns per window, and every decision is an expression over them.

The verbs are those of the reference: add rows, ready, ready by the window's end, fire, merge. Composites combine the
expressions of their parts. Defaults are chosen so that an aggregate over no rows gives the state of a new window.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import polars as pl

from millstream.plan.time import triggers
from millstream.plan.time.windows import microseconds

Columns = dict[str, pl.Expr]
T = TypeVar("T")
NO = pl.lit(False)
MANY = 1 << 40
"""More rows than can come in a bundle."""


class TriggerColumns:
    """The state of one trigger; `prefix` distinguishes its columns from those of others."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def schema(self) -> dict[str, pl.DataType]:
        return {}

    def begin(self) -> Columns:
        """The values for a new window."""
        return {}

    def add(self, rows: pl.Expr, clock: int) -> Columns:
        """The values after so many rows arrived now; only the columns that change."""
        return {}

    def ready(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return NO

    def ready_by_end(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return NO

    def rows_needed(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        """How many more rows make it ready, at least one, while neither watermark nor clock moves."""
        return pl.lit(MANY, pl.Int64)

    def fire(self, at_end: pl.Expr, clock: int) -> tuple[Columns, pl.Expr]:
        """The values after a pane fired, and whether the trigger has finished."""
        return {}, NO

    def merge(self, of: pl.Expr, at_end: pl.Expr) -> Columns:
        """Aggregates over the windows that are merged, of those where `of` holds."""
        return {}

    def due(self) -> list[pl.Expr]:
        """The processing times at which it may become ready by itself."""
        return []

    def column(self, name: str) -> pl.Expr:
        return pl.col(self.prefix + name)


class Count(TriggerColumns):
    def __init__(self, prefix: str, trigger: triggers.AfterCount) -> None:
        super().__init__(prefix)
        self.wanted = trigger.count

    def schema(self) -> dict[str, pl.DataType]:
        return {self.prefix + "count": pl.Int64()}

    def begin(self) -> Columns:
        return {self.prefix + "count": pl.lit(0, pl.Int64)}

    def add(self, rows: pl.Expr, clock: int) -> Columns:
        # Rows beyond the wanted count make no difference: capping them makes equivalent states equal.
        return {self.prefix + "count": pl.min_horizontal(self.column("count") + rows, pl.lit(self.wanted, pl.Int64))}

    def ready(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return self.column("count") >= self.wanted

    def rows_needed(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return pl.max_horizontal(self.wanted - self.column("count"), pl.lit(1, pl.Int64))

    def fire(self, at_end: pl.Expr, clock: int) -> tuple[Columns, pl.Expr]:
        return {}, pl.lit(True)

    def merge(self, of: pl.Expr, at_end: pl.Expr) -> Columns:
        return {self.prefix + "count": self.column("count").filter(of).sum()}


class Due(TriggerColumns):
    """`after` and `every`."""

    def __init__(self, prefix: str, trigger: triggers.After | triggers.Every) -> None:
        super().__init__(prefix)
        self.trigger = trigger

    def schema(self) -> dict[str, pl.DataType]:
        return {self.prefix + "due": pl.Int64()}

    def begin(self) -> Columns:
        return {self.prefix + "due": pl.lit(None, pl.Int64)}

    def add(self, rows: pl.Expr, clock: int) -> Columns:
        if isinstance(self.trigger, triggers.After):
            due = clock + microseconds(self.trigger.delay)
        else:
            interval = microseconds(self.trigger.interval)
            due = (clock // interval + 1) * interval
        waits = (rows > 0) & self.column("due").is_null()
        return {self.prefix + "due": pl.when(waits).then(pl.lit(due, pl.Int64)).otherwise(self.column("due"))}

    def ready(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return (self.column("due") <= clock).fill_null(False)

    def rows_needed(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        if isinstance(self.trigger, triggers.After) and not self.trigger.delay:
            return pl.lit(1, pl.Int64)
        return _if(self.ready(at_end, clock), pl.lit(1, pl.Int64), pl.lit(MANY, pl.Int64))

    def fire(self, at_end: pl.Expr, clock: int) -> tuple[Columns, pl.Expr]:
        return self.begin(), pl.lit(isinstance(self.trigger, triggers.After))

    def merge(self, of: pl.Expr, at_end: pl.Expr) -> Columns:
        return {self.prefix + "due": self.column("due").filter(of).min()}

    def due(self) -> list[pl.Expr]:
        return [self.column("due")]


class Each(TriggerColumns):
    def __init__(self, prefix: str, trigger: triggers.Each) -> None:
        super().__init__(prefix)

    def ready(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return pl.lit(True)

    def rows_needed(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return pl.lit(1, pl.Int64)


class AtExpiry(TriggerColumns):
    def __init__(self, prefix: str, trigger: triggers.AtExpiry) -> None:
        super().__init__(prefix)


class _WithParts(TriggerColumns):
    parts: Sequence[TriggerColumns]

    def schema(self) -> dict[str, pl.DataType]:
        return _joined(part.schema() for part in self.parts)

    def begin(self) -> Columns:
        return _joined(part.begin() for part in self.parts)

    def add(self, rows: pl.Expr, clock: int) -> Columns:
        return _joined(part.add(rows, clock) for part in self.parts)

    def merge(self, of: pl.Expr, at_end: pl.Expr) -> Columns:
        return _joined(part.merge(of, at_end) for part in self.parts)

    def due(self) -> list[pl.Expr]:
        return [due for part in self.parts for due in part.due()]


class Repeatedly(_WithParts):
    def __init__(self, prefix: str, trigger: triggers.Repeatedly) -> None:
        super().__init__(prefix)
        self.part = compiled(trigger.trigger, prefix)
        self.parts = [self.part]

    def ready(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return self.part.ready(at_end, clock)

    def ready_by_end(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return self.part.ready_by_end(at_end, clock)

    def rows_needed(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return self.part.rows_needed(at_end, clock)

    def fire(self, at_end: pl.Expr, clock: int) -> tuple[Columns, pl.Expr]:
        fired, finished = self.part.fire(at_end, clock)
        return {name: _if(finished, new, fired.get(name, pl.col(name))) for name, new in self.part.begin().items()}, NO


class AfterWatermark(_WithParts):
    """Early until its pane at the end of the window, then late."""

    def __init__(self, prefix: str, trigger: triggers.AfterWatermark) -> None:
        super().__init__(prefix)
        self.early = compiled(triggers.Repeatedly(trigger.early or triggers.AtExpiry()), prefix + "early.")
        self.late = compiled(triggers.Repeatedly(trigger.late or triggers.AtExpiry()), prefix + "late.")
        self.parts = [self.early, self.late]
        self.ends_with_its_pane = trigger.late is None

    @property
    def is_late(self) -> pl.Expr:
        return self.column("is_late")

    def schema(self) -> dict[str, pl.DataType]:
        return {self.prefix + "is_late": pl.Boolean(), **super().schema()}

    def begin(self) -> Columns:
        return {self.prefix + "is_late": NO, **super().begin()}

    def add(self, rows: pl.Expr, clock: int) -> Columns:
        return {
            **_where(~self.is_late, self.early.add(rows, clock)),
            **_where(self.is_late, self.late.add(rows, clock)),
        }

    def ready(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        phase = _if(self.is_late, self.late.ready(at_end, clock), self.early.ready(at_end, clock))
        return self.ready_by_end(at_end, clock) | phase

    def ready_by_end(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return at_end & ~self.is_late

    def rows_needed(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        late, early = self.late.rows_needed(at_end, clock), self.early.rows_needed(at_end, clock)
        return _if(self.ready_by_end(at_end, clock), pl.lit(1, pl.Int64), _if(self.is_late, late, early))

    def fire(self, at_end: pl.Expr, clock: int) -> tuple[Columns, pl.Expr]:
        by_end = self.ready_by_end(at_end, clock)
        early, _ = self.early.fire(at_end, clock)
        late, _ = self.late.fire(at_end, clock)
        values = {self.prefix + "is_late": self.is_late | by_end}
        values |= _where(~self.is_late & ~by_end, early)
        begun = self.late.begin()
        values |= {name: _if(by_end, begun[name], _if(self.is_late, new, pl.col(name))) for name, new in late.items()}
        return values, by_end if self.ends_with_its_pane else NO

    def merge(self, of: pl.Expr, at_end: pl.Expr) -> Columns:
        """Ahead of the watermark the window is before its end again; behind it, late if a part had fired at its end."""
        late = at_end & self.is_late.filter(of).any()
        return {
            self.prefix + "is_late": late,
            **self.early.merge(of & ~self.is_late & ~late, at_end),
            **self.late.merge(of & self.is_late & late, at_end),
        }


class Composite(_WithParts):
    """`first_of`, `all_of` and `until`."""

    def __init__(self, prefix: str, trigger: triggers.FirstOf | triggers.AllOf | triggers.Until) -> None:
        super().__init__(prefix)
        self.parts = [compiled(part, f"{prefix}{place}.") for place, part in enumerate(trigger.parts)]
        self.decide = _all if isinstance(trigger, triggers.AllOf) else _any

    def ready(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return self.decide([part.ready(at_end, clock) for part in self.parts])

    def ready_by_end(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return _any([part.ready_by_end(at_end, clock) for part in self.parts]) & self.ready(at_end, clock)

    def rows_needed(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        # A part that is ready stays so until a pane fires, so all are when the last one is.
        needed = [part.rows_needed(at_end, clock) for part in self.parts]
        return pl.max_horizontal(needed) if self.decide is _all else pl.min_horizontal(needed)

    def fire(self, at_end: pl.Expr, clock: int) -> tuple[Columns, pl.Expr]:
        values: Columns = {}
        finished = []
        for part in self.parts:
            ready = part.ready(at_end, clock)
            fired, part_finished = part.fire(at_end, clock)
            values |= _where(ready, fired)
            finished.append(ready & part_finished)
        return values, self.decide(finished)


class InOrder(_WithParts):
    def __init__(self, prefix: str, trigger: triggers.InOrder) -> None:
        super().__init__(prefix)
        self.parts = [compiled(part, f"{prefix}{place}.") for place, part in enumerate(trigger.triggers)]

    @property
    def step(self) -> pl.Expr:
        return self.column("step")

    def schema(self) -> dict[str, pl.DataType]:
        return {self.prefix + "step": pl.Int64(), **super().schema()}

    def begin(self) -> Columns:
        return {self.prefix + "step": pl.lit(0, pl.Int64), **super().begin()}

    def add(self, rows: pl.Expr, clock: int) -> Columns:
        return _joined(_where(self.step == place, part.add(rows, clock)) for place, part in enumerate(self.parts))

    def ready(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return _any([(self.step == place) & part.ready(at_end, clock) for place, part in enumerate(self.parts)])

    def ready_by_end(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        return _any([(self.step == place) & part.ready_by_end(at_end, clock) for place, part in enumerate(self.parts)])

    def rows_needed(self, at_end: pl.Expr, clock: int) -> pl.Expr:
        needed = pl.lit(MANY, pl.Int64)
        for place, part in enumerate(self.parts):
            needed = _if(self.step == place, part.rows_needed(at_end, clock), needed)
        return needed

    def fire(self, at_end: pl.Expr, clock: int) -> tuple[Columns, pl.Expr]:
        values: Columns = {}
        finished = []
        for place, part in enumerate(self.parts):
            fired, part_finished = part.fire(at_end, clock)
            values |= _where(self.step == place, fired)
            finished.append((self.step == place) & part_finished)
        values[self.prefix + "step"] = self.step + _any(finished[:-1]).cast(pl.Int64)
        return values, finished[-1]

    def merge(self, of: pl.Expr, at_end: pl.Expr) -> Columns:
        """The furthest step wins."""
        furthest = self.step.filter(of).max().fill_null(0)
        parts = [
            part.merge(of & (self.step == place) & (furthest == place), at_end) for place, part in enumerate(self.parts)
        ]
        return {self.prefix + "step": furthest, **_joined(parts)}


COMPILED: dict[type[triggers.Trigger], Callable[[str, Any], TriggerColumns]] = {
    triggers.AfterCount: Count,
    triggers.After: Due,
    triggers.Every: Due,
    triggers.Each: Each,
    triggers.AtExpiry: AtExpiry,
    triggers.Repeatedly: Repeatedly,
    triggers.AfterWatermark: AfterWatermark,
    triggers.FirstOf: Composite,
    triggers.AllOf: Composite,
    triggers.Until: Composite,
    triggers.InOrder: InOrder,
}


def compiled(trigger: triggers.Trigger, prefix: str = "trigger.") -> TriggerColumns:
    return COMPILED[type(trigger)](prefix, trigger)


def can_finish(trigger: triggers.Trigger) -> bool:
    """Whether the trigger can close a window."""
    if isinstance(trigger, triggers.AfterWatermark):
        return trigger.late is None
    if isinstance(trigger, triggers.AllOf):
        return all(map(can_finish, trigger.parts))
    if isinstance(trigger, triggers.FirstOf | triggers.Until):
        return any(map(can_finish, trigger.parts))
    if isinstance(trigger, triggers.InOrder):
        return can_finish(trigger.triggers[-1])
    return isinstance(trigger, triggers.AfterCount | triggers.After)


def _joined(parts: Iterable[dict[str, T]]) -> dict[str, T]:
    return {name: value for part in parts for name, value in part.items()}


def _any(expressions: Sequence[pl.Expr]) -> pl.Expr:
    return functools.reduce(operator.or_, expressions, NO)


def _all(expressions: Sequence[pl.Expr]) -> pl.Expr:
    return functools.reduce(operator.and_, expressions, pl.lit(True))


def _if(condition: pl.Expr, then: pl.Expr, otherwise: pl.Expr) -> pl.Expr:
    return pl.when(condition).then(then).otherwise(otherwise)


def _where(condition: pl.Expr, values: Columns) -> Columns:
    return {name: _if(condition, new, pl.col(name)) for name, new in values.items()}
