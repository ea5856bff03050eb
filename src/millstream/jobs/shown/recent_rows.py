"""The newest rows that a job emitted, to show them: a pane replaces the one before it, and a retraction removes it.

Of a large batch, and of many small ones that nobody looked at, only the last rows are considered.
"""

from __future__ import annotations

import threading
from collections import deque
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
        return self._outputs[output.name].rows()

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
    """Batches are kept as they are until rows are asked for: most jobs run without anybody watching."""

    def __init__(self, identity: tuple[str, ...] | None) -> None:
        self._identity = identity
        self._lock = threading.Lock()  # one thread writes batches, another one shows them
        self._batches: deque[tuple[pa.Table, pa.Array | None]] = deque()
        self._rows: dict[int | str, dict[str, Any]] = {}
        self._count = 0

    def note(self, rows: pa.Table, weights: pa.Array | None) -> None:
        if not rows.num_rows:
            return
        if rows.num_rows > SEARCHED_ROWS_MAX:
            last = pa.array(range(rows.num_rows - SEARCHED_ROWS_MAX, rows.num_rows))
            rows = rows.take(last)  # a copy: a slice would keep the whole batch in memory
            weights = None if weights is None else weights.take(last)
        with self._lock:
            self._batches.append((rows, weights))
            while sum(batch.num_rows for batch, _ in self._batches) > SEARCHED_ROWS_MAX:
                self._batches.popleft()
                self._rows.clear()  # the batch that is left out may have replaced them

    def rows(self) -> list[dict[str, Any]]:
        with self._lock:
            while self._batches:
                self._take(*self._batches.popleft())
            return list(self._rows.values())

    def _take(self, rows: pa.Table, weights: pa.Array | None) -> None:
        signs = [1] * rows.num_rows if weights is None else weights.to_pylist()
        for row, weight in zip(rows.to_pylist(), signs, strict=True):
            self._count += 1
            place = self._count if self._identity is None else repr([row[name] for name in self._identity])
            self._rows.pop(place, None)
            if weight > 0:
                self._rows[place] = row
        for place in list(self._rows)[:-ROWS_KEPT]:
            del self._rows[place]
