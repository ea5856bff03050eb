"""A consumer hands records out in order of offset per partition, and knows which of them its user is done with.

What was handed out counts as done when the user asks for more: only then, and before a partition is let go of, is it
committed under `at_least_once`. Under `at_most_once` it is committed before it is handed out, under `exactly_once`
with the transaction of a producer.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from millstream import terminal
from millstream.errors import (
    ClosedError,
    InvalidInput,
    InvalidSetting,
    OffsetLost,
    PartitionsRevoked,
    TransactionAborted,
    UnknownPartition,
    UnknownTopic,
)
from millstream.log.batches import Batch, Lost, Record
from millstream.log.buffer import microseconds
from millstream.log.groups import CHECK_SECONDS, TopicPartition, begin_group, committed_offsets, revoked
from millstream.log.offers import Offer, Offering, place_of
from millstream.log.reader import READ_BYTES, PartitionReader, offset_at_time
from millstream.log.start_positions import Start, check_choice, check_start, checked_interval
from millstream.log.subscription import Followed
from millstream.log.wakeup import Wakeup

if TYPE_CHECKING:
    from millstream.log.embedded import EmbeddedLog

DELIVERIES = ("at_most_once", "at_least_once", "exactly_once")
ISOLATIONS = ("read_committed", "read_uncommitted")
ONE_BY_ONE = 500
POLL_SECONDS_MIN = 1  # members look after each other several times within it
LOST_CHOICES = ("earliest", "latest", "error")
logger = terminal.logger(__name__)


class Consumer(Offering):
    """Made by `log.consumer(…)`; use it as a context manager, or call `close`."""

    def __init__(
        self,
        log: EmbeddedLog,
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
        self._log = log
        self._followed = Followed(log, [topics] if isinstance(topics, str) else list(topics), group, pinned=pinned)
        self.topics = self._followed.topics
        self._settle(group, delivery, start, isolation, on_lost, partitions)
        interval = checked_interval(max_poll_interval, POLL_SECONDS_MIN)
        self._readers: dict[TopicPartition, PartitionReader] = {}
        self._turn: deque[TopicPartition] = deque()
        self._wakeup = Wakeup()
        self._looked_at = 0.0
        self._freed_at = 0.0
        self._closed = False
        self._identities = {topic: log.topic(topic).identity for topic in self.topics}
        self._check_exists(start, list(self._all_partitions()))
        if group is not None and start == "latest":
            # Noted at once, so that all that comes from now on is read, whoever of the group reads it.
            comes_over = self._followed.comes_over
            places = [place for place in self._all_partitions() if comes_over(place.topic) is None]
            ends = {place: self._offset_of(place, start) for place in places}
            begin_group(log.coordinator, group, ends)
        self._membership = log.membership(group, self.topics, interval) if group is not None else None
        try:
            self._refresh()
        except BaseException:
            self.close()
            raise

    def _settle(
        self,
        group: str | None,
        delivery: str,
        start: Start,
        isolation: str,
        on_lost: str,
        partitions: Sequence[int] | None,
    ) -> None:
        """Checks what a user asked for, and begins with nothing handed out; the same on every broker."""
        if not self.topics:
            raise InvalidInput("a consumer needs at least one topic")
        check_choice("delivery", delivery, DELIVERIES)
        check_choice("isolation", isolation, ISOLATIONS)
        check_choice("on_lost", on_lost, LOST_CHOICES)
        if group is None and delivery != "at_least_once":
            raise InvalidInput(
                f"delivery '{delivery}' is about committed offsets", next_step="give the consumer a group"
            )
        if group is not None and partitions is not None:
            raise InvalidInput(
                "a group shares the partitions out itself", next_step="leave out either group or partitions"
            )
        self.group = group
        self.delivery = delivery
        self._start = start
        self._on_lost = on_lost
        self._committed_only = isolation == "read_committed"
        self._explicit = None if partitions is None else list(partitions)
        self._begin_offering()
        self._done: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}
        self._revoked: set[TopicPartition] = set()
        self._must_assign = False
        self.lost: list[Lost] = []
        self._asked_at = time.monotonic()
        check_start(start)

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
        self._offer = offer = Offer()
        self._refresh()
        self._wait(timeout, max_bytes)
        batches = self._take_from_waiting(max_records)
        if self.delivery == "at_most_once":
            self._commit_before_handing_out(batches)
        offer.batches = batches
        return offer

    def _wait(self, timeout: float, max_bytes: int = READ_BYTES) -> None:
        deadline = time.monotonic() + timeout
        try:
            self._take_turn()
            while not self._fill(max_bytes):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._wakeup.wait(min(left, CHECK_SECONDS if self._membership else 1.0, self._patience()))
                self._check_open()
        finally:
            self._end_turn()

    def __iter__(self) -> Iterator[Record]:
        """Every record as it comes, for ever. A record is done when the next one is asked for."""
        self._check_open()
        while not self._closed:
            yield from self._one_by_one(timeout=1.0)

    def until_caught_up(self) -> Iterator[Record]:
        """Every record up to where the partitions end now; then it stops."""
        self._look_back()
        self._refresh()
        self._end_abandoned()
        ends = {place: reader.end_offset() for place, reader in self._readers.items()}
        while any(self.position(*place) < end for place, end in ends.items() if place in self._readers):
            yield from self._one_by_one(timeout=0.0)
        self._finish()

    def _one_by_one(self, timeout: float) -> Iterator[Record]:
        """The records of one batch; what is not asked for is kept for the next time."""
        offer = self._prepare(timeout, ONE_BY_ONE)
        for batch in offer.batches or ():
            place = place_of(batch)
            for record in batch.records():
                offer.given += 1
                yield record
                if self._offer is not offer:  # sought elsewhere, polled, rewound or taken away meanwhile
                    return
                self._done[place] = record.offset + 1

    def lag(self) -> int:
        """How many records this consumer is behind the end of its partitions.

        Far behind it counts offsets, of which those of transactions' markers and of compacted records hold no record.
        """
        self._look_back()
        return sum(reader.lag() for reader in self._readers.values()) + sum(map(len, self._ahead()))

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions this consumer reads."""
        return sorted(self._readers)

    @property
    def member(self) -> str | None:
        """The name under which the group knows this consumer."""
        return self._membership.id if self._membership is not None else None

    def position(self, topic: str, partition: int) -> int:
        """The offset of the record handed out next."""
        self._look_back()
        return self._position(self._own(self._followed.resolve(topic), partition))

    def seek(self, start: Start, *, topic: str | None = None, partition: int | None = None) -> None:
        """Goes to 'earliest', 'latest', an offset or a time, in all partitions or in one; backwards to replay."""
        check_start(start)
        self._settle_offer()
        topic = None if topic is None else self._followed.resolve(topic)
        places = [p for p in self.assignment if topic in (None, p.topic) and partition in (None, p.partition)]
        if not places and (topic is not None or partition is not None):
            raise UnknownPartition(
                f"this consumer does not read {'any topic' if topic is None else topic}/{partition}",
                next_step=f"it reads {', '.join(map(str, self.assignment)) or 'none'}",
            )
        self._check_exists(start, places)
        for place in places:
            self._go(place, self._offset_of(place, start))

    # ------------------------------------------------------------ committing

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits everything handed out so far as done, or, with `offsets`, what lies before these."""
        if self._membership is None:
            raise InvalidInput("only a consumer in a group can commit", next_step="log.consumer(…, group='…')")
        self._check_open()
        self._look_back()
        if self.must_rewind:
            self.rewind()
        if self.delivery != "at_most_once":  # there it was committed before it was handed out
            self._done |= self._handed if offsets is None else self._checked(offsets)
            self._commit()
            if offsets is None:
                self._handed.clear()

    def _checked(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Refuses to count as done what was never handed out."""
        for place, offset in offsets.items():
            if offset > self._next[self._own(*place)]:
                raise InvalidInput(
                    f"offset {offset} cannot be committed: records were handed out up to {self._next[place] - 1}",
                    where=str(place),
                    next_step="commit what was handed out, or go further with seek(…)",
                )
        return {TopicPartition(*place): offset for place, offset in offsets.items()}

    def commit_with(self, db: sqlite3.Connection) -> None:
        """Puts the offsets into a change of the coordinator that a transaction makes."""
        self._check_transactional()
        assert self._membership is not None
        self._membership.commit(db, self._passed(self._done | self._handed))

    def _check_transactional(self) -> None:
        """Whether a transaction can take along what was handed out."""
        if self.delivery != "exactly_once" or self._membership is None:
            raise InvalidInput(
                "a transaction takes the offsets of a consumer with delivery='exactly_once'",
                next_step="log.consumer(…, group='…', delivery='exactly_once')",
            )
        self._look_back()
        if self._revoked:
            raise PartitionsRevoked(
                f"records of {', '.join(map(str, sorted(self._revoked)))} were handed out, which then went to another",
                where=f"group '{self.group}'",
                next_step="poll again: what this transaction read will be read again",
            )
        if self.must_rewind:
            raise TransactionAborted(
                "what was handed out belongs to a transaction that was given up",
                where=f"group '{self.group}'",
                next_step="poll again: it will be handed out again",
            )

    def committed_elsewhere(self) -> None:
        """Called when the transaction with `commit_with` has been committed."""
        self._note_given()
        self._done |= self._handed
        self._handed.clear()
        self._stored |= self._done

    def rewind(self) -> None:
        """Goes back to what was committed last: what was handed out since will be handed out again."""
        self.must_rewind = True  # until all partitions were: the next poll does what an exception left undone
        self._revoked.clear()
        self._offer = None
        committed = committed_offsets(self._log.coordinator, self.group) if self.group else {}
        for place in self.assignment:
            offset = committed.get(place)
            self._go(place, self._first_offset(place) if offset is None else offset)
        self.must_rewind = False

    def _news(self) -> dict[TopicPartition, int]:
        """What is done and not committed yet."""
        return {p: offset for p, offset in self._passed(self._done).items() if self._stored.get(p) != offset}

    def _passed(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets behind which no record follows up to where the consumer stands, moved there.

        Markers of transactions, aborted records and what compaction removed have offsets, but nobody is behind by them.
        """
        self._note_given()
        if self._is_unsettled:
            return dict(offsets)
        return {
            place: max(offset, self._position(place))
            if place in self._readers and self._next.get(place) == offset
            else offset
            for place, offset in offsets.items()
        }

    def _commit(self) -> None:
        news = self._news()
        if not news or self._membership is None:
            return
        with self._log.coordinator.change() as db:
            self._membership.commit(db, news)
        self._stored |= news

    def _commit_owned(self) -> None:
        """Like `_commit`; the work on what was taken away others do again, so at least once is kept."""
        news = self._news()
        if not news or self._membership is None:
            return
        with self._log.coordinator.change() as db:
            lost = self._membership.commit_owned(db, news)
        self._stored |= {place: offset for place, offset in news.items() if place not in lost}
        if lost:
            logger.warning("%s", revoked(lost, self._membership))
            for place in lost:
                self._done.pop(place, None)
            self._looked_at = 0.0

    def _finish(self) -> None:
        self._check_open()
        self._note_given()
        self._count_done()
        self._refresh()

    def _count_done(self) -> None:
        """The user asks for more, so it is done with what it has."""
        if self.delivery != "exactly_once":
            self._done |= self._handed
            self._handed.clear()
        if self.delivery == "at_least_once" and self._membership is not None:
            for place in self._readers.keys() - self._done.keys():
                if self._position(place) > self._next[place]:  # nothing was there but offsets without records
                    self._done[place] = self._next[place]
            self._commit_owned()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer was closed", next_step="make a new one with log.consumer(…)")

    # ------------------------------------------------------------ partitions come and go

    def _refresh(self) -> None:
        # Records that a transaction is to take along are waited for: left behind, they would be in neither version.
        if not (self.delivery == "exactly_once" and self._handed) and self._is_switched():
            self._come_over()
        if time.monotonic() - self._asked_at > CHECK_SECONDS:
            self._asked_at = time.monotonic()
            self._check_topics()
        is_due = self._must_assign or not self._looked_at
        if self._membership is not None:
            self._must_assign = True  # should an exception come between the group's answer and what follows from it
            if self._membership.refresh(self._release) or is_due:
                self._assign(self._membership.owned)
        elif time.monotonic() - self._looked_at > CHECK_SECONDS or is_due:
            self._assign(set(self._all_partitions()))
        else:
            return
        self._must_assign = False
        self._looked_at = time.monotonic()

    def _is_switched(self) -> bool:
        """Whether the names stand for other topics, or did already when an exception kept this consumer from them."""
        return self._followed.changed() or self.topics != self._followed.topics

    def _come_over(self) -> None:
        """Readers of a name were switched: lets go of the old topics, with the work on them committed."""
        identities = {topic: self._log.topic(topic).identity for topic in self._followed.next_topics}
        if self._membership is None:
            self._followed.leave({p: (self._readers[p].partition, self._position(p)) for p in self.assignment})
        else:
            self._membership.subscribe(self._followed.next_topics, self._release)
        self._followed.come_over()
        self.topics, self._identities = self._followed.topics, identities
        self._looked_at = 0.0

    def _check_topics(self) -> None:
        """Raises when no topic is left: deleted, though another of its name may be there by now."""
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
            for number in range(count) if self._explicit is None else self._explicit:
                if not 0 <= number < count:
                    raise UnknownPartition(
                        f"there is no partition {number}",
                        where=f"topic '{topic}'",
                        next_step=f"choose 0 to {count - 1}",
                    )
                yield TopicPartition(topic, number)

    def _release(self, partitions: set[TopicPartition]) -> None:
        """Called by the membership before partitions go to another member."""
        self._note_given()
        if self.delivery == "at_least_once":
            self._done |= self._handed
            self._commit_owned()
        self._forget(partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self._note_given()
        if self.delivery == "exactly_once":
            self._revoked |= gone & self._handed.keys()
        for place in gone:
            self._readers.pop(place, None)
            for offsets in (self._done, self._handed, self._stored, self._next):
                offsets.pop(place, None)
        if self._offer is not None and any(place_of(batch) in gone for batch in self._offer.batches or ()):
            self._end_offer()
        self._waiting = deque(batch for batch in self._waiting if place_of(batch) not in gone)

    def _assign(self, partitions: set[TopicPartition]) -> None:
        self._forget(self._readers.keys() - partitions)
        if new := sorted(partitions - self._readers.keys()):
            # Opened before the offsets are read: opening after a power cut may lower them.
            opened = {place: self._log.topic(place.topic).partition(place.partition) for place in new}
            committed = committed_offsets(self._log.coordinator, self.group) if self.group else {}
            for place, partition in opened.items():
                offset = committed.get(place)
                if offset is not None:
                    self._stored[place] = offset
                offset = self._first_offset(place) if offset is None else offset
                self._next[place] = offset
                self._readers[place] = PartitionReader(partition, offset, committed=self._committed_only)
        self._turn = deque(sorted(self._readers))
        self._wakeup.watch(reader.partition.marks.path for reader in self._readers.values())

    # ------------------------------------------------------------ where to begin

    def _first_offset(self, place: TopicPartition) -> int:
        """Where a partition is begun of which nothing is committed; one that came after the others is read whole."""
        if (offset := self._followed.start(place)) is not None:
            partition = self._log.topic(place.topic).partition(place.partition)
            return max(partition.start_offset(), min(offset, partition.end_offset()))
        late = self._start == "latest" if self.group else bool(self._looked_at)
        return self._offset_of(place, "earliest" if late else self._start)

    def _check_exists(self, start: Start, places: Sequence[TopicPartition]) -> None:
        """Refuses offsets that no partition has come to yet."""
        ends = {place: self._log.topic(place.topic).partition(place.partition).end_offset() for place in places}
        if isinstance(start, int) and ends and start > max(ends.values()):
            raise InvalidSetting(f"there is no offset {start} yet: the longest partition ends at {max(ends.values())}")
        for number, offset in start.items() if isinstance(start, Mapping) else ():
            end = max((end for place, end in ends.items() if place.partition == number), default=None)
            if end is None:
                raise UnknownPartition(f"start names partition {number!r}, which this consumer does not read")
            if offset > end:
                raise InvalidSetting(f"there is no offset {offset} yet: partition {number} ends at {end}")

    def _offset_of(self, place: TopicPartition, start: Start) -> int:
        partition = self._log.topic(place.topic).partition(place.partition)
        if start == "earliest":
            return partition.start_offset()
        if start == "latest":
            return partition.stable_offset() if self._committed_only else partition.end_offset()
        if isinstance(start, datetime):
            return offset_at_time(partition, microseconds(start))
        if isinstance(start, Mapping):
            return min(start.get(place.partition, partition.start_offset()), partition.end_offset())
        assert isinstance(start, int)
        return min(start, partition.end_offset())

    def _own(self, topic: str, partition: int) -> TopicPartition:
        place = TopicPartition(topic, partition)
        if place not in self._readers:
            raise UnknownPartition(
                f"this consumer does not read {place}",
                next_step=f"it reads {', '.join(map(str, self.assignment)) or 'none'}",
            )
        return place

    def _go(self, place: TopicPartition, offset: int) -> None:
        self._handed.pop(place, None)
        self._done.pop(place, None)
        self._next[place] = offset
        self._readers[place].seek(offset)
        self._waiting = deque(batch for batch in self._waiting if place_of(batch) != place)

    # ------------------------------------------------------------ fetching

    def _fill(self, max_bytes: int) -> bool:
        """Looks into each partition in turn until one has something."""
        self._refresh()
        if time.monotonic() - self._freed_at > CHECK_SECONDS:
            self._end_abandoned()
        for _ in range(len(self._turn)):
            if self._waiting:
                break
            place = self._turn[0]
            self._turn.rotate(-1)
            for fetch in self._read(place, max_bytes):
                self._waiting.append(Batch(place.topic, place.partition, fetch.offsets, fetch.records))
        return bool(self._waiting)

    def _read(self, place: TopicPartition, max_bytes: int) -> list[Any]:
        reader = self._readers[place]
        try:
            return reader.read(max_bytes)
        except OffsetLost:
            if self._on_lost == "error":
                raise
            start, end = reader.partition.start_offset(), reader.partition.end_offset()
            target = start if self._on_lost == "earliest" else end
            self.lost.append(Lost(place.topic, place.partition, reader.offset, target))
            logger.warning("%s: offsets %d to %d were deleted before they were read", place, reader.offset, target - 1)
            self._next[place] = target
            reader.seek(target)
            return reader.read(max_bytes)

    def _patience(self) -> float:
        """How long to sleep at most: less when a transaction holds a reader back, for its producer may be dead."""
        return CHECK_SECONDS if self._end_abandoned() else 60.0

    def _end_abandoned(self) -> bool:
        """Ends transactions of dead producers that hold this consumer back; whether any transaction does."""
        self._freed_at = time.monotonic()
        held_back = [r for r in self._readers.values() if r.committed and r.partition.marks.read().open]
        for reader in held_back:
            self._log.end_abandoned(reader.partition)
        return bool(held_back)

    def _commit_before_handing_out(self, batches: list[Batch]) -> None:
        """If that fails nothing is handed out, and the same batches come next time."""
        done = dict(self._done)
        self._done |= {place_of(batch): batch.next_offset for batch in batches}
        try:
            self._commit()
        except BaseException:
            self._done = done
            raise

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Commits what is done and leaves the group. The records handed out last are not done unless committed."""
        if self._closed:
            return
        self._closed = True
        self._wakeup.close()
        if self._membership is not None:
            try:
                if self.delivery == "at_least_once":
                    self._commit_owned()
            finally:
                self._membership.leave()
        self._offer = None

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
