"""Matches as columns: one row per match, with a list of rows for each variable, or all rows of the matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from millstream.operators.aggregates.accumulators import ROW, TIME, WEIGHT
from millstream.operators.elementwise import types_of
from millstream.operators.keyed_rows import NUMBER
from millstream.operators.patterns.columns import Flags
from millstream.operators.patterns.runs import SKIPPED, Run, Runs
from millstream.operators.process import values_of
from millstream.plan.patterns.found import Complete, PathRow
from millstream.plan.patterns.measured import Measured
from millstream.plan.patterns.node import (
    CLASSIFIER,
    IS_EXCLUDED,
    MATCH,
    MATCH_END,
    MATCH_START,
    PATH,
    VARIABLE,
    Match,
    Rows,
)
from millstream.plan.patterns.node import ROW as WHOLE_ROW
from millstream.plan.time.windows import FIRST, LAST
from millstream.records import Schema

Bounds = np.ndarray[tuple[int], np.dtype[np.int64]]
Step = tuple[int, str | None, bool]
"""The place of a row, the variable that it plays, and whether it is excluded."""
INSTANT = pl.Datetime("us", "UTC")


@dataclass(frozen=True, slots=True)
class Listed:
    """Matches, or partial matches that timed out, in the order in which they are sent."""

    matches: list[Complete | int]
    """In place of a match that is known as a run: its first row."""
    numbers: list[int | None]
    """By match, its number among those of its key; none if it timed out."""
    runs: Runs | None = None

    def __len__(self) -> int:
        return len(self.matches)

    def some(self, places: Iterable[int]) -> Listed:
        chosen = list(places)
        return Listed([self.matches[at] for at in chosen], [self.numbers[at] for at in chosen], self.runs)

    def paths(self) -> list[Sequence[PathRow]]:
        return [self.run(match) if isinstance(match, int) else match.path for match in self.matches]

    def run(self, first: int) -> Run:
        assert self.runs is not None
        return self.runs.run(first)

    def spans(self) -> tuple[list[Sequence[PathRow] | int], Runs | None]:
        """The paths, and in place of those of runs their first rows."""
        return [match if isinstance(match, int) else match.path for match in self.matches], self.runs

    def firsts(self) -> list[int]:
        return [match if isinstance(match, int) else match.first for match in self.matches]

    def ends(self, rows: pl.DataFrame) -> Bounds:
        """The times of their last rows, or the limits that they waited for."""
        given = np.array([0 if isinstance(match, int) else match.end for match in self.matches], np.int64)
        if self.runs is None:
            return given
        lasts = self.runs.last_of[np.array(self.firsts(), np.int64)]
        is_run = np.array([isinstance(match, int) for match in self.matches], np.bool_)
        return np.where(is_run, rows[TIME].to_numpy()[lasts], given)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The rows of all matches, one match after the other: their places, and the variables that they play."""

    places: Bounds
    variables: Bounds
    """As positions among the names."""
    names: list[str | None]
    starts: Bounds
    ends: Bounds

    @classmethod
    def of(cls, paths: Sequence[Sequence[Step] | int], runs: Runs | None) -> _Steps:
        """In place of the path of a run: its first row."""
        names: list[str | None] = [] if runs is None else [variable for variable, _ in runs.roles]
        others = [at for at, path in enumerate(paths) if not isinstance(path, int)]
        firsts = np.array([path if isinstance(path, int) else 0 for path in paths], np.int64)
        sizes = np.zeros(len(paths), np.int64) if runs is None else runs.last_of[firsts] + 1 - firsts
        sizes[others] = [len(paths[at]) for at in others]  # type: ignore[arg-type]
        ends = np.cumsum(sizes)
        starts = ends - sizes
        places = np.repeat(firsts - starts, sizes) + np.arange(int(sizes.sum()))
        variables = np.zeros(len(places), np.int64)
        if runs is not None:
            is_run = np.ones(len(paths), np.bool_)
            is_run[others] = False
            of_runs = np.repeat(is_run, sizes)
            variables[of_runs] = runs.plays[places[of_runs]]
        for at in others:
            path, start, end = paths[at], starts[at], ends[at]
            assert not isinstance(path, int)
            names += {variable for _, variable, _ in path}.difference(names)
            places[start:end] = [place for place, *_ in path]
            variables[start:end] = [names.index(variable) for _, variable, _ in path]
        taken = variables != SKIPPED
        if not taken.all():
            before = np.concatenate([[0], np.cumsum(taken)])
            places, variables, starts, ends = places[taken], variables[taken], before[starts], before[ends]
        return cls(places, variables, names, starts, ends)

    def chosen(
        self, counts: Callable[[str | None], bool], *, is_first: bool, offset: int = 0, shift: int = 0
    ) -> Bounds:
        """By match, the position of its first or last row that counts, or one so many further; -1 if there is none."""
        before = np.concatenate([[0], np.cumsum(self.counted(counts))])
        low, high = before[self.starts], before[self.ends]
        wanted = low + 1 + offset if is_first else high - offset
        at = np.searchsorted(before, wanted) - 1 + shift
        exists = (wanted > low) & (wanted <= high) & (at >= self.starts) & (at < self.ends)
        return np.where(exists, at, -1)

    def counted(self, counts: Callable[[str | None], bool]) -> Flags:
        """Which rows play a variable that counts."""
        does: Flags = np.array([counts(name) for name in self.names], np.bool_)[self.variables]
        return does


class Results:
    """Makes the rows of matches, given the rows in which they were found."""

    def __init__(self, node: Match, timed_out: Schema) -> None:
        self.node = node
        self._given: Any = types_of(node.inputs[0].schema)
        self._sent: Any = types_of(node.schema)
        self._timed_out: Any = types_of(timed_out)

    def sent(self, found: Listed, rows: pl.DataFrame, weight: int = 1) -> pl.DataFrame:
        kinds = {Rows.ALL: self._all, Rows.MEASURES: self._measured}
        return self._shaped(kinds.get(self.node.rows, self._one)(found, rows), self._sent, weight)

    def timed_out(self, found: Listed, rows: pl.DataFrame) -> pl.DataFrame:
        return self._shaped(self._one(found, rows), self._timed_out, 1)

    def _shaped(self, made: pl.DataFrame, types: Any, weight: int) -> pl.DataFrame:
        columns = [made[name].cast(kind) for name, kind in types.items()]
        return pl.DataFrame([*columns, made[TIME]]).with_columns(pl.lit(weight, pl.Int32).alias(WEIGHT))

    def _times(self, found: Listed, rows: pl.DataFrame, firsts: list[int]) -> list[pl.Series]:
        starts = rows[TIME].gather(firsts) if firsts else pl.Series([], dtype=pl.Int64)
        ends = pl.Series(TIME, found.ends(rows), pl.Int64)
        return [
            pl.Series(MATCH, found.numbers, pl.Int64),
            instants(starts).alias(MATCH_START),
            instants(ends).alias(MATCH_END),
            ends,
        ]

    def _all(self, found: Listed, rows: pl.DataFrame) -> pl.DataFrame:
        shown = [[row for row in path if not row[2]] for path in found.paths()]
        counts = np.array([len(path) for path in shown], np.int64)
        places = [place for path in shown for place, *_ in path]
        variables = [variable for path in shown for _, variable, _ in path]
        matches = np.repeat(np.arange(len(found)), counts)
        whole = self._rows(rows, places)
        firsts = found.firsts()
        times = [series.gather(matches) for series in self._times(found, rows, firsts)]
        return whole.with_columns(*times, pl.Series(VARIABLE, variables, pl.String))

    def _one(self, found: Listed, rows: pl.DataFrame) -> pl.DataFrame:
        firsts = found.firsts()
        whole = self._rows(rows, firsts)
        keys = [whole[name] for name in self.node.keys]
        return pl.DataFrame([*keys, *self._times(found, rows, firsts), *self._lists(found, rows)])

    def _measured(self, found: Listed, rows: pl.DataFrame) -> pl.DataFrame:
        """One row per match with its measures. Values of single rows are taken from their columns, all at once."""
        looks_around = self.node.before or self.node.after
        steps = _Steps.of(self._paths(found, rows), None) if looks_around else _Steps.of(*found.spans())
        whole = rows[ROW].struct
        firsts = found.firsts()
        columns = [_gathered(whole.field(name), firsts).alias(name) for name in self.node.keys]
        columns += self._times(found, rows, firsts)
        last = steps.chosen(lambda variable: variable is not None, is_first=False)
        played = [None if at < 0 else steps.names[steps.variables[at]] for at in last.tolist()]
        columns.append(pl.Series(CLASSIFIER, played, pl.String))
        for each in self.node.measures:
            name = each.reference.column
            if each.is_of_one_row:
                chosen = steps.chosen(
                    each.counts, is_first=each.reference.kind == "first", offset=each.reference.offset, shift=each.shift
                )
                if each.field is None:
                    plays = [None if at < 0 else steps.names[steps.variables[at]] for at in chosen.tolist()]
                    columns.append(pl.Series(name, plays, pl.String))
                    continue
                places = pl.Series(steps.places[chosen] if len(steps.places) else chosen, dtype=pl.UInt32)
                places = places.set(pl.Series(chosen < 0), None)
                columns.append(whole.field(each.field).gather(places).alias(name))
            else:
                columns.append(self._aggregated(each, steps, rows).alias(name))
        return pl.DataFrame(columns)

    def _aggregated(self, measured: Measured, steps: _Steps, rows: pl.DataFrame) -> pl.Series:
        counted = steps.counted(measured.counts)
        before = np.concatenate([[0], np.cumsum(counted)])
        values = steps.places[counted].tolist()
        kind = None
        if measured.field is not None:
            kind = self.node.inputs[0].schema.field(measured.field).type
            values = values_of(_gathered(rows[ROW].struct.field(measured.field), values), kind)
        bounds = zip(before[steps.starts].tolist(), before[steps.ends].tolist(), strict=True)
        made = [measured.reference.of(values[start:end]) for start, end in bounds]
        if kind is None:
            return pl.Series(made, dtype=pl.Int64)
        return pl.Series(made, dtype=self._sent[measured.reference.column], strict=False)

    def _lists(self, found: Listed, rows: pl.DataFrame) -> list[pl.Series]:
        if self.node.rows in (Rows.LIST, Rows.MEASURES):
            return [self._path(found, rows)]
        return [self._of_variable(name, found, rows) for name in self.node.search.variables]

    def _path(self, found: Listed, rows: pl.DataFrame) -> pl.Series:
        paths = self._paths(found, rows)
        steps = [step for path in paths for step in path]
        flat = pl.DataFrame(
            [
                pl.Series(VARIABLE, [variable for _, variable, _ in steps], pl.String),
                pl.Series(IS_EXCLUDED, [is_excluded for *_, is_excluded in steps], pl.Boolean),
                self._rows(rows, [place for place, *_ in steps]).to_struct(WHOLE_ROW),
            ]
        )
        return listed(PATH, [len(path) for path in paths], flat.to_struct(PATH))

    def _paths(self, found: Listed, rows: pl.DataFrame) -> list[Sequence[Step]]:
        """The rows of matches, and those around them that their measures may look at: they play no variable."""
        if not self.node.before and not self.node.after:
            return list(found.paths())
        return [
            self._with_neighbours(path, number, rows) for path, number in zip(found.paths(), found.numbers, strict=True)
        ]

    def _with_neighbours(self, path: Sequence[PathRow], number: int | None, rows: pl.DataFrame) -> Sequence[Step]:
        node, keys = self.node, rows[NUMBER]
        first, last = path[0][0], path[-1][0]
        before = range(max(first - node.before, 0), first)
        after = range(last + 1, min(last + 1 + node.after, len(rows))) if number is not None else ()
        own = keys[first]
        return [
            *((place, None, True) for place in before if keys[place] == own),
            *path,
            *((place, None, True) for place in after if keys[place] == own),
        ]

    def _of_variable(self, name: str, found: Listed, rows: pl.DataFrame) -> pl.Series:
        places = [[place for place, variable, _ in path if variable == name] for path in found.paths()]
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


def _gathered(values: pl.Series, places: Sequence[int | None]) -> pl.Series:
    return values.gather(pl.Series(places, dtype=pl.UInt32)) if places else values.clear()


def instants(times: pl.Series) -> pl.Series:
    return times.clip(FIRST, LAST).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
