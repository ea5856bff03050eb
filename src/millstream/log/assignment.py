"""The partitions that a consumer reads, as its group, its topics and their switches change."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

from millstream.errors import UnknownPartition, UnknownTopic
from millstream.log.agreement.groups import TopicPartition
from millstream.log.committing import Committing
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.ports import Consumable
from millstream.log.start_positions import Start, check_exists, offset_of
from millstream.log.subscription import Subscription


class Assignment:
    """Called by the broker's ports when partitions are assigned or revoked; see `Assignee`."""

    def __init__(
        self,
        log: Consumable,
        names: Sequence[str],
        settings: ConsumerSettings,
        *,
        pinned: bool,
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        self._log = log
        self._settings = settings
        self._subscription = Subscription(log, names, settings.group, pinned=pinned, pattern=pattern)
        self.topics = self._subscription.topics
        self.fetching, self.agreeing = log.open_consumer(settings, self)
        self.committing = Committing(settings.delivery, settings.group, self.fetching, self.agreeing)
        self._offering = self.fetching.offering
        self._identities: dict[str, str] = {}
        self._begun: Mapping[TopicPartition, int] = {}
        self.must_assign = False
        self._assigned_at = 0.0
        self._checked_at = time.monotonic()

    def enter(self) -> None:
        """Joins the group and opens the first partitions."""
        self._identities = {topic: self.fetching.identity(topic) for topic in self.topics}
        places = list(self._all_partitions())
        check_exists(self.fetching, places, self._settings.start)
        if self.agreeing is not None:
            if self._settings.start == "latest":
                # Committed at once, so that every record from now on is read, whichever member reads it.
                own = [place for place in places if self._subscription.switch_to(place.topic) is None]
                self._begun = self.agreeing.begin_group(own)
            self.agreeing.join(self.topics)
        self.refresh()

    @property
    def places(self) -> list[TopicPartition]:
        return sorted(self.fetching.readers)

    def resolve(self, name: str) -> str:
        """The topic that a name refers to."""
        return self._subscription.resolve(name)

    def own(self, topic: str, partition: int) -> TopicPartition:
        place = TopicPartition(topic, partition)
        if place not in self.fetching.readers:
            raise UnknownPartition(
                f"this consumer does not read {place}",
                next_step=f"it reads {', '.join(map(str, self.places)) or 'none'}",
            )
        return place

    # ------------------------------------------------------------ following changes

    def refresh(self) -> None:
        """Called at every poll; cheap if nothing has changed."""
        # Records that belong to an open transaction are finished first: otherwise neither version would have them.
        is_busy = self._settings.delivery == "exactly_once" and bool(self._offering.handed)
        if not is_busy and self._is_switched():
            self._follow_switch()
        if time.monotonic() - self._checked_at > self.fetching.check_seconds:
            self._checked_at = time.monotonic()
            self._check_topics()
        is_due = self.must_assign or not self._assigned_at
        if self.agreeing is not None:
            self.must_assign = True  # in case an exception comes between the group's answer and acting on it
            owned = self.agreeing.refresh(self.release, is_due=is_due)
            if owned is not None:
                self._assign(owned)
        elif is_due or time.monotonic() - self._assigned_at > self.fetching.check_seconds:
            self._assign(set(self._all_partitions()))
        else:
            return
        self.must_assign = False
        self._assigned_at = time.monotonic()

    def _is_switched(self) -> bool:
        """Whether the names refer to other topics; still true after an exception in the middle of following."""
        return self._subscription.has_changed() or self.topics != self._subscription.topics

    def _follow_switch(self) -> None:
        """Follows a switch: releases the old topics after committing the work on them."""
        subscription = self._subscription
        identities = {topic: self._log.topic(topic).identity for topic in subscription.next_topics}
        if self.agreeing is None:
            positions = {place: self._offering.position(place) for place in self.places}
            subscription.leave(positions, self.fetching.corresponding)
        else:
            self.agreeing.subscribe(subscription.next_topics, self.release)
        subscription.follow()
        self.topics, self._identities = subscription.topics, identities
        self._assigned_at = 0.0

    def check_topics_soon(self) -> None:
        self._checked_at = 0.0

    def _check_topics(self) -> None:
        """Raises if every topic was deleted, even if another of the same name has been created since."""
        if self._subscription.pattern is not None:  # there may be new ones
            # On Kafka reading goes on in a topic that was created again, at an offset of the one before.
            current = {topic: self._identity(topic) or "" for topic in self._identities}
            if self.agreeing is None and current != self._identities:
                self.drop_deleted()
            return
        left = 0
        for topic, identity in self._identities.items():
            try:
                left += self._log.topic(topic).identity == identity
            except UnknownTopic:
                continue
        if not left:
            raise UnknownTopic(f"topic {', '.join(self.topics)} was deleted", next_step="make a new consumer")

    def drop_deleted(self) -> bool:
        """Stops reading deleted topics, if the others continue without them: those of a pattern do."""
        if self._subscription.pattern is None:
            return False
        for topic, identity in list(self._identities.items()):
            current = self._identity(topic) or ""
            if current != identity:
                if identity:  # otherwise it is the next one that is read, if any
                    self.forget([place for place in self.places if place.topic == topic])
                self._subscription.search_again(topic)
                self._identities[topic] = current
        self.must_assign = True
        return True

    def _identity(self, topic: str) -> str | None:
        try:
            return self._log.topic(topic).identity
        except UnknownTopic:
            return None

    def _all_partitions(self) -> Iterable[TopicPartition]:
        for topic in self.topics:
            if self._subscription.pattern is not None and self._identity(topic) is None:
                continue
            count = self._log.topic(topic).settings.partitions
            for number in range(count) if self._settings.partitions is None else self._settings.partitions:
                if not 0 <= number < count:
                    raise UnknownPartition(
                        f"there is no partition {number}",
                        where=f"topic '{topic}'",
                        next_step=f"choose 0 to {count - 1}",
                    )
                yield TopicPartition(topic, number)

    # ------------------------------------------------------------ assigned and revoked

    def _assign(self, places: set[TopicPartition]) -> None:
        readers = self.fetching.readers
        self.forget(readers.keys() - places)
        if new := sorted(places - readers.keys()):
            self.fetching.open(new)
            committed = {} if self.agreeing is None else self.agreeing.committed(new)
            self.begin(self.starts(new, committed), committed)
        self.fetching.reassigned()

    def starts(
        self, places: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        return {place: committed[place] if place in committed else self.first_offset(place) for place in places}

    def begin(self, starts: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]) -> None:
        self.committing.stored |= committed
        if starts:
            self._offering.next |= starts
            self.fetching.begin(starts)

    def release(self, places: set[TopicPartition]) -> None:
        self.must_assign |= self.committing.release()
        self.forget(places)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        gone = set(places)
        self._offering.note_given()
        self.committing.forget(gone)
        self.fetching.forget(gone)
        self._offering.forget(gone)

    # ------------------------------------------------------------ start positions

    def first_offset(self, place: TopicPartition) -> int:
        """Where to start without a committed offset; a partition that was added later is read from its beginning."""
        if (offset := self._subscription.start(place)) is not None:
            start = self.fetching.offset(place, "earliest")
            return max(start, min(offset, self.fetching.offset(place, "latest")))
        start_at = self._settings.start
        if self.agreeing is not None and start_at == "latest":
            return self._begun.get(place, 0) or self.offset_of(place, "earliest")
        is_late = self.agreeing is None and bool(self._assigned_at)
        is_late |= self._subscription.is_found_later(place.topic)
        return self.offset_of(place, "earliest" if is_late else start_at)

    def offset_of(self, place: TopicPartition, start: Start) -> int:
        return offset_of(self.fetching, place, start, reads_committed=self._settings.reads_committed)
