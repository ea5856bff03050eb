"""A segment is one file: a header with the schema of its records, then frames in offset order.

Its name has its base offset. The name of a compacted segment also has its end offset, and the segment replaces all
those that start within it: so replacing many files is one rename.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from millstream.errors import DamagedLog, UnsupportedFormat
from millstream.log.storage import frame
from millstream.log.storage.disk import Disk, storage_error, storage_errors
from millstream.log.storage.frame import ALIGNMENT, HEADER_BYTES, LEFT_OUT, NO_TIMESTAMP, SPARSE, WITHOUT, Header
from millstream.log.storage.index import ENTRY, INTERVAL_BYTES, DamagedIndex, Entry, Index, bytes_max, pack
from millstream.log.storage.layout import completed
from millstream.log.storage.validity import BatchReader, Malformed, check_schema
from millstream.private_files import create_alike, open_alike, open_private

MAGIC = b"MSSEG"
FORMAT = 1
PREFIX = struct.Struct("<5sHIIq")
NAME = re.compile(r"(\d{20})(?:-(\d{20}))?\.seg")
OFFSET_COLUMN = "offset"
SCHEMA_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    base: int
    end: int | None
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / f"{self.stem}.seg"

    @property
    def index_path(self) -> Path:
        return self.folder / f"{self.stem}.idx"

    @property
    def stem(self) -> str:
        return f"{self.base:020}" if self.end is None else f"{self.base:020}-{self.end:020}"


class IndexTail(NamedTuple):
    entries: int
    indexed_to: int
    newest: int


def segment_names(folder: Path) -> tuple[list[SegmentName], list[SegmentName]]:
    """The segments of a partition in order, and those that a compacted one has replaced."""
    with storage_errors(folder):
        matches = [match for match in map(NAME.fullmatch, os.listdir(folder)) if match]  # noqa: PTH208 - hot path
    found = [SegmentName(int(match[1]), int(match[2]) if match[2] else None, folder) for match in matches]
    # Of those with the same base offset, the one that reaches furthest is the newest.
    found.sort(key=lambda name: (name.base, -(name.end or 0)))
    live: list[SegmentName] = []
    replaced: list[SegmentName] = []
    covered_to = -1
    for name in found:
        if name.base < covered_to or (live and name.base == live[-1].base):
            replaced.append(name)
            continue
        live.append(name)
        covered_to = max(covered_to, name.end or 0)
    return live, replaced


def delete(name: SegmentName) -> None:
    """The segment first: an index without one does no harm."""
    name.path.unlink(missing_ok=True)
    name.index_path.unlink(missing_ok=True)


def header_bytes(base: int, schema: pa.Schema) -> bytes:
    encoded = schema.serialize().to_pybytes()
    body = struct.pack("<Iq", len(encoded), base) + encoded
    content: bytes = MAGIC + struct.pack("<HI", FORMAT, crc32c(body)) + body
    return content + bytes(-len(content) % ALIGNMENT)


def create(name: SegmentName, schema: pa.Schema, disk: Disk) -> int:
    """Writes the header of a new segment; returns the position of its first frame."""
    content = header_bytes(name.base, schema)
    with storage_errors(name.path):
        fd = create_alike(name.path)
        try:
            disk.write(fd, [content], 0)
        finally:
            os.close(fd)
    return len(content)


def stored_columns(schema: pa.Schema, flags: int) -> pa.Schema:
    """The columns of a frame with these flags."""
    left_out = [column for column, flag in WITHOUT.items() if flags & flag]
    return pa.schema([field for field in schema if field.name not in left_out])


class Segment:
    """A mapped view of a segment file. It is remapped as the file grows; its content never changes."""

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        try:
            self._fd: int | None = open_private(name.path, os.O_RDONLY)
        except FileNotFoundError:
            raise  # replaced or deleted meanwhile: the caller retries
        except OSError as error:
            raise storage_error(error, name.path) from error
        self._map: mmap.mmap | None = None
        self._size = 0
        self.first_position = self._read_header()
        self._index: Index | None = None
        self._readers: dict[int, BatchReader] = {}
        if name.end is not None:
            self._close()  # it never grows, and the map has its own descriptor

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        fd, self._fd = getattr(self, "_fd", None), None
        if fd is not None:
            os.close(fd)

    @property
    def place(self) -> str:
        return str(self.name.path)

    def size_bytes(self) -> int:
        if self._fd is not None:
            return os.fstat(self._fd).st_size
        return self._map.size() if self._map is not None else 0

    def _read_header(self) -> int:
        view = self._mapped(0)
        if len(view) < PREFIX.size or view[:5] != MAGIC:
            raise self.damaged(0, "the file does not start like a segment")
        _, version, crc, schema_bytes, base = PREFIX.unpack_from(view)
        if version != FORMAT:
            raise UnsupportedFormat(
                f"the segment has format {version}; this version of Millstream supports {FORMAT}",
                where=self.place,
                next_step="open the log with the Millstream that wrote it",
            )
        end = PREFIX.size + schema_bytes
        if end > len(view) or schema_bytes > SCHEMA_BYTES_MAX or crc32c(view[11:end]) != crc or base != self.name.base:
            raise self.damaged(0, "the header does not match its checksum")
        self._encoded_schema = bytes(view[PREFIX.size : end])
        padded: int = end + -end % ALIGNMENT
        if len(view) < padded or any(view[end:padded]):
            raise self.damaged(end, "the header does not match its checksum")
        return padded

    @cached_property
    def schema(self) -> pa.Schema:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(self._encoded_schema))
            check_schema(schema, OFFSET_COLUMN)
        except (Malformed, pa.ArrowException, OSError, ValueError) as error:
            raise self.damaged(0, f"the schema cannot be read: {error}") from error
        return schema

    def _mapped(self, to_position: int) -> memoryview:
        """The file as bytes, at least up to `to_position` if it is that long."""
        if self._map is None or self._size < to_position:
            size = self.size_bytes()
            if size > self._size and self._fd is not None:
                with storage_errors(self.name.path):
                    try:
                        self._map = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
                    except (OverflowError, ValueError) as error:
                        raise self.damaged(0, f"the file cannot be mapped: {error}") from error
                self._size = size
                self._buffer = pa.py_buffer(self._map)
        return memoryview(self._map) if self._map is not None else memoryview(b"")

    def frames(self, position: int, limit: int) -> Iterator[tuple[int, Header]]:
        """The frames from `position` up to `limit`; raises if one is missing or does not match its checksum."""
        for at, header in self.intact_frames(position, limit):
            yield at, header
            position = at + header.size_bytes
        if position < limit:
            raise self.damaged(position, "a frame is cut short or does not match its checksum")

    def intact_frames(self, position: int, limit: int) -> Iterator[tuple[int, Header]]:
        """The frames from `position` on that match their checksums; stops at the first that does not."""
        view = self._mapped(limit)
        limit = min(limit, len(view))
        while (header := frame.header_at(view, position, limit)) and frame.is_intact(view, position, header):
            yield position, header
            position += header.size_bytes

    def stored(self, position: int, header: Header) -> pa.RecordBatch:
        """The columns of a frame, without a copy: they stay in the mapped file. The frame must come from `frames`."""
        flags = header.flags & LEFT_OUT
        if flags not in self._readers:
            self._readers[flags] = BatchReader(stored_columns(self.schema, flags))
        body = self._buffer.slice(position + HEADER_BYTES, header.length)
        try:
            return self._readers[flags].read(body, header.rows)
        except Malformed as error:
            raise self.damaged(position, str(error)) from error

    def batch(self, position: int, header: Header) -> pa.RecordBatch:
        """The records of a frame, including the columns that were left out."""
        return completed(self.stored(position, header), self.schema)

    def offsets(self, header: Header, batch: pa.RecordBatch) -> np.ndarray:
        if header.flags & SPARSE:
            return self._sparse_offsets(header, batch)
        return np.arange(header.base_offset, header.base_offset + header.rows, dtype=np.int64)

    def _sparse_offsets(self, header: Header, batch: pa.RecordBatch) -> np.ndarray:
        place = batch.schema.get_field_index(OFFSET_COLUMN)
        column = None if place < 0 else batch.column(place)
        if column is None or column.null_count:
            raise self.damaged(0, f"the records from offset {header.base_offset} on have no offsets")
        offsets: np.ndarray = column.to_numpy()
        inside = header.base_offset <= offsets[0] and offsets[-1] < header.next_offset
        if not inside or (offsets[1:] <= offsets[:-1]).any():
            raise self.damaged(0, f"the offsets of the records from {header.base_offset} on are out of order")
        return offsets

    def position_of(self, offset: int, limit: int) -> int:
        """Where to start scanning for `offset`: at its frame or a little before."""
        return self._from_index(lambda index: index.at_or_before(offset, limit), limit)

    def position_of_time(self, timestamp: int, limit: int) -> int:
        """Where to start scanning for the first record at or after `timestamp`."""
        return self._from_index(lambda index: index.before_time(timestamp, limit), limit)

    def _from_index(self, search: Callable[[Index], Entry | None], limit: int) -> int:
        for index in (self._loaded_index, self._rebuilt_index):
            try:
                entry = search(index(limit))
            except DamagedIndex:
                continue
            if entry is None:
                return self.first_position
            if self._begins_at(entry, limit):
                return entry.position
        return self.first_position

    def _begins_at(self, entry: Entry, limit: int) -> bool:
        """Whether there is a frame where the index says: the entry may be left over from truncated records."""
        view = self._mapped(limit)
        if not self.first_position <= entry.position < len(view):
            return False
        found = frame.header_at(view, entry.position, min(limit, len(view)))
        return found is not None and found.base_offset == entry.offset

    def _loaded_index(self, limit: int) -> Index:
        # Entries missing at the end only cost a longer scan; only an index without any is worth rebuilding.
        self._index = Index.load(self.name.index_path, limit)
        return self._index if len(self._index) or limit == self.first_position else self._rebuilt_index(limit)

    def _rebuilt_index(self, limit: int) -> Index:
        return Index(rebuild_index(self, limit))

    def max_timestamp(self, limit: int) -> int:
        """The newest timestamp of the records below position `limit`."""
        try:
            return self.tail(self._loaded_index(limit), limit).newest
        except DamagedIndex:
            return self.tail(self._rebuilt_index(limit), limit).newest

    def tail(self, index: Index, limit: int) -> IndexTail:
        """The state of an index, completed with the frames it has no entry for."""
        count = index.count_before(limit)
        last = index.entry(count - 1) if count else None
        if last is not None and not self._begins_at(last, limit):
            raise DamagedIndex
        newest = last.max_timestamp if last else NO_TIMESTAMP
        for _, header in self.frames(last.position if last else self.first_position, limit):
            newest = max(newest, header.max_timestamp)
        return IndexTail(count, last.position if last else -INTERVAL_BYTES, newest)

    def damaged(self, position: int, what: str) -> DamagedLog:
        return DamagedLog(
            f"acknowledged records are damaged: {what}",
            where=f"{self.place}, byte {position}",
            next_step="restore the file from a copy, or run 'millstream topics repair' to keep what is intact",
        )


def rebuild_index(segment: Segment, limit: int) -> bytes:
    """Rebuilds the index of a segment from its frames; it ends before a damaged one, which readers will find."""
    entries, indexed_to, newest = [], -INTERVAL_BYTES, NO_TIMESTAMP
    for position, header in segment.intact_frames(segment.first_position, limit):
        newest = max(newest, header.max_timestamp)
        if position - indexed_to >= INTERVAL_BYTES:
            entries.append(pack(Entry(header.base_offset, position, newest)))
            indexed_to = position
    return b"".join(entries)


class IndexWriter:
    """Appends entries to the index of the active segment, under the partition's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage_errors(path):
            self._fd = open_alike(path, os.O_RDWR | os.O_CREAT)

    def resume(self, segment: Segment, limit: int) -> None:
        """Continues after what is indexed below position `limit`; rebuilds the index if it is damaged."""
        index = Index(os.pread(self._fd, bytes_max(limit), 0))
        try:
            self._count, self._indexed_to, self._newest = segment.tail(index, limit)
        except DamagedIndex:
            content = rebuild_index(segment, limit)
            os.pwrite(self._fd, content, 0)
            self._count, self._indexed_to, self._newest = segment.tail(Index(content), limit)
        os.ftruncate(self._fd, self._count * ENTRY.size)

    def note(self, offset: int, position: int, max_timestamp: int) -> None:
        self._newest = max(self._newest, max_timestamp)
        if position - self._indexed_to < INTERVAL_BYTES:
            return
        at = self._count * ENTRY.size
        try:
            os.ftruncate(self._fd, at)  # another process may have indexed records there that were truncated since
            whole = os.pwrite(self._fd, pack(Entry(offset, position, self._newest)), at) == ENTRY.size
        except OSError:  # an index may lack entries; only the records matter
            return
        if whole:
            self._count += 1
            self._indexed_to = position

    def close(self) -> None:
        os.close(self._fd)
