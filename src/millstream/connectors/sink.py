"""A sink writes each batch of a step exactly once: completely or not at all, even if processes are killed.

Making a batch visible and recording it are one atomic change, or the record is stored with the rows. A two-phase sink
receives large results where they are computed: each task prepares its rows invisibly, and the driver commits what all
tasks have prepared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.refusals import Refuse, refusals_of, stop
from millstream.errors import SinkFailed

DRIVER_SHARD = 0
"""The shard of the rows that the driver prepares; those of tasks start at 1."""


class Sink(ABC):
    """Writes the batches of one step in the driver."""

    @abstractmethod
    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        """Writes a batch exactly once: a batch that was written before is skipped.

        Batch numbers increase. `weights` has a weight per row, or is None if rows are never retracted. Rows that the
        sink permanently rejects are left out: `refuse` is called with them before the rest is committed, but not if the
        batch was written before. Raises SinkUnavailable if the batch should be retried later, and any other error if a
        retry is pointless.
        """

    def write_prepared(
        self, batch: int, rows: pa.Table, weights: pa.Array | None, receipts: Sequence[Any], refuse: Refuse = stop
    ) -> None:
        """Writes a batch that tasks have prepared in part, which they do only for sinks with a preparer."""
        if receipts:
            raise SinkFailed(
                f"{type(self).__name__} has a preparer, and nothing that commits what it prepares",
                next_step="make it a TwoPhaseSink",
            )
        self.write(batch, rows, weights, refuse)

    def preparer(self) -> Preparer | None:
        """The preparer for tasks, from now on; None if all rows are written in the driver."""
        return None

    def take_places(self) -> Mapping[str, tuple[int, int]]:
        """By partition, the offsets that the records of the last batch start and end at; empty if they are unknown."""
        return {}

    def close(self) -> None:
        return None


@dataclass(frozen=True)
class Prepared:
    """Stored rows that are not yet visible."""

    receipt: Any
    """What `commit` needs to make them visible: plain types, because it is sent from the task to the driver."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """The rows that the sink permanently rejects, with the reasons."""


class Preparer(ABC):
    """The half of a sink that runs in tasks. It must be picklable."""

    @abstractmethod
    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared | None:
        """Stores rows invisibly and durably. None: not possible here, the rows must be sent to the driver.

        A retried task prepares its rows again, and only one of the receipts is committed.
        """


class TwoPhaseSink(Sink):
    """A two-phase sink: `prepare` in tasks and in the driver, `commit` in the driver."""

    @abstractmethod
    def is_decided(self, batch: int) -> bool:
        """Whether the contents of a batch are recorded. From then on, other receipts cannot change it."""

    @abstractmethod
    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared:
        """Stores the driver's rows invisibly."""

    @abstractmethod
    def commit(self, batch: int, receipts: Sequence[Any]) -> None:
        """Makes all rows of a batch visible. Idempotent: called again for a batch, it completes it."""

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        self.write_prepared(batch, rows, weights, (), refuse)

    def write_prepared(
        self, batch: int, rows: pa.Table, weights: pa.Array | None, receipts: Sequence[Any], refuse: Refuse = stop
    ) -> None:
        own = []
        if not self.is_decided(batch):
            prepared = self.prepare(batch, DRIVER_SHARD, rows, weights)
            refuse(refusals_of(prepared.refused))
            own = [msgspec.msgpack.decode(msgspec.msgpack.encode(prepared.receipt))]  # as those of tasks come
        self.commit(batch, [*own, *receipts])


class RecordedSink(Sink):
    """Records the batches of a sink in the job's folder as well: its output cannot tell which job wrote to it."""

    def __init__(self, sink: Sink, ledger: FileLedger) -> None:
        self._sink = sink
        self._ledger = ledger

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        self.write_prepared(batch, rows, weights, (), refuse)

    def write_prepared(
        self, batch: int, rows: pa.Table, weights: pa.Array | None, receipts: Sequence[Any], refuse: Refuse = stop
    ) -> None:
        self._sink.write_prepared(batch, rows, weights, receipts, refuse)
        if not self._ledger.has(batch):
            self._ledger.record(batch)

    def preparer(self) -> Preparer | None:
        return self._sink.preparer()

    def take_places(self) -> Mapping[str, tuple[int, int]]:
        return self._sink.take_places()

    def close(self) -> None:
        self._sink.close()
