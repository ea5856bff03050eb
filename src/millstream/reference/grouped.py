"""Aggregates per key over all rows present, recomputed for every key that a row arrives for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from millstream.expressions.expression import evaluate
from millstream.plan.table_nodes import Grouped
from millstream.plan.time.bundles import ARGUMENTS, Bundle, Row, table_of
from millstream.records import batch_to_rows
from millstream.reference.aggregates import results
from millstream.reference.operator import StatefulOperator


class GroupedOperator(StatefulOperator):
    node: Grouped

    def __init__(self, node: Grouped) -> None:
        super().__init__(node)
        self.rows: dict[tuple[Any, ...], list[Row]] = {}
        self.newest: dict[tuple[Any, ...], int | None] = {}

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        came: dict[tuple[Any, ...], list[Row]] = {}
        for row in self._with_arguments(given[0]):
            came.setdefault(tuple(row.values[key] for key in self.node.keys), []).append(row)
        sent: list[Row] = []
        for key, rows in came.items():
            old = self._result(key)
            self.rows[key] = remaining([*self.rows.get(key, []), *rows])
            times = [row.time for row in rows if row.time is not None]
            newest = self.newest[key] = max([*times, *self._times(key)], default=None)
            new = self._result(key)
            if repr(old) != repr(new):
                sent += [Row(old, newest, -1)] if old else []
                sent += [Row(new, newest, 1)] if new else []
        for key, rows in list(self.rows.items()):
            newest = self.newest[key]
            if not rows and (newest is None or newest < clock.watermark):
                del self.rows[key], self.newest[key]
        return sent

    def _times(self, key: tuple[Any, ...]) -> list[int]:
        known = self.newest.get(key)
        return [] if known is None else [known]

    def _result(self, key: tuple[Any, ...]) -> dict[str, Any] | None:
        rows = [row for row in self.rows.get(key, []) if row.weight > 0]
        if not rows:
            return None
        return dict(zip(self.node.keys, key, strict=True)) | results(self.node, rows, key)

    def _with_arguments(self, rows: list[Row]) -> list[Row]:
        if not rows or not self.node.arguments:
            return [replace(row, values={**row.values, ARGUMENTS: {}}) for row in rows]
        made = {name: argument.lowered for name, argument in self.node.arguments}
        values = batch_to_rows(evaluate(made, table_of(rows, self.node.inputs[0])).combine_chunks().to_batches()[0])
        return [replace(row, values={**row.values, ARGUMENTS: found}) for row, found in zip(rows, values, strict=True)]


def remaining(rows: Sequence[Row]) -> list[Row]:
    """Rows that were not retracted; of equal ones the last to arrive are. Early retractions are kept."""
    single = [replace(row, weight=1 if row.weight > 0 else -1) for row in rows for _ in range(abs(row.weight))]
    come, gone = (Counter(identity(row) for row in single if row.weight == sign) for sign in (1, -1))
    left = {1: come - gone, -1: gone - come}
    kept = []
    for row in single:
        if left[row.weight][identity(row)]:
            left[row.weight][identity(row)] -= 1
            kept.append(row)
    return kept


def identity(row: Row) -> str:
    """A table does not distinguish rows by their time."""
    return repr(sorted(row.values[ARGUMENTS].items()))
