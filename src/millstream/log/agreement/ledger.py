"""A ledger records the newest batch that a step of a job has written, in the same commit that makes the batch visible.

Passed to `producer.transaction(…)`, an entry becomes part of the commit: the records and the entry are stored together
or not at all.
"""

from __future__ import annotations

import sqlite3

import pyarrow as pa

from millstream.errors import TransactionAborted
from millstream.log.agreement.coordinator import SINK_BATCHES, Coordinator
from millstream.log.agreement.transactions import Included
from millstream.log.buffer import BatchReceipt, microseconds
from millstream.log.producer import Producer
from millstream.log.storage.layout import HEADERS, TIMESTAMP, no_values


class Ledger:
    """The ledger of one step of one run of a job, in the coordinator's file. Each run counts its batches from 0."""

    def __init__(self, coordinator: Coordinator, job: str, step: str, run: str = "") -> None:
        self._coordinator = coordinator
        self.job, self.step, self.run = job, step, run
        with coordinator.change() as db:
            db.execute(SINK_BATCHES)

    def newest(self) -> int | None:
        """The newest batch written; None before the first."""
        with self._coordinator.look() as db:
            row = db.execute(
                "SELECT batch FROM sink_batches WHERE job = ? AND step = ? AND run = ?",
                (self.job, self.step, self.run),
            ).fetchone()
        return None if row is None else int(row["batch"])

    def has(self, batch: int) -> bool:
        newest = self.newest()
        return newest is not None and batch <= newest

    def record(self, batch: int) -> None:
        """Records a batch without output. It does no harm if a crash of the machine loses the entry."""
        with self._coordinator.change() as db:
            self._write(db, batch)

    def entry(self, batch: int) -> Included:
        """Makes a batch part of a transaction."""

        def write(db: sqlite3.Connection) -> None:
            if not self._write(db, batch):
                raise TransactionAborted(f"batch {batch} of step '{self.step}' of job '{self.job}' was written before")

        return Included(write)

    def _write(self, db: sqlite3.Connection, batch: int) -> bool:
        """Whether the batch is new."""
        done = db.execute(
            "INSERT INTO sink_batches VALUES (?, ?, ?, ?) "
            "ON CONFLICT (job, step, run) DO UPDATE SET batch = excluded.batch WHERE excluded.batch > batch",
            (self.job, self.step, self.run, batch),
        )
        return done.rowcount > 0


def send_keyed(
    producer: Producer,
    topic: str,
    rows: pa.RecordBatch,
    keys: pa.Array | None,
    timestamps: pa.Array | None = None,
    headers: pa.Array | None = None,
) -> BatchReceipt:
    """Sends rows to a topic with a schema, with keys, timestamps and headers that are not among their columns."""
    channel = producer._open_channel(topic)
    stored = channel.topic.stored_schema
    now = pa.scalar(microseconds(None), TIMESTAMP)
    columns = [
        no_values(pa.binary(), rows.num_rows) if keys is None else keys.cast(pa.binary()),
        channel._typed_values(rows),
        pa.repeat(now, rows.num_rows) if timestamps is None else timestamps.fill_null(now),
        no_values(HEADERS, rows.num_rows) if headers is None else headers,
    ]
    return producer._buffer.add_batch(topic, pa.RecordBatch.from_arrays(columns, schema=stored), None)
