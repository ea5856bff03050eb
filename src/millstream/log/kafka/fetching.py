"""Reads a consumer's partitions through Kafka's client.

The client is also the member of the group, if there is one. It reports assigned and revoked partitions only while it
is polled, and it is polled only after the records returned before count as done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from millstream import terminal
from millstream.errors import KafkaUnavailable, MillstreamError, OffsetLost, UnknownTopic
from millstream.log.agreement.groups import TopicPartition
from millstream.log.buffer import microseconds
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.kafka.clients import ANSWER_SECONDS, END, GLANCE_SECONDS, READER_DEFAULTS
from millstream.log.kafka.column_client import ColumnConsumer, ObjectConsumer
from millstream.log.kafka.decoding import to_batch
from millstream.log.kafka.failures import translated, translated_errors
from millstream.log.kafka.group_client import GroupConsumer
from millstream.log.kafka.received import ALL, Event, Received
from millstream.log.kafka.times import COUNTED_MAX, offsets_at, time_reached
from millstream.log.kafka.topics import offsets
from millstream.log.offers import Offering
from millstream.log.ports import Assignee, Bound

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

SESSION_SECONDS = 10.0
LOOK_SECONDS = 5.0
SLICE_SECONDS = 0.2
SERVE_SECONDS = 0.1
CLOSE_SECONDS = 0.005
COUNTING_SECONDS = 1.0
GRACE_SECONDS = 2.0  # even a poll without a timeout waits for records that are already on the broker
FETCHED_MAX = 5000
GONE_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC")
logger = terminal.logger(__name__)


@dataclass(slots=True, eq=False)
class KafkaPosition:
    """The position in a partition. Transaction markers also have offsets, and are passed without being seen."""

    offset: int


class KafkaFetching:
    check_seconds = LOOK_SECONDS
    grace_seconds = GRACE_SECONDS
    slice_seconds = SLICE_SECONDS

    def __init__(self, log: KafkaLog, settings: ConsumerSettings, assignee: Assignee) -> None:
        self._log = log
        self._clients = log.clients
        self._assignee = assignee
        self._group = settings.group
        self._on_lost = settings.on_lost
        self._committed_only = settings.reads_committed
        self.where = f"group '{self._group}', {self._clients.where}" if self._group else self._clients.where
        self.readers: dict[TopicPartition, KafkaPosition] = {}
        self.offering = Offering(self.readers)
        self.unbegun: set[TopicPartition] = set()  # assigned by the group, but not started yet
        self._faults: dict[TopicPartition, MillstreamError] = {}  # raised by every poll until the user seeks elsewhere
        self._placing: dict[TopicPartition, int] = {}  # target offsets of the client until it gets there
        self._polled_at = 0.0
        session = min(SESSION_SECONDS, settings.poll_seconds_max)
        open_client = log.clients.record_consumer if self._group is None else log.clients.group_consumer
        self.client: ColumnConsumer | GroupConsumer | ObjectConsumer = open_client(
            ALL,
            defaults={**READER_DEFAULTS, "session.timeout.ms": int(session * 1000), "heartbeat.interval.ms": 2000},
            group_id=self._group or "millstream",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
            allow_auto_create_topics=False,
            isolation_level=settings.isolation,
            max_poll_interval_ms=int(settings.poll_seconds_max * 1000),
            partition_assignment_strategy="cooperative-sticky",
            topic_metadata_refresh_interval_ms=int(LOOK_SECONDS * 1000),
        )

    # ------------------------------------------------------------ partitions

    def identity(self, topic: str) -> str:
        return self._log.topic(topic, fresh=True).identity

    def offset(self, place: TopicPartition, at: Bound | datetime) -> int:
        if isinstance(at, datetime):
            return offsets(self._clients, [place], -(-microseconds(at) // 1000))[place]
        spec = "earliest" if at == "earliest" else "latest"
        return offsets(self._clients, [place], spec, committed=at == "stable")[place]

    def open(self, places: Sequence[TopicPartition]) -> None:
        """Nothing to do: the brokers have the partitions open."""

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        self._placing |= starts
        self.readers |= {place: KafkaPosition(offset) for place, offset in starts.items()}
        self._place_client(starts)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._faults.pop(place, None)
        self.readers[place].offset = offset
        self._place_client({place: offset})

    def forget(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self.readers.pop(place, None)
            self._faults.pop(place, None)
            self._placing.pop(place, None)

    def reassigned(self) -> None:
        if gone := self._held_by_client() - self.readers.keys():
            self._instruct(self.client.remove, dict.fromkeys(gone, 0))

    def start_over(self) -> None:
        """Reconciles the client's assignment with ours after an exception in between.

        A partition that the client no longer has, and was not just being moved to, was revoked by the group.
        """
        self._faults.clear()
        held = self._held_by_client()
        self._assignee.forget(self.readers.keys() - held - self._placing.keys())
        if unknown := held - self.readers.keys():
            self._instruct(self.client.remove, dict.fromkeys(unknown, 0))
            self.unbegun |= unknown if self._group is not None else set()
        for place, reader in self.readers.items():
            reader.offset = self.offering.next[place]
        if self.readers:
            self._place_client({place: self.offering.next[place] for place in self.readers})

    def corresponding(self, positions: Mapping[TopicPartition, int], topic: str) -> dict[int, int]:
        places = self._log.topic(topic).places()
        return offsets_at(self._clients, places, time_reached(self._clients, positions))

    def _place_client(self, starts: Mapping[TopicPartition, int]) -> None:
        """Moves the client to these offsets and drops what it had fetched of the partitions."""
        self._placing |= starts
        self._instruct(self.client.place, starts)
        for place in starts:
            self._placing.pop(place, None)

    def _held_by_client(self) -> set[TopicPartition]:
        with translated_errors(self.where):
            return self.client.assignment()

    def _instruct(
        self, act: Callable[[Mapping[TopicPartition, int]], None], starts: Mapping[TopicPartition, int]
    ) -> None:
        with translated_errors(self.where):
            act(starts)

    # ------------------------------------------------------------ fetching

    def fetch(self, seconds: float, max_bytes: int) -> None:
        self.poll(min(seconds, SLICE_SECONDS))

    def serve(self) -> None:
        """Keeps the membership alive: heartbeats and rebalances."""
        if time.monotonic() - self._polled_at > SERVE_SECONDS:
            self.poll(0.0, 0)

    def poll(self, timeout: float, more: int = FETCHED_MAX) -> None:
        """Takes what the client has, waiting for the first message. All of it is taken before anything is raised."""
        self._polled_at = time.monotonic()
        self._raise_fault()
        self.offering.is_fetching = True
        with translated_errors(self.where):
            received = self.client.receive(timeout, more)
        records: dict[TopicPartition, list[Received]] = {}
        events = []
        for taken in received:
            if isinstance(taken, Event):
                events.append(taken)
            else:
                records.setdefault(taken.place, []).append(taken)
        troubles = [self._take(Received.joined(parts)) for parts in records.values()]
        troubles += [self._note_failure(event) for event in events]
        self.offering.is_fetching = False
        for trouble in troubles:
            if trouble is not None:
                raise trouble
        self._raise_fault()

    def _raise_fault(self) -> None:
        """Records read before it are returned first; then it is raised until the user seeks elsewhere."""
        for fault in self._faults.values() if not self.offering.waiting else ():
            raise fault

    def _active_reader(self, place: TopicPartition) -> KafkaPosition | None:
        """None for a paused partition: what the client had fetched beyond it is ignored."""
        return None if place in self._faults else self.readers.get(place)

    def _take(self, received: Received) -> MillstreamError | None:
        place = received.place
        reader = self._active_reader(place)
        passed = len(received) if reader is None else int(received.offsets.searchsorted(reader.offset))
        if reader is None or passed == len(received):
            return None
        try:
            schema = self._log.topic(place.topic).settings.schema
        except MillstreamError as error:
            self._place_client({place: reader.offset})  # they are fetched again
            return error
        batch, unreadable = to_batch(received.part(passed, len(received)) if passed else received, schema)
        if batch is not None:
            self.offering.waiting.append(batch)
            reader.offset = batch.next_offset
        if unreadable is not None:
            reader.offset = unreadable.offset
            self._faults[place] = unreadable.error(place)
        return None

    def _note_failure(self, event: Event) -> MillstreamError | None:
        """Handles an error that the client reports between records."""
        place, error = event.place, event.error
        reader = self._active_reader(place)
        if error.name() == END:
            if reader is not None:
                reader.offset = max(reader.offset, event.offset)
        elif error.name() == "_AUTO_OFFSET_RESET":
            if reader is not None:
                self._handle_missing_offset(place, reader)
        elif error.name() in GONE_TOPIC:
            self._assignee.check_topics_soon()
        elif error.name() == "_MAX_POLL_EXCEEDED":
            logger.warning("%s: no poll within max_poll_interval, so other members take over", self.where)
        elif error.fatal() or error.name().endswith("AUTHORIZATION_FAILED"):
            return translated(error, self.where)
        else:
            logger.debug("%s: %s", self.where, error.str())
        return None

    def _handle_missing_offset(self, place: TopicPartition, reader: KafkaPosition) -> None:
        """Handles an offset that no longer exists."""
        try:
            start, end = self.offset(place, "earliest"), self.offset(place, "latest")
        except (KafkaUnavailable, UnknownTopic):
            start, end = 0, reader.offset
        if start <= reader.offset <= end:  # the broker did not know it yet, or does not answer now
            self._place_client({place: reader.offset})
            return
        if self._on_lost == "error":
            self._faults[place] = OffsetLost(
                f"offset {reader.offset} was deleted before it was read: the partition begins at {start}"
                if reader.offset < start
                else f"there is no offset {reader.offset}: the partition ends at {end}",
                where=str(place),
                next_step="start elsewhere with on_lost='earliest' or 'latest', or seek",
            )
            return
        target = start if self._on_lost == "earliest" else end
        self.offering.skip_lost(place, target)
        reader.offset = target
        self._place_client({place: target})

    # ------------------------------------------------------------ ends

    def ends(self) -> dict[TopicPartition, int]:
        if self._group is not None and not self.offering.ahead() and not self.offering.handed:
            self.poll(0.0)
        return self._ends(ANSWER_SECONDS)

    def ends_if_known(self) -> dict[TopicPartition, int]:
        try:
            return self._ends(GLANCE_SECONDS)
        except KafkaUnavailable:  # read when the brokers are back
            return {}
        except UnknownTopic:  # one of several, without which the others continue
            self._assignee.check_topics_soon()
            return {}

    def _ends(self, seconds: float) -> dict[TopicPartition, int]:
        places = sorted(self.readers)
        return offsets(self._clients, places, "latest", committed=self._committed_only, seconds=seconds)

    def lag(self) -> int:
        ends = self._ends(ANSWER_SECONDS)
        if (
            self._group is None or not self.offering.handed
        ):  # otherwise partitions could be revoked while their records are processed
            deadline = time.monotonic() + COUNTING_SECONDS
            self.poll(0.0)
            while 0 < self._unread(ends) <= COUNTED_MAX and not self._faults and time.monotonic() < deadline:
                self.poll(SERVE_SECONDS)  # counts records as they arrive, and passes markers
        return self._unread(ends)

    def _unread(self, ends: Mapping[TopicPartition, int]) -> int:
        """Offsets that are not prefetched yet."""
        return sum(max(0, end - self.readers[p].offset) for p, end in ends.items() if p in self.readers)

    # ------------------------------------------------------------ closing

    def stop_waiting(self) -> None:
        while self.offering.turns.is_held_elsewhere:  # the waiting thread soon sees that the consumer was closed
            time.sleep(CLOSE_SECONDS)

    def close(self) -> None:
        self.client.close()
