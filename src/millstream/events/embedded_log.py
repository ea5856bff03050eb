"""An event store's topic on the embedded log: decisions are made under the lock of its partition."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.events.layout import Row, to_batch, to_rows
from millstream.events.ports import Decide, Restate, Span, Stored, events_lost
from millstream.events.scavenging import Expired, Removed
from millstream.log.embedded import EmbeddedLog
from millstream.log.storage.compaction import remove
from millstream.log.storage.disk import FileLock, storage_errors
from millstream.log.storage.frame import FRAME_BYTES_TARGET, Draft, draft
from millstream.log.storage.partition import UPKEEP_LOCK
from millstream.log.storage.reader import Fetch, PartitionReader
from millstream.log.storage.segment import OFFSET_COLUMN

CACHED_FRAMES = 64
INDEX = "streams.sqlite"


class _Frame(NamedTuple):
    offsets: npt.NDArray[np.int64]
    value: pa.StructArray

    def row(self, position: int) -> Row | None:
        place = int(np.searchsorted(self.offsets, position))
        if place == len(self.offsets) or self.offsets[place] != position:
            return None
        return to_rows(self.value.slice(place, 1))[0]


class EmbeddedEventLog:
    has_random_access = True
    has_gaps = False
    has_milliseconds = False
    on_lost = "error"  # removed events leave holes, which a consumer passes over

    def __init__(self, log: EmbeddedLog, topic: str) -> None:
        found = log.topic(topic)
        self.identity = found.identity
        self.index_path: Path | None = found.folder / INDEX
        self._partition = found.partition(0)
        self._frames: OrderedDict[int, _Frame] = OrderedDict()  # by their first offset, the last used at the end

    def spans(self, start: int) -> Iterator[Span]:
        if start >= self._partition.stable_offset():
            return
        if start < self._partition.own_start_offset():  # otherwise the archive is not asked: it may be away
            self._check_start(start)
        reader = PartitionReader(self._partition, start, committed=True)
        for fetch in reader.stream():
            yield Span(fetch.offsets.tolist(), to_rows(_value(fetch)), reader.offset)

    news = spans

    def _check_start(self, start: int) -> None:
        """Without all events from here on, the versions of streams cannot be known."""
        stored = self._partition.start_offset()
        if start < stored:
            raise events_lost(self._partition.topic, start, stored)

    def write(self, decide: Decide) -> Stored:
        sizes: list[int] = []

        def drafts() -> list[Draft]:
            sizes.clear()
            made = []
            for rows in _frames_of(decide()):
                sizes.append(len(rows))
                made.append(draft(to_batch(rows), rows[-1].at_us))
            return made

        bases = self._partition.append_decided(drafts, sync=True)
        positions = [at for base, size in zip(bases, sizes, strict=True) for at in range(base, base + size)]
        return Stored(positions, positions[-1] + 1 if positions else 0)

    def rows(self, positions: Sequence[int]) -> list[Row | None]:
        found: dict[int, Row | None] = {}
        frame: _Frame | None = None
        for at in sorted(positions):
            row = frame.row(at) if frame is not None else None
            if row is None:
                frame = self._frame(at)
                row = None if frame is None else frame.row(at)
            found[at] = row
        return [found[at] for at in positions]

    def _frame(self, position: int) -> _Frame | None:
        """The frame with a position, or a later one if that was removed."""
        for first, known in reversed(self._frames.items()):
            if first <= position <= known.offsets[-1]:
                self._frames.move_to_end(first)
                return known
        fetch = next(PartitionReader(self._partition, position, committed=True).stream(), None)
        if fetch is None:
            return None
        made = _Frame(fetch.offsets, _value(fetch))
        self._frames[int(made.offsets[0])] = made
        if len(self._frames) > CACHED_FRAMES:
            self._frames.popitem(last=False)
        return made

    def remove(self, expired: Expired, restate: Restate) -> Removed:
        """Rewrites closed segments without the expired events, which leaves holes; archived segments stay."""
        removed = Removed()

        def chosen(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
            offsets = batch.column(OFFSET_COLUMN).to_numpy()
            values = _value(Fetch(batch, batch.schema, int(offsets[0]), offsets, batch.nbytes))
            found = expired.among(values)
            removed.add(offsets[found], values.filter(pa.array(found)))
            return found

        folder = self._partition.folder
        with storage_errors(folder), FileLock(folder / UPKEEP_LOCK):
            self._partition.check_alive()
            self._partition.roll()
            remove(self._partition, chosen)
        return removed

    def close(self) -> None:
        self._frames.clear()


def _value(fetch: Fetch) -> pa.StructArray:
    return fetch.with_checked_texts().stored.column("value")


def _frames_of(pieces: Sequence[Sequence[Row]]) -> Iterator[list[Row]]:
    """Pieces as frames: a frame is stored whole, so a piece is never divided."""
    rows: list[Row] = []
    size = 0
    for piece in pieces:
        rows.extend(piece)
        for row in piece:
            size += len(row.data) + len(row.stream) + 100
        if size >= FRAME_BYTES_TARGET:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows
