"""Repair keeps every intact frame of a damaged partition, and reports the lost offsets.

It only runs on request. The damaged files are kept next to the repaired ones, as `.damaged`.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from millstream.errors import DamagedLog
from millstream.log.storage import segment as segments
from millstream.log.storage.aborted import AbortedTransactions
from millstream.log.storage.disk import Disk, FileLock, storage_errors, sync_folder
from millstream.log.storage.frame import ALIGNMENT, HEADER_BYTES, SPARSE, TRANSACTIONAL, Header, header_at, is_intact
from millstream.log.storage.mark import FrameBoundary, Mark, MarkFile
from millstream.log.storage.partition import LOCK, MARK, UPKEEP_LOCK
from millstream.log.storage.segment import (
    OFFSET_COLUMN,
    Segment,
    SegmentName,
    delete,
    header_bytes,
    segment_names,
    stored_columns,
)
from millstream.log.storage.validity import BatchReader, Malformed
from millstream.private_files import create_alike, open_private

NOWHERE = FrameBoundary(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair found in one partition; `lost` are ranges of offsets, excluding the last."""

    partition: int
    kept_records: int
    lost: tuple[tuple[int, int], ...]
    damaged_files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Salvage:
    """What is left of one segment."""

    name: SegmentName
    end: int
    schema: pa.Schema
    frames: list[tuple[int, Header]]
    lost: list[tuple[int, int]]
    whole: bool


def repair(
    folder: Path,
    number: int,
    schema: pa.Schema,
    disk: Disk,
    on_truncate: Callable[[int], None] = lambda _: None,
    known_end: int = 0,
) -> Repaired:
    """`on_truncate` is called with the partition's new end, before anybody can write there.

    `known_end` is the furthest position of any reader, used if neither a mark nor a segment is left.
    """
    with storage_errors(folder), FileLock(folder / UPKEEP_LOCK), FileLock(folder / LOCK):
        mark = _readable_mark(folder, disk)
        found = _salvage_all(folder, mark, schema)
        if mark is None and not found and known_end:
            mark = Mark(end=FrameBoundary(known_end, known_end, 0), synced=NOWHERE, start=0)
        before = _lost_before(mark, found)
        put_aside = [_replace(part) for part in found if not part.whole]
        active = found[-1] if found else None
        if mark is None or active is None or not active.whole or active.name.base != mark.end.segment:
            _start_over(folder, mark, found, schema, disk, on_truncate)
        elif before:
            _publish(folder / MARK, replace(mark, start=found[0].name.base), disk)
        sync_folder(folder)
        return Repaired(
            partition=number,
            kept_records=sum(header.rows for part in found for _, header in part.frames),
            lost=(*before, *(gap for part in found for gap in part.lost)),
            damaged_files=tuple(put_aside),
        )


def _lost_before(mark: Mark | None, found: Sequence[_Salvage]) -> list[tuple[int, int]]:
    """What is missing before the first segment; a mark of an earlier version does not know the start."""
    if mark is None or (mark.start is None and found):
        return []
    start, end = mark.start or 0, found[0].name.base if found else mark.end.offset
    return [(start, end)] if start < end else []


def _readable_mark(folder: Path, disk: Disk) -> Mark | None:
    if not (folder / MARK).exists():
        return None
    try:
        return MarkFile(folder / MARK, disk).read()
    except DamagedLog:  # truncated or with a wrong checksum: rebuilt from the frames
        return None


def _salvage_all(folder: Path, mark: Mark | None, schema: pa.Schema) -> list[_Salvage]:
    # Data beyond the segment of the mark was never acknowledged; recovery deals with it.
    names = [name for name in segment_names(folder)[0] if mark is None or name.base <= mark.end.segment]
    found = []
    for number, name in enumerate(names):
        active = mark is not None and name.base == mark.end.segment
        limit = mark.end.position if active and mark else None
        following = names[number + 1] if number + 1 < len(names) else None
        end = following.base if following else (mark.end.offset if mark else None)
        # A segment with a damaged schema was written with that of the segment before or after it.
        schemas = [*_first_schema(reversed(names[:number])), *_first_schema(names[number + 1 :]), schema]
        found.append(_salvage(name, limit, end, schemas))
    return found


def _first_schema(names: Iterable[SegmentName]) -> list[pa.Schema]:
    """The schema of the first of some segments with a valid header, if any."""
    for name in names:
        with suppress(DamagedLog):
            return [Segment(name).schema]
    return []


def _salvage(name: SegmentName, limit: int | None, end: int | None, schemas: Sequence[pa.Schema]) -> _Salvage:
    """Scans a file; after a damaged frame it searches for the next intact one."""
    size = name.path.stat().st_size
    limit = size if limit is None else limit
    try:
        segment = Segment(name)
        position, known_schema, whole = segment.first_position, segment.schema, size >= limit
    except (DamagedLog, ValueError):
        position, known_schema, whole = ALIGNMENT, None, False
    frames: list[tuple[int, Header]] = []
    lost: list[tuple[int, int]] = []
    expected, skipped = name.base, False
    with os.fdopen(open_private(name.path, os.O_RDONLY), "rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size else b""
        while position < min(limit, size):
            header = header_at(view, position, min(limit, size))
            if header is not None and is_intact(view, position, header) and header.base_offset >= expected:
                if skipped and header.base_offset > expected:
                    lost.append((expected, header.base_offset))
                frames.append((position, header))
                expected, skipped = header.next_offset, False
                position += header.size_bytes
            else:
                skipped, whole = True, False
                position = _after_hole(file.fileno(), position + ALIGNMENT)
    # A compacted file ends where its name says; any other is followed by the next one without a gap.
    reached = name.end if whole and name.end is not None else expected
    end = max(expected, name.end or 0) if end is None else end
    if reached < end:
        lost.append((reached, end))
        whole = False
    return _Salvage(name, end, known_schema or _fitting_schema(name, frames, schemas), frames, lost, whole)


def _after_hole(fd: int, position: int) -> int:
    """Skips holes: nothing was ever written there, however large the file seems."""
    try:
        return max(position, os.lseek(fd, position, os.SEEK_DATA) // ALIGNMENT * ALIGNMENT)
    except OSError as error:
        return sys.maxsize if error.errno == errno.ENXIO else position


def _fitting_schema(name: SegmentName, frames: Sequence[tuple[int, Header]], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The first schema with which the frames of a segment can be read and written back unchanged."""
    sparse = any(header.flags & SPARSE for _, header in frames)
    plain = [pa.schema([field for field in schema if field.name != OFFSET_COLUMN]) for schema in schemas]
    wanted = [schema.append(pa.field(OFFSET_COLUMN, pa.int64())) if sparse else schema for schema in plain]
    return next((schema for schema in wanted if _reads_all(name, frames, schema)), wanted[-1])


def _reads_all(name: SegmentName, frames: Sequence[tuple[int, Header]], schema: pa.Schema) -> bool:
    with os.fdopen(open_private(name.path, os.O_RDONLY), "rb") as file:
        content = pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if frames else b"")
    try:
        for position, header in frames:
            if header.rows:
                body = content.slice(position + HEADER_BYTES, header.length)
                records = BatchReader(stored_columns(schema, header.flags)).read(body, header.rows)
                records.validate(full=True)
                again = records.serialize()
                if not body.slice(0, again.size).equals(again):  # has more columns than the schema
                    return False
    except (pa.ArrowException, OSError, Malformed):
        return False
    return True


def _replace(part: _Salvage) -> Path:
    """Writes the intact frames of a segment into a new file that covers the same offsets; the old one is renamed."""
    name = SegmentName(part.name.base, part.end, part.name.folder)
    draft = name.folder / f"{name.stem}.repairing"
    with (
        os.fdopen(open_private(part.name.path, os.O_RDONLY), "rb") as old,
        os.fdopen(create_alike(draft), "wb") as new,
    ):
        new.write(header_bytes(name.base, part.schema))
        for position, header in part.frames:
            old.seek(position)
            new.write(old.read(header.size_bytes))
        new.flush()
        os.fsync(new.fileno())
    aside = _unused_path(part.name.path.with_name(part.name.path.name + ".damaged"))
    os.link(part.name.path, aside)
    part.name.index_path.unlink(missing_ok=True)
    if part.end > name.base:
        draft.replace(name.path)
    else:
        draft.unlink()
    if part.name != name:
        delete(part.name)
    return aside


def _unused_path(path: Path) -> Path:
    """An earlier repair may have used the name."""
    others = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return next(free for free in itertools.chain([path], others) if not free.exists())


def _start_over(
    folder: Path,
    mark: Mark | None,
    found: list[_Salvage],
    schema: pa.Schema,
    disk: Disk,
    on_truncate: Callable[[int], None],
) -> None:
    """Creates a new active segment after everything else, and a new mark."""
    end = max((part.end for part in found), default=mark.end.offset if mark else 0)
    for name in segment_names(folder)[0]:
        if mark is not None and name.base > mark.end.segment:
            delete(name)
    last = found[-1] if found else None
    if last is not None and last.whole and last.end > last.name.base:  # only the mark was missing
        closed = SegmentName(last.name.base, last.end, folder)
        last.name.path.rename(closed.path)
        last.name.index_path.unlink(missing_ok=True)
    start = FrameBoundary(end, end, segments.create(SegmentName(end, None, folder), schema, disk))
    made = mark or _mark_from_frames(folder, found, disk)
    on_truncate(end)
    first = max(made.start or 0, found[0].name.base if found else end)
    _publish(folder / MARK, replace(made, end=start, synced=start, start=first, sequence=made.sequence + 2), disk)


def _publish(path: Path, mark: Mark, disk: Disk) -> None:
    """In place if possible: processes that have the partition open continue with the repaired one."""
    if path.exists() and (marks := MarkFile(path, disk)).is_whole:
        marks.write(mark, sync=True)
    else:
        MarkFile.create(path, mark, disk)


def _mark_from_frames(folder: Path, found: list[_Salvage], disk: Disk) -> Mark:
    """Rebuilds the open transactions from all frames; the list of aborted ones is trusted."""
    count = AbortedTransactions(folder / "aborted", disk).intact_count()
    mark = Mark(end=NOWHERE, synced=NOWHERE, aborted_count=count)
    for part in found:
        for position, header in part.frames:
            if header.is_control:
                mark = mark.without_open(header.producer_id, header.epoch)
            elif header.flags & TRANSACTIONAL:
                first = FrameBoundary(header.base_offset, part.name.base, position)
                mark = mark.with_open(header.producer_id, header.epoch, first)
    return mark
