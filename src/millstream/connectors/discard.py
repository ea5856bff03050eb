"""Rows that nobody keeps. On Spark they do not come as far as this: they are counted where they are made."""

from __future__ import annotations

import pyarrow as pa

from millstream.connectors.refusals import Refuse, stop


class DiscardSink:
    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        """Nothing stays, so nothing is there twice."""

    def close(self) -> None:
        """Nothing is held."""
