"""Which records have been processed, and which of their offsets the group has committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream import terminal
from millstream.errors import PartitionsRevoked
from millstream.log.agreement.groups import TopicPartition, revoked
from millstream.log.batches import Batch
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
        self.revoked: set[TopicPartition] = (
            set()
        )  # their records are part of a transaction that can no longer commit them

    def count_done(self) -> bool:
        """A poll marks everything returned before as done. Returns whether partitions were lost."""
        offering = self._offering
        if self._delivery != "exactly_once":
            self.count_handed()
        if self._delivery != "at_least_once" or self._agreeing is None:
            return False
        for place in self._readers.keys() - self.done.keys():
            if offering.position(place) > offering.next[place]:  # only offsets without records were skipped
                self.done[place] = offering.next[place]
        return self.commit_owned()

    def count_handed(self) -> None:
        self.done |= self._offering.handed
        self._offering.handed.clear()

    def commit(self) -> None:
        """Raises PartitionsRevoked, and commits nothing, if a partition now belongs to another member."""
        news = self._uncommitted()
        if news and self._agreeing is not None:
            self._agreeing.commit(news)
            self.stored |= news

    def commit_owned(self) -> bool:
        """Commits the partitions that this member still owns; the new owners of the others redo that work.

        Returns whether partitions were lost.
        """
        news = self._uncommitted()
        if not news or self._agreeing is None:
            return False
        outcome = self._agreeing.commit_owned(news)
        self.stored |= outcome.stored
        if refused := news.keys() - outcome.stored.keys():
            logger.warning("%s", revoked(refused, str(self._group), self._agreeing.member))
        for place in outcome.lost:
            self.done.pop(place, None)
        return bool(outcome.lost)

    def commit_before_returning(self, batches: Iterable[Batch]) -> None:
        """If the commit fails, nothing is returned, and the next poll returns the same batches."""
        done = dict(self.done)
        self.done |= {place_of(batch): batch.next_offset for batch in batches}
        try:
            self.commit()
        except BaseException:
            self.done = done
            raise

    def release(self) -> bool:
        """Commits before partitions are revoked. Returns whether some were lost already."""
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
        """Adds the offsets of what was polled to a producer's transaction."""
        assert self._agreeing is not None
        if self.revoked:
            raise PartitionsRevoked(
                f"records of {', '.join(map(str, sorted(self.revoked)))} were read before the partitions moved to "
                "another member",
                where=f"group '{self._group}'",
                next_step="poll again: the records of this transaction are read again",
            )
        self._agreeing.commit_with(transaction, self._past_gaps(self.done | self._offering.handed))

    def committed_elsewhere(self) -> None:
        """Called after the transaction of `commit_with` was committed."""
        self._offering.note_given()
        self.count_handed()
        self.stored |= self.done

    def _uncommitted(self) -> dict[TopicPartition, int]:
        """Offsets that are done and not committed yet."""
        return {p: offset for p, offset in self._past_gaps(self.done).items() if self.stored.get(p) != offset}

    def _past_gaps(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Moves offsets past those without records, up to the consumer's position.

        Transaction markers, aborted records and compacted records have offsets, but must not count as lag.
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
