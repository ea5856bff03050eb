"""Single records of a job's sources, read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millstream.connectors.opening import open_source
from millstream.connectors.source import Slice, Source
from millstream.log.kafka.address import as_kafka
from millstream.plan.nodes import Read
from millstream.provenance.history import History
from millstream.provenance.replaying import Origin
from millstream.records import batch_to_rows


class SourceRecords:
    def __init__(self, history: History) -> None:
        self.nodes = {node.name: node for node in history.steps if isinstance(node, Read)}
        self._history = history
        self._opened: dict[str, Source] = {}

    def row(self, origin: Origin) -> dict[str, Any] | None:
        """A record as a row; None if it has expired, or is not a row."""
        source = self._source(origin.source)
        for slab in source.read(Slice(origin.partition, origin.offset, origin.offset + 1)):
            for batch in slab.rows.to_batches():
                for row in batch_to_rows(batch):
                    return row
        return None

    def _source(self, name: str) -> Source:
        if name not in self._opened:
            node, broker = self.nodes[name], self._history.broker
            self._opened[name] = open_source(
                node.source,
                node.schema,
                broker=as_kafka(broker) or broker,
                folder=self._history.folder.path / "sources" / name,
                name=name,
                on_lost="earliest",
            )
        return self._opened[name]

    def close(self) -> None:
        for source in self._opened.values():
            source.close()


@contextmanager
def source_records(history: History) -> Iterator[SourceRecords]:
    records = SourceRecords(history)
    try:
        yield records
    finally:
        records.close()
