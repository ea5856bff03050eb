"""The rows of a captured table: a truncation is a deletion of all keys, at its place among the versions of each.

The keys with versions get one when it comes. A key whose older row comes later gets it then: truncations are kept as
long as that may happen. The newest that the watermark has passed is kept for good, since it is the base of all keys,
known or not. So the deletions that it has made need not be kept, and nothing is left of a key that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from millstream.operators import lateness
from millstream.operators.aggregates.accumulators import ORDER, TIME
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import computed
from millstream.operators.keyed_rows import NUMBER, numbered
from millstream.operators.stateful import FOR_EVERY_KEY, INPUTS, LATE, NO_MARKS, SENT
from millstream.operators.tables.latest import BASE, DELETED, NEW, UNTIL, VERSIONS, LatestStep
from millstream.plan.captured_rows import CapturedRows
from millstream.state.tables import EVERY_KEY, Marks

TRUNCATIONS = "truncations"


class CapturedRowsStep(LatestStep):
    own_keys: Mapping[str, list[str]] = MappingProxyType({TRUNCATIONS: []})

    def __init__(self, node: CapturedRows) -> None:
        self._emptied = node.emptied
        super().__init__(node)
        self._places = [f"row.{name}" for name in node.places]
        self.in_order = [TIME, *self._places, ORDER]

    def tables(self) -> Frames:
        return {**super().tables(), TRUNCATIONS: self.table(self.in_order)}

    def more(self, rows: pl.DataFrame) -> list[pl.Series]:
        empties = computed(rows, self.given.schema, [(FOR_EVERY_KEY, self._emptied)])[FOR_EVERY_KEY]
        return [*super().more(rows), empties.fill_null(False)]

    def asked(self, inputs: Frames) -> Frames:
        rows = inputs[INPUTS[0]]
        asked = rows.filter(~pl.col(FOR_EVERY_KEY)).select(self.keys)
        if len(asked) < len(rows):
            asked = asked.with_columns(pl.lit(True).alias(EVERY_KEY))
        return {VERSIONS: asked, TRUNCATIONS: pl.DataFrame()}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return {**super().marks(clock), TRUNCATIONS: NO_MARKS}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        rows, known = inputs[INPUTS[0]], held[TRUNCATIONS].select(self.in_order)
        empties = rows[FOR_EVERY_KEY]
        came, rows = rows.filter(empties), rows.filter(~empties)
        untimed = came.filter(lateness.is_untimed())
        truncations = pl.concat([known, came.filter(~lateness.is_untimed()).select(self.in_order)]).sort(self.in_order)
        versions, rows = numbered(self.keys, held[VERSIONS], rows)
        if not len(came):
            touched = pl.col(NUMBER).is_in(rows[NUMBER].unique().implode())
            untouched = versions.filter(~touched & (pl.col(UNTIL) < clock.watermark).fill_null(False).not_())
            versions = versions.filter(touched)
        else:
            untouched = versions.clear()
        bases = (
            versions.filter(pl.col(TIME) < clock.watermark_before).group_by(NUMBER).agg(pl.col(TIME).max().alias(BASE))
        )
        rows, late = self._fitting(rows, bases, known, clock)
        columns = [NUMBER, *self.keys, *self.rest, DELETED, TIME, ORDER]
        deletions = self._deletions(versions, rows, truncations, bases).select(columns)
        line = pl.concat(
            [
                versions.select(*columns, pl.lit(False).alias(NEW)),
                pl.concat([rows.select(columns), deletions]).with_columns(pl.lit(True).alias(NEW)),
            ]
        ).sort(NUMBER, *self.in_order)
        line = _needed(line, deletions)
        kept = pl.concat([untouched.drop(NUMBER), self._remaining(line, truncations, clock)])
        changes = {VERSIONS: kept}
        lasting = _lasting(truncations, clock)
        if len(came) or len(lasting) < len(known):
            changes[TRUNCATIONS] = lasting
        return changes, {SENT: self._changes(line), LATE: pl.concat([late, self.late(untimed, lateness.reason())])}

    def _fitting(
        self, rows: pl.DataFrame, bases: pl.DataFrame, known: pl.DataFrame, clock: Clock
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows that are in time, and the late ones: the newest truncation before them is a base, too."""
        truncated = known.filter(pl.col(TIME) < clock.watermark_before)[TIME].max()
        rows = rows.join(bases, on=NUMBER, how="left", maintain_order="left")
        base = pl.max_horizontal(BASE, pl.lit(truncated, pl.Int64))
        fits = (pl.col(TIME) >= base.fill_null(pl.col(TIME))).fill_null(False) & ~lateness.is_untimed()
        return rows.filter(fits).drop(BASE), self.late(rows.filter(~fits), lateness.reason())

    def _deletions(
        self, versions: pl.DataFrame, rows: pl.DataFrame, truncations: pl.DataFrame, bases: pl.DataFrame
    ) -> pl.DataFrame:
        """One for each key and truncation that is not among the key's versions yet, nor before its base."""
        keys = pl.concat([frame.select(NUMBER, *self.keys) for frame in (versions, rows)]).unique(NUMBER)
        made = keys.join(truncations, how="cross").join(versions, on=[NUMBER, ORDER], how="anti")
        made = made.join(bases, on=NUMBER, how="left").filter((pl.col(TIME) >= pl.col(BASE)).fill_null(True))
        empty = [pl.lit(None, rows.schema[name]).alias(name) for name in self.rest if name not in self._places]
        return made.with_columns(*empty, pl.lit(True).alias(DELETED))

    def _remaining(self, line: pl.DataFrame, truncations: pl.DataFrame, clock: Clock) -> pl.DataFrame:
        """The versions that are still needed. A deletion by a truncation is not, once that is a base itself."""
        follows = pl.col(NUMBER) == pl.col(NUMBER).shift(-1)
        is_made = pl.col(DELETED) & pl.col(ORDER).is_in(truncations[ORDER].implode())
        until = pl.when(follows).then(pl.col(TIME).shift(-1)).when(is_made).then(TIME).alias(UNTIL)
        kept = line.with_columns(until).filter((pl.col(UNTIL) < clock.watermark).fill_null(False).not_())
        nothing = [
            pl.when(~pl.col(DELETED)).then(pl.col(name)).alias(name) for name in self.rest if name not in self._places
        ]
        kept = kept.with_columns(nothing)
        return kept.select(*self.keys, *self.rest, DELETED, TIME, ORDER, UNTIL)


def _needed(line: pl.DataFrame, deletions: pl.DataFrame) -> pl.DataFrame:
    """Without new deletions of keys that have no row before them."""
    if not len(deletions):
        return line
    has_row = (pl.col(NUMBER) == pl.col(NUMBER).shift(1)) & ~pl.col(DELETED).shift(1)
    is_made = pl.col(NEW) & pl.col(DELETED) & pl.col(ORDER).is_in(deletions[ORDER].unique().implode())
    return line.filter(~is_made | has_row.fill_null(False))


def _lasting(truncations: pl.DataFrame, clock: Clock) -> pl.DataFrame:
    """Those that the watermark has not passed, and the newest one that it has."""
    is_passed = truncations[TIME] < clock.watermark
    return pl.concat([truncations.filter(is_passed).tail(1), truncations.filter(~is_passed)])
