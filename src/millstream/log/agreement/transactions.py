"""A transaction is committed when the coordinator records it; markers in the partitions only propagate the outcome.

    open: every partition is registered before its first record
    commit: records synced, then the outcome and the group's offsets in one durable change; then markers, then idle

A transaction of a dead producer is ended by the first process that finds it: committed if that was the outcome, aborted
otherwise.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream import terminal
from millstream.errors import NotFound, ProducerFenced, StorageError, TransactionAborted
from millstream.log.agreement.coordinator import Coordinator
from millstream.log.agreement.groups import TopicPartition
from millstream.log.agreement.liveness import Participant, is_alive
from millstream.log.storage.partition import Partition

FindPartition = Callable[[str, int], Partition]
logger = terminal.logger(__name__)


@dataclass(slots=True, eq=False)
class Included:
    """A change of the coordinator that is committed with a producer's transaction; for `producer.transaction(…)`."""

    change: Callable[[sqlite3.Connection], None]
    must_rewind: bool = False

    @property
    def transaction_type(self) -> type:
        return sqlite3.Connection

    def commit_with(self, transaction: object) -> None:
        assert isinstance(transaction, sqlite3.Connection)
        self.change(transaction)

    def committed_elsewhere(self) -> None:
        """Nothing outside the coordinator needs to follow."""

    def rewind(self) -> None:
        """Nothing outside the coordinator needs to rewind."""


class NamedProducer:
    """The identity of a producer that keeps its name across restarts; the newest of a name fences the others."""

    def __init__(self, name: str, coordinator: Coordinator, participants: Path, find: FindPartition) -> None:
        self.name = name
        self._coordinator = coordinator
        self._find = find
        self._participant = Participant(participants)
        with coordinator.change(durable=True) as db:
            db.execute("INSERT OR IGNORE INTO producers (name, epoch, owner, state) VALUES (?, 0, '', 'idle')", (name,))
            row = db.execute("SELECT * FROM producers WHERE name = ?", (name,)).fetchone()
            # An open transaction of the previous owner is aborted; a recorded outcome stands.
            state = "aborting" if row["state"] == "open" else row["state"]
            db.execute("UPDATE producers SET owner = ?, state = ? WHERE name = ?", (self._participant.id, state, name))
        self.id = int(row["id"])
        self.epoch = int(row["epoch"])
        self._next_epoch("idle")  # so that frames of a previous producer are never mistaken for this one's

    def check(self) -> None:
        """Raises unless this is still the newest producer of its name, and its transaction, if any, is open."""
        with self._coordinator.look() as db:
            row = db.execute("SELECT owner, epoch, state FROM producers WHERE id = ?", (self.id,)).fetchone()
        self._refuse_if_fenced(row)

    def _refuse_if_fenced(self, row: sqlite3.Row | None) -> None:
        if row is None or row["owner"] != self._participant.id or row["epoch"] != self.epoch:
            raise ProducerFenced(
                f"a newer producer named '{self.name}' has taken over",
                next_step="close this one; producers that run at the same time need different names",
            )

    def begin(self) -> None:
        """Every transaction durably gets its own epoch, so that id and epoch identify it permanently."""
        self._next_epoch("open")

    def _next_epoch(self, state: str) -> None:
        finish(self._coordinator, self._find, self.id)  # one whose markers could not be written everywhere
        with self._coordinator.change(durable=True) as db:
            row = db.execute("SELECT * FROM producers WHERE id = ?", (self.id,)).fetchone()
            if row is not None and row["owner"] == self._participant.id:
                self.epoch = int(row["epoch"])  # nobody else raises it; an exception may have hidden it
            self._refuse_if_fenced(row)
            db.execute("UPDATE producers SET epoch = epoch + 1, state = ? WHERE id = ?", (state, self.id))
        self.epoch += 1

    def enlist(self, partition: TopicPartition) -> None:
        with self._coordinator.change() as db:
            self._refuse_if_fenced(db.execute("SELECT * FROM producers WHERE id = ?", (self.id,)).fetchone())
            db.execute("INSERT OR IGNORE INTO transaction_partitions VALUES (?, ?, ?)", (self.id, *partition))

    def commit(self, with_outcome: Callable[[sqlite3.Connection], None]) -> None:
        """`with_outcome` makes the changes that are committed with the transaction."""
        for topic, number in _partitions(self._coordinator, self.id):
            self._find(topic, number).sync()
        with self._coordinator.change(durable=True) as db:
            row = db.execute("SELECT * FROM producers WHERE id = ?", (self.id,)).fetchone()
            self._refuse_if_fenced(row)
            if row["state"] != "open":
                raise TransactionAborted(f"the transaction of producer '{self.name}' was ended by another process")
            with_outcome(db)
            db.execute("UPDATE producers SET state = 'committing' WHERE id = ?", (self.id,))
        self._propagate()

    def abort(self) -> None:
        with self._coordinator.change() as db:
            db.execute(
                "UPDATE producers SET state = 'aborting' WHERE id = ? AND owner = ? AND epoch = ? AND state = 'open'",
                (self.id, self._participant.id, self.epoch),
            )
        self._propagate()

    def _propagate(self) -> None:
        """The outcome stands, whatever happens to its markers: a partition without one gets it later."""
        try:
            finish(self._coordinator, self._find, self.id)
        except StorageError as error:
            logger.warning(
                "a transaction of producer '%s' will be completed later in some partitions: %s", self.name, error
            )

    def close(self) -> None:
        self._participant.close()


def _partitions(coordinator: Coordinator, producer_id: int) -> list[TopicPartition]:
    with coordinator.look() as db:
        rows = db.execute(
            "SELECT topic, partition FROM transaction_partitions WHERE producer_id = ?", (producer_id,)
        ).fetchall()
    return [TopicPartition(row["topic"], row["partition"]) for row in rows]


def finish(coordinator: Coordinator, find: FindPartition, producer_id: int) -> None:
    """Propagates an outcome to every partition; idempotent, and safe to run concurrently."""
    with coordinator.look() as db:
        row = db.execute("SELECT epoch, state FROM producers WHERE id = ?", (producer_id,)).fetchone()
    if row is None or row["state"] not in ("committing", "aborting"):
        return
    for topic, number in _partitions(coordinator, producer_id):
        try:
            partition = find(topic, number)
        except NotFound:  # deleted meanwhile, and the records with it
            continue
        partition.end_transaction(producer_id, row["epoch"], commit=row["state"] == "committing")
    with coordinator.change(durable=True) as db:
        same = (producer_id, row["epoch"], row["state"])
        ended = db.execute(
            "UPDATE producers SET state = 'idle' WHERE id = ? AND epoch = ? AND state = ?", same
        ).rowcount
        if ended:
            db.execute("DELETE FROM transaction_partitions WHERE producer_id = ?", (producer_id,))


def end_abandoned(coordinator: Coordinator, participants: Path, find: FindPartition, partition: Partition) -> None:
    """Ends abandoned transactions that block a partition's committed readers."""
    for known in partition.marks.read().open:
        with coordinator.look() as db:
            row = db.execute("SELECT * FROM producers WHERE id = ?", (known.producer_id,)).fetchone()
        if row is None or row["epoch"] != known.epoch or row["state"] == "idle":
            # The registration of this partition was lost in a crash of the machine, so it never got an outcome.
            partition.end_transaction(known.producer_id, known.epoch, commit=False)
        elif row["state"] != "open" or not is_alive(participants, row["owner"]):
            with coordinator.change(durable=True) as db:
                db.execute(
                    "UPDATE producers SET state = 'aborting' "
                    "WHERE id = ? AND epoch = ? AND owner = ? AND state = 'open'",
                    (row["id"], row["epoch"], row["owner"]),
                )
            finish(coordinator, find, known.producer_id)
