"""A source consists of partitions of numbered rows: reading the same range again returns the same rows.

A planner decides with `limited` and `slices` what the next batch reads; workers open the source again, each in its own
process, and read their slices without a lock.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import InvalidInput, OffsetLost

Offsets: TypeAlias = dict[str, int]  # the next offset to read, by partition

SLAB_ROWS = 1 << 17
SLICE_ROWS_MIN = 1024  # smaller slices are not worth a task
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of one partition, read by one task."""

    partition: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Slab:
    """Rows of one partition: the columns of the schema, and the offset of each row."""

    partition: str
    rows: pa.Table
    offsets: npt.NDArray[np.int64]
    dead: pa.Table | None = None  # of DEAD_LETTER_SCHEMA: records that could not be decoded

    def after(self, offset: int, dead: int) -> Slab:
        """Without the rows up to an offset, and without that many dead letters, whose offsets may be line numbers."""
        if dead == 0 and (not len(self.offsets) or self.offsets[0] > offset):
            return self
        first = int(np.searchsorted(self.offsets, offset, side="right"))
        rest = None if self.dead is None else self.dead.slice(dead)
        return Slab(self.partition, self.rows.slice(first), self.offsets[first:], rest)


class Source(ABC):
    """Partitions of numbered rows. A source has to define `latest` and `read`; the rest has defaults."""

    @property
    def decodes(self) -> bool:
        """Whether its rows are parsed from bytes, which may be malformed."""
        return False

    @property
    def identity(self) -> str | None:
        """Distinguishes a topic from one recreated under the same name; None for sources without an identity."""
        return None

    def earliest(self) -> Offsets:
        """The first retained offset of each partition."""
        return dict.fromkeys(self.latest(), 0)

    @abstractmethod
    def latest(self) -> Offsets:
        """The next offset of each partition: the first that does not exist yet."""

    def at(self, moment: datetime) -> Offsets:
        """The first offsets at or after a time."""
        raise InvalidInput(
            f"{type(self).__name__} cannot be read from a point in time",
            next_step="start at 'earliest' or 'latest'",
        )

    def written_at(self, partition: str, offset: int) -> float | None:
        """When the first record from an offset on was written, in seconds since 1970; None: not known quickly."""
        return None

    def row_bytes(self) -> float | None:
        """The average size of a row, if known: it limits a batch to what fits into memory."""
        return None

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        """Where the next batch ends. A partition missing in `start` begins at its earliest offset.

        A partition that is not there at the moment keeps its offset.
        """
        begun = {name: max(0, first) for name, first in self.earliest().items()} | start
        end = begun | {name: max(offset, begun.get(name, 0)) for name, offset in self.latest().items()}
        if limit_rows is None:
            return end
        lags = {name: offset - begun.get(name, 0) for name, offset in end.items() if offset > begun.get(name, 0)}
        shares = fair_shares(lags, limit_rows)
        return {name: begun.get(name, 0) + shares.get(name, 0) for name in end}

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        """The slices of at most `tasks` tasks, in order of partition and offset."""
        begun = self.earliest() | start
        for name, offset in end.items():
            if begun.get(name, 0) > offset:
                raise OffsetLost(
                    f"offsets up to {offset} of partition {name} belong to a batch that is repeated, and are no longer "
                    f"available: the first is {begun[name]}",
                    next_step="start over with the rows that are left: millstream run flow.py --start-over",
                )
        return cut([Slice(name, begun.get(name, 0), end[name]) for name in sorted(end)], tasks)

    def pieces(self, partition: str, start: int, end: int) -> list[Slice]:
        """What a batch between two positions of a partition has read, in order."""
        return [Slice(partition, start, end)]

    @abstractmethod
    def read(self, slice: Slice) -> Iterator[Slab]:
        """The rows of a slice in order, in chunks; the same rows on every call."""

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        """Waits until there are rows beyond `start`; returns whether there are."""
        deadline = time.monotonic() + timeout_s
        while True:
            begun = self.earliest() | start
            if any(end > begun.get(name, 0) for name, end in self.latest().items()):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, POLL_SECONDS))

    def take_losses(self) -> list[str]:
        """Describes the records skipped since the last call because they were deleted before they were read."""
        return []

    @property
    def dropped_rows(self) -> int:
        """How many records it has dropped since it was opened, as a queue does when it is full."""
        return 0

    def close(self) -> None:
        return None


def fair_shares(lags: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divides the limit among lags: equal shares, and what one does not need goes to the others.

    Each that lags gets at least one, so none starves if the limit is smaller than their number.
    """
    shares: dict[str, int] = {}
    left = limit
    waiting = sorted(lags.items(), key=lambda item: item[1])
    for index, (partition, lag) in enumerate(waiting):
        share = max(left // (len(waiting) - index), 1)
        shares[partition] = min(lag, share)
        left -= shares[partition]
    return shares


def cut(ranges: list[Slice], tasks: int) -> list[list[Slice]]:
    """Cuts ranges, in order, into one piece of similar length per task."""
    ranges = [piece for piece in ranges if len(piece) > 0]
    total = sum(map(len, ranges))
    count = max(1, min(tasks, -(-total // SLICE_ROWS_MIN)))
    size = -(-total // count)
    slack = size // 10  # slightly uneven pieces are better than splitting a range for a few rows
    pieces: list[list[Slice]] = []
    open_piece: list[Slice] = []
    room = size
    for piece in ranges:
        start = piece.start
        while start < piece.end:
            left = piece.end - start
            is_last = len(pieces) == count - 1
            taken = left if is_last or left <= room + slack else room
            open_piece.append(Slice(piece.partition, start, start + taken))
            start += taken
            room -= taken
            if room <= slack and not is_last:
                pieces.append(open_piece)
                open_piece, room = [], size
    if open_piece:
        pieces.append(open_piece)
    return pieces


def balanced(units: Sequence[tuple[Slice, int]], tasks: int) -> list[list[Slice]]:
    """Distributes slices that cannot be cut, in order, so that tasks have similar weights; each weight is positive."""
    total = sum(weight for _, weight in units)
    made: list[list[Slice]] = [[] for _ in range(max(1, tasks))]
    before = 0
    for unit, weight in units:
        made[min(len(made) - 1, (2 * before + weight) * len(made) // (2 * total))].append(unit)
        before += weight
    return [task for task in made if task]
