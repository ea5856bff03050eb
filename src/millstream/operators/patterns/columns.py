"""Conditions over all rows of a step at once: each row becomes a number whose bits are the conditions it satisfies.

Of a condition that depends on the rows of a partial match, the bit says whether a row may satisfy it at all; the
values that it takes from rows are columns too, so that on the way only these are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from millstream.expressions.expression import evaluate
from millstream.operators.accumulators import ROW, WEIGHT
from millstream.operators.elementwise import computed
from millstream.operators.patterns.python_conditions import LeftToDuckDB, python_condition
from millstream.operators.process import values_of
from millstream.plan.patterns.automaton import IS_FIRST, Test
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.found import Path
from millstream.plan.patterns.references import ALL, Condition, Reference
from millstream.records import Schema, rows_to_batch

Places = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(slots=True)
class PathRows:
    """The rows of a partial match, and the values that its conditions take from them."""

    path: Path
    known: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By number of a condition; only values that are the same whatever row is looked at."""


class Columns:
    """The rows of a step, sorted by key and time, with their conditions."""

    def __init__(self, search: Search, schema: Schema, rows: pl.DataFrame, keys: Places, is_first: pl.Series) -> None:
        self.search, self.schema = search, schema
        self._keys = keys
        self._frame = rows[ROW].struct.unnest().with_columns(pl.lit(1, pl.Int32).alias(WEIGHT))
        self._arguments: dict[Reference, list[Any]] = {}
        self._values: dict[str, list[Any]] = {}
        types = {field.name: field.type for field in schema.arrow}
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
        self.masks = self._masks(is_first)
        self.on_path = frozenset(self._python)
        """The numbers of the conditions that depend on the rows of a partial match."""

    def _masks(self, is_first: pl.Series) -> Places:
        masks = np.where(is_first.to_numpy(), self.first_bit, 0).astype(np.int64)
        if not len(self._frame):
            return masks
        for number, condition in enumerate(self.search.conditions):
            if condition.depends_on_path:
                if condition.of_row is None:
                    masks |= 1 << number
                    continue
                held = computed(self._frame, self.schema, [("holds", condition.of_row)])["holds"]
            else:
                held = self._held(condition)
            masks |= np.where(held.fill_null(False).to_numpy(), 1 << number, 0)
        return masks

    def _held(self, condition: Condition) -> pl.Series:
        """A condition over rows and the rows before them."""
        frame, fields = self._frame, list(self.schema.arrow)
        for reference in condition.references:
            frame = frame.with_columns(self._before(reference).alias(reference.column))
            fields.append(pa.field(reference.column, reference.type))
        schema = Schema.from_arrow(pa.schema(fields))
        return computed(frame, schema, [("holds", condition.expression)])["holds"]

    def _before(self, reference: Reference) -> pl.Series:
        assert reference.argument is not None
        values = computed(self._frame, self.schema, [("value", reference.argument)])["value"].shift(reference.offset)
        same = np.zeros(len(self._keys), np.bool_)
        if reference.offset < len(same):
            same[reference.offset :] = self._keys[reference.offset :] == self._keys[: len(same) - reference.offset]
        return pl.select(pl.when(pl.Series(same)).then(values)).to_series()

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
            may_hold = bool(int(self.masks[place]) >> number & 1)
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
                    given[name] = self._column(name)[place]
            with suppress(LeftToDuckDB):
                return function.holds(given)
        return self._asked(condition, place, given)

    def _sees_row(self, condition: Condition, reference: Reference) -> bool:
        if reference.variable is None:
            return True
        own = reference.variable == ALL or condition.name in self.search.rules.members(reference.variable)
        return condition.counts_row and own

    def _asked(self, condition: Condition, place: int, given: dict[str, Any]) -> bool:
        fields = [self.schema.field(name) for name in self.schema.names if name in condition.expression.columns]
        values = {field.name: self._column(field.name)[place] for field in fields}
        fields += [pa.field(each.column, each.type) for each in condition.references]
        batch, failures = rows_to_batch([{**values, **given}], Schema.from_arrow(pa.schema(fields)))
        assert not failures, failures
        found = evaluate({"holds": condition.expression.lowered}, pa.Table.from_batches([batch]))
        return found.column("holds")[0].as_py() is True

    def _value(self, condition: Condition, reference: Reference, place: int, path: Path) -> Any:
        values = self._argument(reference)
        if reference.variable is None:
            return values[place]
        members = self.search.rules.members(reference.variable)
        anyone = reference.variable == ALL
        found = [values[at] for at, variable, _ in path if anyone or variable in members]
        if self._sees_row(condition, reference):
            found.append(values[place])
        return reference.of(found)

    def _argument(self, reference: Reference) -> list[Any]:
        """The values that a reference takes from rows; for the rows before, already at the row that asks."""
        if reference not in self._arguments:
            if reference.argument is None:
                self._arguments[reference] = [None] * len(self._frame)
            else:
                series = (
                    self._before(reference)
                    if reference.variable is None
                    else computed(self._frame, self.schema, [("value", reference.argument)])["value"]
                )
                self._arguments[reference] = values_of(series, reference.argument.type)
        return self._arguments[reference]

    def _column(self, name: str) -> list[Any]:
        if name not in self._values:
            self._values[name] = values_of(self._frame[name], self.schema.field(name).type)
        return self._values[name]
