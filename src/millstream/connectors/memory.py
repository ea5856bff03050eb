"""Rows kept in this process: they are there as long as it is, and so is the note of what was written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.weights import with_weights
from millstream.plan.endpoints import Memory


class MemorySink:
    def __init__(self, place: Memory, *, job: str, step: str, run: str) -> None:
        self._collected = place.collected
        self._ledger_key = (job, step, run)

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if batch <= self._collected.batches.get(self._ledger_key, -1):
            return
        if rows.num_rows:
            self._collected.tables.append(with_weights(rows, weights))
        self._collected.batches[self._ledger_key] = batch

    def close(self) -> None:
        """The rows stay, for those who want to look."""


def rows(name: str) -> list[dict[str, Any]]:
    """All rows written under a name so far."""
    return Memory(name).rows()
