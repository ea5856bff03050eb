"""An offer is what a consumer is about to give its user, and how much of it the user really got.

An exception can come between any two lines: out of building the records, or out of a signal handler. So nothing counts
as given because it was prepared. `given` is the only thing that says so, and it is set in the last step before the
records leave: on `return` and on `yield`, between which and the assignment Python runs no signal handler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import get_ident

from millstream.log.batches import Batch
from millstream.log.groups import TopicPartition


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
