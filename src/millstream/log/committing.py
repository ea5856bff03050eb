"""Which records the user of a consumer is done with, and how much of that its group knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream import terminal
from millstream.errors import PartitionsRevoked
from millstream.log.batches import Batch
from millstream.log.groups import TopicPartition, revoked
from millstream.log.offers import place_of
from millstream.log.ports import Agreeing, Fetching

logger = terminal.logger(__name__)


class Committing:
    def __init__(self, delivery: str, group: str | None, fetching: Fetching, agreeing: Agreeing | None) -> None:
        self._delivery = delivery
        self._group = group
        self._offering = fetching.offering
        self._readers = fetching.readers
        self._agreeing = agreeing
        self.done: dict[TopicPartition, int] = {}
        self.stored: dict[TopicPartition, int] = {}
        self.revoked: set[TopicPartition] = set()  # records of these are part of a transaction that cannot commit them

    def count_done(self) -> bool:
        """The user asks for more, so it is done with what it has. Returns whether partitions were lost."""
        offering = self._offering
        if self._delivery != "exactly_once":
            self.count_handed()
        if self._delivery != "at_least_once" or self._agreeing is None:
            return False
        for place in self._readers.keys() - self.done.keys():
            if offering.position(place) > offering.next[place]:  # nothing was there but offsets without records
                self.done[place] = offering.next[place]
        return self.commit_owned()

    def count_handed(self) -> None:
        self.done |= self._offering.handed
        self._offering.handed.clear()

    def commit(self) -> None:
        """Raises PartitionsRevoked, and commits nothing, if a partition has gone to another member."""
        news = self._news()
        if news and self._agreeing is not None:
            self._agreeing.commit(news)
            self.stored |= news

    def commit_owned(self) -> bool:
        """Commits what is done of the partitions that are still this member's; others redo the work on the rest.

        Returns whether partitions were lost.
        """
        news = self._news()
        if not news or self._agreeing is None:
            return False
        outcome = self._agreeing.commit_owned(news)
        self.stored |= outcome.stored
        if refused := news.keys() - outcome.stored.keys():
            logger.warning("%s", revoked(refused, str(self._group), self._agreeing.member))
        for place in outcome.lost:
            self.done.pop(place, None)
        return bool(outcome.lost)

    def commit_before_handing_out(self, batches: Iterable[Batch]) -> None:
        """If that fails nothing is handed out, and the same batches come next time."""
        done = dict(self.done)
        self.done |= {place_of(batch): batch.next_offset for batch in batches}
        try:
            self.commit()
        except BaseException:
            self.done = done
            raise

    def release(self) -> bool:
        """Partitions are about to go to another member. Returns whether some were lost already."""
        self._offering.note_given()
        if self._delivery != "at_least_once":
            return False
        self.done |= self._offering.handed
        return self.commit_owned()

    def forget(self, places: set[TopicPartition]) -> None:
        if self._delivery == "exactly_once":
            self.revoked |= places & self._offering.handed.keys()
        for place in places:
            self.done.pop(place, None)
            self.stored.pop(place, None)

    def commit_with(self, transaction: object) -> None:
        """Makes what was handed out part of a producer's transaction."""
        assert self._agreeing is not None
        if self.revoked:
            raise PartitionsRevoked(
                f"records of {', '.join(map(str, sorted(self.revoked)))} were handed out, which then went to another",
                where=f"group '{self._group}'",
                next_step="poll again: what this transaction read will be read again",
            )
        self._agreeing.commit_with(transaction, self._passed(self.done | self._offering.handed))

    def committed_elsewhere(self) -> None:
        """The transaction of `commit_with` has been committed."""
        self._offering.note_given()
        self.count_handed()
        self.stored |= self.done

    def _news(self) -> dict[TopicPartition, int]:
        """What is done and not committed yet."""
        return {p: offset for p, offset in self._passed(self.done).items() if self.stored.get(p) != offset}

    def _passed(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets, moved past those without records up to the consumer's position.

        Markers of transactions, aborted records and what compaction removed have offsets, but nobody lags behind them.
        """
        offering = self._offering
        offering.note_given()
        if offering.is_unsettled:
            return dict(offsets)
        return {
            place: max(offset, offering.position(place))
            if place in self._readers and offering.next.get(place) == offset
            else offset
            for place, offset in offsets.items()
        }
