"""Which transactions a capture has stored, and how many changes of each are in which topic.

The list is a topic beside those of the tables, and its entries are stored in the transaction of the log that has the
changes. So a reader knows when it has all changes of a transaction, however many topics and partitions they are in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millstream.capture.changes import TIME
from millstream.capture.ports import Piece
from millstream.records import Schema

LIST = "_transactions."
SCHEMA = Schema.of(
    pa.schema(
        [
            ("transaction", pa.string()),
            ("position", pa.int64()),
            ("at", TIME),
            ("topics", pa.list_(pa.struct([("topic", pa.string()), ("changes", pa.int64())]))),
        ]
    )
)


@dataclass
class Entry:
    transaction: str
    position: int
    at_us: int
    piece: int
    """The last one that has changes of the transaction."""
    counts: dict[str, int] = field(default_factory=dict)
    """Of changes, by topic."""


class Tally:
    """The transactions of one step."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._pieces = 0

    def add(self, piece: Piece) -> None:
        self._pieces += 1
        columns = piece.records.select(["transaction", "position", "at"])
        counted = pa.Table.from_batches([columns]).group_by("transaction", use_threads=False)
        found = counted.aggregate([("position", "min"), ("at", "max"), ("position", "count")])
        times = found.column("at_max").cast(pa.int64()).to_pylist()
        firsts, counts = (found.column(f"position_{each}").to_pylist() for each in ("min", "count"))
        for transaction, position, at_us, count in zip(
            found.column("transaction").to_pylist(), firsts, times, counts, strict=True
        ):
            known = self._entries.get(transaction)
            if known is None:
                known = self._entries[transaction] = Entry(transaction, position, at_us, 0)
            known.position, known.at_us = min(known.position, position), max(known.at_us, at_us)
            known.piece = self._pieces
            known.counts[piece.shape.topic] = known.counts.get(piece.shape.topic, 0) + count

    @property
    def entries(self) -> list[Entry]:
        """In the order that each topic has them in. A chunk of rows may have the position of a transaction."""
        return sorted(self._entries.values(), key=lambda entry: (entry.position, entry.piece))


def records(entries: Iterable[Entry]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {
            "transaction": entry.transaction,
            "position": entry.position,
            "at": entry.at_us,
            "topics": [{"topic": topic, "changes": count} for topic, count in sorted(entry.counts.items())],
        }
        for entry in entries
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)
