"""A sink that stores nothing. On Spark its rows are counted in the tasks and never collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from millstream.connectors.connector import Connector, Writing
from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.sink import Sink


@dataclass(frozen=True, eq=False)
class Discard(Connector):
    can_write: ClassVar[bool] = True
    only_counts: ClassVar[bool] = True
    leaves_no_trace: ClassVar[bool] = True

    def open_sink(self, writing: Writing) -> Sink:
        return DiscardSink()

    def __str__(self) -> str:
        return "discard()"


def discard() -> Discard:
    """A sink that only counts rows, where they are computed: for measuring the rest of a flow."""
    return Discard()


class DiscardSink(Sink):
    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        """Stores nothing, so a repeated batch is harmless."""
