"""A consumer returns records in offset order per partition, and tracks which of them have been processed.

A poll marks everything returned before as done. `at_least_once` commits it only then, and before a partition is
revoked. `at_most_once` commits before records are returned, `exactly_once` with a producer's transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from millstream.errors import (
    ClosedError,
    InvalidInput,
    TransactionAborted,
    UnknownPartition,
    UnknownTopic,
)
from millstream.log.agreement.groups import TopicPartition
from millstream.log.assignment import Assignment
from millstream.log.batches import Batch, Lost, Record
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.offers import Offer, place_of
from millstream.log.ports import Consumable
from millstream.log.start_positions import Start, check_exists, check_start
from millstream.log.storage.reader import READ_BYTES
from millstream.log.subscription import compiled

ONE_BY_ONE = 500


class Consumer:
    """Made by `log.consumer(…)`; use it as a context manager, or call `close`."""

    def __init__(
        self,
        log: Consumable,
        topics: str | Sequence[str] | None = None,
        *,
        pattern: str | None = None,
        group: str | None = None,
        delivery: str = "at_least_once",
        start: Start = "earliest",
        isolation: str = "read_committed",
        on_lost: str = "error",
        partitions: Sequence[int] | None = None,
        max_poll_interval: str | timedelta = "5 minutes",
        pinned: bool = False,
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics or ())
        if (not names) == (pattern is None):
            raise InvalidInput("a consumer needs at least one topic, or a pattern of their names, not both")
        self._log = log
        self._settings = ConsumerSettings.of(
            group=group,
            delivery=delivery,
            start=start,
            isolation=isolation,
            on_lost=on_lost,
            partitions=partitions,
            max_poll_interval=max_poll_interval,
            poll_seconds_min=log.poll_seconds_min,
        )
        self.must_rewind = False
        self._closed = False
        self._assignment = Assignment(log, names, self._settings, pinned=pinned, pattern=compiled(pattern))
        self._fetching = self._assignment.fetching
        self._offering = self._fetching.offering
        self._agreeing = self._assignment.agreeing
        self._committing = self._assignment.committing
        try:
            self._assignment.enter()
        except BaseException:
            self.close()
            raise

    @property
    def topics(self) -> list[str]:
        """The topics that this consumer currently reads."""
        return self._assignment.topics

    @property
    def group(self) -> str | None:
        return self._settings.group

    @property
    def delivery(self) -> str:
        return self._settings.delivery

    @property
    def transaction_type(self) -> type:
        return self._log.transaction_type

    @property
    def lost(self) -> list[Lost]:
        """Offsets that were deleted before this consumer read them, and were skipped."""
        return self._offering.lost

    # ------------------------------------------------------------ reading

    def poll(self, timeout: float = 0.0, max_records: int = 500) -> list[Record]:
        """Up to `max_records` records, waiting up to `timeout` seconds. Those returned before count as done.

        If it raises, none of its records count as returned: the next poll returns them. A value that Python cannot
        represent, such as a timestamp after the year 9999, is returned as Arrow has it, in microseconds.
        """
        offer = self._prepare(timeout, max_records)
        records = [record for batch in offer.batches or () for record in batch.records()]
        offer.given = len(records)
        return records

    def poll_batches(
        self, timeout: float = 0.0, *, max_records: int | None = None, max_bytes: int = READ_BYTES
    ) -> list[Batch]:
        """Like `poll`, in columns and without a copy."""
        offer = self._prepare(timeout, max_records, max_bytes)
        batches, count = offer.batches or [], len(offer)
        offer.given = count
        return batches

    def _prepare(self, timeout: float, max_records: int | None, max_bytes: int = READ_BYTES) -> Offer:
        """Fetches what to return next; none of it counts as returned yet."""
        self._check_open()
        self._settle_offer()
        self._count_done()
        self._offering.offer = offer = Offer()
        self._refresh()
        self._wait(timeout, max_bytes)
        batches = self._offering.take(max_records)
        if self.delivery == "at_most_once":
            self._committing.commit_before_returning(batches)
        offer.batches = batches
        return offer

    def _wait(self, timeout: float, max_bytes: int) -> None:
        """Waits until records are available or the timeout is over."""
        begun, patience = time.monotonic(), timeout
        ends: Mapping[TopicPartition, int] | None = None
        try:
            self._offering.turns.take()
            if self._offering.waiting:
                self._fetching.serve()
            while not self._offering.waiting:
                self._check_open()
                self._refresh()
                now = time.monotonic()
                try:
                    self._fetching.fetch(max(0.0, begun + patience - now), max_bytes)
                except UnknownTopic:
                    if not self._assignment.drop_deleted():
                        raise
                    continue
                if self._offering.waiting or now < begun + timeout:
                    continue
                if ends is None:
                    ends, patience = self._fetching.ends_if_known(), max(timeout, self._fetching.grace_seconds)
                if not self._is_behind(ends) or time.monotonic() >= begun + patience:
                    return
        finally:
            self._offering.turns.end()

    def _is_behind(self, ends: Mapping[TopicPartition, int]) -> bool:
        readers = self._fetching.readers
        return any(end > readers[place].offset for place, end in ends.items() if place in readers)

    def __iter__(self) -> Iterator[Record]:
        """Every record as it arrives, without end. A record is done when the next one is requested."""
        self._check_open()
        while not self._closed:
            yield from self._one_by_one(timeout=1.0)

    def until_caught_up(self) -> Iterator[Record]:
        """Every record up to the current end of the partitions; then it stops."""
        self._check_open()
        self._recover_position()
        self._refresh()
        ends, readers = self._fetching.ends(), self._fetching.readers
        while any(self.position(*place) < end for place, end in ends.items() if place in readers):
            yield from self._one_by_one(timeout=self._fetching.slice_seconds)
        self._check_open()
        self._offering.note_given()
        self._count_done()
        self._refresh()

    def _one_by_one(self, timeout: float) -> Iterator[Record]:
        """The records of one batch; those not requested are kept for the next call."""
        offer = self._prepare(timeout, ONE_BY_ONE)
        for batch in offer.batches or ():
            place = place_of(batch)
            for record in batch.records():
                offer.given += 1
                yield record
                if self._offering.offer is not offer:  # a seek, poll, rewind or revocation happened in between
                    return
                self._committing.done[place] = record.offset + 1

    def lag(self) -> int:
        """How many records this consumer is behind the end of its partitions.

        Far behind, it counts offsets, including those of transaction markers and compacted records.
        """
        self._check_open()
        self._recover_position()
        return self._fetching.lag() + sum(map(len, self._offering.ahead()))

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions assigned to this consumer."""
        return self._assignment.places

    @property
    def member(self) -> str | None:
        """This consumer's name in its group."""
        return None if self._agreeing is None else self._agreeing.member

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record."""
        self._recover_position()
        return self._offering.position(self._assignment.own(self._assignment.resolve(topic), partition))

    def seek(self, start: Start, *, topic: str | None = None, partition: int | None = None) -> None:
        """Moves to 'earliest', 'latest', an offset or a time, in all partitions or in one; backwards to replay."""
        check_start(start)
        self._settle_offer()
        topic = None if topic is None else self._assignment.resolve(topic)
        places = [p for p in self.assignment if topic in (None, p.topic) and partition in (None, p.partition)]
        if not places and (topic is not None or partition is not None):
            raise UnknownPartition(
                f"this consumer does not read {'any topic' if topic is None else topic}/{partition}",
                next_step=f"it reads {', '.join(map(str, self.assignment)) or 'none'}",
            )
        check_exists(self._fetching, places, start)
        for place in places:
            self._go(place, self._assignment.offset_of(place, start))

    # ------------------------------------------------------------ after an exception

    def _recover_position(self) -> None:
        """After an exception during a prefetch, continues from the last records that were returned."""
        offering = self._offering
        offering.note_given()
        if offering.is_unsettled and not offering.turns.is_held_elsewhere:
            offering.waiting.clear()
            self._assignment.must_assign = True
            self._fetching.start_over()
            offering.offer, offering.is_fetching = None, False

    def _settle_offer(self) -> None:
        self._recover_position()
        self._offering.end_offer()
        if self.must_rewind:
            self.rewind()

    def _refresh(self) -> None:
        if self.must_rewind:
            self.rewind()
        self._assignment.refresh()

    def _count_done(self) -> None:
        self._assignment.must_assign |= self._committing.count_done()

    def _go(self, place: TopicPartition, offset: int) -> None:
        self._offering.handed.pop(place, None)
        self._committing.done.pop(place, None)
        self._offering.next[place] = offset
        self._fetching.seek(place, offset)
        self._offering.drop_waiting([place])

    # ------------------------------------------------------------ committing

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits everything returned so far, or, with `offsets`, everything before them."""
        if self._agreeing is None:
            raise InvalidInput("only a consumer in a group can commit", next_step="log.consumer(…, group='…')")
        self._check_open()
        self._recover_position()
        if self.must_rewind:
            self.rewind()
        if self.delivery == "at_most_once":  # committed before it was returned
            return
        if offsets is not None:
            self._committing.done |= self._checked(offsets)
            self._committing.commit()
            return
        self._committing.done |= self._offering.handed
        self._committing.commit()
        self._offering.handed.clear()

    def _checked(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Rejects offsets of records that were never returned."""
        for place, offset in offsets.items():
            handed = self._offering.next[self._assignment.own(*place)]
            if offset > handed:
                raise InvalidInput(
                    f"offset {offset} cannot be committed: the last record read has offset {handed - 1}",
                    where=str(place),
                    next_step="commit the offsets of records that were read, or move ahead with seek(…)",
                )
        return {TopicPartition(*place): offset for place, offset in offsets.items()}

    def commit_with(self, transaction: object) -> None:
        """Adds the offsets of the records returned so far to a producer's transaction."""
        if self.delivery != "exactly_once" or self._agreeing is None:
            raise InvalidInput(
                "a transaction takes the offsets of a consumer with delivery='exactly_once'",
                next_step="log.consumer(…, group='…', delivery='exactly_once')",
            )
        self._recover_position()
        if self.must_rewind and not self._committing.revoked:
            raise TransactionAborted(
                "the records read last belong to a transaction that was aborted",
                where=f"group '{self.group}'",
                next_step="poll again: they are read again",
            )
        self._committing.commit_with(transaction)

    def committed_elsewhere(self) -> None:
        """Called after the transaction of `commit_with` was committed."""
        self._committing.committed_elsewhere()

    def rewind(self) -> None:
        """Moves back to the committed offsets: everything returned since is returned again.

        If they cannot be looked up now, the next poll tries again, and nothing is committed before.
        """
        self.must_rewind = not self._closed  # until all partitions are rewound
        self._committing.revoked.clear()
        if self._closed:
            return
        self._offering.offer = None
        places = self.assignment
        committed = {} if self._agreeing is None else self._agreeing.committed(places)
        for place in places:
            offset = committed.get(place)
            self._go(place, self._assignment.first_offset(place) if offset is None else offset)
        self.must_rewind = False

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        """Commits what is done and leaves the group. The records returned last are not done unless committed."""
        if self._closed:
            return
        self._closed = True
        self._fetching.stop_waiting()
        try:
            if self.delivery == "at_least_once":
                self._committing.commit_owned()
        finally:
            try:
                if self._agreeing is not None:
                    self._agreeing.leave()
            finally:
                self._offering.offer = None
                self._fetching.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer was closed", next_step="make a new one with log.consumer(…)")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
