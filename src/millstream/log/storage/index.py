"""An index entry maps `offset` to the `position` of its frame, with the newest timestamp up to the frame's end.

Sparse: a frame has an entry only if some kilobytes have passed since the last one. Every entry has its own checksum,
verified when a search reads it; an index that is short, torn or wrong is never trusted and never needed: it can be
rebuilt from its segment.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from millstream.private_files import open_private

ENTRY = struct.Struct("<qqqI4x")
INTERVAL_BYTES = 4096


class Entry(NamedTuple):
    offset: int
    position: int
    max_timestamp: int


class DamagedIndex(Exception):
    """An entry does not match its checksum; the caller scans the segment instead."""


def bytes_max(limit: int) -> int:
    """The largest plausible size: two entries are never closer together than the interval."""
    return (limit // INTERVAL_BYTES + 2) * ENTRY.size


def pack(entry: Entry) -> bytes:
    return ENTRY.pack(*entry, crc32c(struct.pack("<qqq", *entry)))


class Index:
    """A search over the entries of one segment, as of when it was loaded."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._count = len(content) // ENTRY.size

    @classmethod
    def load(cls, path: Path, limit: int) -> Index:
        """The entries that can lie below position `limit`; none if the path is not a regular file."""
        try:
            fd = open_private(path, os.O_RDONLY)
        except OSError:
            return cls(b"")
        try:
            return cls(os.pread(fd, bytes_max(limit), 0))
        finally:
            os.close(fd)

    def __len__(self) -> int:
        return self._count

    def entry(self, number: int) -> Entry:
        offset, position, timestamp, crc = ENTRY.unpack_from(self._content, number * ENTRY.size)
        if crc32c(self._content[number * ENTRY.size : number * ENTRY.size + 24]) != crc:
            raise DamagedIndex
        return Entry(offset, position, timestamp)

    def at_or_before(self, offset: int, limit: int) -> Entry | None:
        """The last entry below position `limit` whose frame starts at or before `offset`."""
        number = self._first(lambda entry: entry.offset > offset or entry.position >= limit)
        return self.entry(number - 1) if number else None

    def before_time(self, timestamp: int, limit: int) -> Entry | None:
        """The last entry below `limit` before which every record is older than `timestamp`."""
        number = self._first(lambda entry: entry.max_timestamp >= timestamp or entry.position >= limit)
        return self.entry(number - 1) if number else None

    def count_before(self, limit: int) -> int:
        """How many entries lie below position `limit`."""
        return self._first(lambda entry: entry.position >= limit)

    def _first(self, holds: Callable[[Entry], bool]) -> int:
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if holds(self.entry(middle)):
                high = middle
            else:
                low = middle + 1
        return low
