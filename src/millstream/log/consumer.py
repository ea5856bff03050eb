"""A consumer hands records out in order of offset per partition, and knows which of them its user is done with.

What was handed out counts as done when the user asks for more: only then, and before a partition is released, is it
committed under `at_least_once`. Under `at_most_once` it is committed before it is handed out, under `exactly_once`
with the transaction of a producer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from millstream.errors import (
    ClosedError,
    InvalidInput,
    TransactionAborted,
    UnknownPartition,
    UnknownTopic,
)
from millstream.log.batches import Batch, Lost, Record
from millstream.log.committing import Committing
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.groups import TopicPartition
from millstream.log.offers import Offer, place_of
from millstream.log.ports import Consumable
from millstream.log.reader import READ_BYTES
from millstream.log.start_positions import Start, check_exists, check_start, offset_of
from millstream.log.subscription import Subscription

ONE_BY_ONE = 500


class Consumer:
    """Made by `log.consumer(…)`; use it as a context manager, or call `close`."""

    def __init__(
        self,
        log: Consumable,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        delivery: str = "at_least_once",
        start: Start = "earliest",
        isolation: str = "read_committed",
        on_lost: str = "error",
        partitions: Sequence[int] | None = None,
        max_poll_interval: str | timedelta = "5 minutes",
        pinned: bool = False,
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise InvalidInput("a consumer needs at least one topic")
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
        self._subscription = Subscription(log, names, group, pinned=pinned)
        self.topics = self._subscription.topics
        self._begun: Mapping[TopicPartition, int] = {}
        self.must_rewind = False
        self._must_assign = False
        self._assigned_at = 0.0
        self._checked_at = time.monotonic()
        self._closed = False
        self._fetching, self._agreeing = log.open_consumer(self._settings, self)
        self._offering = self._fetching.offering
        self._committing = Committing(delivery, group, self._fetching, self._agreeing)
        try:
            self._enter()
        except BaseException:
            self.close()
            raise

    def _enter(self) -> None:
        self._identities = {topic: self._fetching.identity(topic) for topic in self.topics}
        places = list(self._all_partitions())
        check_exists(self._fetching, places, self._settings.start)
        if self._agreeing is not None:
            if self._settings.start == "latest":
                # Noted at once, so that everything from now on is read, whichever member reads it.
                own = [place for place in places if self._subscription.switch_to(place.topic) is None]
                self._begun = self._agreeing.begin_group(own)
            self._agreeing.join(self.topics)
        self._refresh()

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
        """Offsets that were deleted before this consumer read them, and that it skipped."""
        return self._offering.lost

    # ------------------------------------------------------------ reading

    def poll(self, timeout: float = 0.0, max_records: int = 500) -> list[Record]:
        """Up to `max_records` records, waiting up to `timeout` seconds. Those handed out before count as done.

        If it raises, whatever and wherever, none of the records counts as handed out: the next poll gives them. A value
        that Python cannot hold, such as a timestamp after the year 9999, is given as Arrow has it: microseconds.
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
        """Gathers what is to be handed out next; nothing of it counts as handed out yet."""
        self._check_open()
        self._settle_offer()
        self._count_done()
        self._offering.offer = offer = Offer()
        self._refresh()
        self._wait(timeout, max_bytes)
        batches = self._offering.take(max_records)
        if self.delivery == "at_most_once":
            self._committing.commit_before_handing_out(batches)
        offer.batches = batches
        return offer

    def _wait(self, timeout: float, max_bytes: int) -> None:
        """Until records wait to be handed out, or the time is over."""
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
                self._fetching.fetch(max(0.0, begun + patience - now), max_bytes)
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
        """Every record as it comes, for ever. A record is done when the next one is asked for."""
        self._check_open()
        while not self._closed:
            yield from self._one_by_one(timeout=1.0)

    def until_caught_up(self) -> Iterator[Record]:
        """Every record up to where the partitions end now; then it stops."""
        self._check_open()
        self._look_back()
        self._refresh()
        ends, readers = self._fetching.ends(), self._fetching.readers
        while any(self.position(*place) < end for place, end in ends.items() if place in readers):
            yield from self._one_by_one(timeout=self._fetching.slice_seconds)
        self._check_open()
        self._offering.note_given()
        self._count_done()
        self._refresh()

    def _one_by_one(self, timeout: float) -> Iterator[Record]:
        """The records of one batch; those not asked for are kept for the next time."""
        offer = self._prepare(timeout, ONE_BY_ONE)
        for batch in offer.batches or ():
            place = place_of(batch)
            for record in batch.records():
                offer.given += 1
                yield record
                if self._offering.offer is not offer:  # a seek, a poll, a rewind or a revocation came in between
                    return
                self._committing.done[place] = record.offset + 1

    def lag(self) -> int:
        """How many records this consumer is behind the end of its partitions.

        Far behind it counts offsets, of which those of transactions' markers and of compacted records hold no record.
        """
        self._check_open()
        self._look_back()
        return self._fetching.lag() + sum(map(len, self._offering.ahead()))

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions this consumer reads."""
        return sorted(self._fetching.readers)

    @property
    def member(self) -> str | None:
        """The name under which the group knows this consumer."""
        return None if self._agreeing is None else self._agreeing.member

    def position(self, topic: str, partition: int) -> int:
        """The offset of the record handed out next."""
        self._look_back()
        return self._offering.position(self._own(self._subscription.resolve(topic), partition))

    def seek(self, start: Start, *, topic: str | None = None, partition: int | None = None) -> None:
        """Goes to 'earliest', 'latest', an offset or a time, in all partitions or in one; backwards to replay."""
        check_start(start)
        self._settle_offer()
        topic = None if topic is None else self._subscription.resolve(topic)
        places = [p for p in self.assignment if topic in (None, p.topic) and partition in (None, p.partition)]
        if not places and (topic is not None or partition is not None):
            raise UnknownPartition(
                f"this consumer does not read {'any topic' if topic is None else topic}/{partition}",
                next_step=f"it reads {', '.join(map(str, self.assignment)) or 'none'}",
            )
        check_exists(self._fetching, places, start)
        for place in places:
            self._go(place, self._offset_of(place, start))

    # ------------------------------------------------------------ what the user has

    def _look_back(self) -> None:
        """Where an exception came while records were being read ahead, reads on from what the user has."""
        offering = self._offering
        offering.note_given()
        if offering.is_unsettled and not offering.turns.is_anothers:
            offering.waiting.clear()
            self._must_assign = True
            self._fetching.start_over()
            offering.offer, offering.is_fetching = None, False

    def _settle_offer(self) -> None:
        self._look_back()
        self._offering.end_offer()
        if self.must_rewind:
            self.rewind()

    def _count_done(self) -> None:
        self._must_assign |= self._committing.count_done()

    def _go(self, place: TopicPartition, offset: int) -> None:
        self._offering.handed.pop(place, None)
        self._committing.done.pop(place, None)
        self._offering.next[place] = offset
        self._fetching.seek(place, offset)
        self._offering.drop_waiting([place])

    # ------------------------------------------------------------ committing

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits everything handed out so far as done, or, with `offsets`, what lies before these."""
        if self._agreeing is None:
            raise InvalidInput("only a consumer in a group can commit", next_step="log.consumer(…, group='…')")
        self._check_open()
        self._look_back()
        if self.must_rewind:
            self.rewind()
        if self.delivery == "at_most_once":  # it was committed before it was handed out
            return
        if offsets is not None:
            self._committing.done |= self._checked(offsets)
            self._committing.commit()
            return
        self._committing.done |= self._offering.handed
        self._committing.commit()
        self._offering.handed.clear()

    def _checked(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Refuses to count as done what was never handed out."""
        for place, offset in offsets.items():
            handed = self._offering.next[self._own(*place)]
            if offset > handed:
                raise InvalidInput(
                    f"offset {offset} cannot be committed: records were handed out up to {handed - 1}",
                    where=str(place),
                    next_step="commit what was handed out, or go further with seek(…)",
                )
        return {TopicPartition(*place): offset for place, offset in offsets.items()}

    def commit_with(self, transaction: object) -> None:
        """Makes the offsets of what was handed out part of a producer's transaction."""
        if self.delivery != "exactly_once" or self._agreeing is None:
            raise InvalidInput(
                "a transaction takes the offsets of a consumer with delivery='exactly_once'",
                next_step="log.consumer(…, group='…', delivery='exactly_once')",
            )
        self._look_back()
        if self.must_rewind and not self._committing.revoked:
            raise TransactionAborted(
                "what was handed out belongs to a transaction that was given up",
                where=f"group '{self.group}'",
                next_step="poll again: it will be handed out again",
            )
        self._committing.commit_with(transaction)

    def committed_elsewhere(self) -> None:
        """Called when the transaction with `commit_with` has been committed."""
        self._committing.committed_elsewhere()

    def rewind(self) -> None:
        """Goes back to what was committed last: what was handed out since will be handed out again.

        If that cannot be looked up now, the next poll tries again, and nothing is committed before.
        """
        self.must_rewind = not self._closed  # until all partitions were
        self._committing.revoked.clear()
        if self._closed:
            return
        self._offering.offer = None
        places = self.assignment
        committed = {} if self._agreeing is None else self._agreeing.committed(places)
        for place in places:
            offset = committed.get(place)
            self._go(place, self._first_offset(place) if offset is None else offset)
        self.must_rewind = False

    # ------------------------------------------------------------ partitions come and go

    def _refresh(self) -> None:
        if self.must_rewind:
            self.rewind()
        # Records that a transaction is about to include are finished first: otherwise neither version would have them.
        if not (self.delivery == "exactly_once" and self._offering.handed) and self._is_switched():
            self._follow_switch()
        if time.monotonic() - self._checked_at > self._fetching.check_seconds:
            self._checked_at = time.monotonic()
            self._check_topics()
        is_due = self._must_assign or not self._assigned_at
        if self._agreeing is not None:
            self._must_assign = True  # should an exception come between the group's answer and acting on it
            owned = self._agreeing.refresh(is_due=is_due)
            if owned is not None:
                self._assign(owned)
        elif is_due or time.monotonic() - self._assigned_at > self._fetching.check_seconds:
            self._assign(set(self._all_partitions()))
        else:
            return
        self._must_assign = False
        self._assigned_at = time.monotonic()

    def _is_switched(self) -> bool:
        """Whether the names stand for other topics, or did already when an exception kept this consumer from them."""
        return self._subscription.has_changed() or self.topics != self._subscription.topics

    def _follow_switch(self) -> None:
        """Readers of a name were switched: releases the old topics, with the work on them committed."""
        subscription = self._subscription
        identities = {topic: self._log.topic(topic).identity for topic in subscription.next_topics}
        if self._agreeing is None:
            positions = {place: self._offering.position(place) for place in self.assignment}
            subscription.leave(positions, self._fetching.corresponding)
        else:
            self._agreeing.subscribe(subscription.next_topics)
        subscription.follow()
        self.topics, self._identities = subscription.topics, identities
        self._assigned_at = 0.0

    def check_topics_soon(self) -> None:
        """Called by the port that fetches when a topic seems to be gone."""
        self._checked_at = 0.0

    def _check_topics(self) -> None:
        """Raises when no topic is left: deleted, though another of the same name may have been created since."""
        left = 0
        for topic, identity in self._identities.items():
            try:
                left += self._log.topic(topic).identity == identity
            except UnknownTopic:
                continue
        if not left:
            raise UnknownTopic(f"topic {', '.join(self.topics)} was deleted", next_step="make a new consumer")

    def _all_partitions(self) -> Iterable[TopicPartition]:
        for topic in self.topics:
            count = self._log.topic(topic).settings.partitions
            for number in range(count) if self._settings.partitions is None else self._settings.partitions:
                if not 0 <= number < count:
                    raise UnknownPartition(
                        f"there is no partition {number}",
                        where=f"topic '{topic}'",
                        next_step=f"choose 0 to {count - 1}",
                    )
                yield TopicPartition(topic, number)

    def release(self, places: set[TopicPartition]) -> None:
        """Called by the group before partitions go to another member."""
        self._must_assign |= self._committing.release()
        self.forget(places)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Called by the group for partitions that have gone."""
        gone = set(places)
        self._offering.note_given()
        self._committing.forget(gone)
        self._fetching.forget(gone)
        self._offering.forget(gone)

    def _assign(self, places: set[TopicPartition]) -> None:
        readers = self._fetching.readers
        self.forget(readers.keys() - places)
        if new := sorted(places - readers.keys()):
            self._fetching.open(new)
            committed = {} if self._agreeing is None else self._agreeing.committed(new)
            self.begin(self.starts(new, committed), committed)
        self._fetching.reassigned()

    def starts(
        self, places: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where to start reading partitions."""
        return {place: committed[place] if place in committed else self._first_offset(place) for place in places}

    def begin(self, starts: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]) -> None:
        """Starts reading partitions."""
        self._committing.stored |= committed
        if starts:
            self._offering.next |= starts
            self._fetching.begin(starts)

    # ------------------------------------------------------------ where to begin

    def _first_offset(self, place: TopicPartition) -> int:
        """Where to start in a partition without a committed offset; one that was added later is read whole."""
        if (offset := self._subscription.start(place)) is not None:
            start = self._fetching.offset(place, "earliest")
            return max(start, min(offset, self._fetching.offset(place, "latest")))
        start_at = self._settings.start
        if self._agreeing is not None and start_at == "latest":
            return self._begun.get(place, 0) or self._offset_of(place, "earliest")
        is_late = self._agreeing is None and bool(self._assigned_at)
        return self._offset_of(place, "earliest" if is_late else start_at)

    def _offset_of(self, place: TopicPartition, start: Start) -> int:
        return offset_of(self._fetching, place, start, reads_committed=self._settings.reads_committed)

    def _own(self, topic: str, partition: int) -> TopicPartition:
        place = TopicPartition(topic, partition)
        if place not in self._fetching.readers:
            raise UnknownPartition(
                f"this consumer does not read {place}",
                next_step=f"it reads {', '.join(map(str, self.assignment)) or 'none'}",
            )
        return place

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Commits what is done and leaves the group. The records handed out last are not done unless committed."""
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
