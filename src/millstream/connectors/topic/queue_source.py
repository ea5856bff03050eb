"""A topic whose reader drops what is beyond a limit: a batch reads the records that are left, in order.

Limits are checked whenever a batch is planned. What is dropped is stored first, so a repeated batch has the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from millstream import terminal
from millstream.connectors.source import Offsets, Slab, Slice, Source, cut, fair_shares
from millstream.connectors.topic.dropped import Dropped, Range, behind, first_of, rows_in, up_to
from millstream.connectors.wrapped_source import WrappedSource

DROP_OLDEST, DROP_NEWEST, WAIT = POLICIES = ("drop_oldest", "drop_newest", "wait")
REPORT_SECONDS = 10.0
logger = terminal.logger(__name__)
Kept = Mapping[str, list[Range]]  # by partition, what was neither read nor dropped


@dataclass(frozen=True)
class Limits:
    """How many records may wait for their reader, and what happens beyond that."""

    at_most: int | None = None
    size_bytes: int | None = None
    when_full: str = DROP_OLDEST
    expire_after: timedelta | None = None
    at_once: int | None = None
    """How many records a batch reads, if it is limited."""
    priority: str | None = None
    """An expression: records with a higher number are read first."""


class QueueSource(WrappedSource):
    def __init__(self, topic: str, inner: Source, limits: Limits, folder: Path) -> None:
        super().__init__(inner)
        self._topic = topic
        self._limits = limits
        self._dropped = Dropped(folder)
        self._dropped_before = self._dropped.total
        self._unreported = 0
        self._reported_at = float("-inf")

    @property
    def dropped_rows(self) -> int:
        return self._dropped.total - self._dropped_before

    # ------------------------------------------------------------ what is dropped

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        if self._limits.at_once is not None:
            limit_rows = self._limits.at_once if limit_rows is None else min(limit_rows, self._limits.at_once)
        ends = self._inner.limited(start, None)
        begun = self._begun(start, ends)
        kept = self._kept(begun, ends)
        if any(kept.values()):
            kept = self._without(kept, self._expired(kept), begun, ends)
            kept = self._without(kept, self._beyond_limits(kept), begun, ends)
        if limit_rows is None:
            return ends
        shares = fair_shares({name: rows_in(ranges) for name, ranges in kept.items() if ranges}, limit_rows)
        return {name: self._end_of(name, kept[name], shares.get(name, 0), ends[name]) for name in ends}

    def _begun(self, start: Offsets, ends: Offsets) -> Offsets:
        earliest = self._inner.earliest()
        return {name: min(max(start.get(name, 0), earliest.get(name, 0)), end) for name, end in ends.items()}

    def _kept(self, begun: Offsets, ends: Offsets) -> Kept:
        return {name: self._dropped.kept(name, begun[name], end) for name, end in ends.items()}

    def _without(self, kept: Kept, drop: Kept, begun: Offsets, ends: Offsets) -> Kept:
        count = self._dropped.add((name, ranges) for name, ranges in drop.items() if ranges)
        if not count:
            return kept
        self._unreported += count
        return self._kept(begun, ends)

    def _expired(self, kept: Kept) -> Kept:
        age = self._limits.expire_after
        if age is None:
            return {}
        valid = self._inner.at(datetime.now(UTC) - age)
        return {name: up_to(ranges, valid, name) for name, ranges in kept.items() if name in valid}

    def _beyond_limits(self, kept: Kept) -> Kept:
        if self._limits.when_full == WAIT:
            return {}  # its writers wait instead
        room = self._rows_max()
        waiting = {name: rows_in(ranges) for name, ranges in kept.items() if ranges}
        if room is None or sum(waiting.values()) <= room:
            return {}
        shares = fair_shares(waiting, room)
        if self._limits.when_full == DROP_NEWEST:
            return {name: behind(kept[name], share) for name, share in shares.items()}
        return {name: first_of(kept[name], waiting[name] - share) for name, share in shares.items()}

    def _rows_max(self) -> int | None:
        """Bytes are counted as rows of the topic's average size."""
        found = [self._limits.at_most] if self._limits.at_most is not None else []
        row_bytes = None if self._limits.size_bytes is None else self._inner.row_bytes()
        if self._limits.size_bytes is not None and row_bytes:
            found.append(max(1, int(self._limits.size_bytes / row_bytes)))
        return min(found, default=None)

    def _end_of(self, name: str, kept: list[Range], share: int, end: int) -> int:
        """Where a batch ends that reads so many rows; dropped records that follow them belong to it."""
        left = behind(kept, share)
        return left[0][0] if left else end

    def take_losses(self) -> list[str]:
        losses = self._inner.take_losses()
        if self._unreported and time.monotonic() - self._reported_at >= REPORT_SECONDS:
            losses.append(
                f"queue '{self._topic}' was full or had old records: {self._unreported:,} were dropped, "
                f"{self._dropped.total:,} in all"
            )
            logger.warning("%s", losses[-1])
            self._unreported, self._reported_at = 0, time.monotonic()
        return losses

    # ------------------------------------------------------------ reading

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        whole = [each for task in self._inner.slices(start, end, 1) for each in task]
        return cut([piece for each in whole for piece in self._pieces(each)], tasks)

    def read(self, slice: Slice) -> Iterator[Slab]:
        for piece in self._pieces(slice):
            yield from self._inner.read(piece)

    def _pieces(self, slice: Slice) -> list[Slice]:
        kept = self._dropped.kept(slice.partition, slice.start, slice.end)
        return [Slice(slice.partition, start, end) for start, end in kept]
