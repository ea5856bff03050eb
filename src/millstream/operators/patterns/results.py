"""Matches as columns: one row per match, with a list of rows for each variable, or all rows of the matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from millstream.operators.accumulators import ROW, TIME, WEIGHT
from millstream.operators.elementwise import types_of
from millstream.plan.patterns.found import Complete
from millstream.plan.patterns.node import IS_EXCLUDED, MATCH, MATCH_END, MATCH_START, PATH, VARIABLE, Match, Rows
from millstream.plan.patterns.node import ROW as WHOLE_ROW
from millstream.plan.windows import FIRST, LAST
from millstream.records import Schema

INSTANT = pl.Datetime("us", "UTC")


@dataclass(frozen=True, slots=True)
class Numbered:
    """A match and its number, or a partial match that timed out."""

    match: Complete
    number: int | None


class Results:
    """Makes the rows of matches, given the rows in which they were found."""

    def __init__(self, node: Match, timed_out: Schema) -> None:
        self.node = node
        self._given: Any = types_of(node.inputs[0].schema)
        self._sent: Any = types_of(node.schema)
        self._timed_out: Any = types_of(timed_out)

    def sent(self, found: Sequence[Numbered], rows: pl.DataFrame, weight: int = 1) -> pl.DataFrame:
        made = self._all(found, rows) if self.node.rows is Rows.ALL else self._one(found, rows)
        return self._shaped(made, self._sent, weight)

    def timed_out(self, found: Sequence[Numbered], rows: pl.DataFrame) -> pl.DataFrame:
        return self._shaped(self._one(found, rows), self._timed_out, 1)

    def _shaped(self, made: pl.DataFrame, types: Any, weight: int) -> pl.DataFrame:
        columns = [made[name].cast(kind) for name, kind in types.items()]
        return pl.DataFrame([*columns, made[TIME]]).with_columns(pl.lit(weight, pl.Int32).alias(WEIGHT))

    def _times(self, found: Sequence[Numbered], rows: pl.DataFrame) -> list[pl.Series]:
        firsts = [each.match.first for each in found]
        starts = rows[TIME].gather(firsts) if firsts else pl.Series([], dtype=pl.Int64)
        ends = pl.Series(TIME, [each.match.end for each in found], pl.Int64)
        return [
            pl.Series(MATCH, [each.number for each in found], pl.Int64),
            instants(starts).alias(MATCH_START),
            instants(ends).alias(MATCH_END),
            ends,
        ]

    def _all(self, found: Sequence[Numbered], rows: pl.DataFrame) -> pl.DataFrame:
        shown = [[row for row in each.match.path if not row[2]] for each in found]
        counts = np.array([len(path) for path in shown], np.int64)
        places = [place for path in shown for place, *_ in path]
        variables = [variable for path in shown for _, variable, _ in path]
        matches = np.repeat(np.arange(len(found)), counts)
        whole = self._rows(rows, places)
        times = [series.gather(matches) for series in self._times(found, rows)]
        return whole.with_columns(*times, pl.Series(VARIABLE, variables, pl.String))

    def _one(self, found: Sequence[Numbered], rows: pl.DataFrame) -> pl.DataFrame:
        firsts = [each.match.first for each in found]
        whole = self._rows(rows, firsts)
        keys = [whole[name] for name in self.node.keys]
        return pl.DataFrame([*keys, *self._times(found, rows), *self._lists(found, rows)])

    def _lists(self, found: Sequence[Numbered], rows: pl.DataFrame) -> list[pl.Series]:
        if self.node.rows is Rows.LIST:
            return [self._path(found, rows)]
        return [self._of_variable(name, found, rows) for name in self.node.search.variables]

    def _path(self, found: Sequence[Numbered], rows: pl.DataFrame) -> pl.Series:
        steps = [step for each in found for step in each.match.path]
        flat = pl.DataFrame(
            [
                pl.Series(VARIABLE, [variable for _, variable, _ in steps], pl.String),
                pl.Series(IS_EXCLUDED, [is_excluded for *_, is_excluded in steps], pl.Boolean),
                self._rows(rows, [place for place, *_ in steps]).to_struct(WHOLE_ROW),
            ]
        )
        return listed(PATH, [len(each.match.path) for each in found], flat.to_struct(PATH))

    def _of_variable(self, name: str, found: Sequence[Numbered], rows: pl.DataFrame) -> pl.Series:
        places = [[place for place, variable, _ in each.match.path if variable == name] for each in found]
        flat = self._rows(rows, [place for each in places for place in each]).to_struct(ROW)
        return listed(name, [len(each) for each in places], flat)

    def _rows(self, rows: pl.DataFrame, places: list[int]) -> pl.DataFrame:
        whole = rows[ROW].gather(places) if places else rows[ROW].clear()
        return whole.struct.unnest().select(list(self._given)).cast(self._given)


def listed(name: str, lengths: list[int], flat: pl.Series) -> pl.Series:
    """Consecutive values as lists of these lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    series = pl.from_arrow(pa.ListArray.from_arrays(pa.array(offsets), flat.to_arrow()))
    assert isinstance(series, pl.Series)
    return series.alias(name)


def instants(times: pl.Series) -> pl.Series:
    return times.clip(FIRST, LAST).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
