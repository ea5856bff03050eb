"""A source is partitions of numbered rows: reading the same range again gives the same rows.

A planner decides with `limited` and `slices` what the next batch reads; workers open the source again, each in its own
process, and read their slices without a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets: TypeAlias = dict[str, int]  # of each partition, the next offset to read

SLAB_ROWS = 1 << 17
SLICE_ROWS_MIN = 1024  # less than this is not worth a task of its own


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of one partition, to be read in one go."""

    partition: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Slab:
    """Rows of one partition as they were read: the columns of the schema, and of each row its offset."""

    partition: str
    rows: pa.Table
    offsets: npt.NDArray[np.int64]
    dead: pa.Table | None = None  # of DEAD_LETTER_SCHEMA: what was there and could not be read


class Source(Protocol):
    @property
    def decodes(self) -> bool:
        """Whether its rows are parsed from bytes, which may be malformed."""
        ...

    @property
    def partitions(self) -> list[str]:
        """All that exist now."""
        ...

    def earliest(self) -> Offsets: ...

    def latest(self) -> Offsets:
        """Behind everything there is now."""
        ...

    def at(self, moment: datetime) -> Offsets:
        """The first offsets at or after a time."""
        ...

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        """As far as one batch may go. A partition that `start` does not name begins at its earliest offset."""
        ...

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        """What each of at most `tasks` tasks reads, in order of partition and offset."""
        ...

    def read(self, slice: Slice) -> Iterator[Slab]:
        """The rows of a slice in order, a moderate number at a time."""
        ...

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        """Waits until there is more than `start`; whether there is."""
        ...

    def close(self) -> None: ...


def fair_shares(lags: Mapping[str, int], limit: int) -> dict[str, int]:
    """How much of each lag fits the limit: all get the same, and what one does not need goes to the others.

    Each that lags gets one at least, so none starves under a limit smaller than their number.
    """
    shares: dict[str, int] = {}
    left = limit
    waiting = sorted(lags.items(), key=lambda item: item[1])
    for place, (partition, lag) in enumerate(waiting):
        share = max(left // (len(waiting) - place), 1)
        shares[partition] = min(lag, share)
        left -= shares[partition]
    return shares


def cut(ranges: list[Slice], tasks: int) -> list[list[Slice]]:
    """Ranges, in their order, cut into as many pieces of about the same length as there are tasks."""
    ranges = [piece for piece in ranges if len(piece) > 0]
    total = sum(map(len, ranges))
    count = max(1, min(tasks, -(-total // SLICE_ROWS_MIN)))
    size = -(-total // count)
    slack = size // 10  # a little uneven is better than a range torn for a handful of rows
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
