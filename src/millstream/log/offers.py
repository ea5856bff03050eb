"""An offer is what a consumer is about to give its user, and how much of it the user really got.

An exception can come between any two lines: out of building the records, or out of a signal handler. So nothing counts
as given because it was prepared. `given` is the only thing that says so, and it is set in the last step before the
records leave: on `return` and on `yield`, between which and the assignment Python runs no signal handler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING

from millstream.errors import InvalidInput
from millstream.log.batches import Batch
from millstream.log.groups import TopicPartition

if TYPE_CHECKING:
    from millstream.log.reader import PartitionReader


@dataclass(slots=True, eq=False)
class Offer:
    """`batches` is None while they are being gathered: where that ends in an exception, reading starts over."""

    batches: list[Batch] | None = None
    given: int = 0  # records the user has, counted over the batches in order
    thread: int = field(default_factory=get_ident)

    def __len__(self) -> int:
        return sum(map(len, self.batches or ()))

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Behind the last record of each partition that the user has."""
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
    """Who waits on a consumer: one thread at a time. A turn that an exception left behind is its thread's own again."""

    def __init__(self) -> None:
        self._waiter: dict[str, int] = {}

    def take(self) -> bool:
        """Whether it is this thread's turn; in one step, so that two threads never both have it."""
        return self._waiter.setdefault("thread", get_ident()) == get_ident()

    def end(self) -> None:
        self._waiter.pop("thread", None)

    @property
    def is_anothers(self) -> bool:
        return self._waiter.get("thread", get_ident()) != get_ident()


class Offering:
    """The part of a consumer that knows what its user has, and what was read ahead of that."""

    _readers: dict[TopicPartition, PartitionReader]
    _must_assign: bool

    def _begin_offering(self) -> None:
        self._waiting: deque[Batch] = deque()  # read ahead, in order
        self._handed: dict[TopicPartition, int] = {}
        self._next: dict[TopicPartition, int] = {}  # where each partition goes on: behind what the user has
        self._offer: Offer | None = None
        self._is_fetching = False
        self._turns = Turns()
        self.must_rewind = False

    def rewind(self) -> None:
        raise NotImplementedError

    def _note_given(self) -> None:
        """Notes what the user has of the last offer; again and again without harm."""
        if self._offer is not None and self._offer.given:
            given = {place: offset for place, offset in self._offer.next_offsets().items() if place in self._readers}
            for place in [place for place, offset in given.items() if self._next.get(place, 0) < offset]:
                self._handed[place] = self._next[place] = given[place]

    def _look_back(self) -> None:
        """Where an exception came while records were being read ahead, reads on from what the user has."""
        self._note_given()
        if self._is_unsettled and not self._turns.is_anothers:
            self._start_over()
            self._offer, self._is_fetching = None, False

    @property
    def _is_unsettled(self) -> bool:
        """Whether records are being read ahead, or were when an exception came: where readers stand says nothing."""
        return self._is_fetching or (self._offer is not None and self._offer.batches is None)

    def _settle_offer(self) -> None:
        """Ends the last offer: what the user did not get of it is first in line again."""
        self._look_back()
        self._end_offer()
        if self.must_rewind:
            self.rewind()

    def _end_offer(self) -> None:
        offer = self._offer
        if offer is not None and offer.batches is not None:
            rest = [batch for batch in offer.rest if place_of(batch) in self._readers]
            if rest:
                self._offer = Offer()  # putting it back can be interrupted, too
                self._waiting.extendleft(reversed(rest))
            self._offer = None

    def _start_over(self) -> None:
        """Forgets all that was read ahead and stands behind what the user has, in every partition."""
        self._waiting.clear()
        self._must_assign = True
        for place, reader in list(self._readers.items()):
            reader.seek(self._next[place])

    def _ahead(self) -> list[Batch]:
        """What was read and not handed out, in order."""
        return [*(self._offer.rest if self._offer else ()), *self._waiting]

    def _position(self, place: TopicPartition) -> int:
        waiting = [int(batch.offsets[0]) for batch in self._ahead() if place_of(batch) == place]
        return min(waiting, default=self._readers[place].offset)

    def _take_from_waiting(self, max_records: int | None) -> list[Batch]:
        """What waits, up to so many records; of one partition only if records are limited."""
        batches: list[Batch] = []
        room = max_records
        while self._waiting and (room is None or (room > 0 and not batches)):
            batch = self._waiting.popleft()
            if room is not None and len(batch) > room:
                batch, rest = batch.split(room)
                self._waiting.appendleft(rest)
            batches.append(batch)
        return batches

    def _take_turn(self) -> None:
        if not self._turns.take():
            raise InvalidInput(
                "another thread is waiting on this consumer", next_step="give each thread its own consumer"
            )

    def _end_turn(self) -> None:
        if not self._turns.is_anothers:
            self._turns.end()
