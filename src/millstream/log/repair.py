"""Repair keeps every frame of a damaged partition that still checks out, and says which offsets are gone.

It is never done unasked. The damaged files stay beside the repaired ones, with `.damaged` at the end of their names.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from millstream.errors import DamagedLog
from millstream.log import segment as segments
from millstream.log.aborted import ENTRY as ABORTED_ENTRY
from millstream.log.disk import Disk, FileLock, storage_errors, sync_folder
from millstream.log.frame import ALIGNMENT, SPARSE, TRANSACTIONAL, Header, header_at, is_intact
from millstream.log.mark import Mark, MarkFile, Place
from millstream.log.segment import OFFSET_COLUMN, Segment, SegmentName, header_bytes, segment_names

NOWHERE = Place(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair found in one partition; `lost` are ranges of offsets, each with the first and without the last."""

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


def repair(folder: Path, number: int, schema: pa.Schema, disk: Disk) -> Repaired:
    with storage_errors(folder), FileLock(folder / "lock"):
        mark = _readable_mark(folder, disk)
        found = _salvage_all(folder, mark, schema)
        damaged = [part for part in found if not part.whole]
        for part in damaged:
            _replace(part)
        active_is_sound = mark is not None and bool(found) and found[-1].whole
        if not active_is_sound:
            _begin_anew(folder, mark, found, schema, disk)
        sync_folder(folder)
        return Repaired(
            partition=number,
            kept_records=sum(header.rows for part in found for _, header in part.frames),
            lost=tuple(gap for part in found for gap in part.lost),
            damaged_files=tuple(_damaged_path(part.name.path) for part in damaged),
        )


def _readable_mark(folder: Path, disk: Disk) -> Mark | None:
    try:
        return MarkFile(folder / "mark", disk).read()
    except Exception:  # missing, cut short or with a wrong checksum: it is made anew from the frames
        return None


def _salvage_all(folder: Path, mark: Mark | None, schema: pa.Schema) -> list[_Salvage]:
    names = segment_names(folder)[0]
    found = []
    for name, following in zip(names, [*names[1:], None], strict=True):
        active = mark is not None and name.base == mark.end.segment
        limit = mark.end.position if active and mark else None
        end = following.base if following else (mark.end.offset if mark else None)
        found.append(_salvage(name, limit, end, schema))
    return found


def _salvage(name: SegmentName, limit: int | None, end: int | None, schema: pa.Schema) -> _Salvage:
    """Goes through a file step by step; behind a damaged frame it looks for the next whole one."""
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
    with name.path.open("rb") as file:
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
                position += ALIGNMENT
    end = expected if end is None else end
    if not whole and expected < end:
        lost.append((expected, end))
    if known_schema is None:
        sparse = any(header.flags & SPARSE for _, header in frames)
        known_schema = schema.append(pa.field(OFFSET_COLUMN, pa.int64())) if sparse else schema
    return _Salvage(name, end, known_schema, frames, lost, whole)


def _replace(part: _Salvage) -> None:
    """Writes the whole frames of a segment into a new file that covers the same offsets."""
    name = SegmentName(part.name.base, part.end, part.name.folder)
    draft = name.folder / f"{name.stem}.repairing"
    with part.name.path.open("rb") as old, draft.open("wb") as new:
        new.write(header_bytes(name.base, part.schema))
        for position, header in part.frames:
            old.seek(position)
            new.write(old.read(header.size_bytes))
        new.flush()
        os.fsync(new.fileno())
    part.name.path.rename(_damaged_path(part.name.path))
    part.name.index_path.unlink(missing_ok=True)
    if part.end > name.base:
        draft.rename(name.path)
    else:
        draft.unlink()


def _damaged_path(path: Path) -> Path:
    return path.with_name(path.name + ".damaged")


def _begin_anew(folder: Path, mark: Mark | None, found: list[_Salvage], schema: pa.Schema, disk: Disk) -> None:
    """A new active segment behind everything, and a new mark."""
    end = max((part.end for part in found), default=0)
    last = found[-1] if found else None
    if last is not None and last.whole and last.end > last.name.base:  # only the mark was gone
        closed = SegmentName(last.name.base, last.end, folder)
        last.name.path.rename(closed.path)
        last.name.index_path.unlink(missing_ok=True)
    start = Place(end, end, segments.create(SegmentName(end, None, folder), schema, disk))
    made = mark or _mark_from_frames(folder, found)
    (folder / "mark").unlink(missing_ok=True)
    MarkFile.create(folder / "mark", replace(made, end=start, synced=start, sequence=made.sequence + 2), disk)


def _mark_from_frames(folder: Path, found: list[_Salvage]) -> Mark:
    """Which transactions are open, worked out from all frames; the list of aborted ones is believed."""
    aborted = folder / "aborted"
    count = aborted.stat().st_size // ABORTED_ENTRY.size if aborted.exists() else 0
    mark = Mark(end=NOWHERE, synced=NOWHERE, aborted_count=count)
    for part in found:
        for position, header in part.frames:
            if header.flags & TRANSACTIONAL and header.span:
                first = Place(header.base_offset, part.name.base, position)
                mark = mark.with_open(header.producer_id, header.epoch, first)
            elif header.flags & TRANSACTIONAL:
                mark = mark.without_open(header.producer_id, header.epoch)
    return mark
