"""The order in which a queue with priorities is read: ranges of offsets by partition, stored before a batch is planned.

A position in a partition counts the records that were taken, from where reading began: so it only grows, its distance
from the end of the partition is what waits, and a batch between two positions always has the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millstream.connectors.source import Offsets
from millstream.connectors.topic.dropped import Range, merged
from millstream.errors import DamagedState
from millstream.log.storage.disk import read_document, write_document
from millstream.private_files import make_folders

FILE = "taken.json"
RANGES_MAX = 20_000
"""How many are kept of a partition: only the newest matter to a batch that is repeated, or explained."""


@dataclass(frozen=True, order=True)
class Taken:
    """Records of one partition and one priority that follow each other; those with a higher priority come first."""

    rank: float
    """The priority, negated."""
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass
class _Partition:
    first: int
    """The position of the first range that is kept."""
    order: list[Taken] = field(default_factory=list)
    whole: list[Range] = field(default_factory=list)
    """All offsets that were taken, or were before the beginning."""

    @property
    def end(self) -> int:
        return self.first + sum(map(len, self.order))


class TakenRecords:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._partitions: dict[str, _Partition] = {}
        if self._path.exists():
            self._load()

    def _load(self) -> None:
        try:
            for name, kept in read_document(self._path)["partitions"].items():
                order = [Taken(float(rank), int(start), int(end)) for rank, start, end in kept["order"]]
                whole = [(int(start), int(end)) for start, end in kept["whole"]]
                self._partitions[str(name)] = _Partition(int(kept["first"]), order, whole)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"the order in which a queue was read cannot be read: {error}") from error

    def _damaged(self, what: str) -> DamagedState:
        return DamagedState(
            what,
            where=str(self._path),
            next_step="restore the file from a copy, or start the job over: millstream run flow.py --start-over",
        )

    def begin(self, starts: Offsets) -> None:
        """Partitions that are not known yet are read from these offsets on."""
        for name, start in starts.items():
            if name not in self._partitions:
                self._partitions[name] = _Partition(start, whole=[(0, start)] if start > 0 else [])
            elif start > self._partitions[name].end:
                raise self._damaged(
                    f"a batch of the queue ended at {start} in partition {name}, and that is not listed"
                )

    def begin_of(self, partition: str) -> int:
        """The first position whose record is listed."""
        return self._partitions[partition].first

    def ends(self) -> Offsets:
        """The positions up to which it is known what is read."""
        return {name: each.end for name, each in self._partitions.items()}

    def without(self, partition: str, ranges: Iterable[Range]) -> list[Range]:
        """The parts of ranges that were not taken."""
        found: list[Range] = []
        for start, end in ranges:
            for first, after in self._partitions[partition].whole:
                if first < end and after > start:
                    found += [(start, first)] if first > start else []
                    start = after
            found += [(start, end)] if start < end else []
        return found

    def add(self, taken: Iterable[tuple[str, Taken]]) -> None:
        """Stores what is read next, in this order."""
        for name, each in taken:
            own = self._partitions[name]
            last = own.order[-1] if own.order else None
            if last is not None and last.end == each.start and last.rank == each.rank:
                own.order[-1] = Taken(each.rank, last.start, each.end)
            else:
                own.order.append(each)
            own.whole.append((each.start, each.end))
        for own in self._partitions.values():
            own.whole = merged(own.whole)
            beyond = own.order[: max(0, len(own.order) - RANGES_MAX)]
            own.first += sum(map(len, beyond))
            own.order = own.order[len(beyond) :]
        make_folders(self._path.parent)
        write_document(self._path, {"partitions": {name: _document(own) for name, own in self._partitions.items()}})

    def between(self, partition: str, start: int, end: int) -> list[Taken]:
        """What was read between two positions of a partition, in order."""
        own = self._partitions.get(partition)
        if own is None or start >= end:
            return []
        if start < own.first:
            raise self._damaged(f"what was read of partition {partition} before {own.first} is not listed any more")
        found, position = [], own.first
        for each in own.order:
            first, after = max(start, position), min(end, position + len(each))
            if first < after:
                found.append(Taken(each.rank, each.start + first - position, each.start + after - position))
            position += len(each)
        return found


def _document(own: _Partition) -> dict[str, Any]:
    return {**asdict(own), "order": [[each.rank, each.start, each.end] for each in own.order]}


def in_order_of_priority(found: Sequence[tuple[str, Taken]]) -> list[tuple[str, Taken]]:
    """Higher priorities first; within one, by offset."""
    return sorted(found, key=lambda each: (each[1].rank, each[1].start, each[0]))
