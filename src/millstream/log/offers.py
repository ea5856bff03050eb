"""An offer is what a consumer is about to give its user, and how much of it the user really got.

An exception can come between any two lines: out of building the records, or out of a signal handler. So nothing counts
as given because it was prepared. `given` alone decides, and it is set in the last step before the records leave: on
`return` and on `yield`, between which and the assignment Python runs no signal handler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import get_ident

from millstream import terminal
from millstream.errors import InvalidInput
from millstream.log.batches import Batch, Lost
from millstream.log.groups import TopicPartition
from millstream.log.ports import Reading

logger = terminal.logger(__name__)


@dataclass(slots=True, eq=False)
class Offer:
    """`batches` is None while they are being gathered: where that ends in an exception, reading starts over."""

    batches: list[Batch] | None = None
    given: int = 0  # records the user has, counted over the batches in order
    thread: int = field(default_factory=get_ident)

    def __len__(self) -> int:
        return sum(map(len, self.batches or ()))

    def next_offsets(self) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition that the user has."""
        found, left = {}, self.given
        for batch in self.batches or ():
            if (count := min(left, len(batch))) > 0:
                found[place_of(batch)] = int(batch.offsets[count - 1]) + 1
                left -= count
        return found

    @property
    def rest(self) -> list[Batch]:
        """What the user did not get, in order."""
        kept, passed = [], self.given
        for batch in self.batches or ():
            if passed < len(batch):
                kept.append(batch.split(passed)[1] if passed else batch)
            passed = max(0, passed - len(batch))
        return kept


def place_of(batch: Batch) -> TopicPartition:
    return TopicPartition(batch.topic, batch.partition)


class Turns:
    """Which thread waits on a consumer: one at a time. A turn left behind by an exception is its own thread's again."""

    def __init__(self) -> None:
        self._waiter: dict[str, int] = {}

    def take(self) -> None:
        """In one step, so that two threads never both have it."""
        if self._waiter.setdefault("thread", get_ident()) != get_ident():
            raise InvalidInput(
                "another thread is waiting on this consumer", next_step="give each thread its own consumer"
            )

    def end(self) -> None:
        if not self.is_anothers:
            self._waiter.pop("thread", None)

    @property
    def is_anothers(self) -> bool:
        return self._waiter.get("thread", get_ident()) != get_ident()


class Offering:
    """What the user of a consumer has, and what was read ahead of that."""

    def __init__(self, readers: Mapping[TopicPartition, Reading]) -> None:
        self._readers = readers  # those of the port that fetches
        self.waiting: deque[Batch] = deque()  # read ahead, in order
        self.handed: dict[TopicPartition, int] = {}
        self.next: dict[TopicPartition, int] = {}  # where each partition continues: after what the user has
        self.offer: Offer | None = None
        self.is_fetching = False  # what the client of a broker returned may be nowhere else yet
        self.turns = Turns()
        self.lost: list[Lost] = []

    def note_given(self) -> None:
        """Notes what the user has of the last offer; calling it again does no harm."""
        if self.offer is not None and self.offer.given:
            given = {place: offset for place, offset in self.offer.next_offsets().items() if place in self._readers}
            for place in [place for place, offset in given.items() if self.next.get(place, 0) < offset]:
                self.handed[place] = self.next[place] = given[place]

    @property
    def is_unsettled(self) -> bool:
        """Whether records are being read ahead, or were when an exception came: the readers' positions mean nothing."""
        return self.is_fetching or (self.offer is not None and self.offer.batches is None)

    def end_offer(self) -> None:
        """Ends the last offer: what the user did not get of it is first in line again."""
        offer = self.offer
        if offer is not None and offer.batches is not None:
            rest = [batch for batch in offer.rest if place_of(batch) in self._readers]
            if rest:
                self.offer = Offer()  # putting it back can be interrupted, too
                self.waiting.extendleft(reversed(rest))
            self.offer = None

    def ahead(self) -> list[Batch]:
        """What was read and not handed out, in order."""
        return [*(self.offer.rest if self.offer else ()), *self.waiting]

    def position(self, place: TopicPartition) -> int:
        waiting = [int(batch.offsets[0]) for batch in self.ahead() if place_of(batch) == place]
        return min(waiting, default=self._readers[place].offset)

    def take(self, max_records: int | None) -> list[Batch]:
        """What waits, up to so many records; of one partition only if records are limited."""
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
        """Nothing of these partitions is handed out any more."""
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
        """Continues behind offsets that were deleted before they were read."""
        offset = self._readers[place].offset
        self.lost.append(Lost(place.topic, place.partition, offset, target))
        logger.warning("%s: offsets %d to %d were deleted before they were read", place, offset, target - 1)
        self.next[place] = target
