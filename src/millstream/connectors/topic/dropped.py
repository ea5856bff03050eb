"""The records that a queue has dropped: ranges of offsets by partition, stored before a batch is planned without them.

So a repeated batch leaves out the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from millstream.connectors.source import Offsets
from millstream.errors import DamagedState
from millstream.log.storage.disk import read_document, write_document
from millstream.private_files import make_folders

Range: TypeAlias = tuple[int, int]  # from an offset up to, but not including, another
FILE = "dropped.json"
RANGES_MAX = 1000
"""How many are kept of a partition: only the newest matter to a batch that is repeated."""


class Dropped:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.total = 0
        self._ranges: dict[str, list[Range]] = {}
        if self._path.exists():
            self._load()

    def _load(self) -> None:
        try:
            document = read_document(self._path)
            self.total = int(document["total"])
            self._ranges = {
                str(partition): [(int(start), int(end)) for start, end in ranges]
                for partition, ranges in document["ranges"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedState(
                f"the list of what a queue has dropped cannot be read: {error}",
                where=str(self._path),
                next_step="restore the file from a copy, or start the job over: millstream run flow.py --start-over",
            ) from error

    def kept(self, partition: str, start: int, end: int) -> list[Range]:
        """The parts of a range that were not dropped."""
        found: list[Range] = []
        for first, after in self._ranges.get(partition, ()):
            if after <= start or first >= end:
                continue
            if first > start:
                found.append((start, first))
            start = after
        return [*found, (start, end)] if start < end else found

    def add(self, dropped: Iterable[tuple[str, Sequence[Range]]]) -> int:
        """Stores further ranges, none of which was dropped before; returns how many offsets they have."""
        count = 0
        for partition, ranges in dropped:
            count += sum(end - start for start, end in ranges)
            self._ranges[partition] = merged([*self._ranges.get(partition, ()), *ranges])[-RANGES_MAX:]
        if count:
            self.total += count
            make_folders(self._path.parent)
            write_document(self._path, {"total": self.total, "ranges": self._ranges})
        return count

    def end_of_drop(self, partition: str, offset: int, end: int) -> int:
        """The offset behind what was dropped from an offset on."""
        kept = self.kept(partition, offset, end)
        return kept[0][0] if kept else end


def merged(ranges: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def rows_in(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)


def first_of(ranges: Sequence[Range], count: int) -> list[Range]:
    """The first so many offsets."""
    found: list[Range] = []
    for start, end in ranges:
        taken = min(count, end - start)
        if taken > 0:
            found.append((start, start + taken))
            count -= taken
    return found


def behind(ranges: Sequence[Range], count: int) -> list[Range]:
    """The offsets behind the first so many."""
    found: list[Range] = []
    for start, end in ranges:
        passed = min(count, end - start)
        if passed < end - start:
            found.append((start + passed, end))
        count -= passed
    return found


def up_to(ranges: Sequence[Range], ends: Offsets, partition: str) -> list[Range]:
    """The offsets before the end of a partition."""
    end = ends[partition]
    return [(start, min(after, end)) for start, after in ranges if start < end]
