"""Whether a row satisfies a condition, given the rows that a partial match has so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millstream.expressions.expression import Expression, evaluate
from millstream.plan.patterns.automaton import IS_FIRST, Test
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.found import Path
from millstream.plan.patterns.references import ALL, Condition, Reference
from millstream.plan.time.bundles import END, Row
from millstream.records import Schema, batch_to_rows, rows_to_batch
from millstream.reference.event_order import time_of


@dataclass
class Conditions:
    """The conditions of a pattern over the rows of one key."""

    search: Search
    schema: Schema
    rows: list[Row] = field(default_factory=list)
    stop: int | None = None
    """The place of the first row that must wait for those after it; None: none does."""
    _known: dict[tuple[str, int, str], Any] = field(default_factory=dict)
    """Values that were computed, since a row is asked about again and again."""

    @property
    def count(self) -> int:
        """How many rows may be searched."""
        return len(self.rows) if self.stop is None else self.stop

    def reach(self, watermark: int) -> int:
        """Settles which rows may be searched, and up to which time: a condition with NEXT waits for the next row."""
        ahead = [each for each in self.search.conditions if each.lookahead]
        self.stop = None
        if watermark >= END or not ahead:
            return watermark
        for place in range(max(len(self.rows) - self.search.lookahead, 0), len(self.rows)):
            if any(place + each.lookahead >= len(self.rows) and self._may_hold(each, place) for each in ahead):
                self.stop = place
                return min(watermark, time_of(self.rows[place]))
        return watermark

    def _may_hold(self, condition: Condition, place: int) -> bool:
        return condition.of_row is None or self._computed(condition.of_row, place, {}, ()) is True

    def hold(self, test: Test, place: int, path: Path) -> bool:
        """Whether a row satisfies a test: a condition that is null does not hold."""
        return all(self._holds(number, place, path) is wanted for number, wanted in test)

    def _holds(self, number: int, place: int, path: Path) -> bool:
        if number == IS_FIRST:
            return place == 0
        condition = self.search.conditions[number]
        values = {each.column: self._value(condition, each, place, path) for each in condition.references}
        return bool(self._computed(condition.expression, place, values, condition.references))

    def _value(self, condition: Condition, reference: Reference, place: int, path: Path) -> Any:
        if reference.variable is None:
            return self._argument(reference, place)
        members = self.search.rules.members(reference.variable)
        found = [(at, variable) for at, variable, _ in path if reference.variable == ALL or variable in members]
        if condition.counts_row and (reference.variable == ALL or condition.name in members):
            found.append((place, condition.name or ""))
        if reference.is_classifier:
            return reference.of([variable for _, variable in found])
        return reference.of([self._argument(reference, at) for at, _ in found])

    def _argument(self, reference: Reference, place: int) -> Any:
        before = place - reference.rows_before
        if reference.argument is None or not 0 <= before < len(self.rows):
            return None
        return self._computed(reference.argument, before, {}, ())

    def _computed(self, made: Expression, place: int, values: dict[str, Any], references: tuple[Reference, ...]) -> Any:
        asked = (made.spark, place, repr(list(values.values())))  # an array or a struct has no hash
        if asked not in self._known:
            self._known[asked] = self._evaluated(made, place, values, references)
        return self._known[asked]

    def _evaluated(
        self, made: Expression, place: int, values: dict[str, Any], references: tuple[Reference, ...]
    ) -> Any:
        fields = [*self.schema.arrow, *(pa.field(each.column, each.type) for each in references)]
        row = {**self.rows[place].values, **values}
        batch, failures = rows_to_batch([row], Schema.from_arrow(pa.schema(fields)))
        assert not failures, failures
        found = evaluate({"found": made.lowered}, pa.Table.from_batches([batch]))
        return batch_to_rows(found.combine_chunks().to_batches()[0])[0]["found"]
