"""The newest rows that a job emitted, to show them: a pane replaces the one before it, and a retraction removes it.

A large batch is not searched for what it replaces: only its own last rows are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millstream.plan.nodes import Write

ROWS_KEPT = 10
SEARCHED_ROWS_MAX = 1_000
WINDOW, PANE, WEIGHT = "window", "pane", "weight"


class RecentRows:
    """By output, its newest rows, the last one last."""

    def __init__(self, keys: Mapping[Write, Sequence[str]]) -> None:
        self._outputs = {output.name: _Newest(identity_of(output, columns)) for output, columns in keys.items()}

    def of(self, output: Write) -> list[dict[str, Any]]:
        return self._outputs[output.name].rows

    def note(self, output: Write, rows: pa.Table, weights: pa.Array | None) -> None:
        """Called with each batch of an output."""
        self._outputs[output.name].note(rows, weights)


def identity_of(output: Write, keys: Sequence[str]) -> tuple[str, ...] | None:
    """The columns that tell which row another one replaces; None if each stays."""
    names = output.schema.names
    if WINDOW in names and PANE in names:
        return (*keys, WINDOW)
    return (tuple(keys) or tuple(names)) if output.net else None


class _Newest:
    def __init__(self, identity: tuple[str, ...] | None) -> None:
        self._identity = identity
        self._rows: dict[int | str, dict[str, Any]] = {}
        self._count = 0
        self.rows: list[dict[str, Any]] = []
        """Replaced as a whole: another thread reads it."""

    def note(self, rows: pa.Table, weights: pa.Array | None) -> None:
        if not rows.num_rows:
            return
        if rows.num_rows > SEARCHED_ROWS_MAX:
            self._rows.clear()
            first = rows.num_rows - SEARCHED_ROWS_MAX
            rows, weights = rows.slice(first), None if weights is None else weights.slice(first)
        signs = [1] * rows.num_rows if weights is None else weights.to_pylist()
        for row, weight in zip(rows.to_pylist(), signs, strict=True):
            self._count += 1
            place = self._count if self._identity is None else repr([row[name] for name in self._identity])
            self._rows.pop(place, None)
            if weight > 0:
                self._rows[place] = row
        for place in list(self._rows)[:-ROWS_KEPT]:
            del self._rows[place]
        self.rows = list(self._rows.values())
