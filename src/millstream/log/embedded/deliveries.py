"""One consumer of a queue of the embedded log: claims messages, settles them, and writes dead letters."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import OffsetLost, TransactionAborted
from millstream.log.agreement.groups import CHECK_SECONDS, TopicPartition
from millstream.log.agreement.liveness import Participant, is_alive
from millstream.log.agreement.transactions import Included
from millstream.log.agreement.wakeup import Wakeup
from millstream.log.batches import Batch, Record
from millstream.log.ports import Claim, Delivery
from millstream.log.producer import Producer
from millstream.log.queues import Message, QueueSettings, dead_letter, expired
from millstream.log.storage.disk import FileLock
from millstream.log.storage.reader import PartitionReader
from millstream.records import codec

if TYPE_CHECKING:
    from millstream.log.embedded.log import EmbeddedLog


class EmbeddedDeliveries:
    patience_seconds = 0.0  # one pass finds everything

    def __init__(self, log: EmbeddedLog, name: str, topic: str, settings: QueueSettings, participants: Path) -> None:
        self._log = log
        self._name = name
        self._topic, self._settings = topic, settings
        self._participants = participants
        self._participant = Participant(participants)
        self._wakeup = Wakeup()
        self._readers: dict[int, PartitionReader] = {}
        self._fetched: dict[int, Batch] = {}
        self._freed_at = 0.0
        self._turn = 0
        self._claim_made: Claim | None = None

    # ------------------------------------------------------------ claiming

    def claim(self, count: int, seconds: float) -> Claim:
        self._release_claim()
        claim = self._claim(count)
        if seconds > 0 and not claim.deliveries:
            self._wakeup.wait(min(seconds, CHECK_SECONDS))
        return claim

    def _release_claim(self) -> None:
        """Releases what was claimed for a call that then raised, so that it can be delivered at once."""
        claim = self._claim_made
        if claim is not None and not claim.is_taken and claim.deliveries:
            with self._log.coordinator.change() as db:
                db.executemany(
                    "UPDATE deliveries SET owner = NULL, due_at = 0, tries = tries - 1 "
                    "WHERE queue = ? AND partition = ? AND record_offset = ? AND owner = ? AND tries = ?",
                    [
                        (self._name, d.record.partition, d.record.offset, self._participant.id, d.tries)
                        for d in claim.deliveries
                    ],
                )
        self._claim_made = None

    def _claim(self, count: int) -> Claim:
        partitions = self._log.topic(self._topic).partitions()
        self._wakeup.watch(partition.marks.path for partition in partitions)
        for partition in partitions:
            if partition.number not in self._readers:
                self._readers[partition.number] = PartitionReader(partition, 0, committed=True)
            if partition.marks.read().open:
                self._log.end_abandoned(partition)
        now = time.time()
        with self._log.coordinator.change() as db:
            if time.monotonic() - self._freed_at >= CHECK_SECONDS:
                self._release_dead(db)
                self._freed_at = time.monotonic()
            again, spent = self._claim_due(db, count, now)
            fresh = self._claim_fresh(db, count - len(again), now)
            claim = self._claim_made = Claim(again + fresh)  # before it is committed: see _release_claim
        if spent:
            self._move_to_dead_letters(spent)
        return claim

    def _release_dead(self, db: sqlite3.Connection) -> None:
        """Releases the messages of dead consumers, so that they can be delivered at once."""
        owners = db.execute(
            "SELECT DISTINCT owner FROM deliveries WHERE queue = ? AND owner IS NOT NULL", (self._name,)
        )
        for owner in [owner for (owner,) in owners.fetchall() if not is_alive(self._participants, owner)]:
            db.execute(
                "UPDATE deliveries SET owner = NULL, due_at = 0, reason = 'its consumer died' "
                "WHERE queue = ? AND owner = ?",
                (self._name, owner),
            )

    def _claim_due(self, db: sqlite3.Connection, count: int, now: float) -> tuple[list[Delivery], list[sqlite3.Row]]:
        """Deliveries that are due again, and those that have used all their tries."""
        due = db.execute(
            "SELECT * FROM deliveries WHERE queue = ? AND due_at <= ? ORDER BY due_at LIMIT ?", (self._name, now, count)
        ).fetchall()
        messages, spent = [], []
        for row in due:
            if row["tries"] >= self._settings.max_tries:
                spent.append(row)
                continue
            record = self._record_at(row["partition"], row["record_offset"])
            if record is None:
                self._forget(db, row, "lost")
                continue
            db.execute(
                "UPDATE deliveries SET tries = tries + 1, owner = ?, due_at = ? "
                "WHERE queue = ? AND partition = ? AND record_offset = ?",
                (self._participant.id, self._deadline(now), *_key(row)),
            )
            messages.append(Delivery(record, row["tries"] + 1))
        return messages, spent

    def _claim_fresh(self, db: sqlite3.Connection, count: int, now: float) -> list[Delivery]:
        """Records that were never delivered, from each partition in turn."""
        (out,) = db.execute("SELECT count(*) FROM deliveries WHERE queue = ?", (self._name,)).fetchone()
        count = min(count, self._settings.max_in_flight - out)
        messages: list[Delivery] = []
        numbers = sorted(self._readers)
        for step in range(len(numbers)):
            if len(messages) >= count:
                break
            number = numbers[(self._turn + step) % len(numbers)]
            records = self._advance(db, number, count - len(messages))
            db.executemany(
                "INSERT INTO deliveries VALUES (?, ?, ?, 1, ?, ?, NULL)",
                [(self._name, number, record.offset, self._participant.id, self._deadline(now)) for record in records],
            )
            messages += [Delivery(record, 1) for record in records]
        self._turn += 1
        return messages

    def _advance(self, db: sqlite3.Connection, number: int, count: int) -> list[Record]:
        """The next records of a partition; moves the cursor past them."""
        row = db.execute(
            "SELECT next_offset FROM queue_cursors WHERE queue = ? AND partition = ?", (self._name, number)
        ).fetchone()
        if row is None:  # a partition that was added since
            db.execute(
                "INSERT INTO queue_cursors (queue, partition, next_offset) VALUES (?, ?, 0)", (self._name, number)
            )
        cursor = row["next_offset"] if row else 0
        try:
            batch = self._fetch(number, cursor)
        except OffsetLost:
            partition = self._readers[number].partition
            start = partition.start_offset() if cursor < partition.start_offset() else partition.end_offset()
            db.execute(
                "UPDATE queue_cursors SET next_offset = ?, lost = lost + ? WHERE queue = ? AND partition = ?",
                (start, max(0, start - cursor), self._name, number),
            )
            batch = self._fetch(number, start)
        if batch is None:
            return []
        taken, _ = batch.split(count)
        db.execute(
            "UPDATE queue_cursors SET next_offset = ? WHERE queue = ? AND partition = ?",
            (taken.next_offset, self._name, number),
        )
        return taken.records()

    def _fetch(self, number: int, offset: int) -> Batch | None:
        """Records of a partition from an offset on, cached."""
        kept = self._fetched.get(number)
        if kept is None or not kept.offsets[0] <= offset <= kept.offsets[-1]:
            reader = self._readers[number]
            reader.seek(offset)
            fetched = reader.read(max_bytes=1)
            if not fetched:
                return None
            kept = self._fetched[number] = Batch(self._topic, number, fetched[0].offsets, fetched[0].records)
        return kept.split(int((kept.offsets < offset).sum()))[1]

    def _record_at(self, number: int, offset: int) -> Record | None:
        """The record at an offset; None if retention or compaction has deleted it."""
        try:
            batch = self._fetch(number, offset)
        except OffsetLost:
            return None
        if batch is None or batch.offsets[0] != offset:
            return None
        return batch.split(1)[0].records()[0]

    def _deadline(self, now: float) -> float:
        return now + self._settings.timeout.total_seconds()

    # ------------------------------------------------------------ settling

    def acknowledge(self, messages: Sequence[Message]) -> None:
        with self._log.coordinator.change() as db:
            self._acknowledge(db, messages)

    def _acknowledge(self, db: sqlite3.Connection, messages: Iterable[Message]) -> None:
        for message in messages:
            self._forget(db, self._delivery(db, message), "acknowledged")

    def acknowledging(self, messages: Sequence[Message]) -> Included:
        """After an abort the messages stay delivered, and are delivered again when they time out."""
        return Included(lambda db: self._acknowledge(db, messages))

    def refuse(self, message: Message, reason: str, delay: timedelta, dead: bool) -> None:
        with self._log.coordinator.change() as db:
            row = self._delivery(db, message)
            tries = max(row["tries"], self._settings.max_tries) if dead else row["tries"]
            db.execute(
                "UPDATE deliveries SET owner = NULL, due_at = ?, tries = ?, reason = ? "
                "WHERE queue = ? AND partition = ? AND record_offset = ?",
                (time.time() + delay.total_seconds(), tries, reason, *_key(row)),
            )
            row = db.execute(
                "SELECT * FROM deliveries WHERE queue = ? AND partition = ? AND record_offset = ?", _key(row)
            ).fetchone()
        if row["tries"] >= self._settings.max_tries:
            self._move_to_dead_letters([row])

    def extend(self, message: Message, timeout: timedelta) -> None:
        with self._log.coordinator.change() as db:
            row = self._delivery(db, message)
            db.execute(
                "UPDATE deliveries SET due_at = ? WHERE queue = ? AND partition = ? AND record_offset = ?",
                (time.time() + timeout.total_seconds(), *_key(row)),
            )

    def _delivery(self, db: sqlite3.Connection, message: Message) -> sqlite3.Row:
        record = message.record
        row: sqlite3.Row | None = db.execute(
            "SELECT * FROM deliveries "
            "WHERE queue = ? AND partition = ? AND record_offset = ? AND owner = ? AND tries = ?",
            (self._name, record.partition, record.offset, self._participant.id, message.tries),
        ).fetchone()
        if row is None:
            raise expired(self._name, record, can_extend=True)
        return row

    def _forget(self, db: sqlite3.Connection, row: sqlite3.Row, outcome: str) -> int:
        gone = db.execute(
            "DELETE FROM deliveries WHERE queue = ? AND partition = ? AND record_offset = ? AND tries = ?",
            (*_key(row), row["tries"]),
        ).rowcount
        db.execute(
            f"UPDATE queue_cursors SET {outcome} = {outcome} + ? WHERE queue = ? AND partition = ?",
            (gone, self._name, row["partition"]),
        )
        return gone

    # ------------------------------------------------------------ dead letters

    def _move_to_dead_letters(self, spent: Sequence[sqlite3.Row]) -> None:
        """Moves messages that have used all their tries to the dead letters, exactly once: in a transaction."""
        assert self._settings.dead_letters is not None
        with (
            FileLock(self._participants / f".queue-{self._name}"),
            Producer(self._log, acks="all", name=f"queue-{self._name}-dead") as producer,
        ):
            records = [(row, self._record_at(row["partition"], row["record_offset"])) for row in spent]
            try:
                with producer.transaction(Included(lambda db: self._bury(db, spent))):
                    for row, record in records:
                        if record is not None:
                            place = TopicPartition(record.topic, record.partition)
                            original = self._original(record)
                            letter = dead_letter(place, record.offset, original, row["tries"], row["reason"])
                            producer.send(self._settings.dead_letters, letter, key=record.key)
            except TransactionAborted:  # another consumer was faster
                return

    def _bury(self, db: sqlite3.Connection, spent: Sequence[sqlite3.Row]) -> None:
        if not all(self._forget(db, row, "dead") for row in spent):
            raise TransactionAborted("a message was settled by another consumer meanwhile")

    def _original(self, record: Record) -> bytes | None:
        schema = self._log.topic(self._topic).settings.schema
        if schema is None or record.value is None:
            untyped: bytes | None = record.value
            return untyped
        batch = pa.RecordBatch.from_pylist([record.value], schema=schema.arrow)
        encoded: bytes = codec("json", schema).encode(batch)[0].as_py()
        return encoded

    def close(self) -> None:
        self._wakeup.close()
        self._participant.close()


def _key(row: sqlite3.Row) -> tuple[str, int, int]:
    return row["queue"], row["partition"], row["record_offset"]
