"""An offer is what a consumer is about to return, and how much of it was actually returned.

An exception can come at any line: from decoding records, or from a signal handler. So prepared records do not count as
returned. Only `given` does, and it is set in the last step before the records leave: on `return` and on `yield`,
between which and the assignment Python runs no signal handler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import get_ident

from millstream import terminal
from millstream.errors import InvalidInput
from millstream.log.agreement.groups import TopicPartition
from millstream.log.batches import Batch, Lost
from millstream.log.ports import Reading

logger = terminal.logger(__name__)


@dataclass(slots=True, eq=False)
class Offer:
    """`batches` is None while they are being fetched: after an exception then, reading starts over."""

    batches: list[Batch] | None = None
    given: int = 0  # records that were returned, counted over the batches in order
    thread: int = field(default_factory=get_ident)

    def __len__(self) -> int:
        return sum(map(len, self.batches or ()))

    def next_offsets(self) -> dict[TopicPartition, int]:
        """The offset after the last returned record of each partition."""
        found, left = {}, self.given
        for batch in self.batches or ():
            if (count := min(left, len(batch))) > 0:
                found[place_of(batch)] = int(batch.offsets[count - 1]) + 1
                left -= count
        return found

    @property
    def rest(self) -> list[Batch]:
        """What was not returned, in order."""
        kept, passed = [], self.given
        for batch in self.batches or ():
            if passed < len(batch):
                kept.append(batch.split(passed)[1] if passed else batch)
            passed = max(0, passed - len(batch))
        return kept


def place_of(batch: Batch) -> TopicPartition:
    return TopicPartition(batch.topic, batch.partition)


class Turns:
    """Only one thread at a time may wait on a consumer. A turn left by an exception can be retaken by its thread."""

    def __init__(self) -> None:
        self._waiter: dict[str, int] = {}

    def take(self) -> None:
        """Atomic, so that two threads never both have it."""
        if self._waiter.setdefault("thread", get_ident()) != get_ident():
            raise InvalidInput(
                "another thread is waiting on this consumer", next_step="give each thread its own consumer"
            )

    def end(self) -> None:
        if not self.is_held_elsewhere:
            self._waiter.pop("thread", None)

    @property
    def is_held_elsewhere(self) -> bool:
        return self._waiter.get("thread", get_ident()) != get_ident()


class Offering:
    """What a consumer has returned, and what it has prefetched."""

    def __init__(self, readers: Mapping[TopicPartition, Reading]) -> None:
        self._readers = readers  # of the fetching port
        self.waiting: deque[Batch] = deque()  # prefetched, in order
        self.handed: dict[TopicPartition, int] = {}
        self.next: dict[TopicPartition, int] = {}  # the next offset of each partition, after what was returned
        self.offer: Offer | None = None
        self.is_fetching = False  # what the broker's client returned may not be stored anywhere yet
        self.turns = Turns()
        self.lost: list[Lost] = []

    def note_given(self) -> None:
        """Records what was returned of the last offer; idempotent."""
        if self.offer is not None and self.offer.given:
            given = {place: offset for place, offset in self.offer.next_offsets().items() if place in self._readers}
            for place in [place for place, offset in given.items() if self.next.get(place, 0) < offset]:
                self.handed[place] = self.next[place] = given[place]

    @property
    def is_unsettled(self) -> bool:
        """Whether a prefetch is running or was cut off by an exception: the readers' positions are unreliable."""
        return self.is_fetching or (self.offer is not None and self.offer.batches is None)

    def end_offer(self) -> None:
        """Ends the last offer: what was not returned is first in line again."""
        offer = self.offer
        if offer is not None and offer.batches is not None:
            rest = [batch for batch in offer.rest if place_of(batch) in self._readers]
            if rest:
                self.offer = Offer()  # putting it back can be interrupted, too
                self.waiting.extendleft(reversed(rest))
            self.offer = None

    def ahead(self) -> list[Batch]:
        """What was prefetched and not returned, in order."""
        return [*(self.offer.rest if self.offer else ()), *self.waiting]

    def position(self, place: TopicPartition) -> int:
        waiting = [int(batch.offsets[0]) for batch in self.ahead() if place_of(batch) == place]
        return min(waiting, default=self._readers[place].offset)

    def take(self, max_records: int | None) -> list[Batch]:
        """Prefetched batches, up to so many records; of one partition only if records are limited."""
        batches: list[Batch] = []
        room = max_records
        while self.waiting and (room is None or (room > 0 and not batches)):
            batch = self.waiting.popleft()
            if room is not None and len(batch) > room:
                batch, rest = batch.split(room)
                self.waiting.appendleft(rest)
            batches.append(batch)
        return batches

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Drops everything prefetched of these partitions."""
        gone = set(places)
        for offsets in (self.handed, self.next):
            for place in gone:
                offsets.pop(place, None)
        if self.offer is not None and any(place_of(batch) in gone for batch in self.offer.batches or ()):
            self.end_offer()
        self.drop_waiting(gone)

    def drop_waiting(self, places: Iterable[TopicPartition]) -> None:
        gone = set(places)
        self.waiting = deque(batch for batch in self.waiting if place_of(batch) not in gone)

    def skip_lost(self, place: TopicPartition, target: int) -> None:
        """Skips offsets that were deleted before they were read."""
        offset = self._readers[place].offset
        self.lost.append(Lost(place.topic, place.partition, offset, target))
        logger.warning("%s: offsets %d to %d were deleted before they were read", place, offset, target - 1)
        self.next[place] = target
