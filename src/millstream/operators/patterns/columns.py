"""Conditions over all rows of a step at once: each row becomes a number whose bits are the conditions it satisfies.

Of a condition that depends on the rows of a partial match, the bit says whether a row may satisfy it at all; the
values that it takes from rows are columns too, so that on the way only these are looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from millstream.expressions.expression import Expression, evaluate
from millstream.operators.aggregates.accumulators import ROW, WEIGHT
from millstream.operators.elementwise import computed
from millstream.operators.patterns.python_conditions import LeftToDuckDB, python_condition
from millstream.operators.process import values_of
from millstream.plan.patterns.automaton import IS_FIRST, Test
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.found import Path
from millstream.plan.patterns.references import ALL, Condition, Reference
from millstream.records import Schema, rows_to_batch

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(slots=True)
class PathRows:
    """The rows of a partial match, and the values that its conditions take from them."""

    path: Path
    known: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By number of a condition; only values that are the same whatever row is looked at."""


class RowColumns:
    """The rows of a step, sorted by key and time, and what conditions take from them.

    It serves any number of patterns: what several of them ask for is computed once.
    """

    def __init__(self, schema: Schema, rows: pl.DataFrame, keys: Places) -> None:
        self.schema = schema
        self._keys = keys
        self._frame = rows[ROW].struct.unnest().with_columns(pl.lit(1, pl.Int32).alias(WEIGHT))
        self._held: dict[Any, Flags] = {}
        self._arguments: dict[Reference, list[Any]] = {}
        self._values: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._frame)

    def prepare(self, conditions: Iterable[Condition]) -> None:
        """Computes the conditions that look only at a row, all at once."""
        self.compute(made for each in conditions if (made := _of_row(each)) is not None)

    def satisfying(self, condition: Expression) -> Flags:
        """Which rows satisfy a condition that looks only at a row."""
        self.compute([condition])
        return self._held.get(condition.spark, np.zeros(0, np.bool_))

    def compute(self, conditions: Iterable[Expression]) -> None:
        asked = {made.spark: made for made in conditions}
        missing = [(text, made) for text, made in asked.items() if text not in self._held]
        if missing and len(self):
            names = [(f"holds{number}", made) for number, (_, made) in enumerate(missing)]
            found = computed(self._frame, self.schema, names)
            for (text, _), (name, _) in zip(missing, names, strict=True):
                self._held[text] = _flags(found[name])

    def held(self, condition: Condition) -> Flags | None:
        """Which rows satisfy a condition, or may satisfy it if it depends on the path; None: any row may."""
        of_row = _of_row(condition)
        if of_row is None and condition.depends_on_path:
            return None
        name = (condition.expression.spark, condition.references) if of_row is None else of_row.spark
        if name not in self._held:
            if not len(self):
                return np.zeros(0, np.bool_)
            if of_row is None:
                self._held[name] = _flags(self._after_others(condition))
            else:
                self.prepare([condition])
        return self._held[name]

    def _after_others(self, condition: Condition) -> pl.Series:
        """A condition over rows and the rows around them."""
        frame, fields = self._frame, list(self.schema.arrow)
        for reference in condition.references:
            frame = frame.with_columns(self._before(reference).alias(reference.column))
            fields.append(pa.field(reference.column, reference.type))
        schema = Schema.from_arrow(pa.schema(fields))
        return computed(frame, schema, [("holds", condition.expression)])["holds"]

    def _before(self, reference: Reference) -> pl.Series:
        assert reference.argument is not None
        before = reference.rows_before
        values = computed(self._frame, self.schema, [("value", reference.argument)])["value"].shift(before)
        same, distance = np.zeros(len(self._keys), np.bool_), abs(before)
        if distance < len(same):
            is_same = self._keys[distance:] == self._keys[: len(same) - distance]
            same[slice(before, None) if before >= 0 else slice(None, before)] = is_same
        return pl.select(pl.when(pl.Series(same)).then(values)).to_series()

    def argument(self, reference: Reference) -> list[Any]:
        """The values that a reference takes from rows; of those around them, already at the row they are around."""
        if reference not in self._arguments:
            if reference.argument is None:
                self._arguments[reference] = [None] * len(self._frame)
            else:
                series = (
                    self._before(reference)
                    if reference.rows_before
                    else computed(self._frame, self.schema, [("value", reference.argument)])["value"]
                )
                self._arguments[reference] = values_of(series, reference.argument.type)
        return self._arguments[reference]

    def decided(self, conditions: Iterable[Condition], starts: Places, ends: Places) -> Places:
        """By key, the place of the first row about which a condition must know rows that are not there yet.

        `starts` has the first row of each key, `ends` the place behind its last one.
        """
        decided = ends.copy()
        lengths = np.diff(starts, append=len(self))
        at, places = np.repeat(np.arange(len(starts)), lengths), np.arange(len(self))
        for condition in conditions:
            if not condition.lookahead:
                continue
            is_open = (places < ends[at]) & (places + condition.lookahead >= ends[at])
            if condition.of_row is not None:
                is_open &= self.satisfying(condition.of_row)
            first = np.flatnonzero(is_open)
            np.minimum.at(decided, at[first], first)
        return decided

    def column(self, name: str) -> list[Any]:
        if name not in self._values:
            self._values[name] = values_of(self._frame[name], self.schema.field(name).type)
        return self._values[name]


def _of_row(condition: Condition) -> Expression | None:
    """What a condition asks of the row alone, if that is all that is known before a match."""
    if condition.depends_on_path:
        return condition.of_row
    return None if condition.references else condition.expression


def _flags(holds: pl.Series) -> Flags:
    found: Flags = holds.fill_null(False).to_numpy()
    return found


class Columns:
    """The rows of a step with the conditions of one pattern."""

    def __init__(self, search: Search, rows: RowColumns) -> None:
        self.search, self.rows = search, rows
        types = {field.name: field.type for field in rows.schema.arrow}
        self._python = {
            number: python_condition(
                condition.expression, types | {each.column: each.type for each in condition.references}
            )
            for number, condition in enumerate(search.conditions)
            if condition.depends_on_path
        }
        self._changing = {
            number: [each for each in condition.references if self._sees_row(condition, each)]
            for number, condition in enumerate(search.conditions)
        }
        """By condition, the references whose values depend on the row that is looked at; and those whose do not."""
        self._fixed = {
            number: [each for each in condition.references if not self._sees_row(condition, each)]
            for number, condition in enumerate(search.conditions)
        }
        self.first_bit = 1 << len(search.conditions)
        self.masks: list[int] = []
        """By row, the bits of the conditions that it satisfies."""
        self.on_path = frozenset(self._python)
        """The numbers of the conditions that depend on the rows of a partial match."""

    def bits(self, places: Places | slice, is_first: Flags | None = None) -> Places:
        """The masks of some rows."""
        count = len(range(len(self.rows))[places]) if isinstance(places, slice) else len(places)
        masks = np.zeros(count, np.int64)
        if is_first is not None:
            masks |= np.where(is_first, self.first_bit, 0)
        for number, condition in enumerate(self.search.conditions):
            held = self.rows.held(condition)
            masks |= 1 << number if held is None else np.where(held[places], 1 << number, 0)
        return masks

    # ------------------------------------------------------------ tests

    def compiled(self, test: Test) -> tuple[int, int, tuple[tuple[int, bool], ...]]:
        """A test as bits that are looked at, the value that they must have, and what depends on the path."""
        looked, wanted, rest = 0, 0, []
        for number, holds in test:
            bit = self.first_bit if number == IS_FIRST else 1 << number
            if number in self.on_path:
                rest.append((number, holds))
                if not holds:
                    continue
            looked |= bit
            wanted |= bit if holds else 0
        return looked, wanted, tuple(rest)

    def holds_on_path(self, rest: Sequence[tuple[int, bool]], place: int, rows: PathRows) -> bool:
        """The part of a test that depends on the rows of a partial match."""
        for number, holds in rest:
            may_hold = bool(self.masks[place] >> number & 1)
            if (may_hold and self._holds(number, place, rows)) is not holds:
                return False
        return True

    def _holds(self, number: int, place: int, rows: PathRows) -> bool:
        condition = self.search.conditions[number]
        known = rows.known.get(number)
        if known is None:
            known = rows.known[number] = {
                each.column: self._value(condition, each, place, rows.path) for each in self._fixed[number]
            }
        given = known | {each.column: self._value(condition, each, place, rows.path) for each in self._changing[number]}
        function = self._python[number]
        if function is not None:
            for name in function.columns:
                if name not in given:
                    given[name] = self.rows.column(name)[place]
            with suppress(LeftToDuckDB):
                return function.holds(given)
        return self._asked(condition, place, given)

    def _sees_row(self, condition: Condition, reference: Reference) -> bool:
        if reference.variable is None:
            return True
        own = reference.variable == ALL or condition.name in self.search.rules.members(reference.variable)
        return condition.counts_row and own

    def _asked(self, condition: Condition, place: int, given: dict[str, Any]) -> bool:
        schema = self.rows.schema
        fields = [schema.field(name) for name in schema.names if name in condition.expression.columns]
        values = {field.name: self.rows.column(field.name)[place] for field in fields}
        fields += [pa.field(each.column, each.type) for each in condition.references]
        batch, failures = rows_to_batch([{**values, **given}], Schema.from_arrow(pa.schema(fields)))
        assert not failures, failures
        found = evaluate({"holds": condition.expression.lowered}, pa.Table.from_batches([batch]))
        return found.column("holds")[0].as_py() is True

    def _value(self, condition: Condition, reference: Reference, place: int, path: Path) -> Any:
        if reference.is_classifier:
            return self._classifier(condition, reference, path)
        values = self.rows.argument(reference)
        if reference.variable is None:
            return values[place]
        members = self.search.rules.members(reference.variable)
        anyone = reference.variable == ALL
        found = [values[at] for at, variable, _ in path if anyone or variable in members]
        if self._sees_row(condition, reference):
            found.append(values[place])
        return reference.of(found)

    def _classifier(self, condition: Condition, reference: Reference, path: Path) -> Any:
        members = self.search.rules.members(reference.variable or ALL)
        found = [variable for _, variable, _ in path if reference.variable == ALL or variable in members]
        if self._sees_row(condition, reference):
            found.append(condition.name or "")
        return reference.of(found)
