"""A queue shares the records of a topic out as single messages: one consumer handles each, and acknowledges it.

Per partition a cursor says up to where records have been handed out at all; a delivery stands for each one that is out
or waits to go out again. What is behind the cursor and has no delivery is done. Order is not kept. Several queues on
one topic each get all of it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import (
    AlreadyExists,
    ClosedError,
    DamagedLog,
    DeliveryExpired,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    MillstreamError,
    OffsetLost,
    TransactionAborted,
    UnknownQueue,
)
from millstream.log.batches import Batch, Record
from millstream.log.coordinator import Coordinator
from millstream.log.disk import FileLock
from millstream.log.groups import CHECK_SECONDS
from millstream.log.liveness import Participant, is_alive
from millstream.log.reader import PartitionReader
from millstream.log.topics import checked_name
from millstream.log.wakeup import Wakeup
from millstream.records import DEAD_LETTER_SCHEMA, codec, duration, format_duration

if TYPE_CHECKING:
    from millstream.log.embedded import EmbeddedLog, Topic


NAME_LENGTH_MAX = 200  # other names are made of it


@dataclass(frozen=True)
class QueueSettings:
    timeout: timedelta = timedelta(seconds=30)
    max_tries: int = 5
    dead_letters: str | None = None
    max_in_flight: int = 10_000
    start: str = "earliest"

    @classmethod
    def of(cls, **given: Any) -> QueueSettings:
        known = list(cls.__dataclass_fields__)
        for name in given:
            if name not in known:
                raise InvalidSetting(
                    f"there is no setting '{name}'", next_step=f"settings of a queue: {', '.join(known)}"
                )
        if "timeout" in given:
            given["timeout"] = duration(given["timeout"], what="timeout")
        settings = cls(**given)
        if settings.timeout <= timedelta(0):
            raise InvalidSetting("timeout must be longer than nothing")
        for name in ("max_tries", "max_in_flight"):
            value = getattr(settings, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidSetting(f"{name} is a whole number from 1 on, not {value!r}")
        if settings.start not in ("earliest", "latest"):
            raise InvalidSetting(f"start is 'earliest' or 'latest', not {settings.start!r}")
        return settings

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "timeout": format_duration(self.timeout)})


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """What is not known is None: Kafka does not count the messages of a queue."""

    name: str
    topic: str
    settings: QueueSettings
    waiting: int | None
    in_flight: int | None
    acknowledged: int | None
    dead: int | None
    lost: int | None
    consumers: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery of a record. It is delivered again unless it is acknowledged before its time is over."""

    record: Record
    tries: int
    _queue: Queue

    @property
    def value(self) -> Any:
        return self.record.value

    @property
    def key(self) -> bytes | None:
        return self.record.key

    def acknowledge(self) -> None:
        """The work is done: the message is not delivered again."""
        self._queue.acknowledge([self])

    def refuse(self, reason: str = "refused", *, delay: str | timedelta = "0 seconds", dead: bool = False) -> None:
        """The work is not done: deliver it again, after a delay if one is given, or bury it at once."""
        self._queue.refuse(self, reason, duration(delay, what="delay"), dead)

    def extend(self, timeout: str | timedelta) -> None:
        """The work takes longer: wait so much longer from now before delivering it again."""
        self._queue.extend(self, duration(timeout, what="timeout"))


def names(coordinator: Coordinator) -> list[str]:
    with coordinator.look() as db:
        return [name for (name,) in db.execute("SELECT name FROM queues ORDER BY name")]


def create(log: EmbeddedLog, name: str, topic: Topic, settings: QueueSettings) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidName(f"the name of a queue has at most {NAME_LENGTH_MAX} characters, not {len(name)}")
    if settings.dead_letters is None:
        settings = replace(settings, dead_letters=f"{name}.dead")
    assert settings.dead_letters is not None
    if name in names(log.coordinator):
        raise AlreadyExists(f"there is a queue '{name}' already", next_step="choose another name, or delete that one")
    if settings.dead_letters not in log.topics():
        log.create_topic(settings.dead_letters, schema=DEAD_LETTER_SCHEMA)
    elif log.topic(settings.dead_letters).settings.schema != DEAD_LETTER_SCHEMA:
        raise InvalidSetting(
            f"topic '{settings.dead_letters}' cannot take dead letters: it has another schema",
            next_step=f"name another topic, or one with the schema '{DEAD_LETTER_SCHEMA.ddl}'",
        )
    cursors = [
        (
            name,
            partition.number,
            partition.start_offset() if settings.start == "earliest" else partition.stable_offset(),
        )
        for partition in topic.partitions()
    ]
    with log.coordinator.change() as db:
        if (
            db.execute("INSERT OR IGNORE INTO queues VALUES (?, ?, ?)", (name, topic.name, settings.to_json())).rowcount
            == 0
        ):
            raise AlreadyExists(
                f"there is a queue '{name}' already", next_step="choose another name, or delete that one"
            )
        db.executemany("INSERT INTO queue_cursors (queue, partition, next_offset) VALUES (?, ?, ?)", cursors)


def load(coordinator: Coordinator, name: str) -> tuple[str, QueueSettings]:
    with coordinator.look() as db:
        row = db.execute("SELECT topic, settings FROM queues WHERE name = ?", (name,)).fetchone()
    if row is None:
        known = ", ".join(names(coordinator)) or "none"
        raise UnknownQueue(f"there is no queue '{name}'", next_step=f"create it first; queues that exist: {known}")
    return row["topic"], settings_of(coordinator, row)


def settings_of(coordinator: Coordinator, queue: sqlite3.Row) -> QueueSettings:
    try:
        settings = QueueSettings.of(**coordinator.document(queue["settings"], dict))
        checked_name(settings.dead_letters, "topic")
    except (MillstreamError, TypeError, ValueError, ArithmeticError) as error:
        why = error.what if isinstance(error, MillstreamError) else repr(error)
        raise DamagedLog(
            f"the settings of a queue cannot be read: {why[:500]}",
            where=str(coordinator.path),
            next_step="restore the coordinator's file from a copy",
        ) from error
    return settings


def describe(coordinator: Coordinator, people: Path, name: str, find: Callable[[str], Topic]) -> QueueInfo:
    topic, settings = load(coordinator, name)
    with coordinator.look() as db:
        cursors = db.execute("SELECT * FROM queue_cursors WHERE queue = ?", (name,)).fetchall()
        out = db.execute("SELECT owner, due_at FROM deliveries WHERE queue = ?", (name,)).fetchall()
    alive = {owner for owner in {row["owner"] for row in out} if owner and is_alive(people, owner)}
    now = time.time()
    in_flight = sum(1 for row in out if row["owner"] in alive and row["due_at"] > now)
    position = {row["partition"]: row["next_offset"] for row in cursors}
    ahead = sum(p.stable_offset() - position.get(p.number, p.start_offset()) for p in find(topic).partitions())
    totals = {column: sum(row[column] for row in cursors) for column in ("acknowledged", "dead", "lost")}
    return QueueInfo(name, topic, settings, ahead + len(out) - in_flight, in_flight, consumers=len(alive), **totals)


def delete(coordinator: Coordinator, people: Path, name: str) -> None:
    load(coordinator, name)
    with coordinator.change() as db:
        owners = {
            owner for (owner,) in db.execute("SELECT DISTINCT owner FROM deliveries WHERE queue = ?", (name,)) if owner
        }
        if busy := [owner for owner in owners if is_alive(people, owner)]:
            raise InvalidInput(
                f"{len(busy)} consumers are at work on queue '{name}'", next_step="stop them first, then try again"
            )
        for table in ("deliveries", "queue_cursors"):
            db.execute(f"DELETE FROM {table} WHERE queue = ?", (name,))
        db.execute("DELETE FROM queues WHERE name = ?", (name,))


@dataclass(slots=True, eq=False)
class Claim:
    """Messages taken for one call; they are the user's only once that call has returned them."""

    messages: list[Message]
    is_taken: bool = False


class Queue:
    """One consumer of a queue. Made by `log.queue(…)`; use it as a context manager, or call `close`."""

    def __init__(self, log: EmbeddedLog, name: str, people: Path) -> None:
        self._log = log
        self.name = name
        self.topic, self.settings = load(log.coordinator, name)
        self._people = people
        self._participant = Participant(people)
        self._wakeup = Wakeup()
        self._readers: dict[int, PartitionReader] = {}
        self._fetched: dict[int, Batch] = {}
        self._freed_at = 0.0
        self._turn = 0
        self._claim_made: Claim | None = None
        self._closed = False

    # ------------------------------------------------------------ receiving

    @property
    def patience_seconds(self) -> float:
        """So long a wait in vain says that nothing is there to be received."""
        return 0.0

    def receive(self, timeout: float = 0.0) -> Message | None:
        """The next message, waiting up to `timeout` seconds for one."""
        return next(iter(self.receive_many(1, timeout)), None)

    def receive_many(self, count: int, timeout: float = 0.0) -> list[Message]:
        """Up to `count` messages, waiting up to `timeout` seconds for the first.

        If it raises, whatever and wherever, the messages it had claimed are delivered by the next call, and the
        attempt does not count as one of their tries.
        """
        claim = self._received(count, timeout)
        messages = claim.messages
        claim.is_taken = True
        return messages

    def _received(self, count: int, timeout: float) -> Claim:
        deadline = time.monotonic() + timeout
        while True:
            if self._closed:
                raise ClosedError("the queue was closed", next_step="make a new one with log.queue(…)")
            self._give_up_claim()
            claim = self._claim(count)
            left = deadline - time.monotonic()
            if claim.messages or left <= 0:
                return claim
            self._wakeup.wait(min(left, CHECK_SECONDS))

    def _give_up_claim(self) -> None:
        """What was claimed for a call that then raised can go out again at once."""
        claim = self._claim_made
        if claim is not None and not claim.is_taken and claim.messages:
            with self._log.coordinator.change() as db:
                db.executemany(
                    "UPDATE deliveries SET owner = NULL, due_at = 0, tries = tries - 1 "
                    "WHERE queue = ? AND partition = ? AND record_offset = ? AND owner = ? AND tries = ?",
                    [
                        (self.name, m.record.partition, m.record.offset, self._participant.id, m.tries)
                        for m in claim.messages
                    ],
                )
        self._claim_made = None

    def __iter__(self) -> Iterator[Message]:
        """Every message as it comes, for ever."""
        while not self._closed:
            yield from self.receive_many(1, timeout=1.0)

    def _claim(self, count: int) -> Claim:
        partitions = self._log.topic(self.topic).partitions()
        self._wakeup.watch(partition.marks.path for partition in partitions)
        for partition in partitions:
            if partition.number not in self._readers:
                self._readers[partition.number] = PartitionReader(partition, 0, committed=True)
            if partition.marks.read().open:
                self._log.end_abandoned(partition)
        now = time.time()
        with self._log.coordinator.change() as db:
            if time.monotonic() - self._freed_at >= CHECK_SECONDS:
                self._free_dead(db)
                self._freed_at = time.monotonic()
            again, spent = self._claim_due(db, count, now)
            fresh = self._claim_fresh(db, count - len(again), now)
            claim = self._claim_made = Claim(again + fresh)  # before it is committed: see _give_up_claim
        if spent:
            self._bury(spent)
        return claim

    def _free_dead(self, db: sqlite3.Connection) -> None:
        """What a dead consumer held can go out again at once."""
        owners = db.execute("SELECT DISTINCT owner FROM deliveries WHERE queue = ? AND owner IS NOT NULL", (self.name,))
        for owner in [owner for (owner,) in owners.fetchall() if not is_alive(self._people, owner)]:
            db.execute(
                "UPDATE deliveries SET owner = NULL, due_at = 0, reason = 'its consumer died' "
                "WHERE queue = ? AND owner = ?",
                (self.name, owner),
            )

    def _claim_due(self, db: sqlite3.Connection, count: int, now: float) -> tuple[list[Message], list[sqlite3.Row]]:
        """Deliveries whose time has come again, and those that had all their tries."""
        due = db.execute(
            "SELECT * FROM deliveries WHERE queue = ? AND due_at <= ? ORDER BY due_at LIMIT ?", (self.name, now, count)
        ).fetchall()
        messages, spent = [], []
        for row in due:
            if row["tries"] >= self.settings.max_tries:
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
            messages.append(Message(record, row["tries"] + 1, self))
        return messages, spent

    def _claim_fresh(self, db: sqlite3.Connection, count: int, now: float) -> list[Message]:
        """Records that were never handed out, from each partition in turn."""
        (out,) = db.execute("SELECT count(*) FROM deliveries WHERE queue = ?", (self.name,)).fetchone()
        count = min(count, self.settings.max_in_flight - out)
        messages: list[Message] = []
        numbers = sorted(self._readers)
        for step in range(len(numbers)):
            if len(messages) >= count:
                break
            number = numbers[(self._turn + step) % len(numbers)]
            records = self._advance(db, number, count - len(messages))
            db.executemany(
                "INSERT INTO deliveries VALUES (?, ?, ?, 1, ?, ?, NULL)",
                [(self.name, number, record.offset, self._participant.id, self._deadline(now)) for record in records],
            )
            messages += [Message(record, 1, self) for record in records]
        self._turn += 1
        return messages

    def _advance(self, db: sqlite3.Connection, number: int, count: int) -> list[Record]:
        """The next records of a partition, and the cursor moved behind them."""
        row = db.execute(
            "SELECT next_offset FROM queue_cursors WHERE queue = ? AND partition = ?", (self.name, number)
        ).fetchone()
        if row is None:  # a partition added since
            db.execute(
                "INSERT INTO queue_cursors (queue, partition, next_offset) VALUES (?, ?, 0)", (self.name, number)
            )
        cursor = row["next_offset"] if row else 0
        try:
            batch = self._fetch(number, cursor)
        except OffsetLost:
            partition = self._readers[number].partition
            start = partition.start_offset() if cursor < partition.start_offset() else partition.end_offset()
            db.execute(
                "UPDATE queue_cursors SET next_offset = ?, lost = lost + ? WHERE queue = ? AND partition = ?",
                (start, max(0, start - cursor), self.name, number),
            )
            batch = self._fetch(number, start)
        if batch is None:
            return []
        taken, _ = batch.split(count)
        db.execute(
            "UPDATE queue_cursors SET next_offset = ? WHERE queue = ? AND partition = ?",
            (taken.next_offset, self.name, number),
        )
        return taken.records()

    def _fetch(self, number: int, offset: int) -> Batch | None:
        """Records of a partition from an offset on; those read before are not read again."""
        kept = self._fetched.get(number)
        if kept is None or not kept.offsets[0] <= offset <= kept.offsets[-1]:
            reader = self._readers[number]
            reader.seek(offset)
            fetched = reader.read(max_bytes=1)
            if not fetched:
                return None
            kept = self._fetched[number] = Batch(self.topic, number, fetched[0].offsets, fetched[0].records)
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
        return now + self.settings.timeout.total_seconds()

    # ------------------------------------------------------------ answering

    def acknowledge(self, messages: Sequence[Message]) -> None:
        with self._log.coordinator.change() as db:
            self._acknowledge(db, messages)

    def _acknowledge(self, db: sqlite3.Connection, messages: Iterable[Message]) -> None:
        for message in messages:
            self._forget(db, self._delivery(db, message), "acknowledged")

    def acknowledging(self, messages: Sequence[Message]) -> Acknowledgements:
        """For `producer.transaction(…)`: the messages count as acknowledged if the transaction is committed."""
        return Acknowledgements(self, messages)

    def refuse(self, message: Message, reason: str, delay: timedelta, dead: bool) -> None:
        with self._log.coordinator.change() as db:
            row = self._delivery(db, message)
            tries = max(row["tries"], self.settings.max_tries) if dead else row["tries"]
            db.execute(
                "UPDATE deliveries SET owner = NULL, due_at = ?, tries = ?, reason = ? "
                "WHERE queue = ? AND partition = ? AND record_offset = ?",
                (time.time() + delay.total_seconds(), tries, reason, *_key(row)),
            )
            row = db.execute(
                "SELECT * FROM deliveries WHERE queue = ? AND partition = ? AND record_offset = ?", _key(row)
            ).fetchone()
        if row["tries"] >= self.settings.max_tries:
            self._bury([row])

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
            (self.name, record.partition, record.offset, self._participant.id, message.tries),
        ).fetchone()
        if row is None:
            raise DeliveryExpired(
                "the message was answered before, or went to another consumer after its timeout",
                where=f"queue '{self.name}', {self.topic}/{record.partition}, offset {record.offset}",
                next_step="make the work shorter than the queue's timeout, raise it, or call message.extend(…)",
            )
        return row

    def _forget(self, db: sqlite3.Connection, row: sqlite3.Row, outcome: str) -> int:
        gone = db.execute(
            "DELETE FROM deliveries WHERE queue = ? AND partition = ? AND record_offset = ? AND tries = ?",
            (*_key(row), row["tries"]),
        ).rowcount
        db.execute(
            f"UPDATE queue_cursors SET {outcome} = {outcome} + ? WHERE queue = ? AND partition = ?",
            (gone, self.name, row["partition"]),
        )
        return gone

    # ------------------------------------------------------------ dead letters

    def _bury(self, spent: Sequence[sqlite3.Row]) -> None:
        """Moves messages that had all their tries to the dead letters: in one transaction, so each goes there once."""
        from millstream.log.producer import Producer

        assert self.settings.dead_letters is not None
        with (
            FileLock(self._people / f".queue-{self.name}"),
            Producer(self._log, acks="all", name=f"queue-{self.name}-dead") as producer,
        ):
            letters = [(row, self._record_at(row["partition"], row["record_offset"])) for row in spent]
            try:
                with producer.transaction(_Burial(self, [row for row, _ in letters])):
                    for row, record in letters:
                        if record is not None:
                            producer.send(self.settings.dead_letters, self._letter(row, record), key=record.key)
            except TransactionAborted:  # another consumer was quicker
                return

    def _letter(self, row: sqlite3.Row, record: Record) -> dict[str, Any]:
        return {
            "value": self._original(record),
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "reason": f"{row['tries']} tries; the last: {row['reason'] or 'not acknowledged in time'}",
            "at": datetime.now(UTC),
        }

    def _original(self, record: Record) -> bytes | None:
        schema = self._log.topic(self.topic).settings.schema
        if schema is None or record.value is None:
            return record.value  # type: ignore[no-any-return]
        batch = pa.RecordBatch.from_pylist([record.value], schema=schema.arrow)
        encoded: bytes = codec("json", schema).encode(batch)[0].as_py()
        return encoded

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """What is out and not acknowledged goes out again at once, to others."""
        if not self._closed:
            self._closed = True
            self._wakeup.close()
            self._participant.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _key(row: sqlite3.Row) -> tuple[str, int, int]:
    return row["queue"], row["partition"], row["record_offset"]


class Acknowledgements:
    """Messages acknowledged by a producer's transaction, with its output."""

    def __init__(self, queue: Queue, messages: Sequence[Message]) -> None:
        self._queue = queue
        self._messages = messages
        self.must_rewind = False

    def commit_with(self, db: sqlite3.Connection) -> None:
        self._queue._acknowledge(db, self._messages)

    def committed_elsewhere(self) -> None:
        pass

    def rewind(self) -> None:
        """The messages stay delivered, and come again when their time is over."""


class _Burial:
    def __init__(self, queue: Queue, rows: Sequence[sqlite3.Row]) -> None:
        self._queue = queue
        self._rows = rows
        self.must_rewind = False

    def commit_with(self, db: sqlite3.Connection) -> None:
        if not all(self._queue._forget(db, row, "dead") for row in self._rows):
            raise TransactionAborted("a message was answered by another consumer meanwhile")

    def committed_elsewhere(self) -> None:
        pass

    def rewind(self) -> None:
        pass
