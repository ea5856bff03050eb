"""A consumer of Kafka that hands out and counts as done by the rules of the embedded log's.

Kafka's client is the member of the group; what it does about partitions it tells while it is polled, and it is polled
only after what was handed out before counts as done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from millstream import terminal
from millstream.errors import (
    ClosedError,
    KafkaUnavailable,
    MillstreamError,
    OffsetLost,
    UnknownTopic,
)
from millstream.log.batches import Lost, Record
from millstream.log.buffer import microseconds
from millstream.log.groups import TopicPartition
from millstream.log.kafka import groups
from millstream.log.kafka.clients import ANSWER_SECONDS, GLANCE_SECONDS
from millstream.log.kafka.committing import Committing
from millstream.log.kafka.failures import said_plainly, translated
from millstream.log.kafka.fetching import COUNTED_MAX, END, UNSAID, Place, to_batch
from millstream.log.kafka.switches import KafkaFollowed
from millstream.log.kafka.topics import as_kafka, offsets
from millstream.log.offers import place_of
from millstream.log.reader import READ_BYTES
from millstream.log.start_positions import Start, checked_interval

if TYPE_CHECKING:
    from confluent_kafka import Message

    from millstream.log.kafka.log import KafkaLog

POLL_SECONDS_MIN = 6.0  # the shortest that brokers accept
SESSION_SECONDS = 10.0
JOIN_SECONDS = 15.0
LOOK_SECONDS = 5.0
SLICE_SECONDS = 0.2
SERVE_SECONDS = 0.1
CLOSE_SECONDS = 0.005
COUNTING_SECONDS = 1.0
GRACE_SECONDS = 2.0  # what is on the broker already is waited for, even by who does not wait
FETCHED_MAX = 5000
logger = terminal.logger(__name__)


class KafkaConsumer(Committing):
    """Made by `log.consumer(…)`; use it as a context manager, or call `close`."""

    _readers: dict[TopicPartition, Any]

    def __init__(
        self,
        log: KafkaLog,
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
        self._log = cast(Any, log)
        self._clients = log.clients
        self._closed = True  # until there is something to close
        names = [topics] if isinstance(topics, str) else list(topics)
        self._followed = self._places = KafkaFollowed(log, names, group, pinned=pinned)
        self.topics = self._followed.topics
        self._settle(group, delivery, start, isolation, on_lost, partitions)
        interval = checked_interval(max_poll_interval, POLL_SECONDS_MIN, " on Kafka")
        self._readers = {}
        self._faults: dict[TopicPartition, MillstreamError] = {}  # told at every poll until sought elsewhere
        self._begun: dict[TopicPartition, int] = {}
        self._given: set[TopicPartition] = set()  # by the group, and not begun yet
        self._placing: dict[TopicPartition, int] = {}  # where the client is being sent, until it is there
        self._joined = False
        self._leaving = False
        self._looked_at = self._polled_at = 0.0
        self._identities = {topic: log.topic(topic, fresh=True).identity for topic in self.topics}
        self._check_exists(start, list(self._all_partitions()))
        if group is not None and start == "latest":
            self._begin_group(group)
        session = min(SESSION_SECONDS, interval)
        self._client: Any = log.clients.consumer(
            unsaid={**UNSAID, "session.timeout.ms": int(session * 1000), "heartbeat.interval.ms": 2000},
            group_id=group or "millstream",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
            allow_auto_create_topics=False,
            isolation_level=isolation,
            max_poll_interval_ms=int(interval * 1000),
            partition_assignment_strategy="cooperative-sticky",
            topic_metadata_refresh_interval_ms=int(LOOK_SECONDS * 1000),
        )
        self._membership = cast(Any, self._client) if group is not None else None
        self._closed = False
        try:
            self._enter()
        except BaseException:
            self.close()
            raise

    def _enter(self) -> None:
        if self.group is None:
            self._refresh()
            return
        self._subscribe()
        deadline = time.monotonic() + JOIN_SECONDS
        while not self._joined and time.monotonic() < deadline:
            self._fetch(SLICE_SECONDS)
        self._looked_at = time.monotonic()

    def _subscribe(self) -> None:
        with said_plainly(self._where):
            self._client.subscribe(
                self.topics, on_assign=self._assigned, on_revoke=self._taken, on_lost=self._taken_unasked
            )

    def _begin_group(self, group: str) -> None:
        """Notes where a new group begins, so that all that comes from now on is read, whoever of it reads it."""
        known = {place.topic for place in groups.committed_offsets(self._clients, group)}
        places = [place for place in self._all_partitions() if self._places.comes_over(place.topic) is None]
        fresh = [place for place in places if place.topic not in known]
        self._begun = offsets(self._clients, fresh, "latest", committed=self._committed_only)
        if self._begun:
            try:
                groups.store_offsets(self._clients, group, self._begun)
            except MillstreamError as error:  # others of the group are at work already, and have noted it
                logger.debug("%s", error)

    # ------------------------------------------------------------ reading

    def _wait(self, timeout: float, max_bytes: int = READ_BYTES) -> None:
        begun = time.monotonic()
        try:
            self._take_turn()
            patience, ends = timeout, None
            if self._waiting and begun - self._polled_at > SERVE_SECONDS:
                self._refresh()
                self._fetch(0.0, 0)  # the group must hear of this member, and this member of the group
            while not self._waiting:
                self._check_open()
                self._refresh()
                left = begun + patience - time.monotonic()
                self._fetch(max(0.0, min(left, SLICE_SECONDS)))
                if self._waiting or time.monotonic() < begun + timeout:
                    continue
                if ends is None:
                    ends, patience = self._known_ends(), max(timeout, GRACE_SECONDS)
                behind = any(end > self._readers[place].offset for place, end in ends.items() if place in self._readers)
                if not behind or time.monotonic() >= begun + patience:
                    return
        finally:
            self._end_turn()

    def _known_ends(self) -> dict[TopicPartition, int]:
        try:
            return self._ends(GLANCE_SECONDS)
        except KafkaUnavailable:  # what the brokers have is read when they are back
            return {}

    def _ends(self, seconds: float = ANSWER_SECONDS) -> dict[TopicPartition, int]:
        return offsets(self._clients, self.assignment, "latest", committed=self._committed_only, seconds=seconds)

    def _fetch(self, timeout: float, more: int = FETCHED_MAX) -> None:
        """Takes what the client has, waiting for the first of it. All of it is taken before anything is told."""
        self._polled_at = time.monotonic()
        self._tell_fault()
        self._is_fetching = True  # what the client gave is nowhere else until it was taken
        with said_plainly(self._where):
            first = self._client.poll(timeout)
            messages = [] if first is None else [first, *(self._client.consume(more, 0) if more else ())]
        together: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            if message.error() is None:
                together.setdefault(TopicPartition(message.topic(), message.partition()), []).append(message)
        troubles = [self._take(place, of_place) for place, of_place in together.items()]
        troubles += [self._hear(message) for message in messages if message.error() is not None]
        self._is_fetching = False
        for trouble in troubles:
            if trouble is not None:
                raise trouble
        self._tell_fault()

    def _tell_fault(self) -> None:
        """What was read before is handed out first; then it is told, until the user goes elsewhere."""
        for fault in self._faults.values() if not self._waiting else ():
            raise fault

    def _listening(self, place: TopicPartition) -> Place | None:
        """Of a partition that stands still nothing counts that the client had fetched further on."""
        return None if place in self._faults else self._readers.get(place)

    def _take(self, place: TopicPartition, messages: list[Message]) -> MillstreamError | None:
        reader = self._listening(place)
        wanted = [message for message in messages if reader and (message.offset() or 0) >= reader.offset]
        if reader is None or not wanted:
            return None
        try:
            schema = self._log.topic(place.topic).settings.schema
        except MillstreamError as error:
            self._position_client(place, reader.offset)  # they come again
            return error
        batch, unreadable = to_batch(place, schema, wanted)
        if batch is not None:
            self._waiting.append(batch)
            reader.offset = batch.next_offset
        if unreadable is not None:
            reader.offset = unreadable.offset
            self._faults[place] = unreadable.error(place)
        return None

    def _hear(self, message: Message) -> MillstreamError | None:
        """What the client says between the records."""
        error, topic = cast(Any, message.error()), message.topic()
        place = TopicPartition(topic or "", -1 if message.partition() is None else int(message.partition() or 0))
        reader = self._listening(place)
        if error.name() == END:
            if reader is not None:
                reader.offset = max(reader.offset, message.offset() or 0)
        elif error.name() == "_AUTO_OFFSET_RESET":
            if reader is not None:
                self._find_again(place, reader)
        elif error.name() in ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"):
            self._asked_at = 0.0  # to be looked at soon
        elif error.name() == "_MAX_POLL_EXCEEDED":
            logger.warning("%s: nothing was asked for within max_poll_interval, so others take over", self._where)
        elif error.fatal() or error.name().endswith("AUTHORIZATION_FAILED"):
            return translated(error, self._where)
        else:
            logger.debug("%s: %s", self._where, error.str())
        return None

    def _find_again(self, place: TopicPartition, reader: Place) -> None:
        """The offset asked for is not there any more."""
        try:
            start = offsets(self._clients, [place], "earliest")[place]
            end = offsets(self._clients, [place], "latest")[place]
        except (KafkaUnavailable, UnknownTopic):
            start, end = 0, reader.offset
        if start <= reader.offset <= end:  # it was asked of a broker that did not know yet, or does not answer now
            self._position_client(place, reader.offset)
            return
        if self._on_lost == "error":
            self._faults[place] = OffsetLost(
                f"offset {reader.offset} was deleted before it was read: the partition begins at {start}"
                if reader.offset < start
                else f"there is no offset {reader.offset}: the partition ends at {end}",
                where=str(place),
                next_step="begin elsewhere with on_lost='earliest' or 'latest', or seek",
            )
            return
        target = start if self._on_lost == "earliest" else end
        self.lost.append(Lost(place.topic, place.partition, reader.offset, target))
        logger.warning("%s: offsets %d to %d were deleted before they were read", place, reader.offset, target - 1)
        self._next[place] = reader.offset = target
        self._position_client(place, target)

    def until_caught_up(self) -> Iterator[Record]:
        """Every record up to where the partitions end now; then it stops."""
        self._check_open()
        self._look_back()
        self._refresh()
        if self.group is not None and not self._ahead() and not self._handed:
            self._fetch(0.0)
        ends = self._ends()
        while any(self.position(*place) < end for place, end in ends.items() if place in self._readers):
            yield from self._one_by_one(timeout=SLICE_SECONDS)
        self._finish()

    def lag(self) -> int:
        """How many records this consumer is behind the end of its partitions.

        Far behind it counts offsets, of which those of transactions' markers and of compacted records hold no record.
        """
        self._check_open()
        self._look_back()
        ends = self._ends()
        if self.group is None or not self._handed:  # else partitions could go while their records are worked on
            deadline = time.monotonic() + COUNTING_SECONDS
            self._fetch(0.0)
            while 0 < self._behind(ends) <= COUNTED_MAX and not self._faults and time.monotonic() < deadline:
                self._fetch(SERVE_SECONDS)  # records are counted as they come, and markers passed
        return self._behind(ends) + sum(map(len, self._ahead()))

    def _behind(self, ends: Mapping[TopicPartition, int]) -> int:
        """Offsets that were not even read ahead."""
        return sum(max(0, end - self._readers[p].offset) for p, end in ends.items() if p in self._readers)

    # ------------------------------------------------------------ partitions come and go

    def _refresh(self) -> None:
        if self.must_rewind:
            self.rewind()
        if self._given:
            self._begin_given(GLANCE_SECONDS)
        # Records that a transaction is to take along are waited for: left behind, they would be in neither version.
        if not (self.delivery == "exactly_once" and self._handed) and self._is_switched():
            self._come_over()
        if time.monotonic() - self._asked_at > LOOK_SECONDS:
            self._asked_at = time.monotonic()
            self._check_topics()
        if self.group is None and (not self._looked_at or time.monotonic() - self._looked_at > LOOK_SECONDS):
            self._assign(set(self._all_partitions()))
            self._looked_at = time.monotonic()

    def _come_over(self) -> None:
        """Readers of a name were switched: lets go of the old topics, with the work on them committed."""
        identities = {topic: self._log.topic(topic).identity for topic in self._followed.next_topics}
        if self.group is None:
            self._places.leave_at({place: self._position(place) for place in self.assignment})
        elif self.delivery == "at_least_once":
            self._note_given()
            self._done |= self._handed
            self._commit_owned()
        self._followed.come_over()
        self.topics, self._identities = self._followed.topics, identities
        if self.group is not None:
            self._forget([place for place in self._readers if place.topic not in self.topics])
            self._subscribe()
        self._looked_at = 0.0

    def _assign(self, partitions: set[TopicPartition]) -> None:
        """For a consumer without a group."""
        gone = self._readers.keys() - partitions
        if gone:
            self._forget(gone)
            self._tell(self._client.incremental_unassign, dict.fromkeys(gone, 0))
        self._begin({place: self._first_offset(place) for place in sorted(partitions - self._readers.keys())})

    def _begin(self, found: Mapping[TopicPartition, int]) -> None:
        if found:
            self._next |= found
            self._placing |= found
            self._readers |= {place: Place(offset) for place, offset in found.items()}
            self._place_client(found)

    def _place_client(self, found: Mapping[TopicPartition, int]) -> None:
        """The client goes to these offsets, and forgets what it had fetched of the partitions."""
        self._placing |= found
        if held := self._held_by_client() & found.keys():
            self._tell(self._client.incremental_unassign, dict.fromkeys(held, 0))
        self._tell(self._client.incremental_assign, found)
        for place in found:
            self._placing.pop(place, None)

    def _held_by_client(self) -> set[TopicPartition]:
        with said_plainly(self._where):
            return {TopicPartition(held.topic, held.partition) for held in self._client.assignment()}

    def _start_over(self) -> None:
        """As on the embedded log; an exception may also have come between what the client has and what is known here.

        A partition that the client has no more, and was not just being sent to, was taken away by the group.
        """
        self._waiting.clear()
        self._faults.clear()
        held = self._held_by_client()
        self._forget(self._readers.keys() - held - self._placing.keys())
        if unknown := held - self._readers.keys():
            self._tell(self._client.incremental_unassign, dict.fromkeys(unknown, 0))
            self._given |= unknown if self.group is not None else set()
        for place, reader in self._readers.items():
            reader.offset = self._next[place]
        if self._readers:
            self._place_client({place: self._next[place] for place in self._readers})
        self._looked_at = self._looked_at and 1e-9  # partitions are looked up again, as by one that has begun

    def _tell(self, act: Callable[[Any], None], found: Mapping[TopicPartition, int]) -> None:
        with said_plainly(self._where):
            act(list(as_kafka(found)))

    def _assigned(self, client: Any, partitions: Sequence[Any]) -> None:
        self._given |= {TopicPartition(partition.topic, partition.partition) for partition in partitions}
        self._joined = True
        client.incremental_assign([])  # else the client begins all of them, wherever that is
        self._begin_given(3 * ANSWER_SECONDS)
        if self._given:
            logger.warning("%s: %s cannot be begun yet", self._where, ", ".join(map(str, sorted(self._given))))

    def _begin_given(self, seconds: float) -> None:
        """Where the group was; while nobody can tell, they are kept for later."""
        places = sorted(self._given - self._readers.keys())
        try:
            committed = self._committed(places, seconds)
            starts = {place: committed[place] if place in committed else self._first_offset(place) for place in places}
        except (KafkaUnavailable, UnknownTopic) as error:
            logger.debug("%s", error)
            return
        self._stored |= committed
        self._begin(starts)
        self._given.clear()

    def _taken(self, client: Any, partitions: Sequence[Any]) -> None:
        partitions = self._begun_of(partitions)
        places = {TopicPartition(partition.topic, partition.partition) for partition in partitions}
        if not self._leaving:
            self._release(places)
        else:
            self._forget(places)
        client.incremental_unassign(partitions)

    def _taken_unasked(self, client: Any, partitions: Sequence[Any]) -> None:
        """This member was silent for too long: nothing can be committed for what it had."""
        partitions = self._begun_of(partitions)
        self._forget({TopicPartition(partition.topic, partition.partition) for partition in partitions})
        client.incremental_unassign(partitions)

    def _begun_of(self, partitions: Sequence[Any]) -> list[Any]:
        """Of those that go; the client never had the others."""
        never = {TopicPartition(partition.topic, partition.partition) for partition in partitions} & self._given
        self._given -= never
        return [found for found in partitions if TopicPartition(found.topic, found.partition) not in never]

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        super()._forget(gone)
        for place in gone:
            self._faults.pop(place, None)
            self._placing.pop(place, None)

    # ------------------------------------------------------------ where to begin

    def _first_offset(self, place: TopicPartition) -> int:
        """Where a partition is begun of which nothing is committed; one that came after the others is read whole."""
        if (offset := self._followed.start(place)) is not None:
            start = offsets(self._clients, [place], "earliest")[place]
            return max(start, min(offset, offsets(self._clients, [place], "latest")[place]))
        if self.group and self._start == "latest":
            return self._begun.get(place, 0) or self._offset_of(place, "earliest")
        late = bool(self._looked_at) and not self.group
        return self._offset_of(place, "earliest" if late else self._start)

    def _check_exists(self, start: Start, places: Sequence[TopicPartition]) -> None:
        if isinstance(start, int | Mapping):
            super()._check_exists(start, places)

    def _offset_of(self, place: TopicPartition, start: Start) -> int:
        if isinstance(start, str):
            return offsets(self._clients, [place], start, committed=self._committed_only)[place]
        if isinstance(start, datetime):
            return offsets(self._clients, [place], -(-microseconds(start) // 1000))[place]
        end = offsets(self._clients, [place], "latest")[place]
        if isinstance(start, Mapping):
            first = start.get(place.partition)
            return self._offset_of(place, "earliest") if first is None else min(first, end)
        return min(start, end)

    def _go(self, place: TopicPartition, offset: int) -> None:
        self._faults.pop(place, None)
        self._handed.pop(place, None)
        self._done.pop(place, None)
        self._next[place] = offset
        self._readers[place].offset = offset
        self._position_client(place, offset)
        self._waiting = deque(batch for batch in self._waiting if place_of(batch) != place)

    def _position_client(self, place: TopicPartition, offset: int) -> None:
        self._place_client({place: offset})

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Commits what is done and leaves the group. The records handed out last are not done unless committed."""
        if self._closed:
            return
        self._closed = True
        while self._turns.is_anothers:  # who waits sees soon that it is closed
            time.sleep(CLOSE_SECONDS)
        try:
            if self.delivery == "at_least_once" and self._membership is not None:
                self._commit_owned()
        finally:
            self._offer = None
            self._leaving = True
            self._client.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer was closed", next_step="make a new one with log.consumer(…)")
