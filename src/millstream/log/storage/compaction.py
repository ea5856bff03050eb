"""Compaction rewrites closed segments with only the newest record of each key; every record keeps its offset.

Oldest segments first: a tombstone is dropped only after everything it deletes. A rewritten file replaces the old ones
with one rename, and readers in the middle of an old one keep it mapped. `remove` does the same with records that its
caller chooses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from millstream.log.storage.disk import FileLock, storage_errors, sync_folder
from millstream.log.storage.frame import FRAME_BYTES_TARGET, NO_TIMESTAMP, SPARSE, TRANSACTIONAL, draft, parts
from millstream.log.storage.partition import RETRIES_LOCK, Partition
from millstream.log.storage.retention import delete_replaced
from millstream.log.storage.segment import (
    OFFSET_COLUMN,
    Segment,
    SegmentName,
    delete,
    header_bytes,
    rebuild_index,
    segment_names,
)
from millstream.private_files import create_alike
from millstream.records import align

DIRTY_SHARE_MIN = 0.5
Chosen = Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]
"""Which of some records, one after the other, are removed."""


def compact(
    partition: Partition,
    *,
    tombstones_before_us: int,
    dirty_share_min: float = DIRTY_SHARE_MIN,
    forced: bool = False,
) -> bool:
    """Compacts closed segments below all open transactions if enough is new, or if forced; whether it wrote any."""
    with FileLock(partition.folder / RETRIES_LOCK).attempt() as free:
        # Rewritten records have lost their producers' numbers, by which a retry recognizes what it has stored.
        return free and _compact(partition, tombstones_before_us, dirty_share_min, forced)


def _compact(partition: Partition, tombstones_before_us: int, dirty_share_min: float, forced: bool) -> bool:
    closed = _closed(partition)
    dirty_bytes = sum(name.path.stat().st_size for name, _ in closed if name.end is None)
    total_bytes = sum(name.path.stat().st_size for name, _ in closed)
    enough = dirty_bytes and dirty_bytes >= dirty_share_min * total_bytes
    if not closed or not (enough or forced):
        return False
    partition.refresh()  # after the mark, so that the schema is not older than the records
    partition.sync()  # so that recovery never starts inside a file that is replaced here
    survivors, records = _newest_offsets(partition, [name for name, _ in closed])
    for group in _groups(closed, survivors, records, partition.segment_bytes):
        _rewrite(partition, group, survivors, tombstones_before_us)
    return True


def remove(partition: Partition, chosen: Chosen) -> int:
    """Removes records from closed segments; returns how many. Called under the upkeep lock.

    `chosen` sees every record of these segments once, in order.
    """
    with FileLock(partition.folder / RETRIES_LOCK):  # as above; waits, since this is not tried again later
        delete_replaced(partition)  # what a killed process has left
        partition.refresh()
        partition.sync()
        closed = _closed(partition)
        survivors, records = _not_chosen(partition, [name for name, _ in closed], chosen)
        removed = 0
        for group in _groups(closed, survivors, records, partition.segment_bytes):
            first, last = np.searchsorted(survivors, (group[0][0].base, group[-1][1]))
            fewer = sum(records[name] for name, _ in group) - int(last - first)
            if fewer:
                _rewrite(partition, group, survivors, NO_TIMESTAMP)
            removed += fewer
        return removed


def _closed(partition: Partition) -> list[tuple[SegmentName, int]]:
    """The segments that no longer change, each with its end offset."""
    mark = partition.marks.read()
    names = segment_names(partition.folder)[0]
    limit = min(mark.end.segment, mark.stable.segment)
    ends = [name.base for name in names[1:]]
    return [(name, end) for name, end in zip(names, ends, strict=False) if name.base < limit and end <= limit]


def _records(partition: Partition, name: SegmentName) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """The committed records of a closed segment with their offsets."""
    segment = Segment(name)
    aborted = partition.aborted.known(partition.marks.read().aborted_count)
    for position, header in segment.frames(segment.first_position, segment.size_bytes()):
        if not header.rows or (header.flags & TRANSACTIONAL and (header.producer_id, header.epoch) in aborted):
            continue
        batch = segment.batch(position, header)
        offsets = segment.offsets(header, batch)
        if header.flags & SPARSE:
            batch = batch.drop_columns([OFFSET_COLUMN])
        yield offsets, batch


def _newest_offsets(
    partition: Partition, names: Sequence[SegmentName]
) -> tuple[npt.NDArray[np.int64], dict[SegmentName, int]]:
    """The offsets of the newest record of every key and of every record without a key, in order.

    And how many records each segment has now.
    """
    newest = pl.DataFrame(schema={"key": pl.Binary, "offset": pl.Int64})
    keyless = []
    records = {}
    for name in names:
        seen = [
            pl.DataFrame({"key": pl.from_arrow(batch.column("key")), "offset": offsets})
            for offsets, batch in _records(partition, name)
        ]
        records[name] = sum(map(len, seen))
        found = pl.concat([newest, *seen])
        keyless.append(found.filter(pl.col("key").is_null())["offset"])
        newest = found.drop_nulls("key").group_by("key").agg(pl.col("offset").max())
    return np.sort(pl.concat([newest["offset"], *keyless]).to_numpy()), records


def _not_chosen(
    partition: Partition, names: Sequence[SegmentName], chosen: Chosen
) -> tuple[npt.NDArray[np.int64], dict[SegmentName, int]]:
    """The offsets of the records that stay, in order, and how many records each segment has now."""
    stay = [np.empty(0, np.int64)]
    records = {}
    for name in names:
        records[name] = 0
        for batch in _pieces(_with_offsets(batch, offsets) for offsets, batch in _records(partition, name)):
            records[name] += batch.num_rows
            stay.append(batch.column(OFFSET_COLUMN).to_numpy()[~chosen(batch)])
    return np.concatenate(stay), records


def _groups(
    closed: Sequence[tuple[SegmentName, int]],
    survivors: npt.NDArray[np.int64],
    records: dict[SegmentName, int],
    bytes_max: int,
) -> Iterator[list[tuple[SegmentName, int]]]:
    """Adjacent segments whose surviving records are estimated to fit into one."""
    group: list[tuple[SegmentName, int]] = []
    size = 0
    for name, end in closed:
        first, last = np.searchsorted(survivors, (name.base, end))
        own = name.path.stat().st_size * int(last - first) // max(1, records[name])
        if group and size + own > bytes_max:
            yield group
            group, size = [], 0
        group.append((name, end))
        size += own
    if group:
        yield group


def _rewrite(
    partition: Partition,
    group: Sequence[tuple[SegmentName, int]],
    survivors: npt.NDArray[np.int64],
    tombstones_before_us: int,
) -> None:
    name = SegmentName(group[0][0].base, group[-1][1], partition.folder)
    schema = partition.schema
    draft_path = partition.folder / f"{name.stem}.compacting"
    with storage_errors(partition.folder):
        with os.fdopen(create_alike(draft_path), "wb") as file:
            file.write(header_bytes(name.base, schema.append(pa.field(OFFSET_COLUMN, pa.int64()))))
            for batch in _kept(partition, [old for old, _ in group], schema, survivors, tombstones_before_us):
                for piece in parts(batch):
                    file.writelines(_frame(piece))
            file.flush()
            os.fsync(file.fileno())
        # The index of the old file of this name must not be used for the new one.
        name.index_path.unlink(missing_ok=True)
        draft_path.rename(name.path)
        sync_folder(partition.folder)
        segment = Segment(name)
        _write_index(name.index_path, rebuild_index(segment, segment.size_bytes()))
        for old, _ in group:
            if old != name:
                delete(old)
        delete_replaced(partition)


def _kept(
    partition: Partition,
    names: Sequence[SegmentName],
    schema: pa.Schema,
    survivors: npt.NDArray[np.int64],
    tombstones_before_us: int,
) -> Iterator[pa.RecordBatch]:
    """The surviving records of some segments, in batches of about the size of a frame."""

    def kept() -> Iterator[pa.RecordBatch]:
        for name in names:
            for offsets, batch in _records(partition, name):
                keep = _among(offsets, survivors)
                times = batch.column("timestamp").cast(pa.int64())
                expired = pc.and_(pc.is_null(batch.column("value")), pc.less(times, tombstones_before_us))
                keep &= ~expired.fill_null(False).to_numpy(zero_copy_only=False)  # without a timestamp it never expires
                if keep.any():
                    rows = pa.array(np.flatnonzero(keep))
                    yield _with_offsets(align(batch.take(rows), schema), offsets[keep])

    return _pieces(kept())


def _among(offsets: npt.NDArray[np.int64], survivors: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which offsets are among the survivors; both are sorted, and frames are many and small."""
    places = np.searchsorted(survivors, offsets)
    found: npt.NDArray[np.bool_] = places < len(survivors)
    found[found] = survivors[places[found]] == offsets[found]
    return found


def _with_offsets(batch: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return batch.append_column(OFFSET_COLUMN, pa.array(offsets))


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same records in batches of about the size of a frame."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= FRAME_BYTES_TARGET:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _frame(batch: pa.RecordBatch) -> list[bytes]:
    offsets = batch.column(OFFSET_COLUMN)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    newest = pc.max(batch.column("timestamp").cast(pa.int64())).as_py()
    made = draft(batch, NO_TIMESTAMP if newest is None else newest, span=last - first + 1, flags=SPARSE)
    return [bytes(part) for part in made.at(first)]


def _write_index(path: Path, content: bytes) -> None:
    draft_path = path.with_suffix(".indexing.compacting")
    with os.fdopen(create_alike(draft_path), "wb") as file:
        file.write(content)
    draft_path.rename(path)
